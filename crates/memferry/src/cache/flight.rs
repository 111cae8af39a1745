//! The obligation to settle a slot.
//!
//! Whoever puts a new slot into the index holds its flight: first the accessing thread, then the mover's `done`. The
//! flight owns the block until the copy is there, so nobody can read bytes that have not arrived, and it holds the
//! slot, so source and slot outlive the copy whatever is dropped meanwhile.

use super::entry::Why;
use super::index::{self, Index};
use super::slot::{Outcome, Slot};
use super::stats::Counters;
use crate::memory::Block;
use crate::mover::{CopyError, CopyReport, Epoch, RawRequest};
use crate::sync::Arc;

/// The one flight of a slot.
///
/// Dropped without a landing - somebody panicked, or lost `done` - it counts as [`Landing::Lost`].
pub(super) struct Flight<B> {
    /// Until it is settled.
    slot: Option<Arc<Slot<B>>>,
    index: Arc<Index<B>>,
    counters: std::sync::Arc<Counters>,
    /// The target of the copy, once there is one.
    block: Option<B>,
    /// The source's, until it is settled: drains that were begun since wait for it.
    epoch: Option<std::sync::Arc<Epoch>>,
}

/// What became of a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// All bytes are in the block.
    Arrived(CopyReport),
    /// They are not, and nobody writes the block any more.
    Failed,
    /// They are not, and perhaps somebody still reads the source and writes the block: both are leaked.
    Lost,
}

impl From<Result<CopyReport, CopyError>> for Landing {
    fn from(result: Result<CopyReport, CopyError>) -> Landing {
        match result {
            Ok(report) => Landing::Arrived(report),
            Err(error) if error.buffers_are_lost() => Landing::Lost,
            Err(_) => Landing::Failed,
        }
    }
}

impl Flight<Block> {
    /// The copy that fills `block` and lands this flight.
    #[allow(unsafe_code)]
    pub(super) fn copy_into(mut self, block: Block) -> RawRequest {
        let slot = self.slot();
        let (source, size_bytes) = (slot.source_bytes().as_ptr(), slot.range.len());
        assert_eq!(block.len(), size_bytes, "a pool gives what it was asked for");
        let target = self.load(block).as_mut_ptr();
        // SAFETY: `done` owns this flight, and with it the slot that keeps the source's owner, whose bytes stay and are
        // not written during a copy (contract of `RegionOwner`); and the block, which is fresh from its pool, as
        // large as the range, and looked at by nobody before `land`. Lost buffers, and those of a `done` that is
        // dropped uncalled, are leaked. A pool's block overlaps nothing that anybody else owns.
        unsafe { RawRequest::new(source, target, size_bytes, move |result| self.land(result.into())) }
    }
}

impl<B> Flight<B> {
    /// For a slot that was just put into `index` in flight.
    pub(super) fn new(
        slot: Arc<Slot<B>>,
        index: Arc<Index<B>>,
        counters: std::sync::Arc<Counters>,
    ) -> Flight<B> {
        let epoch = Some(slot.source.flights.current());
        Flight { slot: Some(slot), index, counters, block: None, epoch }
    }

    pub(super) fn slot(&self) -> &Slot<B> {
        self.slot.as_ref().expect("settling consumes the flight")
    }

    /// There is no room: no copy will be made.
    pub(super) fn turn_back(mut self) {
        self.counters.no_room.add(1);
        self.settle(Outcome::Source(Why::NoRoom));
    }

    /// Takes the target along. A copy into it follows.
    pub(super) fn load(&mut self, block: B) -> &mut B {
        self.counters.submissions.add(1);
        self.block.insert(block)
    }

    /// The copy is over.
    pub(super) fn land(mut self, landing: Landing) {
        let block = self.block.take();
        match (landing, block) {
            (Landing::Arrived(report), Some(block)) => {
                self.counters.arrived.add(1);
                self.settle(Outcome::Near(block, report));
            }
            (Landing::Lost, Some(block)) => self.fail_with_leak(block),
            (_, block) => {
                // First the room, then the news: who is woken may want it.
                drop(block);
                self.fail();
            }
        }
    }

    fn fail(&mut self) {
        self.counters.failed.add(1);
        self.settle(Outcome::Source(Why::Failed));
    }

    /// The engine is gone, its device may not be: what it may still read and write is never reused.
    fn fail_with_leak(&mut self, block: B) {
        std::mem::forget(block);
        std::mem::forget(self.slot().source.clone());
        self.fail();
    }

    /// The order matters to who is let through: a slot without a near copy has left the index, so that asking again
    /// starts a new copy; and the flight holds nothing any more, so that what the waiter lets go of is free.
    ///
    /// On one of several nodes the copy is published at once: readers who ask for another node look for it in the
    /// directory only. On the only node the first hit does it, and who is used once never costs an eviction a fence.
    fn settle(&mut self, outcome: Outcome<B>) {
        let Some(slot) = self.slot.take() else { return };
        let mut arrived = None;
        match outcome {
            Outcome::Source(_) => self.index.remove(&slot),
            Outcome::Near(..) if slot.source.has_several_nodes() => {
                arrived = Some(index::key(&slot.source, &slot.range));
            }
            Outcome::Near(..) => {}
        }
        let landed = slot.settle(outcome);
        drop(self.epoch.take());
        drop(slot);
        landed.set();
        if let Some(key) = arrived {
            self.index.publish(&key);
        }
    }
}

impl<B> Drop for Flight<B> {
    fn drop(&mut self) {
        if self.slot.is_some() {
            match self.block.take() {
                Some(block) => self.fail_with_leak(block),
                None => self.settle(Outcome::Source(Why::Failed)),
            }
        }
    }
}
