//! A cache of memory: copies of frequently read ranges in faster memory, and the source until they are ready.
//!
//! ```text
//! view, access ──▶ placement policy: the node of the copy
//!                   │
//!                   ▼
//!  directory of the region: is the chunk ready? ────────────── yes ───▶ View, Entry     hit, without a lock
//!                   │ no
//!                   ▼
//!  index of the node, by (region, range) ───────────────────── found ─▶ Entry           in flight, or not a chunk
//!                   │ miss
//!                   ▼
//!  pool: a block, perhaps after evictions ──────────────────── full ──▶ Entry           the source, counted
//!                   │
//!                   ▼
//!  mover.start(copy) ─────────────────────────────────────────────────▶ Entry           the source until completion
//! ```
//!
//! An access always returns readable bytes. A thread never waits for a thread outside the library: of the threads that
//! miss the same range one submits the copy, all may wait for it, and it completes on the mover's threads. No lock is
//! held during a call of the mover, a free of memory or a wake-up.
//!
//! The copy of a range serves exactly that range; the copy of a chunk also serves its parts. The cache copies the
//! requested range: a miss on a part of a chunk does not copy the chunk.
//!
//! The budget of a node is that of its pool. It covers blocks that are ready, in flight, or held by an entry that is no
//! longer in the cache. Pressure on one node does not affect others.
//!
//! A forked child starts with an empty cache and the full budget of each node. It neither uses nor frees the parent's
//! entries, and waits for no thread of the parent: indexes, pools and hazard records are per process. Inherited entries
//! and views stay readable. Accesses to an inherited region take the lock; regions that the child registers have
//! lock-free hits.
//!
//! Ranges of files are cached as well ([`Cache::read`]). There is no source to fall back to, so the access returns a future
//! (`stored`). So are bytes that the program makes ([`Cache::keep`]), such as decoded columns: there is nothing to make them
//! from again, so a miss returns nothing (`made`).
//!
//! Files: `shared` the steps above; `region` sources; `entry`, `view` handles of the caller; `slot` the state that entries
//! share; `flight` the duty to complete a slot; `directory`, `readers`, `barrier` the lock-free hit; `index`, `sieve`
//! lookup and eviction; `node` allocation; `policy` placement; `nearness` the order of nodes for a reader; `mutable`,
//! `draft` data that changes; `stats` counters.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, chapters 4 and 5. In contrast to the cache described there, this one has budgets, identifies ranges by their
//! owner instead of their address, and invalidates all overlapping entries.

mod access;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod barrier;
mod builder;
#[allow(unsafe_code)]
mod directory;
mod draft;
mod entry;
mod flight;
mod index;
mod made;
#[allow(unsafe_code)]
mod mutable;
mod nearness;
mod node;
mod policy;
#[cfg(all(test, not(memferry_loom)))]
#[allow(unsafe_code)]
mod races;
mod readers;
#[allow(unsafe_code)]
mod region;
#[cfg(feature = "internals")]
pub(crate) mod replay;
mod shared;
mod sieve;
mod slot;
mod stats;
mod stored;
mod view;

#[cfg(all(test, memferry_loom))]
mod loom_cache;

use std::ops::Range;
use std::sync::Arc;

use index::{Index, Removed};
use node::CacheNode;
use region::Source;
use shared::{Destination, Shared};
use view::Hold;

pub use access::{Access, AccessError, BuildError};
pub use builder::CacheBuilder;
pub use draft::{Draft, DraftError, NewOnNode, WriteBackError};
pub use entry::{Entry, Location, Why};
pub use made::{Keep, MadeRegion};
pub use mutable::{CacheMut, Snapshot};
pub use policy::Request;
pub use region::{Region, RegionOwner};
pub use stats::{CacheStats, NodeUsage};
pub use stored::{Reading, StoredRegion};
pub use view::View;

use crate::mover::Mover;
use crate::storage::StoredFile;
use crate::topology::{Machine, NodeId};

