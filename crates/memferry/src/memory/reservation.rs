//! Reservations: address ranges whose pages are populated and discarded.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::thread;

use super::binding::{Pattern, allowed_now};
use super::moving::BUSY_PAUSE;
use super::pagemap::{self, Run};
use super::placement::node_of;
use super::populating::steps;
use super::syscall::{self, HUGE_PAGE_BYTES, page_bytes};
use super::{Binding, HugePages, MemoryError, Placement};
use crate::topology::{Machine, NodeId};

/// Size after which populating checks the room again, because other threads and processes allocate too. Chosen so that
/// the check adds little: 0.2 ms to 10 ms for the pages, on a busy virtual machine.
pub(super) const STEP_BYTES: usize = 32 << 20;

/// Queries for pages that are in migration.
const LOOKS_MAX: usize = 4;

/// A page in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) address: *const u8,
    pub(super) node: NodeId,
    /// Whether it is a part of a huge page.
    pub(super) is_huge: bool,
}

/// Owned page-aligned addresses, all readable and writable. Committed parts have pages; page faults populate the others.
/// Unmapped on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    start: NonNull<u8>,
    /// Whole pages; 0 if nothing is mapped.
    size_bytes: usize,
    pub(super) binding: Binding,
    huge_pages: HugePages,
    /// Whether it was made for this machine; for another one pages have no node.
    is_bound: bool,
}

