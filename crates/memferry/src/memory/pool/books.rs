//! Which pages of a pool are whose, and which chunks have memory; all of a pool but the memory itself, so that models
//! can put something that they watch in its place.

use std::ops::Range;

use memferry_dsa::fork;

use super::super::extents::Extents;
use super::super::syscall::{HUGE_PAGE_BYTES as CHUNK_BYTES, page_bytes};
use super::super::{MemoryError, PoolError};
use super::PoolStats;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_on};
use crate::topology::NodeId;

/// What pages are taken from. Ranges are of bytes from its beginning, and whole chunks but for the last.
pub(super) trait Ground {
    /// Puts pages in place.
    ///
    /// # Safety
    /// Nobody else uses the range until this returns.
    unsafe fn commit(&self, bytes: Range<usize>) -> Result<(), MemoryError>;

    /// Takes pages away, with what was in them; whether it did.
    ///
    /// # Safety
    /// As for `commit`.
    unsafe fn discard(&self, bytes: Range<usize>) -> bool;
}

/// Pages are handed out, and chunks committed, under the one mutex; a chunk's memory comes without it, while all who
/// reach into the chunk wait.
pub(super) struct Books<G> {
    /// The process that made them, and the only one that uses them.
    generation: u32,
    ground: G,
    node: NodeId,
    budget_bytes: usize,
    state: Mutex<State>,
    /// Signalled when chunks leave [`Memory::Committing`].
    committed: Condvar,
}

struct State {
    /// In pages.
    free: Extents,
    chunks: Vec<Chunk>,
    stats: PoolStats,
    /// Committed and not used by any block.
    idle_bytes: usize,
    /// How much of that is kept for blocks to come.
    idle_bytes_max: usize,
}

/// One huge page of a pool; the last may be shorter.
#[derive(Copy, Clone)]
struct Chunk {
    memory: Memory,
    /// Blocks that reach into it. Only at 0 may its memory go.
    blocks_count: u32,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Memory {
    Empty,
    /// Of no use as it is, but it could not be given back.
    LeftOver,
    /// A thread is at it, outside the mutex; others wait for `Books::committed`.
    Committing,
    Committed,
}

impl<G: Ground> Books<G> {
    /// Of a budget that is a multiple of pages, all of it free and without memory. `node` is for errors.
    pub(super) fn new(ground: G, node: NodeId, budget_bytes: usize, idle_bytes_max: usize) -> Books<G> {
        let empty = Chunk { memory: Memory::Empty, blocks_count: 0 };
        let state = State {
            free: Extents::new(budget_bytes / page_bytes()),
            chunks: vec![empty; budget_bytes.div_ceil(CHUNK_BYTES)],
            stats: PoolStats { budget_bytes, ..PoolStats::default() },
            idle_bytes: 0,
            idle_bytes_max,
        };
        let (state, committed) = (Mutex::new(state), Condvar::new());
        Books { generation: fork::generation(), ground, node, budget_bytes, state, committed }
    }

    pub(super) fn ground(&self) -> &G {
        &self.ground
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    pub(super) fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    /// Pages that are in place and nobody else's, until they are [freed](Books::free).
    ///
    /// # Errors
    /// As [`Pool::allocate`](super::Pool::allocate).
    pub(super) fn allocate(&self, size_bytes: usize) -> Result<Range<usize>, PoolError> {
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
                // SAFETY: only this thread commits the claimed chunks, blocks reaching into them are not handed out
                // before, and nothing else looks at the memory of a pool.
                let outcome = unsafe { self.ground.commit(self.bytes_of(&run)) };
                state = self.lock();
                state.settle(run, &outcome);
                self.committed.notify_all();
                if let Err(error) = outcome {
                    self.give_back(&mut state, bytes);
                    state.stats.refused_count += 1;
                    return Err(error.into());
                }
            } else if state.chunks[chunks.clone()].iter().any(|chunk| chunk.memory == Memory::Committing) {
                state = wait_on(&self.committed, state);
            } else {
                state.stats.allocated_count += 1;
                state.stats.blocks_count += 1;
                return Ok(bytes);
            }
        }
    }

    /// Takes back what was allocated, which nobody uses any more. What a forked child has inherited it keeps: the lock may
    /// be held by a thread that it does not have.
    pub(super) fn free(&self, bytes: Range<usize>) {
        if self.generation != fork::generation() {
            return;
        }
        let mut state = self.lock();
        state.stats.blocks_count -= 1;
        self.give_back(&mut state, bytes);
    }

