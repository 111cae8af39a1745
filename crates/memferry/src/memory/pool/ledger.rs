//! The ledger of a pool: allocated pages and committed chunks. The memory itself is behind a trait, so that loom models
//! can replace it.

use std::ops::Range;

use memferry_dsa::internals::fork;

use super::super::MemoryError;
use super::super::extents::Extents;
use super::super::syscall::{HUGE_PAGE_BYTES as CHUNK_BYTES, page_bytes};
use super::PoolStats;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_on};
use crate::topology::NodeId;

/// The memory behind a ledger. Ranges are bytes from its start, and whole chunks except the last.
pub(super) trait Backing {
    /// Populates a range.
    ///
    /// # Safety
    /// Nobody else uses the range until this returns.
    unsafe fn commit(&self, bytes: Range<usize>) -> Result<(), MemoryError>;

    /// Frees the pages of a range. Returns whether it did.
    ///
    /// # Safety
    /// That of `commit`.
    unsafe fn discard(&self, bytes: Range<usize>) -> bool;
}

/// The ledger of a pool in one process; `state` is the lock of all mutable data.
///
/// A thread populates a chunk outside the lock; threads with blocks in the chunk wait for `committed` meanwhile.
pub(super) struct Ledger<G> {
    /// The process that made it, and the only one that uses it.
    generation: u32,
    backing: G,
    node: NodeId,
    budget_bytes: usize,
    state: Mutex<LedgerState>,
    /// Signalled when chunks leave [`ChunkMemory::Committing`].
    committed: Condvar,
}

struct LedgerState {
    /// Free ranges, in pages.
    free: Extents,
    chunks: Vec<Chunk>,
    stats: PoolStats,
    /// Committed bytes in chunks without blocks.
    idle_bytes: usize,
    /// Limit of `idle_bytes`.
    idle_bytes_max: usize,
}

/// One huge page of a pool; the last may be shorter.
#[derive(Copy, Clone)]
struct Chunk {
    memory: ChunkMemory,
    /// Blocks in it. Its memory may be freed only at 0.
    blocks_count: u32,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum ChunkMemory {
    Empty,
    /// Incomplete memory that could not be freed.
    LeftOver,
    /// A thread populates it outside the lock; others wait for `Ledger::committed`.
    Committing,
    Committed,
}

impl<G: Backing> Ledger<G> {
    /// A ledger whose whole budget, a multiple of pages, is free and without memory. `node` is for errors.
    pub(super) fn new(backing: G, node: NodeId, budget_bytes: usize, idle_bytes_max: usize) -> Ledger<G> {
        let empty = Chunk { memory: ChunkMemory::Empty, blocks_count: 0 };
        let state = LedgerState {
            free: Extents::new(budget_bytes / page_bytes()),
            chunks: vec![empty; budget_bytes.div_ceil(CHUNK_BYTES)],
            stats: PoolStats { budget_bytes, ..PoolStats::default() },
            idle_bytes: 0,
            idle_bytes_max,
        };
        let (state, committed) = (Mutex::new(state), Condvar::new());
        Ledger { generation: fork::generation(), backing, node, budget_bytes, state, committed }
    }

    pub(super) fn backing(&self) -> &G {
        &self.backing
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    /// Allocates populated pages, until they are [freed](Ledger::free).
    ///
    /// # Errors
    /// Those of [`Pool::allocate`](super::Pool::allocate).
    pub(super) fn allocate(&self, size_bytes: usize) -> Result<Range<usize>, MemoryError> {
        let mut state = self.lock();
        let bytes = match state.take(size_bytes) {
            Some(bytes) => bytes,
            None => {
                state.stats.refused_count += 1;
                return Err(self.too_much(size_bytes, &state.stats));
            }
        };
        let chunks = chunks_of(&bytes);
        loop {
            if let Some(run) = state.claim(chunks.clone()) {
                drop(state);
                // SAFETY: only this thread commits the claimed chunks, blocks in them are not handed out before, and
                // nothing else accesses the memory of a pool.
                let outcome = unsafe { self.backing.commit(self.bytes_of(&run)) };
                state = self.lock();
                state.finish_claim(run, &outcome);
                self.committed.notify_all();
                if let Err(error) = outcome {
                    self.give_back(&mut state, bytes);
                    state.stats.refused_count += 1;
                    return Err(error);
                }
            } else if state.chunks[chunks.clone()].iter().any(|chunk| chunk.memory == ChunkMemory::Committing)
            {
                state = wait_on(&self.committed, state);
            } else {
                state.stats.allocated_count += 1;
                state.stats.blocks_count += 1;
                return Ok(bytes);
            }
        }
    }

    /// Frees allocated pages that are no longer used. A forked child keeps inherited pages: a thread that it does not have
    /// may hold the lock.
    pub(super) fn free(&self, bytes: Range<usize>) {
        if self.generation != fork::generation() {
            return;
        }
        let mut state = self.lock();
        state.stats.blocks_count -= 1;
        self.give_back(&mut state, bytes);
    }

    /// Frees the memory that no block uses. Returns its size.
    pub(super) fn trim(&self) -> usize {
        self.discard_idle(&mut self.lock(), 0)
    }

    /// Sets the limit of idle memory.
    pub(super) fn keep_idle(&self, idle_bytes_max: usize) {
        self.lock().idle_bytes_max = idle_bytes_max;
    }

    /// Holds the lock.
    #[cfg(all(test, not(memferry_loom)))]
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// No critical section panics half-way, so a poisoned mutex would protect nothing.
    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        lock(&self.state)
    }

