//! A range of addresses whose pages come and go.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use super::binding::{Pattern, allowed_now};
use super::syscall::{self, HUGE_PAGE_BYTES, page_bytes};
use super::{Binding, HugePages, MemoryError, moving, room};
use crate::topology::{Machine, NodeId};

/// After this much the room is looked at again while pages come: other threads and processes take memory
/// too. Chosen so that looking adds little: 0.2 ms beside 10 ms for the pages, on a busy virtual machine.
const STEP_BYTES: usize = 32 << 20;

/// Owned addresses, page aligned, all valid to read and write. Pages are there where they have been
/// committed, and would come by page fault elsewhere. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    start: NonNull<u8>,
    /// Whole pages; 0 if nothing is mapped.
    size_bytes: usize,
    pub(super) binding: Binding,
    huge_pages: HugePages,
    /// Whether the pages have a node: on a machine that is not this one they have none.
    pub(super) is_bound: bool,
}

// SAFETY: it owns its memory, and no thread is special to a mapping.
unsafe impl Send for Reservation {}
// SAFETY: by shared reference only addresses are handed out; `commit` and `discard` say what they need.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// At least `size_bytes`, rounded up to pages, without any page yet.
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
        Ok(reservation)
    }

    /// Tells the kernel where pages shall come from now on.
    pub(super) fn apply(&self, machine: &Machine, binding: &Binding) -> Result<(), MemoryError> {
        if !machine.is_this_machine() || self.size_bytes == 0 {
            return Ok(());
        }
        let policy = binding.policy();
        // SAFETY: the mapping is this value's own.
        match unsafe { syscall::set_policy(self.start, self.size_bytes, policy, &binding.nodes()) } {
            // Kernels without NUMA and some containers refuse, but with one node there is no other place.
            Err(source) if machine.node_count() > 1 => {
                Err(MemoryError::policy(policy, self.size_bytes, source))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// How a binding deals out the addresses; `None` if it does not, or there is nothing to deal out.
    pub(super) fn pattern(
        &self,
        machine: &Machine,
        binding: &Binding,
    ) -> Result<Option<Pattern>, MemoryError> {
        if !machine.is_this_machine() || machine.node_count() < 2 {
            return Ok(None);
        }
        let in_huge_pages = self.size_bytes >= HUGE_PAGE_BYTES && self.huge_pages != HugePages::Never;
        binding.pattern(machine, if in_huge_pages { HUGE_PAGE_BYTES } else { page_bytes() })
    }

    /// Brings pages into a page-aligned range, where the binding says; on an error none of them stay.
    ///
    /// # Safety
    /// Nobody uses the range before this returns.
    pub(super) unsafe fn commit(&self, machine: &Machine, range: Range<usize>) -> Result<(), MemoryError> {
        // SAFETY: by the caller's promise nobody writes to the range.
        let populated = unsafe { self.populate(machine, &range, |from| range.end - from) };
        let placed = populated.and_then(|()| match self.place(machine, &range)? {
            Some((node, pages_elsewhere_count)) => {
                let pages_count = range.len() / page_bytes();
                Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count })
            }
            None => Ok(()),
        });
        if placed.is_err() && !range.is_empty() {
            // SAFETY: by the caller's promise nobody uses the range. The first error is the one to tell.
            let _ = unsafe { syscall::discard(self.at(&range), range.len()) };
        }
        placed
    }

    /// Brings the pages that are missing, where the binding says, and moves those of a bound node to it. What
    /// is there keeps its content, also on an error.
    ///
    /// # Safety
    /// Nobody writes to the memory before this returns.
    pub(super) unsafe fn complete(&self, machine: &Machine) -> Result<(), MemoryError> {
        let root = Path::new("/");
        let range = 0..self.size_bytes;
        let reach = self.in_effect().reach();
        // How many bytes are missing step by step, and how many have to get to a bound node.
        let mut missing = Vec::new();
        let (mut missing_bytes, mut arriving_bytes) = (0, 0);
        for start in range.clone().step_by(STEP_BYTES) {
            let nodes = self.look(machine, &(start..range.end.min(start + STEP_BYTES)))?;
            let bytes = |is_meant: &dyn Fn(i16) -> bool| {
                nodes.iter().filter(|&&node| is_meant(node)).count() * page_bytes()
            };
            missing.push(bytes(&|node| node < 0));
            missing_bytes += missing[missing.len() - 1];
            if let Some(node) = self.bound_node() {
                arriving_bytes += bytes(&|at| u32::try_from(at) != Ok(node.0));
            }
            // Addresses are cheap, so there may be many more of them than any machine has memory. Each look
            // costs.
            if room::check(root, machine, &reach, missing_bytes, &[]).is_err() {
                room::check(root, machine, &reach, self.size_bytes, &[])?;
            }
        }
        // From each step on.
        for step in (1..missing.len()).rev() {
            missing[step - 1] += missing[step];
        }
        if let Some(node) = self.bound_node() {
            room::check_nodes(root, machine, &[(node, arriving_bytes)])?;
        }
        // SAFETY: the caller's.
        unsafe { self.populate(machine, &range, |from| missing[from / STEP_BYTES])? };
        match self.place(machine, &range)? {
            Some((node, pages_elsewhere_count)) => Err(MemoryError::NotMoved {
                node,
                pages_elsewhere_count,
                pages_count: self.size_bytes / page_bytes(),
                placement: self.look(machine, &range)?.into_iter().map(super::placement::node_of).collect(),
            }),
            None => Ok(()),
        }
    }

    /// Populates step by step, as long as there is room for `missing_bytes` from each on.
    ///
    /// # Safety
    /// Nobody writes to the range before this returns.
    unsafe fn populate(
        &self,
        machine: &Machine,
        range: &Range<usize>,
        missing_bytes: impl Fn(usize) -> usize,
    ) -> Result<(), MemoryError> {
        let binding = self.in_effect();
        let reach = binding.reach();
        let pattern = self.pattern(machine, binding)?;
        for start in range.clone().step_by(STEP_BYTES) {
            let bytes = missing_bytes(start);
            let shares = match (binding, &pattern) {
                (Binding::Bind(node), _) => vec![(*node, bytes)],
                (_, Some(pattern)) => pattern.shares(bytes),
                _ => Vec::new(),
            };
            if bytes > 0 {
                room::check(Path::new("/"), machine, &reach, bytes, &shares)?;
            }
            let step = start..range.end.min(start + STEP_BYTES);
            // SAFETY: the range is inside the mapping, and by the caller's promise nobody writes to it.
            unsafe { syscall::populate(self.at(&step), step.len()) }
                .map_err(|source| MemoryError::refused("madvise", range.len(), source))?;
        }
        Ok(())
    }

    /// Takes the pages of a page-aligned range away; whether that succeeded.
    ///
    /// # Safety
    /// Nobody uses the range or relies on its content.
    pub(super) unsafe fn discard(&self, range: Range<usize>) -> bool {
        // SAFETY: the range is inside the mapping; the rest is the caller's promise.
        unsafe { syscall::discard(self.at(&range), range.len()) }.is_ok()
    }

    /// Sees to it that all pages of the range are on the node that they are bound to; otherwise tells that
    /// node, and how many are not there.
    fn place(&self, machine: &Machine, range: &Range<usize>) -> Result<Option<(NodeId, usize)>, MemoryError> {
        match self.bound_node() {
            Some(node) if machine.node_count() > 1 && !range.is_empty() => {
                let pages_elsewhere_count = self.place_on(range, node)?;
                Ok((pages_elsewhere_count > 0).then_some((node, pages_elsewhere_count)))
            }
            _ => Ok(None),
        }
    }

    /// The node that all pages must be on, if there is one.
    fn bound_node(&self) -> Option<NodeId> {
        match *self.in_effect() {
            Binding::Bind(node) => Some(node),
            _ => None,
        }
    }

    /// Memory for another machine lies here without a policy.
    pub(super) fn in_effect(&self) -> &Binding {
        if self.is_bound { &self.binding } else { &Binding::Any }
    }

    fn place_on(&self, range: &Range<usize>, node: NodeId) -> Result<usize, MemoryError> {
        let start = self.at(range).as_ptr();
        // The kernel reclaims page cache for a move, but not to satisfy a preference.
        moving::bring(pages_of(start, range.len()).map(|page| (page, node)))
            .map_err(|source| MemoryError::refused("move_pages", range.len(), source))
    }

    /// Where the pages of a page-aligned range are. Unknown, which is below 0 like nowhere, where the kernel
    /// does not tell and there is only one place.
    pub(super) fn look(&self, machine: &Machine, range: &Range<usize>) -> Result<Vec<i16>, MemoryError> {
        match syscall::nodes_of(pages_of(self.at(range).as_ptr(), range.len())) {
            Err(source) if machine.node_count() > 1 => {
                Err(MemoryError::refused("move_pages", range.len(), source))
            }
            Err(_) => Ok(vec![i16::MIN; range.len() / page_bytes()]),
            Ok(nodes) => Ok(nodes),
        }
    }

    /// The start of each of its pages.
    pub(super) fn pages(&self) -> impl Iterator<Item = *const u8> + Clone + use<> {
        pages_of(self.start.as_ptr(), self.size_bytes)
    }

    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
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
        // SAFETY: the mapping is this value's own, and whoever uses its addresses borrows or owns this value.
        unsafe { syscall::unmap(self.start, self.size_bytes) };
    }
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
    use super::*;
    use crate::memory::syscall::Policy;
    use crate::topology::NodeSet;

    fn eight_pages(machine: &Machine) -> Reservation {
        Reservation::new(machine, 8 * page_bytes(), Binding::Any, HugePages::Never).unwrap()
    }

    /// What `commit` does on a machine with several nodes, on whatever machine this is.
    #[test]
    fn pages_are_looked_for_and_moved() {
        let machine = Machine::discover().unwrap();
        let pages = eight_pages(&machine);
        let all = 0..pages.size_bytes();
        // SAFETY: the reservation is new.
        unsafe { pages.commit(&machine, all.clone()).unwrap() };
        let node = match syscall::nodes_of(pages.pages()) {
            Ok(nodes) => NodeId(u32::try_from(nodes[0]).unwrap()),
            Err(error) => return println!("skipped: move_pages is not to be had here: {error}"),
        };
        assert_eq!(pages.place_on(&all, node).unwrap(), 0);
        let nowhere = NodeId(machine.nodes().last().unwrap().id.0 + 1);
        let error = pages.place_on(&(0..page_bytes()), nowhere).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { call: "move_pages", .. }), "{error:?}");
        // SAFETY: nobody uses the range.
        assert!(unsafe { pages.discard(all.clone()) });
        assert_eq!(pages.place_on(&all, node).unwrap(), 8);
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
                return println!("skipped: mbind answers {error}");
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
            Err(error) => println!("skipped: get_mempolicy is not to be had here: {error}"),
            Ok(nodes) => {
                assert!(!nodes.is_empty());
                assert!(nodes.iter().all(|node| machine.node(node).is_ok()), "{nodes}");
                syscall::strictly_bound_nodes().unwrap();
            }
        }
    }
}
