//! Pools: blocks from a fixed budget on one node.
//!
//! A pool reserves as many addresses as its budget and allocates runs of pages from them. So the budget is never exceeded,
//! and freed neighbours join. Memory is committed in chunks of one huge page: a chunk gets all its pages, on the node,
//! with the first block in it, and may lose them when it has no block.
//!
//! ```text
//! pages    |AAAA|AA..|....|BBBB|BB..|....|....|     A, B: blocks   . free
//! chunks   | committed | idle| committed | empty |  idle: kept for the next block, up to a limit
//! ```
//!
//! A forked child has a reservation and a ledger of its own, with the full budget. Inherited blocks stay readable and
//! writable, in its copy of the memory; their pages are never allocated again there.

mod ledger;
#[cfg(all(test, memferry_loom))]
mod loom_pool;

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry_dsa::internals::fork::PerProcess;

use self::ledger::{Backing, Ledger};
use super::binding::allowed_now;
use super::error::SUPPLIER;
#[cfg(feature = "internals")]
use super::pagemap;
use super::reservation::Reservation;
use super::syscall::page_bytes;
use super::{Binding, HugePages, MemoryError};
use crate::topology::{Machine, NodeId};

/// Default limit of idle memory in a pool. Enough for a cache that replaces blocks of some MiB without system calls, and
/// little compared with its budget.
pub const IDLE_BYTES_MAX: usize = 16 << 20;

/// A fixed budget of memory on one node, allocated in blocks. Clones share it; blocks keep it alive.
///
/// The budget is per process: a forked child starts with an empty pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// Shared by the clones of a pool. The ledger has its own lock.
struct Shared {
    machine: Arc<Machine>,
    node: NodeId,
    budget_bytes: usize,
    /// The source of the memory, if not the kernel.
    memory: Option<Arc<dyn PoolMemory>>,
    /// For the ledger of a forked child. Written by [`Pool::keep_idle`], relaxed.
    idle_bytes_max: AtomicUsize,
    ledger: PerProcess<Arc<PoolLedger>>,
}

/// A pool in one process. The bytes of a block belong to the block; the ledger holds the rest.
type PoolLedger = Ledger<Reserved>;

/// The memory of a pool in one process.
enum Reserved {
    /// Addresses backed by memory of the machine.
    Mapped(Arc<Machine>, Reservation),
    Supplied(Supplied),
}

impl Reserved {
    fn start(&self) -> NonNull<u8> {
        match self {
            Reserved::Mapped(_, addresses) => addresses.start(),
            Reserved::Supplied(supplied) => supplied.start,
        }
    }
}

impl Backing for Reserved {
    unsafe fn commit(&self, bytes: Range<usize>) -> Result<(), MemoryError> {
        match self {
            // SAFETY: passed on to the caller.
            Reserved::Mapped(machine, addresses) => unsafe { addresses.commit(machine, bytes) },
            Reserved::Supplied(supplied) => {
                // Initialises the bytes, and populates the pages by the memory policy of the supplier.
                // SAFETY: the range is in the supplied memory, and the caller promises that nobody else uses it.
                unsafe { supplied.start.add(bytes.start).write_bytes(0, bytes.len()) };
                Ok(())
            }
        }
    }

    unsafe fn discard(&self, bytes: Range<usize>) -> bool {
        match self {
            // SAFETY: passed on to the caller.
            Reserved::Mapped(_, addresses) => unsafe { addresses.discard(bytes) }.is_ok(),
            // The supplier decides what happens to its pages.
            Reserved::Supplied(_) => false,
        }
    }
}

/// A source of memory for a [`Pool`], such as the allocator of a program.
///
/// # Safety
/// `allocate` returns readable and writable memory of `size_bytes` that nobody else uses until `free`.
pub unsafe trait PoolMemory: Send + Sync + 'static {
    /// Allocates `size_bytes` on `node`, with any alignment; `None` if there is no memory.
    fn allocate(&self, node: NodeId, size_bytes: usize) -> Option<NonNull<u8>>;

    /// Frees memory of `allocate`, on any thread.
    ///
    /// # Safety
    /// `start` and `size_bytes` are those of one `allocate`, and nobody uses the memory any more.
    unsafe fn free(&self, start: NonNull<u8>, size_bytes: usize);
}

/// Memory of a [`PoolMemory`], freed on drop.
struct Supplied {
    memory: Arc<dyn PoolMemory>,
    allocated: NonNull<u8>,
    size_bytes: usize,
    /// The first whole page.
    start: NonNull<u8>,
}

// SAFETY: the memory is this value's own, and `PoolMemory` frees it on any thread.
unsafe impl Send for Supplied {}
// SAFETY: a shared reference gives out addresses only; `commit` states its requirements.
unsafe impl Sync for Supplied {}