    fn give_back(&self, state: &mut LedgerState, bytes: Range<usize>) {
        state.give_back(bytes);
        self.discard_idle(state, state.idle_bytes_max);
    }

    /// Frees idle chunks until at most `keep_bytes` are left, from the far end, because blocks come from the near end.
    /// Runs under the lock: otherwise a new block could get memory that is being freed.
    fn discard_idle(&self, state: &mut LedgerState, keep_bytes: usize) -> usize {
        let before_bytes = state.idle_bytes;
        for index in (0..state.chunks.len()).rev() {
            if state.idle_bytes <= keep_bytes {
                break;
            }
            let chunk = state.chunks[index];
            if chunk.memory != ChunkMemory::Committed || chunk.blocks_count > 0 {
                continue;
            }
            let bytes = self.bytes_of(&(index..index + 1));
            // SAFETY: no block reaches into the chunk, and none can while the mutex is held.
            if !unsafe { self.backing.discard(bytes.clone()) } {
                // The memory stays, for the next block.
                break;
            }
            state.chunks[index].memory = ChunkMemory::Empty;
            state.idle_bytes -= bytes.len();
            state.stats.mapped_bytes -= bytes.len();
        }
        before_bytes - state.idle_bytes
    }

    fn too_much(&self, size_bytes: usize, stats: &PoolStats) -> MemoryError {
        let PoolStats { budget_bytes, used_bytes, .. } = *stats;
        match size_bytes.checked_next_multiple_of(page_bytes()) {
            Some(size_bytes) if size_bytes <= budget_bytes => {
                MemoryError::Full { node: self.node, size_bytes, used_bytes, budget_bytes }
            }
            _ => MemoryError::TooLarge { node: self.node, size_bytes, budget_bytes },
        }
    }

    fn bytes_of(&self, chunks: &Range<usize>) -> Range<usize> {
        chunks.start * CHUNK_BYTES..(chunks.end * CHUNK_BYTES).min(self.budget_bytes)
    }
}

impl LedgerState {
    /// Allocates pages for `size_bytes` and counts them in their chunks; `None` if there is no such run.
    fn take(&mut self, size_bytes: usize) -> Option<Range<usize>> {
        let pages_count = size_bytes.div_ceil(page_bytes());
        let pages = if pages_count == 0 { 0..0 } else { self.free.take(pages_count)? };
        let bytes = pages.start * page_bytes()..pages.end * page_bytes();
        self.stats.used_bytes += bytes.len();
        self.stats.used_bytes_max = self.stats.used_bytes_max.max(self.stats.used_bytes);
        for index in chunks_of(&bytes) {
            if self.is_idle(index) {
                self.idle_bytes -= self.chunk_bytes(index);
            }
            self.chunks[index].blocks_count += 1;
        }
        Some(bytes)
    }

    /// Undoes `take`.
    fn give_back(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        self.stats.used_bytes -= bytes.len();
        for index in chunks_of(&bytes) {
            self.chunks[index].blocks_count -= 1;
            if self.is_idle(index) {
                self.idle_bytes += self.chunk_bytes(index);
            }
        }
        self.free.give_back(bytes.start / page_bytes()..bytes.end / page_bytes());
    }

    /// Claims the first run of `chunks` without usable memory for this thread to commit.
    fn claim(&mut self, chunks: Range<usize>) -> Option<Range<usize>> {
        let is_to_do =
            |index: &usize| matches!(self.chunks[*index].memory, ChunkMemory::Empty | ChunkMemory::LeftOver);
        let start = chunks.clone().find(is_to_do)?;
        let end = (start..chunks.end).find(|index| !is_to_do(index)).unwrap_or(chunks.end);
        for index in start..end {
            if self.chunks[index].memory == ChunkMemory::Empty {
                self.stats.mapped_bytes += self.chunk_bytes(index);
            }
            self.chunks[index].memory = ChunkMemory::Committing;
        }
        Some(start..end)
    }

    /// Stores the outcome of claimed chunks.
    fn finish_claim(&mut self, chunks: Range<usize>, outcome: &Result<(), MemoryError>) {
        let memory = match outcome {
            Ok(()) => ChunkMemory::Committed,
            Err(MemoryError::NotGivenBack { .. }) => ChunkMemory::LeftOver,
            Err(_) => ChunkMemory::Empty,
        };
        for index in chunks {
            self.chunks[index].memory = memory;
            if memory == ChunkMemory::Empty {
                self.stats.mapped_bytes -= self.chunk_bytes(index);
            }
        }
    }

    fn is_idle(&self, index: usize) -> bool {
        let Chunk { memory, blocks_count } = self.chunks[index];
        memory == ChunkMemory::Committed && blocks_count == 0
    }

    fn chunk_bytes(&self, index: usize) -> usize {
        CHUNK_BYTES.min(self.stats.budget_bytes - index * CHUNK_BYTES)
    }
}

/// The chunks that a range of bytes reaches into.
fn chunks_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)
}
