//! Decoded columns of one version of a file, kept in the memory of the node for all queries over the same near memory.
//!
//! ```text
//! file (compressed) ── read ──▶ stored bytes ── decode ──▶ decoded columns
//!                                    └───────── one budget, one eviction ─────────┘
//! ```
//!
//! The unit is the column of a row group, as the type of the table. A column is kept once decoding it again has cost as much time
//! as keeping it costs, so at its second use or later: a column that is needed once costs nothing, and one that is needed often
//! at most twice what it would have cost if that had been known. If the budget has no free room, it takes the place of entries
//! that were not hit lately, and only if it saves at least as much time per byte as stored bytes. The policy of the cache is the
//! same for both: a hit survives as many rounds of the eviction as it saves times more time per byte.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use memferry::cache::{Cache, Keep, MadeRegion};
use memferry::topology::NodeId;

use super::rates::Rates;
use crate::data::{KeptArray, NotKept};

/// The decoded columns of a file.
#[derive(Debug)]
pub(crate) struct DecodedColumns {
    cache: Cache,
    near: NodeId,
    budget_bytes: u64,
    made: Arc<MadeRegion>,
    rates: Arc<Rates>,
    columns: Mutex<HashMap<Key, Column>>,
}

/// A column of a row group. Tables may give the same column different types.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    group: usize,
    name: String,
    data_type: DataType,
}

#[derive(Debug, Default)]
struct Column {
    /// Scans that needed it, since it was evicted.
    uses: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Absent,
    /// A scan is keeping it; others do not.
    Arriving,
    /// Or evicted since.
    Kept(Arc<KeptArray>),
}

/// Columns of a row group.
#[derive(Debug)]
pub(super) struct Found {
    /// In the order of the fields; `None` if it must be decoded.
    pub(super) arrays: Vec<Option<ArrayRef>>,
    /// Columns that were kept and are evicted.
    pub(super) evicted_count: usize,
    /// Positions of the missing ones that were needed so often that keeping them pays.
    pub(super) wanted: Vec<usize>,
}

impl Found {
    /// All columns, if none is missing.
    pub(super) fn all(&self) -> Option<Vec<ArrayRef>> {
        self.arrays.iter().cloned().collect()
    }

    /// Positions of the columns that must be decoded.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.arrays.len()).filter(|&position| self.arrays[position].is_none()).collect()
    }
}

