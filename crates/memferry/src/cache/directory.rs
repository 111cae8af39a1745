//! The directory of a region: for each chunk and node a pointer to the ready copy, for hits without a lock.
//!
//! ```text
//! range ─▶ offset / chunk ─▶ cell ─▶ hazard = cell, cell unchanged? ─▶ bytes of the copy, at the offset of `range`
//! ```
//!
//! The cells own nothing. Only the node's index writes them, under its lock, and it lists the slot for at least as long
//! as a cell points to it. [`readers`](super::readers) explains how a reader keeps the slot alive.

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr;
use std::slice;

use memferry_dsa::internals::fork;

use super::index::Index;
use super::readers::{self, Hazard, Record};
use super::slot::Slot;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// The chunks of a region: of equal size; the last may be shorter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    region_bytes: usize,
    chunk_bytes: usize,
    /// The binary logarithm of a `chunk_bytes` that is a power of two: a shift costs a cycle, a division a dozen.
    shift: Option<u32>,
}

impl Chunks {
    /// One chunk if `chunk_bytes` is 0 or exceeds the region.
    pub(super) fn new(region_bytes: usize, chunk_bytes: usize) -> Chunks {
        let whole = region_bytes.max(1);
        let chunk_bytes = if chunk_bytes == 0 { whole } else { chunk_bytes.min(whole) };
        let shift = chunk_bytes.is_power_of_two().then(|| chunk_bytes.trailing_zeros());
        Chunks { region_bytes, chunk_bytes, shift }
    }

    #[inline]
    pub(super) fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    #[inline]
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    fn count(&self) -> usize {
        self.region_bytes.div_ceil(self.chunk_bytes)
    }

    /// The number of the chunk that contains `range`, which is a range of the region.
    #[inline(always)]
    fn containing(&self, range: &Range<usize>) -> Option<usize> {
        let (number, start) = match self.shift {
            Some(shift) => (range.start >> shift, range.start >> shift << shift),
            None => (range.start / self.chunk_bytes, range.start / self.chunk_bytes * self.chunk_bytes),
        };
        (range.end - start <= self.chunk_bytes && !range.is_empty()).then_some(number)
    }

    /// The range of the chunk that contains `range`.
    pub(super) fn around(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let start = self.containing(range)? * self.chunk_bytes;
        Some(start..(start + self.chunk_bytes).min(self.region_bytes))
    }
}

/// The chunks of one region on one node, in the process that made the first copy.
///
/// A forked child finds nothing here and takes the lock: the cells point to copies that its index does not list. The
/// index writes all fields, under its lock. Readers load `generation` first.
pub(super) struct Directory<B> {
    chunks: Chunks,
    /// That process; [`NO_PROCESS`] before the first copy.
    generation: AtomicU32,
    /// Number of cells at `cells`.
    count: AtomicUsize,
    /// From a box, once `generation` is set.
    cells: AtomicPtr<AtomicPtr<Slot<B>>>,
}

/// The generation of no process and of no record; a record that a forked child inherits has 0.
const NO_PROCESS: u32 = u32::MAX;

impl<B> Directory<B> {
    pub(super) fn new(chunks: Chunks) -> Directory<B> {
        let cells = AtomicPtr::default();
        Directory { chunks, generation: AtomicU32::new(NO_PROCESS), count: AtomicUsize::new(0), cells }
    }