impl Supplied {
    fn new(memory: Arc<dyn PoolMemory>, node: NodeId, budget_bytes: usize) -> Result<Supplied, MemoryError> {
        let refused = || MemoryError::refused(SUPPLIER, budget_bytes, io::ErrorKind::OutOfMemory.into());
        let size_bytes = budget_bytes.checked_add(page_bytes()).ok_or_else(refused)?;
        let allocated = memory.allocate(node, size_bytes).ok_or_else(refused)?;
        let offset = allocated.align_offset(page_bytes());
        // SAFETY: the offset is below a page, by which the memory is larger than the budget.
        let start = unsafe { allocated.add(offset) };
        Ok(Supplied { memory, allocated, size_bytes, start })
    }
}

impl Drop for Supplied {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; the ledger, which every block keeps, is being dropped.
        unsafe { self.memory.free(self.allocated, self.size_bytes) };
    }
}

/// Statistics of a pool.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// The budget.
    pub budget_bytes: usize,
    /// Committed memory: blocks, the rest of their chunks, and idle chunks. Never above the budget.
    pub mapped_bytes: usize,
    /// Bytes in blocks, rounded up to pages.
    pub used_bytes: usize,
    /// Maximum of `used_bytes`.
    pub used_bytes_max: usize,
    /// Blocks in use.
    pub blocks_count: u64,
    /// Blocks allocated so far.
    pub allocated_count: u64,
    /// Blocks refused so far, for lack of budget or memory.
    pub refused_count: u64,
}

impl Pool {
    /// Creates a pool of up to `budget_bytes` (rounded down to pages) on `node`, without memory at first. For a machine
    /// that is not this one, its memory is unbound.
    ///
    /// # Errors
    /// [`MemoryError::Topology`] for an unknown node, [`NodeWithoutMemory`](MemoryError::NodeWithoutMemory),
    /// [`NotAllowed`](MemoryError::NotAllowed), [`BudgetTooLarge`](MemoryError::BudgetTooLarge) above the
    /// memory of the node.
    pub fn new(machine: Arc<Machine>, node: NodeId, budget_bytes: usize) -> Result<Pool, MemoryError> {
        Pool::make(machine, node, budget_bytes, None)
    }

    /// Like [`new`](Pool::new), with memory from `memory` instead of the kernel.
    ///
    /// The budget and one page more are allocated at once, here, and freed after the last block: the pool divides the
    /// memory. Pages are written with the first block in their chunk. A forked child allocates again, with its first block.
    ///
    /// # Errors
    /// Those of [`new`](Pool::new); [`Refused`](MemoryError::Refused) if `memory` has none.
    pub fn with_memory(
        machine: Arc<Machine>,
        node: NodeId,
        budget_bytes: usize,
        memory: Arc<dyn PoolMemory>,
    ) -> Result<Pool, MemoryError> {
        Pool::make(machine, node, budget_bytes, Some(memory))
    }

