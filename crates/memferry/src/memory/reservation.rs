//! A range of addresses whose pages come and go.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use super::syscall::{self, page_bytes};
use super::{Binding, MemoryError, room};
use crate::topology::{Machine, NodeId};

/// Owned addresses, page aligned, all valid to read and write. Pages are there where they have been
/// committed, and would come by page fault elsewhere. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Reservation {
    start: NonNull<u8>,
    /// Whole pages; 0 if nothing is mapped.
    size_bytes: usize,
    binding: Binding,
    /// Whether the pages have a node: on a machine that is not this one they have none.
    bound: bool,
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
    ) -> Result<Reservation, MemoryError> {
        if let Some(id) = binding.node()
            && machine.node(id)?.memory_bytes == Some(0)
        {
            return Err(MemoryError::NodeWithoutMemory { node: id });
        }
        let rounded =
            size_bytes.checked_next_multiple_of(page_bytes()).filter(|&bytes| bytes <= isize::MAX as usize);
        let rounded = rounded
            .ok_or_else(|| MemoryError::refused("mmap", size_bytes, io::ErrorKind::OutOfMemory.into()))?;
        let start = match rounded {
            0 => NonNull::dangling(),
            _ => syscall::map(rounded).map_err(|source| MemoryError::refused("mmap", size_bytes, source))?,
        };
        let bound = machine.is_this_machine();
        let reservation = Reservation { start, size_bytes: rounded, binding, bound };
        if let Some(node) = reservation.binding.node().filter(|_| bound && rounded > 0) {
            // SAFETY: the range has just been mapped.
            let answer = unsafe { syscall::prefer(start, rounded, node.0) };
            match answer {
                // Kernels without NUMA and some containers refuse, but with one node there is no other place.
                Err(source) if machine.node_count() > 1 => {
                    return Err(MemoryError::refused("mbind", size_bytes, source));
                }
                _ => {}
            }
        }
        Ok(reservation)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    pub(super) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Brings pages into a page-aligned range, where the binding says; on an error none of them stay.
    ///
    /// # Safety
    /// Nobody uses the range before this returns.
    pub(super) unsafe fn commit(&self, machine: &Machine, range: Range<usize>) -> Result<(), MemoryError> {
        if range.is_empty() {
            return Ok(());
        }
        let bind = match self.binding {
            Binding::Bind(node) if self.bound => Some(node),
            _ => None,
        };
        room::check(Path::new("/"), machine, bind, range.len())?;
        // SAFETY: the range is inside the mapping, and by the caller's promise nobody writes to it.
        let populated = unsafe { syscall::populate(self.at(&range), range.len()) };
        let placed = match (populated, bind) {
            (Err(source), _) => Err(MemoryError::refused("madvise", range.len(), source)),
            (Ok(()), Some(node)) if machine.node_count() > 1 => self.place(&range, node),
            (Ok(()), _) => Ok(()),
        };
        if placed.is_err() {
            // SAFETY: by the caller's promise nobody uses the range. The first error is the one to tell.
            let _ = unsafe { syscall::discard(self.at(&range), range.len()) };
        }
        placed
    }

    /// Takes the pages of a page-aligned range away; whether that succeeded.
    ///
    /// # Safety
    /// Nobody uses the range or relies on its content.
    pub(super) unsafe fn discard(&self, range: Range<usize>) -> bool {
        // SAFETY: the range is inside the mapping; the rest is the caller's promise.
        unsafe { syscall::discard(self.at(&range), range.len()) }.is_ok()
    }

    /// Sees to it that all pages of the range are on `node`.
    fn place(&self, range: &Range<usize>, node: NodeId) -> Result<(), MemoryError> {
        let refused = |source| MemoryError::refused("move_pages", range.len(), source);
        let pages = pages_of(self.at(range).as_ptr(), range.len());
        let elsewhere = |pages: Vec<*const u8>| -> Result<Vec<*const u8>, MemoryError> {
            let nodes = syscall::nodes_of(&pages).map_err(refused)?;
            Ok(pages
                .into_iter()
                .zip(nodes)
                .filter(|&(_, at)| u32::try_from(at) != Ok(node.0))
                .map(|(page, _)| page)
                .collect())
        };
        let pages_count = pages.len();
        let mut misplaced = elsewhere(pages)?;
        if !misplaced.is_empty() {
            // The kernel reclaims page cache for a move, but not to satisfy a preference.
            syscall::move_to(&misplaced, node.0).map_err(refused)?;
            misplaced = elsewhere(misplaced)?;
        }
        match misplaced.len() {
            0 => Ok(()),
            pages_elsewhere_count => Err(MemoryError::Misplaced { node, pages_elsewhere_count, pages_count }),
        }
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
pub(super) fn pages_of(start: *const u8, size_bytes: usize) -> Vec<*const u8> {
    if size_bytes == 0 {
        return Vec::new();
    }
    let before_bytes = start.addr() % page_bytes();
    (0..before_bytes + size_bytes)
        .step_by(page_bytes())
        .map(|offset| start.wrapping_sub(before_bytes).wrapping_add(offset))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `commit` does on a machine with several nodes, on whatever machine this is.
    #[test]
    fn pages_are_looked_for_and_moved() {
        let machine = Machine::discover().unwrap();
        let pages = Reservation::new(&machine, 8 * page_bytes(), Binding::Any).unwrap();
        // SAFETY: the reservation is new.
        unsafe { pages.commit(&machine, 0..pages.size_bytes()).unwrap() };
        let node = match syscall::nodes_of(&[pages.start().as_ptr().cast_const()]) {
            Ok(nodes) => NodeId(u32::try_from(nodes[0]).unwrap()),
            Err(error) => return println!("skipped: move_pages is not to be had here: {error}"),
        };
        pages.place(&(0..pages.size_bytes()), node).unwrap();
        let nowhere = NodeId(machine.nodes().last().unwrap().id.0 + 1);
        let error = pages.place(&(0..page_bytes()), nowhere).unwrap_err();
        assert!(matches!(error, MemoryError::Refused { call: "move_pages", .. }), "{error:?}");
        // SAFETY: nobody uses the range.
        assert!(unsafe { pages.discard(0..pages.size_bytes()) });
        let error = pages.place(&(0..pages.size_bytes()), node).unwrap_err();
        assert!(
            matches!(error, MemoryError::Misplaced { pages_elsewhere_count: 8, pages_count: 8, .. }),
            "{error}"
        );
    }

    #[test]
    fn policies_name_nodes() {
        let machine = Machine::discover().unwrap();
        let pages = Reservation::new(&machine, page_bytes(), Binding::Any).unwrap();
        // SAFETY: the range is the reservation's.
        let prefer = |node| unsafe { syscall::prefer(pages.start(), pages.size_bytes(), node) };
        match prefer(machine.nodes()[0].id.0).map_err(|error| error.raw_os_error()) {
            Err(Some(error @ (libc::ENOSYS | libc::EPERM))) => {
                return println!("skipped: mbind answers {error}");
            }
            answer => answer.unwrap(),
        }
        assert_eq!(prefer(1023).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(prefer(u32::MAX).is_err());
    }
}
