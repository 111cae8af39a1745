//! Blocks out of a fixed budget on one node.
//!
//! A pool reserves as many addresses as its budget and hands out runs of pages of them, so that the budget
//! cannot be exceeded and any freed neighbours make room for something larger. Memory follows in chunks of
//! one huge page: a chunk gets its pages, all at once and on the right node, when the first block reaches
//! into it, and may lose them when no block does.
//!
//! ```text
//! pages    |AAAA|AA..|....|BBBB|BB..|....|....|     A, B: blocks   . free
//! chunks   | committed | idle| committed | empty |  idle: kept for the next block, up to IDLE_BYTES_MAX in a pool
//! ```

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::binding::allowed_now;
use super::extents::Extents;
use super::reservation::Reservation;
use super::syscall::{HUGE_PAGE_BYTES as CHUNK_BYTES, page_bytes};
use super::{Binding, HugePages, MemoryError, PoolError};
use crate::topology::{Machine, NodeId};

/// What a pool keeps of the memory that no block uses. Enough that a cache which replaces blocks of some MiB
/// does not ask the kernel each time, and little beside the budgets such caches have.
const IDLE_BYTES_MAX: usize = 16 << 20;

/// A fixed budget of memory on one node, handed out in blocks. Clones share it; blocks keep it alive.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// Bytes of a block belong to the block; all else is in `state`, under its mutex.
struct Shared {
    machine: Arc<Machine>,
    node: NodeId,
    addresses: Reservation,
    state: Mutex<State>,
    /// Signalled when chunks leave `Chunk::Committing`.
    committed: Condvar,
}

struct State {
    /// In pages.
    free: Extents,
    chunks: Vec<Chunk>,
    stats: PoolStats,
    /// Committed and not used by any block.
    idle_bytes: usize,
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
    /// A thread is at it, outside the mutex; others wait for `Shared::committed`.
    Committing,
    Committed,
}

/// What a pool holds and did.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// All it may ever take from the machine.
    pub budget_bytes: usize,
    /// Taken from the machine: blocks, what is left beside them, and some kept for the next. Never above the
    /// budget.
    pub mapped_bytes: usize,
    /// In blocks, rounded up to pages.
    pub used_bytes: usize,
    /// The most that was ever in blocks.
    pub used_bytes_max: usize,
    /// Blocks in use.
    pub blocks_count: u64,
    /// Blocks handed out so far.
    pub allocated_count: u64,
    /// Blocks refused so far, for want of budget or memory.
    pub refused_count: u64,
}

impl Pool {
    /// A pool that takes up to `budget_bytes` (rounded down to pages) from `node`; it takes nothing yet. For
    /// a machine that is not this one, its memory is unbound.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] for an unknown node, [`NodeWithoutMemory`](MemoryError::NodeWithoutMemory),
    /// [`NotAllowed`](MemoryError::NotAllowed), [`BudgetTooLarge`](MemoryError::BudgetTooLarge) for more than
    /// the node has.
    pub fn new(machine: Arc<Machine>, node: NodeId, budget_bytes: usize) -> Result<Pool, MemoryError> {
        let budget_bytes = budget_bytes - budget_bytes % page_bytes();
        let binding = Binding::Bind(node);
        // Before the budget: it is of no use to lower that for a node which gives nothing.
        binding.check(&machine, allowed_now(&machine).as_ref())?;
        if let Some(memory_bytes) = machine.node(node)?.memory_bytes
            && budget_bytes as u64 > memory_bytes
        {
            return Err(MemoryError::BudgetTooLarge { node, budget_bytes, memory_bytes });
        }
        let addresses = Reservation::new(&machine, budget_bytes, binding, HugePages::Advised)?;
        let empty = Chunk { memory: Memory::Empty, blocks_count: 0 };
        let state = State {
            free: Extents::new(budget_bytes / page_bytes()),
            chunks: vec![empty; budget_bytes.div_ceil(CHUNK_BYTES)],
            stats: PoolStats { budget_bytes, ..PoolStats::default() },
            idle_bytes: 0,
        };
        let shared = Shared { machine, node, addresses, state: Mutex::new(state), committed: Condvar::new() };
        Ok(Pool { shared: Arc::new(shared) })
    }

