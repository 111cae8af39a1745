//! Keeps copies of what is read often in faster memory, and answers with the source until they are there.
//!
//! ```text
//! view, access ──▶ placement: which node?
//!                   │
//!                   ▼
//!  directory of the region: a chunk around the range, ready? ── yes ──▶ View, Entry     hit, without a lock
//!                   │ no
//!                   ▼
//!  index of the node, by (region, range) ── known ────────────────────▶ Entry           on its way, or an odd range
//!                   │ new
//!                   ▼
//!  room in the pool? unused entries leave ── none ────────────────────▶ Entry           the source, counted
//!                   │
//!                   ▼
//!  mover.start(copy), and at once ────────────────────────────────────▶ Entry           the source until it arrives
//! ```
//!
//! An access always ends in readable bytes. No thread ever waits for a thread that is not itself at work inside the
//! library: of those who ask for the same absent range one submits the copy, all may wait for it, and it completes on
//! the mover's threads. No lock is held while the mover is called, memory is freed or a waiter is woken.
//!
//! A range is answered by the copy of exactly that range, or of the chunk of its region that it lies in. What is asked
//! for is copied as asked: a part of an absent chunk does not bring the chunk.
//!
//! The budget of a node is that of its pool: a block is reserved before it exists, whether it is ready, in flight or
//! held by an entry that the cache no longer lists. Pressure on one node touches no other.
//!
//! A forked child begins with an empty cache and the whole budget of each node. What the parent has listed it neither uses
//! nor frees, and it waits for no thread of the parent: indexes, pools and the records of readers are per process. Entries
//! and views that it inherits stay readable. It accesses a region that it inherits under the lock; one that it registers
//! itself has hits without.
//!
//! Files: `shared` the way above, `region` the sources, `entry` and `view` what the caller holds, `slot` the state machine that entries share,
//! `flight` who must settle it, `directory` and `readers` the hit path and what keeps a slot under it (with `barrier`),
//! `index` lookup and eviction (with `sieve`), `node` room, `policy` placement, `nearness` the best of several copies, `mutable` data
//! that changes, `draft` private copies of it, `stats` the counters.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, chapters 4 and 5. Unlike the cache described there, this one has budgets, knows ranges by their owner rather
//! than by address, and invalidates whatever overlaps.

mod access;
mod barrier;
mod builder;
#[allow(unsafe_code)]
mod directory;
mod draft;
mod entry;
mod flight;
mod index;
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
mod view;

#[cfg(all(test, memferry_loom))]
mod loom_cache;

use std::ops::Range;
use std::sync::Arc;

use index::{Index, Taken};
use node::Near;
use region::Source;
use shared::{Shared, Wish};
use view::Hold;

pub use access::{Access, AccessError, BuildError, Flags};
pub use builder::CacheBuilder;
pub use draft::{Draft, DraftError, NewOnNode, WriteBackError};
pub use entry::{Entry, Location, Settled, Why};
pub use mutable::{CacheMut, Snapshot};
pub use policy::{FixedNode, NearestFaster, Placement, Request};
pub use region::{Region, RegionOwner};
pub use stats::{CacheStats, NodeUsage};
pub use view::View;

use crate::mover::Mover;
use crate::topology::{Machine, NodeId};

/// Near copies of registered memory. Clones share it.
///
/// Dropping the last clone frees what is near and not held; entries, regions and copies in flight live on without it.
/// In a forked child it is empty, and has the whole budget; counters go on from those of the parent.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

impl Cache {
    /// A cache whose copies are made by `mover`, on `mover`'s machine.
    pub fn builder(mover: Mover) -> CacheBuilder {
        CacheBuilder::new(mover)
    }

    /// Makes the owner's bytes accessible; see [`RegionOwner`] for what may own them.
    pub fn register(&self, owner: impl RegionOwner) -> Region {
        self.register_on(owner, None)
    }

    /// As [`register`](Cache::register), for bytes that lie on the node `home`.
    ///
    /// Policies and routes look at `home`; nothing checks it.
    pub fn register_on(&self, owner: impl RegionOwner, home: Option<NodeId>) -> Region {
        self.register_chunked(owner, home, 0)
    }

    /// As [`register_on`](Cache::register_on), for bytes that are mostly asked for in chunks of `chunk_bytes`, or in
    /// parts of such chunks: these are found without a lock. Other ranges work as well. 0 and what is larger than the
    /// region: the region is one chunk.
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

    /// The bytes of `range`, borrowed from the fastest place they are in; brings them near if they are not.
    ///
    /// The same answer as [`access`](Cache::access), for readers that do not carry it elsewhere. Cost: a hit on a
    /// chunk, or on a part of one, reads a handful of pointers and writes two lines that are this thread's own: no
    /// lock, no allocation, no atomic read-modify-write. All else is an `access`.
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    #[inline(always)]
    pub fn view<'a>(
        &'a self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<View<'a>, AccessError> {
        let shared = &self.shared;
        let hold = match shared.guard_unasked(region, &range, &access) {
            Some(guard) => Hold::Borrowed(guard),
            None => shared.hold(region, &range, &access)?,
        };
        Ok(View::new(hold, &range, shared.flags | access.flags))
    }

