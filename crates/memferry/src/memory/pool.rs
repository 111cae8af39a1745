//! Blocks out of a fixed budget on one node.
//!
//! A pool reserves as many addresses as its budget and hands out runs of pages of them, so that the budget
//! cannot be exceeded and any freed neighbours make room for something larger. Memory follows in chunks of
//! one huge page: a chunk gets its pages, all at once and on the right node, when the first block reaches
//! into it, and may lose them when no block does.
//!
//! ```text
//! pages    |AAAA|AA..|....|BBBB|BB..|....|....|     A, B: blocks   . free
//! chunks   | committed | idle| committed | empty |  idle: kept for the next block, up to a limit
//! ```
//!
//! A forked child has addresses and books of its own, with the whole budget. Blocks that it inherits stay readable and
//! writable, in its own copy of the memory; their pages are never handed out again there.

mod books;
#[cfg(all(test, memferry_loom))]
mod loom_pool;

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry_dsa::fork::PerProcess;

use self::books::{Books, Ground};
use super::binding::allowed_now;
use super::reservation::Reservation;
use super::syscall::page_bytes;
use super::{Binding, HugePages, MemoryError, PoolError};
use crate::topology::{Machine, NodeId};

/// What a pool keeps of the memory that no block uses, unless it is told otherwise. Enough that a cache which replaces
/// blocks of some MiB does not ask the kernel each time, and little beside the budgets such caches have.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

/// A fixed budget of memory on one node, handed out in blocks. Clones share it; blocks keep it alive.
///
/// Each process has the budget once: a forked child begins with an empty pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// What the clones of a pool share.
struct Shared {
    machine: Arc<Machine>,
    node: NodeId,
    budget_bytes: usize,
    /// For the books of a forked child.
    idle_bytes_max: AtomicUsize,
    ledger: PerProcess<Arc<Ledger>>,
}

/// A pool in one process. Bytes of a block belong to the block; all else is in the books.
type Ledger = Books<Reserved>;

/// Addresses, which get memory as `machine` has it.
struct Reserved {
    machine: Arc<Machine>,
    addresses: Reservation,
}

impl Ground for Reserved {
    unsafe fn commit(&self, bytes: Range<usize>) -> Result<(), MemoryError> {
        // SAFETY: passed on to the caller.
        unsafe { self.addresses.commit(&self.machine, bytes) }
    }

    unsafe fn discard(&self, bytes: Range<usize>) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.addresses.discard(bytes) }.is_ok()
    }
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
        let shared = Shared {
            machine,
            node,
            budget_bytes,
            idle_bytes_max: AtomicUsize::new(IDLE_BYTES_MAX),
            ledger: PerProcess::new(),
        };
        shared.ledger()?;
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
        let ledger = self.shared.ledger()?;
        let bytes = ledger.allocate(size_bytes)?;
        // SAFETY: `bytes` was given by the ledger, so it lies inside its addresses, which the ledger keeps mapped.
        let start = unsafe { ledger.ground().addresses.start().add(bytes.start) };
        Ok(Block { ledger: ledger.clone(), start, bytes, size_bytes })
    }

    /// Gives the memory that no block uses back to the machine; how much that was.
    pub fn trim(&self) -> usize {
        self.shared.ledger.get().map_or(0, |ledger| ledger.trim())
    }

    /// Keeps up to `idle_bytes_max` of the memory that no block uses for blocks to come, rather than 16 MiB: for users
    /// that give much back and soon take it again, which would otherwise pay for its pages each time. What is above
    /// that goes when the next block does.
    pub fn keep_idle(&self, idle_bytes_max: usize) {
        // ORDERING: Relaxed, no partner: a forked child has what its parent last wrote.
        self.shared.idle_bytes_max.store(idle_bytes_max, Ordering::Relaxed);
        if let Some(ledger) = self.shared.ledger.get() {
            ledger.keep_idle(idle_bytes_max);
        }
    }

    /// Keeps everybody else from taking blocks, and from giving them back.
    #[cfg(all(test, not(memferry_loom)))]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.shared.ledger.get().expect("this process has made the pool").hold()
    }

    /// The node its memory lies on.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// All it may ever take from the machine.
    pub fn budget_bytes(&self) -> usize {
        self.shared.budget_bytes
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
        let unused = || PoolStats { budget_bytes: self.budget_bytes(), ..PoolStats::default() };
        self.shared.ledger.get().map_or_else(unused, |ledger| ledger.stats())
    }
}

impl Shared {
    /// This process'; a forked child makes its own with the first block.
    fn ledger(&self) -> Result<&Arc<Ledger>, MemoryError> {
        self.ledger.get_or_try_init(|| {
            let Shared { machine, node, budget_bytes, .. } = self;
            let binding = Binding::Bind(*node);
            let addresses = Reservation::new(machine, *budget_bytes, binding, HugePages::Advised)?;
            let ground = Reserved { machine: machine.clone(), addresses };
            let idle_bytes_max = self.idle_bytes_max.load(Ordering::Relaxed);
            Ok(Arc::new(Books::new(ground, *node, *budget_bytes, idle_bytes_max)))
        })
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

/// Memory out of a [`Pool`], page aligned, its pages in place; returns itself to the pool on drop.
pub struct Block {
    ledger: Arc<Ledger>,
    /// The first byte; kept here because the cache's hit path reads it, and the way through `ledger` is two misses long.
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
        self.ledger.node()
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
        self.ledger.free(self.bytes.clone());
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("node", &self.node()).field("size_bytes", &self.size_bytes).finish()
    }
}