    /// A block of `size_bytes`, with pages in place. Its content is that of some earlier block, or zero.
    ///
    /// Cost: some tree operations; the first to reach into a chunk also populates it, and others that reach
    /// into the same chunk wait for that.
    ///
    /// # Errors
    /// [`PoolError::Full`] now, [`TooLarge`](PoolError::TooLarge) for ever, [`Memory`](PoolError::Memory)
    /// when the machine has less than the budget promises.
    pub fn allocate(&self, size_bytes: usize) -> Result<Block, PoolError> {
        let bytes = self.shared.allocate(size_bytes)?;
        // SAFETY: `bytes` was given by the pool, so it lies inside its addresses, which `shared` keeps mapped.
        let start = unsafe { self.shared.addresses.start().add(bytes.start) };
        Ok(Block { shared: self.shared.clone(), start, bytes, size_bytes })
    }

    /// Gives the memory that no block uses back to the machine; how much that was.
    pub fn trim(&self) -> usize {
        self.shared.discard_idle(&mut self.shared.lock(), 0)
    }

    /// The node its memory lies on.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// All it may ever take from the machine.
    pub fn budget_bytes(&self) -> usize {
        self.shared.addresses.size_bytes()
    }

    /// In blocks, rounded up to pages.
    pub fn used_bytes(&self) -> usize {
        self.stats().used_bytes
    }

    /// Taken from the machine.
    pub fn mapped_bytes(&self) -> usize {
        self.stats().mapped_bytes
    }

    /// All figures at one moment.
    pub fn stats(&self) -> PoolStats {
        self.shared.lock().stats
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("node", &self.node())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// No critical section panics half-way, so a poisoned mutex would protect nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offsets of pages that are in place and nobody else's.
    fn allocate(&self, size_bytes: usize) -> Result<Range<usize>, PoolError> {
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
                // SAFETY: only this thread commits the claimed chunks, blocks reaching into them are not
                // handed out before, and nothing else looks at the memory of a pool.
                let outcome = unsafe { self.addresses.commit(&self.machine, self.bytes_of(&run)) };
                state = self.lock();
                state.settle(run, &outcome);
                self.committed.notify_all();
                if let Err(error) = outcome {
                    self.give_back(&mut state, bytes);
                    state.stats.refused_count += 1;
                    return Err(error.into());
                }
            } else if state.chunks[chunks.clone()].iter().any(|chunk| chunk.memory == Memory::Committing) {
                state = self.committed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state.stats.allocated_count += 1;
                state.stats.blocks_count += 1;
                return Ok(bytes);
            }
        }
    }

    fn give_back(&self, state: &mut State, bytes: Range<usize>) {
        state.give_back(bytes);
        self.discard_idle(state, IDLE_BYTES_MAX);
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
            if unsafe { self.addresses.discard(bytes.clone()) }.is_err() {
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
        chunks.start * CHUNK_BYTES..(chunks.end * CHUNK_BYTES).min(self.addresses.size_bytes())
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

/// Memory out of a [`Pool`], page aligned, its pages in place; returns itself to the pool on drop.
pub struct Block {
    shared: Arc<Shared>,
    /// The first byte; kept here because the cache's hit path reads it, and the way through `shared` is two misses long.
    start: NonNull<u8>,
    /// Whole pages of the pool, this block's own.
    bytes: Range<usize>,
    size_bytes: usize,
}

// SAFETY: `start` points to pages that are this block's own until it is dropped, and belongs to no thread.
unsafe impl Send for Block {}
// SAFETY: through a shared block its pages are only read.
unsafe impl Sync for Block {}

impl Block {
    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.size_bytes
    }

    /// Whether none were asked for.
    pub fn is_empty(&self) -> bool {
        self.size_bytes == 0
    }

    /// The node it lies on.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// What it takes from the budget: its length, rounded up to pages.
    pub fn rounded_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The same pages as a block of `size_bytes`, if these take exactly as many; itself otherwise. Its content stays.
    ///
    /// Cost: nothing, where a drop and an [`allocate`](Pool::allocate) would be two locks and some tree operations.
    pub(crate) fn resized(mut self, size_bytes: usize) -> Result<Block, Block> {
        if size_bytes.checked_next_multiple_of(page_bytes()) != Some(self.bytes.len()) {
            return Err(self);
        }
        self.size_bytes = size_bytes;
        Ok(self)
    }

    /// The first byte. The address stays the same when the block is moved.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first byte, to write to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the bytes are initialised (by the kernel, or by an earlier block), this block's own until
        // it is dropped, and while it is borrowed nobody writes to them.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.size_bytes) }
    }

    /// Its bytes, to write to.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.size_bytes) }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stats.blocks_count -= 1;
        self.shared.give_back(&mut state, self.bytes.clone());
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("node", &self.node()).field("size_bytes", &self.size_bytes).finish()
    }
}
