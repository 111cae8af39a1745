//! The two columns of the query, and the computations on them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry::memory::{Binding, Mapping, MemoryError};
use memferry::topology::{Machine, NodeId};

use crate::harness::Random;

/// Values of both columns are below this: small, so that no sum overflows.
const VALUES_COUNT: usize = 100;

/// Rows with a below this pass: half of them. All of b is read in any case.
const LIMIT: u64 = VALUES_COUNT as u64 / 2;

/// Size of a value.
const VALUE_BYTES: usize = size_of::<u64>();

/// Rows per word of a mask.
const MASK_ROWS: usize = 64;

/// Bytes of a column per word of a mask.
pub(super) const MASK_BYTES: usize = MASK_ROWS * VALUE_BYTES;

/// Both columns, on their nodes.
pub(super) struct Columns {
    pub(super) a: Arc<Mapping>,
    pub(super) b: Arc<Mapping>,
}

impl Columns {
    /// Columns of `size_bytes` each on these nodes, filled with reproducible values.
    pub(super) fn new(
        machine: &Machine,
        nodes: (NodeId, NodeId),
        size_bytes: usize,
    ) -> Result<Columns, MemoryError> {
        let column = |node, seed: u64| -> Result<Arc<Mapping>, MemoryError> {
            let mut column = Mapping::new(machine, size_bytes, Binding::Bind(node))?;
            let mut random = Random(seed);
            for value in column.chunks_exact_mut(VALUE_BYTES) {
                value.copy_from_slice(&(random.below(VALUES_COUNT) as u64).to_le_bytes());
            }
            Ok(Arc::new(column))
        };
        Ok(Columns { a: column(nodes.0, 1)?, b: column(nodes.1, 2)? })
    }

    /// The expected answer, computed row by row without masks, threads, chunks or copies.
    pub(super) fn answer(&self) -> u64 {
        let rows = values(&self.a).zip(values(&self.b));
        rows.filter(|(a, _)| *a < LIMIT).map(|(_, b)| b).sum()
    }
}

fn values(column: &[u8]) -> impl Iterator<Item = u64> {
    column.as_chunks().0.iter().map(|value| u64::from_le_bytes(*value))
}

/// SCAN_a: marks the rows of this part of a that pass. It scans whole words of masks only.
pub(super) fn scan(a: &[u8], masks: &[AtomicU64]) {
    for (rows, mask) in a.as_chunks::<MASK_BYTES>().0.iter().zip(masks) {
        let bits = values(rows).zip(0..).fold(0, |bits, (a, row)| bits | u64::from(a < LIMIT) << row);
        // ORDERING: Relaxed, no partner: the group's barrier orders this store before the loads in `aggregate`.
        mask.store(bits, Ordering::Relaxed);
    }
}

/// AGGREGATE: the sum of the rows of this part of b that pass, in whole words of masks as in [`scan`].
pub(super) fn aggregate(b: &[u8], masks: &[AtomicU64]) -> u64 {
    let mut sum = 0_u64;
    for (rows, mask) in b.as_chunks::<MASK_BYTES>().0.iter().zip(masks) {
        // ORDERING: Relaxed, no partner: see `scan`.
        let bits = mask.load(Ordering::Relaxed);
        // Without branches and overflow checks: as fast as memory.
        let passing = values(rows).zip(0..).map(|(b, row)| b & (bits >> row & 1).wrapping_neg());
        sum = passing.fold(sum, u64::wrapping_add);
    }
    black_box(sum)
}

/// Masks for a column of `column_bytes`, with every page touched.
pub(super) fn masks(column_bytes: usize) -> Vec<AtomicU64> {
    (0..column_bytes.div_ceil(MASK_BYTES)).map(|_| AtomicU64::new(u64::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_sum_to_the_answer() {
        let machine = Machine::discover().unwrap();
        let home = machine.nodes().iter().find(|node| node.has_memory()).unwrap().id;
        let columns = Columns::new(&machine, (home, home), 3 * 4096).unwrap();
        let all = masks(columns.a.len());
        // Rows that were not scanned pass.
        let everything = values(&columns.b).sum::<u64>();
        assert_eq!(aggregate(&columns.b, &all), everything);
        let mut sum = 0;
        for page in 0..3 {
            let (bytes, words) = (page * 4096..(page + 1) * 4096, page * 8..(page + 1) * 8);
            scan(&columns.a[bytes.clone()], &all[words.clone()]);
            sum += aggregate(&columns.b[bytes], &all[words]);
        }
        assert_eq!(sum, columns.answer());
        let share = sum as f64 / everything as f64;
        assert!((0.4..0.6).contains(&share), "half of the rows pass, not {share}");
    }
}
