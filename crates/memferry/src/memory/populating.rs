//! Populating of ranges, with checks for room.
//!
//! It runs step by step, because a range may have many more addresses than a machine has memory:
//!
//! ```text
//! add up the need of each step, for the machine and each node    too much: NoRoom, before any page is populated
//! each step: check the room again; populate; for a bound node, query its pages, and move those elsewhere, until all
//! are on the node
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::binding::{Pattern, Reach};
use super::moving::move_pages;
use super::reservation::{Page, Reservation, STEP_BYTES};
use super::syscall::{self, HUGE_PAGE_BYTES, page_bytes};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, NodeId};

/// Rounds of moving pages and of populating lost ones again. A move may lose pages: it splits a huge page if the target
/// has no free one, and since Linux 6.12 a split drops zero pages, which all fresh ones are
/// (`try_to_map_unused_to_zeropage` in mm/migrate.c).
const ROUNDS_MAX: usize = 8;

/// The memory that pages to be populated or moved need.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// In the machine: moved pages count in it already.
    coming_bytes: usize,
    /// On each node.
    shares: BTreeMap<NodeId, usize>,
}

impl Need {
    /// Adds pages to be populated, on `node` if known.
    fn come(&mut self, node: Option<NodeId>, bytes: usize) {
        self.coming_bytes += bytes;
        if let Some(node) = node {
            self.arrive(node, bytes);
        }
    }

    pub(super) fn arrive(&mut self, node: NodeId, bytes: usize) {
        if bytes > 0 {
            *self.shares.entry(node).or_default() += bytes;
        }
    }

    fn add(&mut self, other: Need) {
        self.coming_bytes += other.coming_bytes;
        other.shares.into_iter().for_each(|(node, bytes)| self.arrive(node, bytes));
    }

    /// Subtracts with saturation: pages may appear or vanish while they are counted.
    fn subtract(&mut self, other: &Need) {
        self.coming_bytes = self.coming_bytes.saturating_sub(other.coming_bytes);
        for (node, bytes) in &other.shares {
            let share = self.shares.entry(*node).or_default();
            *share = share.saturating_sub(*bytes);
        }
    }

    fn bytes(&self) -> usize {
        self.coming_bytes.max(self.shares.values().sum())
    }

    fn check(&self, machine: &Machine, reach: &Reach) -> Result<(), MemoryError> {
        let shares: Vec<_> = self.shares.iter().map(|(&node, &bytes)| (node, bytes)).collect();
        room::check(Path::new("/"), machine, reach, self.coming_bytes, &shares)
    }
}

/// The need of a step for the pages that `binding` populates or moves.
fn need_of(step: Range<usize>, there: &[Page], binding: &Binding, pattern: Option<&Pattern>) -> Need {
    let mut need = Need::default();
    let Some(pattern) = pattern else {
        let node = binding.bound_node();
        need.come(node, step.len() - there.len() * page_bytes());
        if let Some(node) = node {
            let strays_count = there.iter().filter(|page| page.node != node).count();
            need.arrive(node, strays_count * page_bytes());
        }
        return need;
    };
    let mut there = there.iter().peekable();
    let mut address = step.start;
    while address < step.end {
        let unit_end = (address + 1).next_multiple_of(HUGE_PAGE_BYTES);
        let is_whole = address.is_multiple_of(HUGE_PAGE_BYTES) && unit_end <= step.end;
        let is_empty = there.peek().is_none_or(|page| page.address.addr() >= unit_end);
        // Only an empty unit gets a huge page.
        if pattern.comes_huge && is_whole && is_empty {
            need.come(Some(pattern.node_at(address, true)), HUGE_PAGE_BYTES);
            address = unit_end;
            continue;
        }
        while address < unit_end.min(step.end) {
            if there.next_if(|page| page.address.addr() == address).is_none() {
                need.come(Some(pattern.node_at(address, false)), page_bytes());
            }
            address += page_bytes();
        }
    }
    need
}

impl Reservation {
    /// Populates an empty page-aligned range by the binding. On an error its pages are freed, or it is
    /// [`MemoryError::NotGivenBack`].
    ///
    /// # Safety
    /// Nobody uses the range before this returns.
    pub(super) unsafe fn commit(&self, machine: &Machine, range: Range<usize>) -> Result<(), MemoryError> {
        // SAFETY: by the caller's promise nobody writes to the range.
        let Err(error) = (unsafe { self.fill(machine, &range, true) }) else { return Ok(()) };
        // SAFETY: by the caller's promise nobody uses the range.
        match unsafe { self.discard(range) } {
            Ok(()) => Err(error),
            Err(source) => Err(MemoryError::NotGivenBack { error: error.into(), source }),
        }
    }