    /// The cell of the chunk that contains `range`, if the process of this generation has made the cells.
    #[inline(always)]
    fn find(&self, range: &Range<usize>, generation: u32) -> Option<&AtomicPtr<Slot<B>>> {
        // ORDERING: Acquire pairs with the Release of `make`: the other two fields of this generation are visible here.
        if self.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        let (cells, count) = (self.cells.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
        // SAFETY: no process or record has the generation `NO_PROCESS`, so `make` has written the two, of one box, before
        // the generation. Nothing writes them again in this process, and no `&self` exists during `drop`.
        unsafe { slice::from_raw_parts(cells, count) }.get(self.chunks.containing(range)?)
    }

    /// Publishes a slot if its range is a whole chunk. The index calls it under its lock; the slot is near and listed.
    pub(super) fn publish(&self, slot: &Arc<Slot<B>>) {
        if self.chunks.around(&slot.range).as_ref() != Some(&slot.range) {
            return;
        }
        let generation = fork::generation();
        if generation == 0 {
            return; // forks cannot be detected
        }
        // ORDERING: Relaxed: the index' lock orders the writers.
        if self.generation.load(Ordering::Relaxed) == NO_PROCESS {
            self.make(generation);
        }
        if let Some(cell) = self.find(&slot.range, generation) {
            // ORDERING: Release pairs with the Acquire of `Guard::new`: slot and near bytes are visible there as this
            // thread saw them.
            cell.store(Arc::as_ptr(slot).cast_mut(), Ordering::Release);
        }
    }

    /// Makes the cells. If a fork interrupts it, the child makes its own.
    fn make(&self, generation: u32) {
        let cells: Box<[AtomicPtr<Slot<B>>]> =
            (0..self.chunks.count()).map(|_| AtomicPtr::default()).collect();
        let count = cells.len();
        self.cells.store(Box::into_raw(cells).cast::<AtomicPtr<_>>(), Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of `find`: `cells` and `count` become visible.
        self.generation.store(generation, Ordering::Release);
    }

    /// Hides a slot. Returns whether it was published. The index calls it under its lock.
    pub(super) fn hide(&self, slot: &Slot<B>) -> bool {
        let Some(cell) = self.find(&slot.range, fork::generation()) else { return false };
        // ORDERING: Relaxed: the index' lock orders the writers, and the fence that follows orders the readers.
        let is_found = ptr::eq(cell.load(Ordering::Relaxed), slot);
        if is_found {
            cell.store(ptr::null_mut(), Ordering::Relaxed);
        }
        is_found
    }
}

impl<B> Drop for Directory<B> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, all of it: this thread owns the directory. Cells of a parent are leaked, because the fork may
        // have interrupted its stores.
        if self.generation.load(Ordering::Relaxed) == fork::generation() {
            let (cells, count) = (self.cells.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed));
            let cells = ptr::slice_from_raw_parts_mut(cells, count);
            // SAFETY: the box of `make`, whose cells own nothing.
            drop(unsafe { Box::from_raw(cells) });
        }
    }
}

/// A borrowed ready slot. The slot and its near copy live until this is dropped, without count or lock.
pub(super) struct Guard<'a, B> {
    slot: &'a Slot<B>,
    index: &'a Index<B>,
    hazard: &'a Hazard,
    /// The hazard belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl<'a, B> Guard<'a, B> {
    /// The ready slot of the chunk that contains `range`. `directory` belongs to `index`, `record` to this thread.
    ///
    /// `None` also if the thread has no free hazard, if a remover interfered, or if directory or record belong to the
    /// parent of a forked child. The caller then looks under the lock.
    #[inline(always)]
    pub(super) fn new(
        index: &'a Index<B>,
        directory: &Directory<B>,
        range: &Range<usize>,
        record: &'static Record,
    ) -> Option<Guard<'a, B>> {
        let cell = directory.find(range, record.generation())?;
        // ORDERING: Relaxed: it is loaded again below.
        let found = cell.load(Ordering::Relaxed);
        if found.is_null() {
            return None;
        }
        let hazard = record.free()?;
        hazard.set(found.cast());
        // ORDERING: Acquire pairs with the Release of `publish`: slot and near bytes are visible here.
        if cell.load(Ordering::Acquire) != found {
            if hazard.clear() {
                index.reclaim();
            }
            return None;
        }
        // SAFETY: the cell pointed to `found` after the hazard was set and fenced. Only `index` writes the cell, because
        // only the cache that registered a region looks it up (`Shared::check`). It empties a slot's cell before it
        // removes the slot, keeps the slot until the other half of the fence has happened, and then finds this hazard:
        // so it keeps the slot until the hazard is cleared, which only `drop` does. The index outlives 'a.
        let slot = unsafe { &*found };
        Some(Guard { slot, index, hazard, _not_send: PhantomData })
    }

    /// A counted handle to the same slot.
    pub(super) fn to_owned(&self) -> Arc<Slot<B>> {
        let slot: *const Slot<B> = self.slot;
        // SAFETY: `slot` lies inside an `Arc` (`publish`), and its count is at least 1: the index holds one as long as this
        // guard exists. So the count cannot reach zero, whichever other holders drop theirs meanwhile.
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
            readers::wanted_guard_ended();
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
