//! The flight of a slot: the duty to complete it.
//!
//! The thread that inserts a new slot into the index holds its flight, then the mover's callback does. The flight owns
//! the block until the completion, so no thread can read bytes before that. It also holds the slot, so source and slot
//! outlive the copy, whatever is dropped meanwhile.

use super::entry::Why;
use super::index::{self, Index};
use super::slot::{Outcome, Slot};
use super::stats::Counters;
use crate::memory::Block;
use crate::mover::{CopyError, CopyReport, Epoch, FileSource, RawRequest};
use crate::sync::Arc;

/// The only flight of a slot.
///
/// If it is dropped before completion, after a panic or with a lost callback, it completes as [`CopyCompletion::Lost`].
pub(super) struct Flight<B> {
    /// `None` after completion.
    slot: Option<Arc<Slot<B>>>,
    index: Arc<Index<B>>,
    counters: std::sync::Arc<Counters>,
    /// The target of the copy, once allocated.
    block: Option<B>,
    /// The epoch of the source, until completion: later drains of the region wait for it.
    epoch: Option<std::sync::Arc<Epoch>>,
}

/// The completion of a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyCompletion {
    /// All bytes are in the block.
    Copied(CopyReport),
    /// The copy failed, and nothing writes the block any more.
    Failed(CopyError),
    /// The copy failed, and a device may still read the source and write the block: both are leaked.
    Lost,
}

impl From<Result<CopyReport, CopyError>> for CopyCompletion {
    fn from(result: Result<CopyReport, CopyError>) -> CopyCompletion {
        match result {
            Ok(report) => CopyCompletion::Copied(report),
            Err(error) if error.buffers_are_lost() => CopyCompletion::Lost,
            Err(error) => CopyCompletion::Failed(error),
        }
    }
}

impl Flight<Block> {
    /// The copy that fills `block` and completes this flight.
    #[allow(unsafe_code)]
    pub(super) fn copy_into(mut self, block: Block) -> RawRequest {
        let slot = self.slot();
        let (source, size_bytes) = (slot.source_bytes().as_ptr(), slot.range.len());
        assert_eq!(block.len(), size_bytes, "a pool returns the requested size");
        let target = self.set_block(block).as_mut_ptr();
        // SAFETY: the callback owns this flight. The flight holds the slot, and so the source's owner, whose bytes stay and
        // are not written during a copy (contract of `RegionOwner`). It also owns the block, which is fresh from its pool,
        // as large as the range, and read by nobody before `complete`. Lost buffers, and those of a callback that is dropped
        // uncalled, are leaked. A pool's block overlaps nothing that anybody else owns.
        unsafe { RawRequest::new(source, target, size_bytes, move |result| self.complete(result.into())) }
    }
}

impl Flight<Block> {
    /// The read of a file that fills `block` and completes this flight.
    #[allow(unsafe_code)]
    pub(super) fn read_into(mut self, block: Block) -> RawRequest {
        let slot = self.slot();
        let size_bytes = slot.range.len();
        let (Some(file), Some(demand)) = (slot.source.file(), slot.demand()) else {
            unreachable!("a slot of a file has a demand")
        };
        let source = FileSource::on_demand(file.clone(), slot.range.start as u64, demand);
        assert_eq!(block.len(), size_bytes, "a pool returns the requested size");
        let target = self.set_block(block).as_mut_ptr();
        // SAFETY: as for a copy: the callback owns this flight, and that the block, which nobody reads before `complete`.
        // Lost buffers, and those of a callback that is dropped uncalled, are leaked. A block has whole pages of its own.
        unsafe {
            RawRequest::read_on_demand(source, target, size_bytes, move |result| self.complete(result.into()))
        }
    }
}

impl<B> Flight<B> {
    /// The flight of a slot that was just inserted into `index`.
    pub(super) fn new(
        slot: Arc<Slot<B>>,
        index: Arc<Index<B>>,
        counters: std::sync::Arc<Counters>,
    ) -> Flight<B> {
        let epoch = Some(slot.source.flights.current());
        Flight { slot: Some(slot), index, counters, block: None, epoch }
    }

    pub(super) fn slot(&self) -> &Slot<B> {
        self.slot.as_ref().expect("completion consumes the flight")
    }

    /// Completes without a copy: the node has no room.
    pub(super) fn refuse(mut self) {
        self.counters.no_room.add(1);
        self.finish(Outcome::Source(Why::NoRoom));
    }

    /// Takes the target of the copy that follows.
    pub(super) fn set_block(&mut self, block: B) -> &mut B {
        self.counters.submissions.add(1);
        self.block.insert(block)
    }

    /// Takes the completion of the copy.
    pub(super) fn complete(mut self, landing: CopyCompletion) {
        let block = self.block.take();
        match (landing, block) {
            (CopyCompletion::Copied(report), Some(block)) => {
                self.counters.arrived.add(1);
                self.finish(Outcome::Near(block, report));
            }
            (CopyCompletion::Failed(error), block) => {
                // Frees the block before waiters wake: they may need it.
                drop(block);
                self.fail(error);
            }
            (CopyCompletion::Lost, Some(block)) => self.fail_with_leak(block),
            (_, None) => self.fail(CopyError::Abandoned),
        }
    }

    fn fail(&mut self, error: CopyError) {
        self.counters.failed.add(1);
        let source = self.slot().source.clone();
        // Entries of another version of the file, before waiters wake. Those of other nodes are removed with the next read.
        if source.file().is_some_and(|file| file.check_descriptor().is_err()) {
            let removed = self.index.remove_source(&source);
            self.counters.invalidated.add(removed.ranges.len());
        }
        self.slot().set_error(error);
        self.finish(Outcome::Source(Why::Failed));
    }

    /// Leaks the memory that a lost device may still read and write.
    fn fail_with_leak(&mut self, block: B) {
        std::mem::forget(block);
        std::mem::forget(self.slot().source.clone());
        self.fail(CopyError::DeviceLost);
    }

    /// Stores the outcome and wakes waiters. Waiters rely on the order: a slot without near copy has left the index before
    /// they wake, so that a retry starts a new copy; and the flight has dropped its references, so that a waiter that drops
    /// the last entry frees the memory.
    ///
    /// With several nodes the copy is published at once, because readers that request another node find it only in the
    /// directory. With one node the first hit publishes it; an entry that is used once then costs its eviction no fence.
    fn finish(&mut self, outcome: Outcome<B>) {
        let Some(slot) = self.slot.take() else { return };
        let mut arrived = None;
        match outcome {
            Outcome::Source(_) => self.index.remove(&slot),
            Outcome::Near(..) if slot.source.has_several_nodes() => {
                arrived = Some(index::key(&slot.source, &slot.range));
            }
            Outcome::Near(..) => {}
        }
        let is_complete = slot.complete(outcome);
        drop(self.epoch.take());
        drop(slot);
        is_complete.set();
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
                None => self.fail(CopyError::Abandoned),
            }
        }
    }
}
