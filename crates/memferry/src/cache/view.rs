//! Views: borrowed hits.

use std::ops::Range;

use super::directory::Guard;
use super::{Entry, Location};
use crate::memory::Block;

/// A range of a region, readable until this is dropped; returned by [`Cache::view`](super::Cache::view).
///
/// On a hit it borrows the near copy, without lock, allocation, reference count, or a write to a shared cache line.
/// Otherwise it contains an [`Entry`]. Either way the near copy stays while the view lives, and counts against the
/// budget. A view stays on its thread; [`to_owned`](View::to_owned) returns an entry for other threads.
///
/// A thread can have seven borrowed views at a time; further ones contain entries.
pub struct View<'a> {
    hold: Hold<'a>,
    start: usize,
    len: usize,
}

pub(super) enum Hold<'a> {
    Borrowed(Guard<'a, Block>),
    /// Boxed, to keep views of hits small.
    Counted(Box<Entry>),
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(super) fn new(hold: Hold<'a>, range: &Range<usize>) -> View<'a> {
        View { hold, start: range.start, len: range.len() }
    }

    /// The bytes: of the near copy if it is ready, else of the source. See [`Entry::as_slice`].
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        match &self.hold {
            Hold::Borrowed(guard) => {
                let offset = self.start - guard.range.start;
                &guard.published().as_slice()[offset..offset + self.len]
            }
            Hold::Counted(entry) => entry.as_slice(),
        }
    }

    /// The place that [`as_slice`](View::as_slice) reads now.
    pub fn location(&self) -> Location {
        match &self.hold {
            Hold::Borrowed(guard) => Location::Near(guard.published().node()),
            Hold::Counted(entry) => entry.location(),
        }
    }

    /// Whether the near copy is ready.
    #[inline]
    pub fn is_ready(&self) -> bool {
        match &self.hold {
            Hold::Borrowed(_) => true,
            Hold::Counted(entry) => entry.is_ready(),
        }
    }

    /// The place of the bytes, or `None` while the copy is in flight. See [`Entry::try_wait`].
    #[inline]
    pub fn try_wait(&self) -> Option<Location> {
        match &self.hold {
            Hold::Borrowed(_) => Some(self.location()),
            Hold::Counted(entry) => entry.try_wait(),
        }
    }

    /// Sleeps until the copy is ready or has failed, and returns the place of the bytes. See [`Entry::wait`].
    pub fn wait(&self) -> Location {
        match &self.hold {
            Hold::Borrowed(_) => self.location(),
            Hold::Counted(entry) => entry.wait(),
        }
    }

    /// Whether this access started a copy.
    pub fn started_copy(&self) -> bool {
        match &self.hold {
            Hold::Borrowed(_) => false,
            Hold::Counted(entry) => entry.started_copy(),
        }
    }

    /// An entry for the same bytes. Cost: an increment of a reference count that other holders also write.
    pub fn to_owned(&self) -> Entry {
        match &self.hold {
            Hold::Borrowed(guard) => Entry::new(guard.to_owned(), self.range(), false),
            Hold::Counted(entry) => Entry::clone(entry),
        }
    }

    /// Length of the range.
    #[inline]
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

    /// The region's [`generation`](super::Region::generation) at the request for this copy.
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
