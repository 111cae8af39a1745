//! Entries: the handles that an access returns.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::slot::{Outcome, Slot};
use crate::memory::Block;
use crate::mover::CopyReport;
use crate::sync::{Arc, Place};
use crate::topology::NodeId;

/// A range of a region, readable while this or a clone of it lives.
///
/// It holds the region's owner and the near copy. The near copy of a held entry is not evicted and counts against the
/// budget; `invalidate`, `clear` and the end of the region remove it from the cache only.
///
/// The bytes are always readable, at the source if necessary; `wait` waits for the copy. Any holder may wait, or none:
/// copies complete on the mover's threads. Dropping the last holder of a copy in flight neither blocks nor frees.
#[derive(Clone)]
pub struct Entry {
    slot: Arc<Slot<Block>>,
    /// In the region; a part of the slot's range.
    range: Range<usize>,
    started_copy: bool,
    /// A ready copy on another node, read until that of `slot` is ready.
    interim: Option<Arc<Slot<Block>>>,
}

/// The place of an entry's bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the near copy on this node.
    Near(NodeId),
    /// In the region itself.
    Source(Why),
}

/// The reason why an entry reads from the source.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The copy is in flight. The only reason that changes for this entry.
    InFlight,
    /// The copy failed.
    Failed,
    /// The node's budget or memory was exhausted, and no entry could be evicted.
    NoRoom,
    /// The placement policy named no node.
    NotPlaced,
    /// The range is empty.
    Empty,
}

impl Entry {
    pub(super) fn new(slot: Arc<Slot<Block>>, range: Range<usize>, started_copy: bool) -> Entry {
        Entry { slot, range, started_copy, interim: None }
    }

    /// Adds a copy to be read until its own is ready.
    pub(super) fn with_interim(mut self, slot: Option<Arc<Slot<Block>>>) -> Entry {
        self.interim = slot;
        self
    }

    /// The slot and the near copy that are read now.
    fn near(&self) -> Option<(&Slot<Block>, &Block)> {
        let near = |slot| Slot::near(slot).map(|block| (slot, block));
        near(&self.slot).or_else(|| near(self.interim.as_deref()?))
    }

    /// The bytes: of the near copy if it is ready, else of a copy on another node that was ready at the access, else of the
    /// source.
    ///
    /// Two calls may return different places, with the same content as long as the owner does not write. Each stays
    /// readable while a clone of this entry lives.
    pub fn as_slice(&self) -> &[u8] {
        match self.near() {
            Some((slot, block)) => {
                let offset = self.range.start - slot.range.start;
                &block.as_slice()[offset..offset + self.range.len()]
            }
            None => self.slot.source.slice(self.range.clone()),
        }
    }

    /// The place that [`as_slice`](Entry::as_slice) reads now. It no longer changes once the entry's copy is ready or has
    /// failed.
    pub fn location(&self) -> Location {
        match (self.near(), self.slot.outcome()) {
            (Some((_, block)), _) => Location::Near(block.node()),
            (None, Some(Outcome::Source(why))) => Location::Source(*why),
            (None, _) => Location::Source(Why::InFlight),
        }
    }

    /// Whether the near copy is ready. Then [`as_slice`](Entry::as_slice) no longer changes.
    pub fn is_ready(&self) -> bool {
        self.slot.near().is_some()
    }

    /// Whether the access that returned this entry missed and started a copy.
    pub fn started_copy(&self) -> bool {
        self.started_copy
    }

    /// The engines of the near copy; `None` until it is ready, and for bytes at the source.
    pub fn copied_by(&self) -> Option<CopyReport> {
        match self.slot.outcome() {
            Some(Outcome::Near(_, report)) => Some(*report),
            _ => None,
        }
    }

    /// Sleeps until the copy is ready or has failed, and returns the place of the bytes.
    ///
    /// Never call it from a future or a waker; await [`ready`](Entry::ready) instead. A copy that was in flight when this
    /// process was forked stays in flight here; this does not wait for it, and the bytes are at the source.
    pub fn wait(&self) -> Location {
        self.slot.wait();
        self.location()
    }

    /// The place of the bytes, or `None` while the copy is in flight. Never blocks.
    pub fn try_wait(&self) -> Option<Location> {
        self.slot.outcome().is_some().then(|| self.location())
    }

    /// Resolves when the copy is ready or has failed. It never blocks a thread.
    ///
    /// Cancel: dropping it has no effect.
    pub fn ready(&self) -> impl Future<Output = Location> + Send + '_ {
        Ready { entry: self, place: Place::default() }
    }

    /// Length of the range.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The range within its region.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The region's [`id`](super::Region::id).
    pub fn region_id(&self) -> u64 {
        self.slot.source.id
    }

    /// The region's [`generation`](super::Region::generation) at the request for this copy; its bytes are at least as new.
    pub fn generation(&self) -> u64 {
        self.slot.generation
    }
}

impl AsRef<[u8]> for Entry {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("region", &self.region_id())
            .field("generation", &self.generation())
            .field("range", &self.range())
            .field("location", &self.location())
            .finish()
    }
}

/// The future of [`Entry::ready`].
struct Ready<'a> {
    entry: &'a Entry,
    place: Place,
}

impl Future for Ready<'_> {
    type Output = Location;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Location> {
        let Ready { entry, place } = &mut *self;
        if entry.slot.poll(place, context.waker()) { Poll::Ready(entry.location()) } else { Poll::Pending }
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.entry.slot.leave(&mut self.place);
    }
}
