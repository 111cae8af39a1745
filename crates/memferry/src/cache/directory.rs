//! Where the hit path looks: one pointer for each chunk of a region on each node, to the copy of that chunk which is
//! ready, if there is one.
//!
//! ```text
//! range ─▶ offset / chunk ─▶ cell ─▶ hazard = cell, cell unchanged? ─▶ bytes of the copy, from `range`'s place in it
//! ```
//!
//! The cells own nothing. They are written under the lock of the node's index alone, which has the slot in its maps
//! for at least as long as a cell points to it. See [`readers`](super::readers) for how a reader keeps it there.

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr;
use std::slice;

use memferry_dsa::fork;

use super::index::Index;
use super::readers::{self, Hazard, Record};
use super::slot::Slot;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// How a region is cut: chunks of equal size, the last perhaps shorter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    region_bytes: usize,
    chunk_bytes: usize,
    /// The binary logarithm of `chunk_bytes` if it has one: a shift costs a cycle, a division a dozen.
    shift: Option<u32>,
}

impl Chunks {
    /// `chunk_bytes` of 0 and of more than the region: one chunk.
    pub(super) fn new(region_bytes: usize, chunk_bytes: usize) -> Chunks {
        let whole = region_bytes.max(1);
        let chunk_bytes = if chunk_bytes == 0 { whole } else { chunk_bytes.min(whole) };
        let shift = chunk_bytes.is_power_of_two().then(|| chunk_bytes.trailing_zeros());
        Chunks { region_bytes, chunk_bytes, shift }
    }

    pub(super) fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    fn count(&self) -> usize {
        self.region_bytes.div_ceil(self.chunk_bytes)
    }

    /// The chunk that all of `range` lies in. `range` is a range of the region.
    #[inline(always)]
    fn containing(&self, range: &Range<usize>) -> Option<usize> {
        let (number, start) = match self.shift {
            Some(shift) => (range.start >> shift, range.start >> shift << shift),
            None => (range.start / self.chunk_bytes, range.start / self.chunk_bytes * self.chunk_bytes),
        };
        (range.end - start <= self.chunk_bytes && !range.is_empty()).then_some(number)
    }

    /// The bytes of the chunk that all of `range` lies in.
    pub(super) fn around(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let start = self.containing(range)? * self.chunk_bytes;
        Some(start..(start + self.chunk_bytes).min(self.region_bytes))
    }
}

/// The chunks of one region on one node, in the process that had the first copy. A forked child finds nothing here, and looks
/// under the lock: the cells point to copies that its own index does not have.
///
/// Fields are written by the index, under its lock; readers look at `generation` first.
pub(super) struct Directory<B> {
    chunks: Chunks,
    /// That process; [`NOBODY`] before there is a copy.
    generation: AtomicU32,
    /// How many there are at `cells`.
    count: AtomicUsize,
    /// From a box, once there is a generation.
    cells: AtomicPtr<AtomicPtr<Slot<B>>>,
}

/// The generation of no process, and of no record: one that a forked child inherits has 0.
const NOBODY: u32 = u32::MAX;

impl<B> Directory<B> {
    pub(super) fn new(chunks: Chunks) -> Directory<B> {
        let cells = AtomicPtr::default();
        Directory { chunks, generation: AtomicU32::new(NOBODY), count: AtomicUsize::new(0), cells }
    }