    /// Gives the memory that no block uses back to the machine; how much that was.
    pub(super) fn trim(&self) -> usize {
        self.discard_idle(&mut self.lock(), 0)
    }

    /// How much of the memory that no block uses is kept from now on.
    pub(super) fn keep_idle(&self, idle_bytes_max: usize) {
        self.lock().idle_bytes_max = idle_bytes_max;
    }

    /// Keeps everybody else out.
    #[cfg(all(test, not(memferry_loom)))]
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// No critical section panics half-way, so a poisoned mutex would protect nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn give_back(&self, state: &mut State, bytes: Range<usize>) {
        state.give_back(bytes);
        self.discard_idle(state, state.idle_bytes_max);
    }

    /// Gives idle chunks back to the machine until at most `keep_bytes` are left, from the far end on,
    /// because blocks come from the near end. Under the mutex: otherwise a block could miss memory that is on
    /// its way out.
    fn discard_idle(&self, state: &mut State, keep_bytes: usize) -> usize {
        let before_bytes = state.idle_bytes;
        for index in (0..state.chunks.len()).rev() {
            if state.idle_bytes <= keep_bytes {
                break;
            }
            let chunk = state.chunks[index];
            if chunk.memory != Memory::Committed || chunk.blocks_count > 0 {
                continue;
            }
            let bytes = self.bytes_of(&(index..index + 1));
            // SAFETY: no block reaches into the chunk, and none can while the mutex is held.
            if !unsafe { self.ground.discard(bytes.clone()) } {
                // The kernel keeps it, so the next block may have it.
                break;
            }
            state.chunks[index].memory = Memory::Empty;
            state.idle_bytes -= bytes.len();
            state.stats.mapped_bytes -= bytes.len();
        }
        before_bytes - state.idle_bytes
    }

    fn too_much(&self, size_bytes: usize, stats: &PoolStats) -> PoolError {
        let PoolStats { budget_bytes, used_bytes, .. } = *stats;
        match size_bytes.checked_next_multiple_of(page_bytes()) {
            Some(size_bytes) if size_bytes <= budget_bytes => {
                PoolError::Full { node: self.node, size_bytes, used_bytes, budget_bytes }
            }
            _ => PoolError::TooLarge { node: self.node, size_bytes, budget_bytes },
        }
    }

    fn bytes_of(&self, chunks: &Range<usize>) -> Range<usize> {
        chunks.start * CHUNK_BYTES..(chunks.end * CHUNK_BYTES).min(self.budget_bytes)
    }
}

impl State {
    /// Reserves pages for `size_bytes`, which holds their chunks; `None` if there is no such run of them.
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

    /// The first run among `chunks` of those without memory that is of use, now this thread's to commit.
    fn claim(&mut self, chunks: Range<usize>) -> Option<Range<usize>> {
        let is_to_do = |index: &usize| matches!(self.chunks[*index].memory, Memory::Empty | Memory::LeftOver);
        let start = chunks.clone().find(is_to_do)?;
        let end = (start..chunks.end).find(|index| !is_to_do(index)).unwrap_or(chunks.end);
        for index in start..end {
            if self.chunks[index].memory == Memory::Empty {
                self.stats.mapped_bytes += self.chunk_bytes(index);
            }
            self.chunks[index].memory = Memory::Committing;
        }
        Some(start..end)
    }

    /// What became of claimed chunks.
    fn settle(&mut self, chunks: Range<usize>, outcome: &Result<(), MemoryError>) {
        let memory = match outcome {
            Ok(()) => Memory::Committed,
            Err(MemoryError::NotGivenBack { .. }) => Memory::LeftOver,
            Err(_) => Memory::Empty,
        };
        for index in chunks {
            self.chunks[index].memory = memory;
            if memory == Memory::Empty {
                self.stats.mapped_bytes -= self.chunk_bytes(index);
            }
        }
    }

    fn is_idle(&self, index: usize) -> bool {
        let Chunk { memory, blocks_count } = self.chunks[index];
        memory == Memory::Committed && blocks_count == 0
    }

    fn chunk_bytes(&self, index: usize) -> usize {
        CHUNK_BYTES.min(self.stats.budget_bytes - index * CHUNK_BYTES)
    }
}

/// The chunks that a range of bytes reaches into.
fn chunks_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)
}
