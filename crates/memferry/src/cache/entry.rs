//! What an access returns: readable bytes, from the fastest place they are in.

use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Flags;
use super::slot::{Outcome, Slot};
use crate::memory::Block;
use crate::mover::CopyReport;
use crate::sync::{Arc, Place};
use crate::topology::NodeId;

/// A range of a region, readable for as long as this or a clone of it lives.
///
/// It holds the region's owner and the near copy. While it is held, the near copy is not evicted and counts against
/// the budget; `invalidate`, `clear` and the end of the region take it out of the cache, not out of this hand.
///
/// Waiting is for the copy, never for the bytes: the source is readable all along. Any holder may wait first, or not at
/// all; copies complete on the mover's threads. Dropping the last holder of a copy in flight neither blocks nor frees.
#[derive(Clone)]
pub struct Entry {
    slot: Arc<Slot<Block>>,
    /// Of the region; a part of the slot's.
    range: Range<usize>,
    flags: Flags,
    started_copy: bool,
    /// A ready copy on another node, to be read until that of `slot` is there.
    meanwhile: Option<Arc<Slot<Block>>>,
}

/// Where an entry's bytes are read.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the near copy on this node.
    Near(NodeId),
    /// In the region itself.
    Source(Why),
}

/// Why an entry reads from the source.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The copy has not arrived yet. The only reason that passes; another access may find another answer.
    InFlight,
    /// The copy failed.
    Failed,
    /// The node's budget (or its memory) was used up, and nothing could leave.
    NoRoom,
    /// The placement policy named no node.
    NotPlaced,
    /// There is nothing to copy: the range has no bytes.
    Empty,
}

impl Entry {
    pub(super) fn new(
        slot: Arc<Slot<Block>>,
        range: Range<usize>,
        flags: Flags,
        started_copy: bool,
    ) -> Entry {
        Entry { slot, range, flags, started_copy, meanwhile: None }
    }

    /// As long as its own copy is not there, this other one is read.
    pub(super) fn with_meanwhile(mut self, slot: Option<Arc<Slot<Block>>>) -> Entry {
        self.meanwhile = slot;
        self
    }

    /// The slot whose copy is read now, if one is.
    fn near(&self) -> Option<(&Slot<Block>, &Block)> {
        let near = |slot| Slot::near(slot).map(|block| (slot, block));
        near(&self.slot).or_else(|| near(self.meanwhile.as_deref()?))
    }

    /// The bytes: near if the copy is there; if not, in a copy on another node that was ready at the access; at the
    /// source otherwise.
    ///
    /// Two calls may return two places, with the same content as long as the owner does not write. Each stays
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

    /// Where [`as_slice`](Entry::as_slice) reads now. Once the entry's own copy has arrived or failed it stays.
    pub fn location(&self) -> Location {
        match (self.near(), self.slot.outcome()) {
            (Some((_, block)), _) => Location::Near(block.node()),
            (None, Some(Outcome::Source(why))) => Location::Source(*why),
            (None, _) => Location::Source(Why::InFlight),
        }
    }

    /// Whether the near copy is there; then [`as_slice`](Entry::as_slice) stays the same for ever.
    pub fn is_ready(&self) -> bool {
        self.slot.near().is_some()
    }

    /// Whether the access that returned this entry found nothing and gave a copy to the mover. Clones say the same.
    pub fn started_copy(&self) -> bool {
        self.started_copy
    }

    /// Who carried the near copy; `None` until it has arrived, and for bytes at the source.
    pub fn copied_by(&self) -> Option<CopyReport> {
        match self.slot.outcome() {
            Some(Outcome::Near(_, report)) => Some(*report),
            _ => None,
        }
    }

    /// Sleeps until the copy has arrived or failed, and says where the bytes are.
    ///
    /// With [`Flags::WEAK_WAIT`] it looks once, like [`try_wait`](Entry::try_wait). Never call it without that flag
    /// from a future or a waker; await instead. A copy that was in flight when this process was forked stays so for
    /// it, and nobody waits for it: the bytes are at the source.
    pub fn wait(&self) -> Location {
        if !self.flags.contains(Flags::WEAK_WAIT) {
            self.slot.wait();
        }
        self.location()
    }

    /// Looks once: where the bytes are, or `None` while the copy is in flight. Never blocks.
    pub fn try_wait(&self) -> Option<Location> {
        self.slot.outcome().is_some().then(|| self.location())
    }

    /// Resolves when the copy has arrived or failed. Flags do not matter to it: it never blocks a thread.
    ///
    /// Cancel: dropping it changes nothing. `entry.await` does the same and returns the entry.
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

    /// The region's [`generation`](super::Region::generation) when this copy was asked for: what it holds is at least
    /// as new.
    pub fn generation(&self) -> u64 {
        self.slot.generation
    }

    /// This handle's flags: the cache's and the call's, unless changed.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Changes the flags of this handle; other handles of the same copy keep theirs.
    pub fn set_flags(&mut self, flags: Flags) {
        self.flags = flags;
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
            .field("flags", &self.flags)
            .finish()
    }
}

impl IntoFuture for Entry {
    type Output = Entry;
    type IntoFuture = Settled;

    fn into_future(self) -> Settled {
        Settled { entry: Some(self), place: Place::default() }
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

/// The future of `entry.await`: the same entry, no longer in flight.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Settled {
    /// `None` once it has been returned.
    entry: Option<Entry>,
    place: Place,
}

impl Future for Settled {
    type Output = Entry;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Entry> {
        let Settled { entry, place } = &mut *self;
        let slot = &entry.as_ref().expect("polled after it was ready").slot;
        if !slot.poll(place, context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(entry.take().expect("looked at above"))
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            entry.slot.leave(&mut self.place);
        }
    }
}