    /// Populates the missing pages by the binding, and moves pages of a bound mapping to its node. Existing pages keep
    /// their content, also on an error.
    ///
    /// # Safety
    /// Nobody writes to the memory before this returns.
    pub(super) unsafe fn complete(&self, machine: &Machine) -> Result<(), MemoryError> {
        self.check_machine(machine)?;
        // SAFETY: the caller's.
        match unsafe { self.fill(machine, &(0..self.size_bytes()), false) } {
            Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count }) => {
                let placement = self.placement(machine)?;
                Err(MemoryError::NotMoved { node, pages_elsewhere_count, pages_count, placement })
            }
            outcome => outcome,
        }
    }

    /// Populates the missing pages of a range; all are missing if it `is_new`. On an error populated pages stay.
    ///
    /// # Safety
    /// Nobody writes to the range before this returns.
    pub(super) unsafe fn fill(
        &self,
        machine: &Machine,
        range: &Range<usize>,
        is_new: bool,
    ) -> Result<(), MemoryError> {
        let binding = self.in_effect();
        let reach = binding.reach();
        let pattern = self.pattern(machine, binding)?;
        let need_of = |step: &Range<usize>| {
            let there = if is_new { Vec::new() } else { self.look(machine, step)? };
            Ok(need_of(self.addresses(step), &there, binding, pattern.as_ref()))
        };
        if is_new && range.len() > STEP_BYTES {
            // Checked first, so that the error names the whole size.
            let share = binding.bound_node().map(|node| (node, range.len()));
            room::check(Path::new("/"), machine, &reach, range.len(), share.as_slice())?;
        }
        let mut need = add_up(machine, range, &reach, need_of)?;
        for step in steps(range) {
            let here = need_of(&step)?;
            if here == Need::default() {
                continue;
            }
            // The first step has just been checked.
            if step.start > range.start {
                need.check(machine, &reach)?;
            }
            // SAFETY: the caller's.
            unsafe { self.populate(&step)? };
            if let Some(node) = binding.bound_node().filter(|_| machine.node_count() > 1) {
                // SAFETY: the caller's.
                let pages_elsewhere_count = unsafe { self.gather(machine, &step, node)? };
                if pages_elsewhere_count > 0 {
                    let pages_count = range.len() / page_bytes();
                    return Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count });
                }
            }
            need.subtract(&here);
        }
        Ok(())
    }

    /// # Safety
    /// Nobody writes to the range before this returns.
    unsafe fn populate(&self, range: &Range<usize>) -> Result<(), MemoryError> {
        // SAFETY: the range is inside the mapping, and by the caller's promise nobody writes to it.
        unsafe { syscall::populate(self.at(range), range.len()) }
            .map_err(|source| MemoryError::refused("madvise", range.len(), source))
    }

    /// Moves all pages of a populated range to `node`. Returns the number of pages elsewhere.
    ///
    /// # Safety
    /// Nobody writes to the range before this returns.
    pub(super) unsafe fn gather(
        &self,
        machine: &Machine,
        range: &Range<usize>,
        node: NodeId,
    ) -> Result<usize, MemoryError> {
        let pages_count = range.len() / page_bytes();
        let mut rounds_count = 0;
        loop {
            let there = self.look(machine, range)?;
            let strays: Vec<_> =
                there.iter().filter(|page| page.node != node).map(|page| (page.address, node)).collect();
            let pages_absent_count = pages_count.saturating_sub(there.len());
            if strays.is_empty() && pages_absent_count == 0 {
                return Ok(0);
            }
            if rounds_count == ROUNDS_MAX {
                return match pages_absent_count {
                    0 => Ok(strays.len()),
                    _ => Err(MemoryError::Reclaimed { pages_absent_count, pages_count }),
                };
            }
            rounds_count += 1;
            // The kernel reclaims page cache for a move, but not for a preference.
            let strays = move_pages(strays)
                .map_err(|source| MemoryError::refused("move_pages", range.len(), source))?;
            if !strays.is_empty() {
                return Ok(strays.len());
            }
            if pages_absent_count > 0 {
                // SAFETY: the caller's.
                unsafe { self.populate(range)? };
            }
        }
    }
}