/// A cache: near copies of registered memory. Clones share it.
///
/// Dropping the last clone frees the near copies that are not held; held entries, regions and copies in flight live on.
/// In a forked child it is empty and has the full budget; the counters continue from the parent's values.
///
/// ```
/// # use std::sync::Arc;
/// use memferry::{Access, Cache, Machine, Mover};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let machine = Arc::new(Machine::discover()?);
/// let node = machine.nodes()[0].id;
/// let cache = Cache::builder(Mover::builder(machine).build()?).budget(node, 64 << 20).build()?;
/// let region = cache.register(vec![7_u8; 1 << 20]);
/// let entry = cache.access(&region, 0..4096, Access::default())?;
/// assert_eq!(entry.as_slice(), [7; 4096]); // the source, until the copy is ready
/// entry.wait();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// A cache on the machine of `mover`, which makes its copies.
    pub fn builder(mover: Mover) -> CacheBuilder {
        CacheBuilder::new(mover)
    }

    /// Registers the bytes of `owner`; see [`RegionOwner`].
    pub fn register(&self, owner: impl RegionOwner) -> Region {
        self.register_on(owner, None)
    }

    /// Registers bytes that lie on the node `home`.
    ///
    /// Placement policies and routes use `home`; nothing checks it.
    pub fn register_on(&self, owner: impl RegionOwner, home: Option<NodeId>) -> Region {
        self.register_chunked(owner, home, 0)
    }

    /// Registers bytes that are mostly accessed in chunks of `chunk_bytes` or in parts of such chunks.
    ///
    /// Hits on these take no lock; other ranges work as well. With 0, or more than its length, the region is one chunk.
    ///
    /// Cost: a pointer for each chunk and node, from the first copy on.
    pub fn register_chunked(
        &self,
        owner: impl RegionOwner,
        home: Option<NodeId>,
        chunk_bytes: usize,
    ) -> Region {
        let source = Source::new(Arc::new(owner), home, chunk_bytes, self.shared.nodes.len());
        Region::new(source, Arc::downgrade(&self.shared))
    }

    /// Borrows the bytes of `range` from the fastest memory that has them; starts a copy on a miss.
    ///
    /// Like [`access`](Cache::access), for readers that stay on their thread. Cost: a hit on a chunk or a part of one
    /// reads a handful of pointers and writes two cache lines of this thread, without lock, allocation or atomic
    /// read-modify-write. Everything else costs an `access`.
    ///
    /// # Errors
    /// Those of [`access`](Cache::access).
    #[inline(always)]
    pub fn view<'a>(
        &'a self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<View<'a>, AccessError> {
        let shared = &self.shared;
        let hold = match shared.guard_fast(region, &range, &access) {
            Some(guard) => Hold::Borrowed(guard),
            None => shared.hold(region, &range, &access)?,
        };
        Ok(View::new(hold, &range))
    }

    /// The fast path of [`view`](Cache::view), without options: the bytes of a chunk that is near. `None`: use `view`.
    #[cfg(feature = "internals")]
    #[inline(always)]
    pub fn hit(&self, region: &Region, range: Range<usize>) -> Option<View<'_>> {
        let guard = self.shared.guard_fast(region, &range, &Access::default())?;
        Some(View::new(Hold::Borrowed(guard), &range))
    }

    /// Returns the bytes of `range` in the fastest memory that has them; starts a copy on a miss.
    ///
    /// The copy goes to the node of the access, otherwise to the node of the placement policy. Without a node in the
    /// access, a ready copy on another node is returned if the reader prefers it; until the copy on the chosen node is
    /// ready, the best ready copy that the reader prefers to the source serves the bytes. The reader is the requester of
    /// the access, otherwise the calling thread's CPU. A copy to the node of the source is made if requested.
    ///
    /// Cost: a hit on a chunk or a part of one takes no lock, but writes a shared reference count, now and when the entry
    /// is dropped; [`view`](Cache::view) avoids that. A hit on another range takes one lock and one lookup, and one more
    /// of each for every node that the reader prefers, except nodes whose lock is taken at the moment. A miss adds a
    /// block, whose pages the pool populates on first use, and a submission; on a full node also evictions.
    ///
    /// # Errors
    /// [`AccessError`]: the range is not in the region, the node has no budget, or the region belongs to another cache.
    pub fn access(&self, region: &Region, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        let shared = &self.shared;
        if let Some(guard) = shared.guard_fast(region, &range, &access) {
            return Ok(Entry::new(guard.to_owned(), range, false));
        }
        let destination = shared.destination(region, &range, &access)?;
        Ok(match shared.guard(region.source(), &range, destination, &access) {
            Some(guard) => Entry::new(guard.to_owned(), range, false),
            None => shared.enter(region.source(), &range, destination, &access),
        })
    }

    /// Like [`access`](Cache::access), but never starts a copy: returns an entry that is ready or in flight.
    ///
    /// `None` on a miss, and where `access` would not start a copy either. If the access names no node, a ready copy on
    /// another node counts as well, provided that the reader prefers it to the source.
    ///
    /// # Errors
    /// Those of [`access`](Cache::access).
    pub fn access_weak(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Option<Entry>, AccessError> {
        let shared = &self.shared;
        let destination = shared.destination(region, &range, &access)?;
        if let Some(guard) = shared.guard(region.source(), &range, destination, &access) {
            return Ok(Some(Entry::new(guard.to_owned(), range, false)));
        }
        if let Some(slot) = shared.find_elsewhere(region.source(), &range, destination, &access) {
            return Ok(Some(Entry::new(slot, range, false)));
        }
        let Destination::Node(position) = destination else {
            shared.counters.unplaced.add(1);
            return Ok(None);
        };
        let known = shared.nodes[position].index.find(region.source(), &range);
        let interim = shared.find_interim(region.source(), &range, known.as_deref(), &access);
        let (slot, interim) = match (known, interim) {
            (Some(slot), interim) => (slot, interim),
            (None, Some(slot)) => (slot, None),
            (None, None) => {
                shared.counters.absent.add(1);
                return Ok(None);
            }
        };
        shared.count_hit(&slot);
        Ok(Some(Entry::new(slot, range, false).with_interim(interim)))
    }

    /// Registers a file. Its bytes are read by [`read`](Cache::read) only.
    pub fn register_file(&self, file: Arc<StoredFile>) -> StoredRegion {
        let source = Source::of_file(file.clone(), self.shared.nodes.len());
        StoredRegion::new(Region::new(source, Arc::downgrade(&self.shared)), file)
    }

    /// Reads `range` (bytes of the file) to near memory, or finds a copy that is ready or in flight.
    ///
    /// Whole blocks of the file are read and kept, so a read may serve others around it. A copy that has all of the range is
    /// found, also one on another node unless the access names a node. If the placement policy names no node, the bytes go
    /// to the first node with a budget.
    ///
    /// Never blocks: a reading that finds no room is [ready](Reading) with an error, and a failed one leaves no entry.
    /// Cost: one lock and a few lookups; on a miss also a block and a submission.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use memferry::storage::StoredFile;
    /// use memferry::{Access, Cache, Machine, Mover};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::current_exe()?;
    /// let machine = Arc::new(Machine::discover()?);
    /// let node = machine.nodes()[0].id;
    /// let cache = Cache::builder(Mover::builder(machine).build()?).budget(node, 64 << 20).build()?;
    /// let file = cache.register_file(Arc::new(StoredFile::open(&path)?));
    /// let reading = cache.read(&file, 1..4, Access::default())?;
    /// assert_eq!(reading.wait()?.as_slice(), b"ELF");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AccessError`], as for [`access`](Cache::access). Errors of the read itself are those of the [`Reading`].
    pub fn read(
        &self,
        region: &StoredRegion,
        range: Range<u64>,
        access: Access,
    ) -> Result<Reading, AccessError> {
        self.shared.read(region, range, &access)
    }

    /// The number of bytes of a region that are near or in flight on a node, for planning. Not counted as an access.
    ///
    /// Cost: one lock, and a visit of each entry of the region on that node.
    ///
    /// # Errors
    /// [`AccessError::NoBudget`], [`AccessError::ForeignRegion`].
    pub fn near_bytes(&self, region: &Region, node: NodeId) -> Result<usize, AccessError> {
        let shared = &self.shared;
        shared.check(region, &(0..0))?;
        Ok(shared.nodes[shared.position(node)?].index.listed_bytes(region.source()))
    }

    /// Removes all entries that overlap `range`, on every node. Returns their number.
    ///
    /// The next access copies again; held entries keep their version. To change bytes, wait until [`RegionOwner`] allows
    /// it, change them, then invalidate.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ForeignRegion`]: nothing was removed.
    pub fn invalidate(&self, region: &Region, range: Range<usize>) -> Result<usize, AccessError> {
        let dropped = self.shared.invalidate(region, &range)?;
        Ok(dropped.iter().map(|(_, removed)| removed.ranges.len()).sum())
    }

    /// Invalidates `range` and copies the removed entries again, to the same nodes. Returns the number of started copies.
    ///
    /// If a node has no room, the entry is gone, like after [`invalidate`](Cache::invalidate). Each entry counts as
    /// invalidated, and as one access.
    ///
    /// # Errors
    /// Those of [`invalidate`](Cache::invalidate).
    pub fn refresh(&self, region: &Region, range: Range<usize>) -> Result<usize, AccessError> {
        let mut started_count = 0;
        for (position, removed) in self.shared.invalidate(region, &range)? {
            let Removed { ranges, slots } = removed;
            // Frees the blocks before new ones are allocated.
            drop(slots);
            for range in ranges {
                let access = Access::near(self.shared.node_ids[position]);
                let entry = self.shared.enter(region.source(), &range, Destination::Node(position), &access);
                started_count += usize::from(entry.started_copy());
            }
        }
        Ok(started_count)
    }

    /// Removes all entries that are neither held nor in flight. Returns their number.
    pub fn flush(&self) -> usize {
        let dropped = self.shared.drop_slots(Index::remove_unused);
        self.shared.counters.dropped.add(dropped);
        dropped
    }

    /// Removes all entries. Returns their number. Held ones stay readable; they and copies in flight use budget until they
    /// are dropped.
    pub fn clear(&self) -> usize {
        let dropped = self.shared.drop_slots(Index::remove_all);
        self.shared.counters.dropped.add(dropped);
        dropped
    }

    /// The counters, and the memory in use now.
    pub fn stats(&self) -> CacheStats {
        self.shared.counters.snapshot(self.shared.nodes.iter().map(CacheNode::usage).collect())
    }

    /// Bytes of the budgets of all nodes that have a page, as the kernel counts them.
    ///
    /// # Errors
    /// [`MemoryError::Refused`](crate::memory::MemoryError::Refused) before Linux 6.7.
    #[cfg(feature = "internals")]
    pub fn resident_bytes(&self) -> Result<usize, crate::memory::MemoryError> {
        self.shared.nodes.iter().map(|near| near.pool.resident_bytes()).sum()
    }

    /// The mover's machine.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.shared.machine
    }

    /// The mover that makes its copies.
    pub fn mover(&self) -> &Mover {
        &self.shared.mover
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish()
    }
}