    /// The bytes of `range`, from the fastest place they are in; brings them near if they are not.
    ///
    /// The copy goes to the node that the access names, else to the one that the placement policy names. If the access
    /// names none, the nearest copy that is ready is taken: one that the reader prefers to that node's, and, until that
    /// node's copy is there, the best of those that it prefers to the source. The reader is the access' requester; if
    /// it names none, the calling thread's CPU. Asking for a copy to the node where the source lies makes one.
    ///
    /// Cost: a hit on a chunk or on a part of one takes no lock, but writes a count that all holders share, now and
    /// when the entry is dropped; [`view`](Cache::view) saves that. A hit on another range is one lock and one lookup,
    /// and one more of each node that the reader prefers, except for those whose lock is taken at the moment.
    /// A miss adds a block - whose pages the pool populates if it never had them - and a submission; on a full node,
    /// also the eviction of entries that nobody holds.
    ///
    /// # Errors
    /// [`AccessError`]: the range is not in the region, the node has no budget, the region is another cache's.
    pub fn access(&self, region: &Region, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        let shared = &self.shared;
        let flags = shared.flags | access.flags;
        if let Some(guard) = shared.guard_unasked(region, &range, &access) {
            return Ok(Entry::new(guard.to_owned(), range, flags, false));
        }
        let wish = shared.wish(region, &range, &access)?;
        Ok(match shared.guard(region.source(), &range, wish, &access) {
            Some(guard) => Entry::new(guard.to_owned(), range, flags, false),
            None => shared.enter(region.source(), &range, wish, &access),
        })
    }

    /// As [`access`](Cache::access), but only what is there, ready or in flight: never starts a copy. `None` also where
    /// `access` would not start one. A ready copy on another node than the wished one will do, if the access names
    /// none and its reader prefers that copy to the source.
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn access_weak(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Option<Entry>, AccessError> {
        let shared = &self.shared;
        let wish = shared.wish(region, &range, &access)?;
        let flags = shared.flags | access.flags;
        if let Some(guard) = shared.guard(region.source(), &range, wish, &access) {
            return Ok(Some(Entry::new(guard.to_owned(), range, flags, false)));
        }
        if let Some(slot) = shared.find_elsewhere(region.source(), &range, wish, &access) {
            return Ok(Some(Entry::new(slot, range, flags, false)));
        }
        let Wish::Near(position) = wish else {
            shared.counters.unplaced.add(1);
            return Ok(None);
        };
        let known = shared.nodes[position].index.find(region.source(), &range);
        let meanwhile = shared.find_meanwhile(region.source(), &range, known.as_deref(), &access);
        let (slot, meanwhile) = match (known, meanwhile) {
            (Some(slot), meanwhile) => (slot, meanwhile),
            (None, Some(slot)) => (slot, None),
            (None, None) => {
                shared.counters.absent.add(1);
                return Ok(None);
            }
        };
        shared.count_hit(&slot);
        Ok(Some(Entry::new(slot, range, flags, false).with_meanwhile(meanwhile)))
    }

    /// How many bytes of a region are on a node already, or on their way there. For plans: it is no access, and counts
    /// nowhere; a moment later it may be different.
    ///
    /// Cost: one lock, and a look at each entry of the region on that node.
    ///
    /// # Errors
    /// [`AccessError::NoBudget`], [`AccessError::ForeignRegion`].
    pub fn near_bytes(&self, region: &Region, node: NodeId) -> Result<usize, AccessError> {
        let shared = &self.shared;
        shared.check(region, &(0..0))?;
        Ok(shared.nodes[shared.position(node)?].index.listed_bytes(region.source()))
    }

    /// Drops all entries that share a byte with `range`, on every node, and says how many. The next access copies anew;
    /// who holds an entry keeps the version it has.
    ///
    /// To change bytes: see [`RegionOwner`] for when that is allowed, then change them, then invalidate.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ForeignRegion`]: nothing was dropped.
    pub fn invalidate(&self, region: &Region, range: Range<usize>) -> Result<usize, AccessError> {
        let dropped = self.shared.invalidate(region, &range)?;
        Ok(dropped.iter().map(|(_, taken)| taken.ranges.len()).sum())
    }

    /// Invalidates `range` and at once copies anew what was near or on its way there, to the same nodes. Says how many
    /// copies were started; where there is no room, the entry is gone, as after [`invalidate`](Cache::invalidate).
    ///
    /// Each entry counts as invalidated, and as one access.
    ///
    /// # Errors
    /// As [`invalidate`](Cache::invalidate).
    pub fn refresh(&self, region: &Region, range: Range<usize>) -> Result<usize, AccessError> {
        let mut started_count = 0;
        for (position, taken) in self.shared.invalidate(region, &range)? {
            let Taken { ranges, slots } = taken;
            // First the room, then the wish for it.
            drop(slots);
            for range in ranges {
                let access = Access::near(self.shared.node_ids[position]);
                let entry = self.shared.enter(region.source(), &range, Wish::Near(position), &access);
                started_count += usize::from(entry.started_copy());
            }
        }
        Ok(started_count)
    }

    /// Drops all entries that nobody holds and no copy fills, and says how many.
    pub fn flush(&self) -> usize {
        let dropped = self.shared.drop_slots(Index::take_unused);
        self.shared.counters.dropped.add(dropped);
        dropped
    }

    /// Drops all entries and says how many. Held ones stay readable; they and copies in flight use budget until they
    /// end.
    pub fn clear(&self) -> usize {
        let dropped = self.shared.drop_slots(Index::take_everything);
        self.shared.counters.dropped.add(dropped);
        dropped
    }

    /// What happened so far, and what is in use now.
    pub fn stats(&self) -> CacheStats {
        self.shared.counters.snapshot(self.shared.nodes.iter().map(Near::usage).collect())
    }

    /// The mover's machine.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.shared.machine
    }

    /// What makes its copies.
    pub fn mover(&self) -> &Mover {
        &self.shared.mover
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("flags", &self.shared.flags).field("stats", &self.stats()).finish()
    }
}
