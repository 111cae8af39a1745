//! What the hit path returns: readable bytes, borrowed.

use std::ops::Range;

use super::directory::Guard;
use super::{Entry, Flags, Location};
use crate::memory::Block;

/// A range of a region, readable until this is dropped; what [`Cache::view`](super::Cache::view) returns.
///
/// On a hit it borrows the near copy: nothing was locked, allocated or counted, and no memory was written that another
/// thread writes. Otherwise it is an [`Entry`] in disguise. Either way the near copy stays while it lives, and counts
/// against the budget. It stays on its thread; [`to_owned`](View::to_owned) makes an entry that may go anywhere.
///
/// A thread may have seven borrowed ones at a time; further ones hold entries.
pub struct View<'a> {
    hold: Hold<'a>,
    start: usize,
    len: usize,
    flags: Flags,
}

pub(super) enum Hold<'a> {
    Borrowed(Guard<'a, Block>),
    /// Boxed, so that hits do not carry its size about.
    Counted(Box<Entry>),
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(super) fn new(hold: Hold<'a>, range: &Range<usize>, flags: Flags) -> View<'a> {
        View { hold, start: range.start, len: range.len(), flags }
    }

    /// The bytes: near if the copy is there, at the source otherwise. See [`Entry::as_slice`].
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.hold {
            Hold::Borrowed(guard) => {
                let offset = self.start - guard.range.start;
                &guard.published().as_slice()[offset..offset + self.len]
            }
            Hold::Counted(entry) => entry.as_slice(),
        }
    }

    /// Where [`as_slice`](View::as_slice) reads now.
    pub fn location(&self) -> Location {
        match &self.hold {
            Hold::Borrowed(guard) => Location::Near(guard.published().node()),
            Hold::Counted(entry) => entry.location(),
        }
    }

    /// Whether the near copy is there.
    #[inline]
    pub fn is_ready(&self) -> bool {
        match &self.hold {
            Hold::Borrowed(_) => true,
            Hold::Counted(entry) => entry.is_ready(),
        }
    }

    /// Looks once: where the bytes are, or `None` while the copy is in flight. See [`Entry::try_wait`].
    #[inline]
    pub fn try_wait(&self) -> Option<Location> {
        match &self.hold {
            Hold::Borrowed(_) => Some(self.location()),
            Hold::Counted(entry) => entry.try_wait(),
        }
    }

    /// Sleeps until the copy has arrived or failed, and says where the bytes are. See [`Entry::wait`].
    pub fn wait(&self) -> Location {
        match &self.hold {
            Hold::Borrowed(_) => self.location(),
            Hold::Counted(entry) => entry.wait(),
        }
    }

    /// Whether this access gave a copy to the mover.
    pub fn started_copy(&self) -> bool {
        match &self.hold {
            Hold::Borrowed(_) => false,
            Hold::Counted(entry) => entry.started_copy(),
        }
    }

    /// A counted handle to the same bytes. Cost: one count, which other holders of the same copy write, too.
    pub fn to_owned(&self) -> Entry {
        match &self.hold {
            Hold::Borrowed(guard) => Entry::new(guard.to_owned(), self.range(), self.flags, false),
            Hold::Counted(entry) => Entry::clone(entry),
        }
    }

    /// Length of the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The range within its region.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// The region's [`generation`](super::Region::generation) when this copy was asked for.
    pub fn generation(&self) -> u64 {
        match &self.hold {
            Hold::Borrowed(guard) => guard.generation,
            Hold::Counted(entry) => entry.generation(),
        }
    }
}

impl AsRef<[u8]> for View<'_> {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("range", &self.range())
            .field("location", &self.location())
            .field("generation", &self.generation())
            .finish()
    }
}