    fn make(
        machine: Arc<Machine>,
        node: NodeId,
        budget_bytes: usize,
        memory: Option<Arc<dyn PoolMemory>>,
    ) -> Result<Pool, MemoryError> {
        let budget_bytes = budget_bytes - budget_bytes % page_bytes();
        let binding = Binding::Bind(node);
        // Checked before the budget: a lower one does not help on such a node.
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
            memory,
            idle_bytes_max: AtomicUsize::new(IDLE_BYTES_MAX),
            ledger: PerProcess::new(),
        };
        shared.ledger()?;
        Ok(Pool { shared: Arc::new(shared) })
    }

    /// Allocates a populated block of `size_bytes`. Its content is that of some earlier block, or zero.
    ///
    /// Cost: some tree operations. The first block in a chunk also populates the chunk; other blocks in it wait for that.
    ///
    /// # Errors
    /// [`MemoryError::Full`] now, [`TooLarge`](MemoryError::TooLarge) always; others, such as
    /// [`NoRoom`](MemoryError::NoRoom), if the machine has less memory than the budget.
    pub fn allocate(&self, size_bytes: usize) -> Result<Block, MemoryError> {
        let ledger = self.shared.ledger()?;
        let bytes = ledger.allocate(size_bytes)?;
        // SAFETY: the ledger allocated `bytes`, so they lie inside its addresses, which it keeps mapped.
        let start = unsafe { ledger.backing().start().add(bytes.start) };
        Ok(Block { ledger: ledger.clone(), start, bytes, size_bytes })
    }

    /// Frees the memory that no block uses. Returns its size.
    pub fn trim(&self) -> usize {
        self.shared.ledger.get().map_or(0, |ledger| ledger.trim())
    }

    /// Sets the limit of idle memory, 16 MiB by default.
    ///
    /// A higher limit suits users that free much memory and soon allocate it again. Memory above the limit is freed with
    /// the next dropped block.
    pub fn keep_idle(&self, idle_bytes_max: usize) {
        // ORDERING: Relaxed, no partner: a forked child reads the last value of its parent.
        self.shared.idle_bytes_max.store(idle_bytes_max, Ordering::Relaxed);
        if let Some(ledger) = self.shared.ledger.get() {
            ledger.keep_idle(idle_bytes_max);
        }
    }

    /// Holds the lock of the ledger.
    #[cfg(all(test, not(memferry_loom)))]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.shared.ledger.get().expect("this process has made the pool").hold()
    }

    /// The node of its memory.
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// The budget.
    pub fn budget_bytes(&self) -> usize {
        self.shared.budget_bytes
    }

    /// Bytes in blocks, rounded up to pages.
    pub fn used_bytes(&self) -> usize {
        self.stats().used_bytes
    }

    /// Committed memory.
    pub fn mapped_bytes(&self) -> usize {
        self.stats().mapped_bytes
    }

    /// Bytes of its addresses that have a page, in memory or in swap, as the kernel counts them.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] before Linux 6.7.
    ///
    /// Source: `PAGEMAP_SCAN` in Linux `Documentation/admin-guide/mm/pagemap.rst`.
    #[cfg(feature = "internals")]
    pub fn resident_bytes(&self) -> Result<usize, MemoryError> {
        let Some(ledger) = self.shared.ledger.get() else { return Ok(0) };
        let start = ledger.backing().start().as_ptr().addr();
        let runs = pagemap::scan(start..start + self.budget_bytes());
        let runs =
            runs.map_err(|source| MemoryError::refused("PAGEMAP_SCAN", self.budget_bytes(), source))?;
        Ok(runs.iter().map(|run| run.addresses.len()).sum())
    }

    /// A consistent snapshot of the statistics.
    pub fn stats(&self) -> PoolStats {
        let unused = || PoolStats { budget_bytes: self.budget_bytes(), ..PoolStats::default() };
        self.shared.ledger.get().map_or_else(unused, |ledger| ledger.stats())
    }
}

impl Shared {
    /// The ledger of this process; a forked child makes its own with the first block.
    fn ledger(&self) -> Result<&Arc<PoolLedger>, MemoryError> {
        self.ledger.get_or_try_init(|| {
            let Shared { machine, node, budget_bytes, memory, .. } = self;
            let backing = match memory {
                Some(memory) => Reserved::Supplied(Supplied::new(memory.clone(), *node, *budget_bytes)?),
                None => {
                    let binding = Binding::Bind(*node);
                    let addresses = Reservation::new(machine, *budget_bytes, binding, HugePages::Advised)?;
                    Reserved::Mapped(machine.clone(), addresses)
                }
            };
            // ORDERING: Relaxed, no partner: see `keep_idle`.
            let idle_bytes_max = self.idle_bytes_max.load(Ordering::Relaxed);
            Ok(Arc::new(Ledger::new(backing, *node, *budget_bytes, idle_bytes_max)))
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

/// Page-aligned, populated memory of a [`Pool`]; freed to the pool on drop.
pub struct Block {
    ledger: Arc<PoolLedger>,
    /// The first byte; stored here because the cache's hit path reads it, and `ledger` would cost two cache misses.
    start: NonNull<u8>,
    /// The whole pages of this block in the pool.
    bytes: Range<usize>,
    size_bytes: usize,
}

// SAFETY: `start` points to pages that are this block's own until it is dropped, and belongs to no thread.
unsafe impl Send for Block {}
// SAFETY: through a shared block its pages are only read.
unsafe impl Sync for Block {}

impl Block {
    /// The requested size.
    pub fn len(&self) -> usize {
        self.size_bytes
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.size_bytes == 0
    }

    /// The node it lies on.
    pub fn node(&self) -> NodeId {
        self.ledger.node()
    }

    /// Its part of the budget: the size rounded up to pages.
    pub fn rounded_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reuses the pages for `size_bytes`, if these need exactly as many; otherwise returns itself. Content is kept.
    ///
    /// Saves the two locks and the tree operations of a drop and an [`allocate`](Pool::allocate).
    pub(crate) fn resized(mut self, size_bytes: usize) -> Result<Block, Block> {
        if size_bytes.checked_next_multiple_of(page_bytes()) != Some(self.bytes.len()) {
            return Err(self);
        }
        self.size_bytes = size_bytes;
        Ok(self)
    }

    /// A pointer to the first byte. A move of the block does not change it.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// A mutable pointer to the first byte.
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

    /// Its bytes, mutable.
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