// SAFETY: it owns its memory, and no thread is special to a mapping.
unsafe impl Send for Reservation {}
// SAFETY: a shared reference gives out addresses only; `commit` and `discard` state their requirements.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `size_bytes`, rounded up to pages, without any page.
    pub(super) fn new(
        machine: &Machine,
        size_bytes: usize,
        binding: Binding,
        huge_pages: HugePages,
    ) -> Result<Reservation, MemoryError> {
        binding.check(machine, allowed_now(machine).as_ref())?;
        let rounded =
            size_bytes.checked_next_multiple_of(page_bytes()).filter(|&bytes| bytes <= isize::MAX as usize);
        let rounded = rounded
            .ok_or_else(|| MemoryError::refused("mmap", size_bytes, io::ErrorKind::OutOfMemory.into()))?;
        let start = match rounded {
            0 => NonNull::dangling(),
            _ => syscall::map(rounded, huge_pages.advice())
                .map_err(|source| MemoryError::refused("mmap", size_bytes, source))?,
        };
        let is_bound = machine.is_this_machine();
        let reservation = Reservation { start, size_bytes: rounded, binding, huge_pages, is_bound };
        if reservation.binding != Binding::Any {
            reservation.apply(machine, &reservation.binding)?;
        }
        reservation.make_usable()?;
        Ok(reservation)
    }

    fn make_usable(&self) -> Result<(), MemoryError> {
        if self.size_bytes == 0 {
            return Ok(());
        }
        let refused = |call| move |source| MemoryError::refused(call, self.size_bytes, source);
        // After mlockall(MCL_FUTURE) the kernel would populate all pages now, without a check for room. So pages are
        // locked as they are populated. SAFETY: the mapping is this value's own, and new.
        unsafe {
            if syscall::is_locked(self.start, self.size_bytes) {
                syscall::lock_as_pages_come(self.start, self.size_bytes).map_err(refused("mlock2"))?;
            }
            syscall::allow_access(self.start, self.size_bytes).map_err(refused("mprotect"))
        }
    }

    /// Fails if this was made for this machine and `machine` is another one, or the reverse.
    pub(super) fn check_machine(&self, machine: &Machine) -> Result<(), MemoryError> {
        if machine.is_this_machine() == self.is_bound {
            return Ok(());
        }
        Err(MemoryError::OtherMachine { machine: machine.name().to_owned() })
    }

    /// Sets the kernel's policy for pages that are populated later.
    pub(super) fn apply(&self, machine: &Machine, binding: &Binding) -> Result<(), MemoryError> {
        if !machine.is_this_machine() || self.size_bytes == 0 {
            return Ok(());
        }
        let policy = binding.policy();
        // SAFETY: the mapping is this value's own.
        match unsafe { syscall::set_policy(self.start, self.size_bytes, policy, &binding.nodes()) } {
            // Kernels without NUMA and some containers lack the call; with one node it is not needed.
            Err(source)
                if machine.node_count() < 2
                    && matches!(source.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) =>
            {
                Ok(())
            }
            answer => answer.map_err(|source| MemoryError::policy(policy, self.size_bytes, source)),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The interleaving pattern of a binding, if it has one and the machine has several nodes.
    pub(super) fn pattern(
        &self,
        machine: &Machine,
        binding: &Binding,
    ) -> Result<Option<Pattern>, MemoryError> {
        if !machine.is_this_machine() || machine.node_count() < 2 {
            return Ok(None);
        }
        let comes_huge = self.size_bytes >= HUGE_PAGE_BYTES && self.huge_pages.come(Path::new("/"));
        binding.pattern(machine, comes_huge)
    }

    /// Frees the pages of a page-aligned range.
    ///
    /// # Safety
    /// Nobody uses the range or relies on its content.
    pub(super) unsafe fn discard(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range is inside the mapping; the rest is the caller's promise.
        unsafe { syscall::discard(self.at(&range), range.len()) }
    }

    /// The binding in effect: memory for another machine is unbound here.
    pub(super) fn in_effect(&self) -> &Binding {
        if self.is_bound { &self.binding } else { &Binding::Any }
    }

    /// The pages of a page-aligned range, ascending. Empty on a machine with one node whose kernel does not tell.
    pub(super) fn look(&self, machine: &Machine, range: &Range<usize>) -> Result<Vec<Page>, MemoryError> {
        let mut looks_count = 1;
        loop {
            let (pages, missing_count) = self.look_once(machine, range)?;
            if missing_count == 0 || looks_count == LOOKS_MAX {
                return Ok(pages);
            }
            looks_count += 1;
            thread::sleep(BUSY_PAUSE);
        }
    }

    /// Pages, and the number of others that have content and are not in memory: in migration for a moment, or swapped out.
    fn look_once(&self, machine: &Machine, range: &Range<usize>) -> Result<(Vec<Page>, usize), MemoryError> {
        let start = self.at(range).as_ptr().cast_const();
        let Range { start: first, end } = self.addresses(range);
        // Before Linux 6.7 each page is queried, and huge pages are guessed.
        let scan = pagemap::scan(first..end).ok();
        let is_guess = scan.is_none();
        let runs = scan.unwrap_or_else(|| vec![Run { addresses: first..end, is_huge: false }]);
        let pages_of_run = |Run { addresses, is_huge }: Run| {
            let pages = addresses.step_by(page_bytes());
            pages.map(move |address| (start.wrapping_add(address - first), is_huge))
        };
        let candidates: Vec<(*const u8, bool)> = runs.into_iter().flat_map(pages_of_run).collect();
        let candidates_count = candidates.len();
        let nodes = match syscall::nodes_of(candidates.iter().map(|&(address, _)| address)) {
            Ok(nodes) => nodes,
            Err(_) if machine.node_count() < 2 => return Ok((Vec::new(), 0)),
            Err(source) => return Err(MemoryError::refused("move_pages", range.len(), source)),
        };
        let pages = candidates.into_iter().zip(nodes);
        let mut pages: Vec<_> = pages
            .filter_map(|((address, is_huge), at)| Some(Page { address, node: node_of(at)?, is_huge }))
            .collect();
        if !is_guess {
            let missing_count = candidates_count - pages.len();
            return Ok((pages, missing_count));
        }
        if self.size_bytes >= HUGE_PAGE_BYTES && self.huge_pages != HugePages::Never {
            for unit in pages.chunk_by_mut(|a, b| unit_of(a) == unit_of(b)) {
                let is_huge = unit.len() == HUGE_PAGE_BYTES / page_bytes()
                    && unit.iter().all(|page| page.node == unit[0].node);
                unit.iter_mut().for_each(|page| page.is_huge = is_huge);
            }
        }
        Ok((pages, 0))
    }

    /// The nodes of its pages.
    pub(super) fn placement(&self, machine: &Machine) -> Result<Placement, MemoryError> {
        let mut placement = Placement::default();
        for step in steps(&(0..self.size_bytes)) {
            let there = self.look(machine, &step)?;
            placement.add(None, step.len() / page_bytes() - there.len());
            there.iter().for_each(|page| placement.add(Some(page.node), 1));
        }
        Ok(placement)
    }

    pub(super) fn addresses(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.at(range).as_ptr().addr();
        start..start + range.len()
    }

    pub(super) fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(
            range.start <= range.end && range.end <= self.size_bytes,
            "{range:?} is outside the reservation"
        );
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.add(range.start) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every user of its addresses borrows or owns this value.
        unsafe { syscall::unmap(self.start, self.size_bytes) };
    }
}

/// The number of the huge-page unit of a page.
fn unit_of(page: &Page) -> usize {
    page.address.addr() / HUGE_PAGE_BYTES
}

