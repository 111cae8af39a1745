//! Bringing pages into a range, as long as there is room.
//!
//! Step by step, so that neither time nor memory goes by the addresses, of which there may be many more than any
//! machine has memory:
//!
//! ```text
//! add up what each step needs, of the machine and of each node    too much: NoRoom, before anything came
//! each step: still room? populate; of a bound node, look where its pages are, and move those elsewhere, until all are
//! there and where they shall be
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::binding::{Pattern, Reach};
use super::moving::bring;
use super::reservation::{Page, Reservation, STEP_BYTES};
use super::syscall::{self, HUGE_PAGE_BYTES, page_bytes};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, NodeId};

/// So often pages are moved, or populated again that are gone. One leads to the other: since Linux 6.12 a huge page
/// that is split, as one is that has to be moved where none is free, loses its pages that are zero, and fresh ones all
/// are (`try_to_map_unused_to_zeropage` in mm/migrate.c).
const ROUNDS_MAX: usize = 8;

/// What pages take that are to come, or to be moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// Of the machine: what is moved is in it already.
    coming_bytes: usize,
    /// Of each node.
    shares: BTreeMap<NodeId, usize>,
}

impl Need {
    /// `node` is where, if that is known.
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

    /// Pages come and go while they are counted, so what is left may seem less than nothing.
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

/// The pages of a step that are to come, or to be moved, as `binding` wants.
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
        // A huge page comes only where there is none yet.
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
    /// Brings pages into a page-aligned range that has none, where the binding says; on an error none of them stay, or
    /// it is [`MemoryError::NotGivenBack`].
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

    /// Brings the pages that are missing, where the binding says, and moves those of a bound node to it. What
    /// is there keeps its content, also on an error.
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

    /// Brings the missing pages of a range, which are all where it `is_new`. On an error those that came stay.
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
            // Before it is added up, so that the error is about all of it.
            let share = binding.bound_node().map(|node| (node, range.len()));
            room::check(Path::new("/"), machine, &reach, range.len(), share.as_slice())?;
        }
        let mut need = add_up(machine, range, &reach, need_of)?;
        for step in steps(range) {
            let here = need_of(&step)?;
            if here == Need::default() {
                continue;
            }
            // The first has just been looked at.
            if step.start > range.start {
                need.check(machine, &reach)?;
            }
            // SAFETY: the caller's.
            unsafe { self.populate(&step)? };
            if let Some(node) = binding.bound_node().filter(|_| machine.node_count() > 1) {
                // SAFETY: the caller's.
                let pages_elsewhere_count = unsafe { self.settle(machine, &step, node)? };
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

    /// Sees to it that all pages of a range that has been populated are on `node`; how many are elsewhere.
    ///
    /// # Safety
    /// Nobody writes to the range before this returns.
    pub(super) unsafe fn settle(
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
            // The kernel reclaims page cache for a move, but not to satisfy a preference.
            let strays =
                bring(strays).map_err(|source| MemoryError::refused("move_pages", range.len(), source))?;
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

/// A range in pieces that are quickly gone through.
pub(super) fn steps(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(STEP_BYTES).map(move |start| start..end.min(start + STEP_BYTES))
}

/// What a range needs; an error as soon as there is no room for it.
pub(super) fn add_up(
    machine: &Machine,
    range: &Range<usize>,
    reach: &Reach,
    need_of: impl Fn(&Range<usize>) -> Result<Need, MemoryError>,
) -> Result<Need, MemoryError> {
    let mut need = Need::default();
    // Looking costs more than counting a step.
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
    fn a_bound_node_needs_room_for_what_comes_and_what_strays() {
        let there = [page(PAGES, A), page(3 * PAGES, B), page(4 * PAGES, B)];
        let need_of = |binding| need_of(0..8 * PAGES, &there, &binding, None);
        assert_eq!(need_of(Binding::Bind(A)), need(5, &[(A, 7)]));
        assert_eq!(need_of(Binding::Prefer(A)), need(5, &[]));
        assert_eq!(super::need_of(0..PAGES, &[page(0, A)], &Binding::Bind(A), None), Need::default());
    }

    /// Each node was asked for its share of whole huge pages, wherever the missing pages were: a small tail was refused
    /// for want of 2 MiB that it never takes.
    #[test]
    fn interleaving_needs_what_each_page_takes() {
        let huge = HUGE_PAGE_BYTES;
        let need_of = |step: Range<usize>, there: &[Page], comes_huge| {
            let pattern = Pattern::new(vec![(A, 1), (B, 1)], comes_huge);
            need_of(step, there, &Binding::Interleave([A, B].into()), Some(&pattern))
        };
        // Three huge pages, and a tail of three small ones.
        let all = 4 * huge..7 * huge + 3 * PAGES;
        assert_eq!(need_of(all.clone(), &[], true), need(1539, &[(A, 1024 + 2), (B, 512 + 1)]));
        assert_eq!(need_of(all, &[], false), need(1539, &[(A, 768 + 2), (B, 768 + 1)]));
        // Where there is a page already no huge one comes: only what is missing counts, on the node it comes from.
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

    /// Of addresses there may be more than anybody can go through.
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