impl DecodedColumns {
    pub(super) fn new(cache: &Cache, near: NodeId, budget_bytes: u64, rates: &Arc<Rates>) -> Self {
        Self {
            cache: cache.clone(),
            near,
            budget_bytes,
            made: Arc::new(cache.register_made()),
            rates: Arc::clone(rates),
            columns: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Column>> {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The columns `fields` of a row group for a scan that needs all of them. Counts a use of each. `decodes_early`: decoding
    /// takes time of idle cores, so that columns are kept at their first use.
    pub(super) fn find(&self, group: usize, fields: &[FieldRef], decodes_early: bool) -> Found {
        let mut found = Found { arrays: Vec::with_capacity(fields.len()), evicted_count: 0, wanted: vec![] };
        let uses_min = if decodes_early { 1 } else { self.rates.uses_min() };
        let mut columns = self.lock();
        for (position, field) in fields.iter().enumerate() {
            let column = columns.entry(Key::of(group, field)).or_default();
            column.uses = column.uses.saturating_add(1);
            let array = match &column.state {
                State::Kept(kept) => kept.array(&self.cache),
                State::Absent | State::Arriving => None,
            };
            if array.is_none() {
                if matches!(column.state, State::Kept(_)) {
                    found.evicted_count += 1;
                    // It was kept in vain: it must earn its place again.
                    *column = Column { uses: 1, state: State::Absent };
                }
                if column.uses >= uses_min && matches!(column.state, State::Absent) {
                    found.wanted.push(position);
                }
            }
            found.arrays.push(array);
        }
        found
    }

    /// Whether all of them were kept, as far as scans have noticed. Not counted as a use.
    pub(super) fn has_all(&self, group: usize, fields: &[FieldRef]) -> bool {
        let columns = self.lock();
        let is_kept = |field| {
            columns.get(&Key::of(group, field)).is_some_and(|column| matches!(column.state, State::Kept(_)))
        };
        fields.iter().all(is_kept)
    }

    /// How to keep the wanted columns of a row group, of about `size_bytes`; `None` if they are not worth it now.
    pub(super) fn admit(&self, size_bytes: u64) -> Option<Keep> {
        let rounds = self.rates.rounds();
        let how = |evicts| Keep { node: self.near, rounds, evicts };
        let nodes = self.cache.stats().nodes;
        let used_bytes = nodes
            .iter()
            .find(|usage| usage.node == self.near)
            .map_or(u64::MAX, |usage| usage.used_bytes as u64);
        if used_bytes.saturating_add(size_bytes) <= self.budget_bytes {
            return Some(how(false));
        }
        (rounds > 0 && size_bytes <= self.budget_bytes).then(|| how(true))
    }

    /// Keeps a column of a row group. Returns its bytes: 0 if another scan has kept it, or is about to.
    pub(super) fn keep(
        &self,
        group: usize,
        field: &FieldRef,
        pieces: &[ArrayRef],
        how: Keep,
    ) -> Result<u64, NotKept> {
        match &mut self.lock().entry(Key::of(group, field)).or_default().state {
            State::Kept(_) | State::Arriving => return Ok(0),
            state @ State::Absent => *state = State::Arriving,
        }
        let started = Instant::now();
        let kept = KeptArray::keep(&self.cache, &self.made, pieces, how);
        let time = started.elapsed();
        let mut columns = self.lock();
        let column = columns.entry(Key::of(group, field)).or_default();
        match kept {
            Ok(kept) => {
                let size_bytes = kept.size_bytes() as u64;
                column.state = State::Kept(Arc::new(kept));
                self.rates.kept(time, size_bytes);
                Ok(size_bytes)
            }
            Err(error) => {
                column.state = State::Absent;
                Err(error)
            }
        }
    }

    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }
}

impl Key {
    fn of(group: usize, field: &FieldRef) -> Self {
        Self { group, name: field.name().clone(), data_type: field.data_type().clone() }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::Field;
    use memferry::mover::Mover;
    use memferry::topology::Machine;

    use super::*;

    #[test]
    fn columns_are_kept_at_the_second_use_and_evicted_ones_begin_again() {
        const BUDGET_BYTES: usize = 1 << 20;
        let machine = Arc::new(Machine::discover().unwrap());
        let node = machine.nodes()[0].id;
        let mover = Mover::builder(machine).build().unwrap();
        let cache = Cache::builder(mover).budget(node, BUDGET_BYTES).build().unwrap();
        let columns = DecodedColumns::new(&cache, node, BUDGET_BYTES as u64, &Arc::default());
        let fields = ["a", "b"].map(|name| Arc::new(Field::new(name, DataType::Int64, false)));
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let find = |fields: &[FieldRef]| {
            let found = columns.find(0, fields, false);
            (found.missing(), found.wanted, found.evicted_count)
        };
        assert_eq!(find(&fields[..1]), (vec![0], vec![], 0), "the first use");
        assert_eq!(find(&fields), (vec![0, 1], vec![0], 0), "the second use of a, the first of b");
        let how = columns.admit(8000).expect("there is room");
        let keep = || columns.keep(0, &fields[0], std::slice::from_ref(&values), how).unwrap();
        assert_eq!(keep(), 8000);
        assert_eq!(keep(), 0, "it is kept already");
        assert_eq!(find(&fields), (vec![1], vec![1], 0));
        cache.clear();
        assert_eq!(find(&fields[..1]), (vec![0], vec![], 1), "it must earn its place again");
        assert_eq!(find(&fields[..1]), (vec![0], vec![0], 0));
        // Another row group has uses of its own.
        assert_eq!(columns.find(1, &fields, false).wanted, Vec::<usize>::new());
        assert_eq!(columns.find(2, &fields, true).wanted, [0, 1], "cores are idle");
    }
}