/// The start of every page that a range touches.
pub(super) fn pages_of(
    start: *const u8,
    size_bytes: usize,
) -> impl Iterator<Item = *const u8> + Clone + use<> {
    let before_bytes = start.addr() % page_bytes();
    let touched_bytes = if size_bytes == 0 { 0 } else { before_bytes + size_bytes };
    (0..touched_bytes)
        .step_by(page_bytes())
        .map(move |offset| start.wrapping_sub(before_bytes).wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;
    use crate::memory::syscall::Policy;
    use crate::topology::NodeSet;

    fn eight_pages(machine: &Machine) -> Reservation {
        Reservation::new(machine, 8 * page_bytes(), Binding::Any, HugePages::Never).unwrap()
    }

    /// Tests `commit` for several nodes on any machine. Regression: pages that had vanished meanwhile counted as pages on
    /// another node, and the request failed instead of being retried.
    #[test]
    fn lost_pages_are_populated_again() {
        let machine = Machine::discover().unwrap();
        let pages = eight_pages(&machine);
        let all = 0..pages.size_bytes();
        // SAFETY: nobody else uses the reservation.
        unsafe { pages.commit(&machine, all.clone()).unwrap() };
        let there = pages.look(&machine, &all).unwrap();
        let Some(Page { node, .. }) = there.first().copied() else {
            return skip(Needs::Kernel("move_pages"), "it does not tell where pages are");
        };
        assert_eq!(there.len(), 8);
        // SAFETY: as above.
        let gather = |node| unsafe { pages.gather(&machine, &all, node) };
        assert_eq!(gather(node).unwrap(), 0);
        let nowhere = NodeId(machine.nodes().last().unwrap().id.0 + 1);
        let error = gather(nowhere).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { call: "move_pages", .. }), "{error:?}");
        // SAFETY: as above.
        unsafe { pages.discard(page_bytes()..3 * page_bytes()).unwrap() };
        assert_eq!(pages.look(&machine, &all).unwrap().len(), 6);
        assert_eq!(gather(node).unwrap(), 0);
        assert_eq!(pages.look(&machine, &all).unwrap(), there);
    }

    /// With 4 GiB of addresses for three pages: cost must not depend on the addresses.
    #[test]
    fn huge_and_small_pages_are_told_apart() {
        let machine = Machine::discover().unwrap();
        let pages = Reservation::new(&machine, 4 << 30, Binding::Any, HugePages::Advised).unwrap();
        let [small, huge] = [0..HUGE_PAGE_BYTES, HUGE_PAGE_BYTES..2 * HUGE_PAGE_BYTES];
        // SAFETY: nobody else uses the reservation.
        unsafe {
            // A page table, which excludes a huge page.
            libc::madvise(pages.start.as_ptr().cast(), small.len(), libc::MADV_NOHUGEPAGE);
            pages.commit(&machine, small.start..page_bytes()).unwrap();
            pages.commit(&machine, huge.clone()).unwrap();
        }
        let there = pages.look(&machine, &(0..2 * HUGE_PAGE_BYTES)).unwrap();
        if there.is_empty() || !HugePages::Advised.come(Path::new("/")) {
            return skip(Needs::HugePages, "no huge pages come here, or nobody tells where they are");
        }
        assert_eq!(there.len(), 1 + HUGE_PAGE_BYTES / page_bytes());
        assert!(!there[0].is_huge && there[0].address == pages.start.as_ptr());
        let runs = pagemap::scan(pages.addresses(&(0..pages.size_bytes)));
        if let Ok(runs) = runs {
            // Memory may be too fragmented for a huge page.
            let count = |is_huge| there.iter().filter(|page| page.is_huge == is_huge).count() * page_bytes();
            let bytes = |is_huge| -> usize {
                runs.iter().filter(|run| run.is_huge == is_huge).map(|run| run.addresses.len()).sum()
            };
            assert_eq!((count(true), count(false)), (bytes(true), bytes(false)));
        }
        let placement = pages.placement(&machine).unwrap();
        assert_eq!((placement.pages_count(), placement.absent()), (1 << 20, (1 << 20) - there.len()));
    }

    #[test]
    fn policies_name_nodes() {
        let machine = Machine::discover().unwrap();
        let pages = eight_pages(&machine);
        let nodes = NodeSet::from(machine.nodes()[0].id);
        // SAFETY: the range is the reservation's.
        let set = |policy, nodes: &NodeSet| unsafe {
            syscall::set_policy(pages.start(), pages.size_bytes(), policy, nodes)
        };
        match set(Policy::Preferred, &nodes).map_err(|error| error.raw_os_error()) {
            Err(Some(error @ (libc::ENOSYS | libc::EPERM))) => {
                return skip(Needs::Kernel("mbind"), format!("its error number is {error}"));
            }
            answer => answer.unwrap(),
        }
        set(Policy::Interleave, &nodes).unwrap();
        set(Policy::Default, &NodeSet::default()).unwrap();
        for policy in [Policy::Preferred, Policy::Interleave] {
            let error = set(policy, &NodeSet::from(NodeId(1023))).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            assert!(set(policy, &NodeSet::from(NodeId(u32::MAX))).is_err());
        }
        for policy in [Policy::PreferredMany, Policy::WeightedInterleave] {
            // Kernels that do not know a policy say so as they do of nodes that they do not know.
            if let Err(error) = set(policy, &nodes) {
                let error = MemoryError::policy(policy, 1, error);
                assert!(matches!(error, MemoryError::Unsupported { .. }), "{error}");
            }
        }
    }

    #[test]
    fn the_kernel_tells_the_allowed_nodes() {
        let machine = Machine::discover().unwrap();
        match syscall::allowed_nodes() {
            Err(error) => skip(Needs::Kernel("get_mempolicy"), error),
            Ok(nodes) => {
                assert!(!nodes.is_empty());
                assert!(nodes.iter().all(|node| machine.node(node).is_ok()), "{nodes}");
                syscall::strictly_bound_nodes().unwrap();
            }
        }
    }
}