/// The steps of a range.
pub(super) fn steps(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(STEP_BYTES).map(move |start| start..end.min(start + STEP_BYTES))
}

/// The need of a range; fails as soon as there is no room for it.
pub(super) fn add_up(
    machine: &Machine,
    range: &Range<usize>,
    reach: &Reach,
    need_of: impl Fn(&Range<usize>) -> Result<Need, MemoryError>,
) -> Result<Need, MemoryError> {
    let mut need = Need::default();
    // A check costs more than counting a step.
    let mut checked_bytes = STEP_BYTES;
    for step in steps(range) {
        need.add(need_of(&step)?);
        if need.bytes() >= 2 * checked_bytes {
            checked_bytes = need.bytes();
            need.check(machine, reach)?;
        }
    }
    if need.bytes() > 0 {
        need.check(machine, reach)?;
    }
    Ok(need)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 4096;
    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(3);

    fn page(address: usize, node: NodeId) -> Page {
        Page { address: std::ptr::without_provenance(address), node, is_huge: false }
    }

    fn need(coming_pages: usize, shares: &[(NodeId, usize)]) -> Need {
        let shares = shares.iter().map(|&(node, pages)| (node, pages * PAGES)).collect();
        Need { coming_bytes: coming_pages * PAGES, shares }
    }

    #[test]
    fn a_bound_node_needs_room_for_new_and_for_moved_pages() {
        let there = [page(PAGES, A), page(3 * PAGES, B), page(4 * PAGES, B)];
        let need_of = |binding| need_of(0..8 * PAGES, &there, &binding, None);
        assert_eq!(need_of(Binding::Bind(A)), need(5, &[(A, 7)]));
        assert_eq!(need_of(Binding::Prefer(A)), need(5, &[]));
        assert_eq!(super::need_of(0..PAGES, &[page(0, A)], &Binding::Bind(A), None), Need::default());
    }

    /// Regression: each node needed its share of whole huge pages, wherever the missing pages were. A small tail was refused
    /// for 2 MiB that it never uses.
    #[test]
    fn interleaving_needs_memory_by_page() {
        let huge = HUGE_PAGE_BYTES;
        let need_of = |step: Range<usize>, there: &[Page], comes_huge| {
            let pattern = Pattern::new(vec![(A, 1), (B, 1)], comes_huge);
            need_of(step, there, &Binding::Interleave([A, B].into()), Some(&pattern))
        };
        // Three huge pages, and a tail of three small ones.
        let all = 4 * huge..7 * huge + 3 * PAGES;
        assert_eq!(need_of(all.clone(), &[], true), need(1539, &[(A, 1024 + 2), (B, 512 + 1)]));
        assert_eq!(need_of(all, &[], false), need(1539, &[(A, 768 + 2), (B, 768 + 1)]));
        // A unit with a page gets no huge page: only missing pages count, on their nodes.
        let there = [page(4 * huge, A), page(4 * huge + 2 * PAGES, A)];
        assert_eq!(need_of(4 * huge..5 * huge, &there, true), need(510, &[(A, 254), (B, 256)]));
    }

    #[test]
    fn needs_add_up() {
        let mut sum = need(5, &[(A, 7)]);
        sum.add(need(1, &[(B, 1)]));
        assert_eq!(sum, need(6, &[(A, 7), (B, 1)]));
        assert_eq!(sum.bytes(), 8 * PAGES);
        sum.subtract(&need(9, &[(A, 3)]));
        assert_eq!(sum, need(0, &[(A, 4), (B, 1)]));
    }

    /// A range may have too many addresses to visit all.
    #[test]
    fn adding_up_stops_early() {
        let machine = Machine::discover().unwrap();
        let looks_count = std::cell::Cell::new(0);
        let need_of = |step: &Range<usize>| {
            looks_count.set(looks_count.get() + 1);
            Ok(Need { coming_bytes: step.len(), shares: BTreeMap::new() })
        };
        let machine_bytes: u64 = machine.nodes().iter().filter_map(|node| node.memory_bytes).sum();
        let error = add_up(&machine, &(0..1 << 46), &Reach::default(), need_of).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
        assert!(looks_count.get() <= 2 * machine_bytes as usize / STEP_BYTES + 2, "{}", looks_count.get());
    }
}