    /// The cell of the chunk that all of `range` lies in, if there is one yet in the process with this generation.
    #[inline(always)]
    fn find(&self, range: &Range<usize>, generation: u32) -> Option<&AtomicPtr<Slot<B>>> {
        // ORDERING: Acquire pairs with the Release in `make`: the other two are those of this generation.
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let (cells, count) = (self.cells.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        // SAFETY: no process or record has the generation `NOBODY`, so `make` has written the two, of one box, before the
        // generation. Nobody writes them again in this process, and `drop` has no `&self` beside it.
        unsafe { slice::from_raw_parts(cells, count) }.get(self.chunks.containing(range)?)
    }

    /// Lets a slot be found, if it is that of a whole chunk. For the index, under its lock: the slot is near, and
    /// listed.
    pub(super) fn publish(&self, slot: &Arc<Slot<B>>) {
        if self.chunks.around(&slot.range).as_ref() != Some(&slot.range) {
            return;
        }
        let generation = fork::generation();
        if generation == 0 {
            return; // forks go unnoticed
        }
        if self.generation.load(Ordering::Relaxed) == NOBODY {
            self.make(generation);
        }
        if let Some(cell) = self.find(&slot.range, generation) {
            // ORDERING: Release pairs with the Acquire in `Guard::new`: slot and near bytes are as this thread saw
            // them.
            cell.store(Arc::as_ptr(slot).cast_mut(), Ordering::Release);
        }
    }

    /// Makes the cells. A fork in the midst of it leaves a child without, which makes its own.
    fn make(&self, generation: u32) {
        let cells: Box<[AtomicPtr<Slot<B>>]> =
            (0..self.chunks.count()).map(|_| AtomicPtr::default()).collect();
        let count = cells.len();
        self.cells.store(Box::into_raw(cells).cast::<AtomicPtr<_>>(), Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire in `find`.
        self.generation.store(generation, Ordering::Release);
    }

    /// Hides a slot; whether it could be found. For the index, under its lock.
    pub(super) fn hide(&self, slot: &Slot<B>) -> bool {
        let Some(cell) = self.find(&slot.range, fork::generation()) else { return false };
        // ORDERING: Relaxed: the index' lock orders the writers; what the readers see, the fence sees to that follows.
        let is_found = ptr::eq(cell.load(Ordering::Relaxed), slot);
        if is_found {
            cell.store(ptr::null_mut(), Ordering::Relaxed);
        }
        is_found
    }
}

impl<B> Drop for Directory<B> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, all of it: nobody else has the directory. What a parent has made is left, as a fork may have
        // come between its stores.
        if self.generation.load(Ordering::Relaxed) == fork::generation() {
            let (cells, count) = (self.cells.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
            let cells = ptr::slice_from_raw_parts_mut(cells, count);
            // SAFETY: the box of `make`, whose cells own nothing.
            drop(unsafe { Box::from_raw(cells) });
        }
    }
}

/// A ready slot, borrowed: it and its near copy stay until this is dropped. Neither counted nor locked.
pub(super) struct Guard<'a, B> {
    slot: &'a Slot<B>,
    index: &'a Index<B>,
    hazard: &'a Hazard,
    /// The hazard is one of this thread's, and stays with it.
    _not_send: PhantomData<*const ()>,
}

impl<'a, B> Guard<'a, B> {
    /// The ready slot of the chunk that all of `range` lies in. `directory` is `index`' of some region, `record` this
    /// thread's. `None` also if the thread has no free hazard, if a taker came in between, or in a forked child if one of
    /// the two is the parent's: look under the lock.
    #[inline(always)]
    pub(super) fn new(
        index: &'a Index<B>,
        directory: &Directory<B>,
        range: &Range<usize>,
        record: &'static Record,
    ) -> Option<Guard<'a, B>> {
        let cell = directory.find(range, record.generation())?;
        // ORDERING: Relaxed: it is read again below.
        let found = cell.load(Ordering::Relaxed);
        if found.is_null() {
            return None;
        }
        let hazard = record.free()?;
        hazard.set(found.cast());
        // ORDERING: Acquire pairs with the Release in `publish`.
        if cell.load(Ordering::Acquire) != found {
            if hazard.clear() {
                index.reclaim();
            }
            return None;
        }
        // SAFETY: the cell pointed to `found` after the hazard was set and fenced. Only `index` writes the cell, since
        // regions are looked up by the cache that registered them alone (`Shared::check`). It empties a slot's cell
        // before it takes the slot out, keeps the slot until the other half of the fence has happened, and then finds
        // this hazard: so it keeps it until the hazard is cleared, which only `drop` does. The index outlives 'a.
        let slot = unsafe { &*found };
        Some(Guard { slot, index, hazard, _not_send: PhantomData })
    }

    /// A counted handle to the same slot.
    pub(super) fn to_owned(&self) -> Arc<Slot<B>> {
        let slot: *const Slot<B> = self.slot;
        // SAFETY: `slot` is where an `Arc` keeps it (`publish`), and its count is at least 1: the index holds one as
        // long as this guard is there. So the count cannot have gone to zero, whoever else lets go meanwhile.
        unsafe {
            Arc::increment_strong_count(slot);
            Arc::from_raw(slot)
        }
    }
}

impl<B> Deref for Guard<'_, B> {
    type Target = Slot<B>;

    fn deref(&self) -> &Slot<B> {
        self.slot
    }
}

impl<B> Drop for Guard<'_, B> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.hazard.clear() {
            self.index.reclaim();
            readers::guard_was_awaited();
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::Chunks;

    proptest! {
        #[test]
        fn finds_the_chunk_around(
            region_bytes in 1..200_usize,
            chunk_bytes in 0..70_usize,
            (a, b) in (0..200_usize, 0..200_usize),
        ) {
            let (start, end) = (a.min(b) % region_bytes, (a.max(b)).min(region_bytes));
            prop_assume!(start <= end);
            let chunks = Chunks::new(region_bytes, chunk_bytes);
            let size = if chunk_bytes == 0 { region_bytes } else { chunk_bytes };
            let expected = (0..region_bytes)
                .step_by(size)
                .map(|from| from..(from + size).min(region_bytes))
                .find(|chunk| start < end && chunk.start <= start && end <= chunk.end);
            prop_assert_eq!(chunks.around(&(start..end)), expected);
        }
    }
}
