//! Memory of its own, all of it there from the start.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use super::reservation::{Reservation, pages_of};
use super::{Binding, MemoryError, syscall};
use crate::topology::{Machine, NodeId};

/// Owned anonymous memory: page aligned, zeroed, with all its pages in place; unmapped on drop.
///
/// From 2 MiB on it is aligned to huge pages, and asks for them. Neither moving nor sharing the value moves
/// the bytes.
pub struct Mapping {
    pages: Reservation,
    size_bytes: usize,
}

impl Mapping {
    /// Maps and populates `size_bytes`; none is fine.
    ///
    /// Cost: a page fault per page and the zeroing, so about the time of writing it all.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] for an unknown node, [`NoRoom`](MemoryError::NoRoom) before anything was
    /// touched, [`Misplaced`](MemoryError::Misplaced) if a bound node filled up meanwhile,
    /// [`Refused`](MemoryError::Refused) otherwise.
    pub fn new(machine: &Machine, size_bytes: usize, binding: Binding) -> Result<Mapping, MemoryError> {
        let pages = Reservation::new(machine, size_bytes, binding)?;
        // SAFETY: the reservation is new, so nobody uses it.
        unsafe { pages.commit(machine, 0..pages.size_bytes())? };
        Ok(Mapping { pages, size_bytes })
    }

    /// What was asked for. On a machine that is not this one it has no effect.
    pub fn binding(&self) -> &Binding {
        self.pages.binding()
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.pages.start().as_ptr()
    }

    /// The first byte, to write to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.start().as_ptr()
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `size_bytes` initialised bytes (the kernel zeroes them) live as long as `self`, and while
        // it is borrowed nobody writes to them.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.size_bytes) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.size_bytes) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mapping { pages, size_bytes } = self;
        f.debug_struct("Mapping").field("size_bytes", size_bytes).field("binding", &pages.binding()).finish()
    }
}

/// The node of each page that `bytes` touches, first to last; `None` where there is no page.
///
/// Asks the kernel, so the answer is about this machine, whatever [`Machine`] the memory was made for.
///
/// # Errors
/// [`MemoryError::Refused`] where the call is not to be had.
///
/// Source: move_pages(2) without target nodes.
pub fn nodes_of_pages(bytes: &[u8]) -> Result<Vec<Option<NodeId>>, MemoryError> {
    let nodes = syscall::nodes_of(&pages_of(bytes.as_ptr(), bytes.len()))
        .map_err(|source| MemoryError::refused("move_pages", bytes.len(), source))?;
    Ok(nodes.into_iter().map(|node| u32::try_from(node).ok().map(NodeId)).collect())
}
