//! Keeps copies of what is read often in faster memory, and answers with the source until they are there.
//!
//! ```text
//! access(region, range) ──▶ placement: which node?
//!                            │
//!                            ▼
//!           index of the node, by (region, range) ── known ──▶ Entry       hit: near, or on its way
//!                            │ new
//!                            ▼
//!           room in the pool? unused entries leave ── none ──▶ Entry       the source, counted
//!                            │
//!                            ▼
//!           mover.start(copy), and at once ──────────────────▶ Entry       the source until the copy arrives
//! ```
//!
//! An access always ends in readable bytes. No thread ever waits for a thread that is not itself at work inside the
//! library: of those who ask for the same absent range one submits the copy, all may wait for it, and it completes on the
//! mover's threads. No lock is held while the mover is called, memory is freed or a waiter is woken.
//!
//! The budget of a node is that of its pool: a block is reserved before it exists, whether it is ready, in flight or held
//! by an entry that the cache no longer lists. Pressure on one node touches no other.
//!
//! Files: `region` the sources, `entry` what the caller holds, `slot` the state machine that entries share, `flight`
//! who must settle it, `index` lookup and eviction, `policy` placement, `stats` the counters.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, chapters 4 and 5. Unlike the cache described there, this one has budgets, knows ranges by their owner rather than
//! by address, and invalidates whatever overlaps.

mod access;
mod entry;
mod flight;
mod index;
mod policy;
#[allow(unsafe_code)]
mod region;
mod slot;
mod stats;

#[cfg(all(test, memferry_loom))]
mod loom_cache;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use flight::Flight;
use index::{Found, Index};
use region::Source;
use slot::Slot;
use stats::Counters;

pub use access::{Access, AccessError, BuildError, Flags};
pub use entry::{Entry, Location, Settled, Why};
pub use policy::{FixedNode, NearestFaster, Placement, Request};
pub use region::{Region, RegionOwner};
pub use stats::{CacheStats, NodeUsage};

use crate::memory::{Block, MemoryError, Pool, PoolError};
use crate::mover::Mover;
use crate::sync;
use crate::topology::{Machine, NodeId};

/// How many entries may leave, one after another, for a range that would fit if the free pages lay together. Without a
/// limit one large access empties the cache in vain. Chosen, not measured.
const FRAGMENTED_ROUNDS_MAX: usize = 8;

/// Near copies of registered memory. Clones share it.
///
/// Dropping the last clone frees what is near and not held; entries, regions and copies in flight live on without it.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

/// What the clones of a [`Cache`] share. Nothing here changes but the inside of `nodes` and `counters`.
struct Shared {
    mover: Mover,
    machine: Arc<Machine>,
    placement: Box<dyn Placement>,
    flags: Flags,
    /// Ascending by node, never empty.
    nodes: Vec<Near>,
    /// Their ids, for policies.
    node_ids: Vec<NodeId>,
    counters: Arc<Counters>,
}

/// One node with a budget. Arcs that loom has to count come from `sync`.
struct Near {
    pool: Pool,
    index: sync::Arc<Index<Block>>,
}

impl Cache {
    /// A cache whose copies are made by `mover`, on `mover`'s machine.
    pub fn builder(mover: Mover) -> CacheBuilder {
        CacheBuilder { mover, budgets: BTreeMap::new(), placement: None, flags: Flags::NONE }
    }

    /// Makes the owner's bytes accessible; see [`RegionOwner`] for what may own them.
    pub fn register(&self, owner: impl RegionOwner) -> Region {
        self.register_on(owner, None)
    }

    /// As [`register`](Cache::register), for bytes that lie on the node `home`.
    ///
    /// Policies and routes look at `home`; nothing checks it.
    pub fn register_on(&self, owner: impl RegionOwner, home: Option<NodeId>) -> Region {
        Region::new(Arc::new(owner), home, Arc::downgrade(&self.shared))
    }

    /// The bytes of `range`, from the fastest place they are in; brings them near if they are not.
    ///
    /// Ranges are known exactly: a part of a range that is near is another range. Asking for a copy to the node where
    /// the source lies makes one.
    ///
    /// Cost: a hit is one lock and one lookup. A miss adds a block - whose pages the pool populates if it never had
    /// them - and a submission; on a full node, also the eviction of entries that nobody holds.
    ///
    /// # Errors
    /// [`AccessError`]: the range is not in the region, the node has no budget, the region is another cache's.
    pub fn access(&self, region: &Region, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        let shared = &self.shared;
        let flags = shared.flags | access.flags;
        let source = region.source();
        let (slot, started_copy) = match shared.wish(region, &range, &access)? {
            Wish::Stay(why) => {
                shared.counters.unplaced.add(1);
                (sync::Arc::new(Slot::at_source(source, range, why)), false)
            }
            Wish::Near(near) => {
                let make = || Slot::in_flight(source, range.clone());
                match near.index.find_or_insert(source.id, &range, make) {
                    Found::Known(slot) => {
                        shared.count_hit(&slot);
                        (slot, false)
                    }
                    Found::New(slot) => {
                        let started_copy = shared.launch(near, slot.clone(), flags);
                        (slot, started_copy)
                    }
                }
            }
        };
        Ok(Entry::new(slot, flags, started_copy))
    }

    /// As [`access`](Cache::access), but only what is there, ready or in flight: never starts a copy. `None` also where
    /// `access` would not start one.
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
        let Wish::Near(near) = shared.wish(region, &range, &access)? else {
            shared.counters.unplaced.add(1);
            return Ok(None);
        };
        let Some(slot) = near.index.find(region.id(), &range) else {
            shared.counters.absent.add(1);
            return Ok(None);
        };
        shared.count_hit(&slot);
        Ok(Some(Entry::new(slot, shared.flags | access.flags, false)))
    }

    /// Drops all entries that share a byte with `range`, on every node, and says how many. The next access copies anew;
    /// who holds an entry keeps the version it has.
    ///
    /// To change bytes: see [`RegionOwner`] for when that is allowed, then change them, then invalidate.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], [`AccessError::ForeignRegion`]: nothing was dropped.
    pub fn invalidate(&self, region: &Region, range: Range<usize>) -> Result<usize, AccessError> {
        self.shared.check(region, &range)?;
        if range.is_empty() {
            return Ok(0);
        }
        // The generation first: a slot that is made after its index was searched belongs to the new one.
        region.source().bump();
        let dropped = self.shared.drop_slots(|index| index.take_overlapping(region.id(), &range));
        self.shared.counters.invalidated.add(dropped);
        Ok(dropped)
    }

    /// Drops all entries that nobody holds and no copy fills, and says how many.
    pub fn flush(&self) -> usize {
        let dropped = self.shared.drop_slots(Index::take_unused);
        self.shared.counters.dropped.add(dropped);
        dropped
    }

    /// Drops all entries and says how many. Held ones stay readable; they and copies in flight use budget until they end.
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
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("flags", &self.shared.flags).field("stats", &self.stats()).finish()
    }
}

/// What an access is going to be.
enum Wish<'a> {
    Near(&'a Near),
    Stay(Why),
}

impl Shared {
    fn check(self: &Arc<Self>, region: &Region, range: &Range<usize>) -> Result<(), AccessError> {
        if !region.is_of(self) {
            return Err(AccessError::ForeignRegion { id: region.id() });
        }
        let len = region.len();
        if range.start > range.end || range.end > len {
            return Err(AccessError::OutOfRange { start: range.start, end: range.end, len });
        }
        Ok(())
    }

    /// Checks the access and finds the node for it.
    fn wish(
        self: &Arc<Self>,
        region: &Region,
        range: &Range<usize>,
        access: &Access,
    ) -> Result<Wish<'_>, AccessError> {
        self.check(region, range)?;
        let request = Request {
            source_node: region.home(),
            requester: access.requester,
            size_bytes: range.len(),
            nodes: &self.node_ids,
        };
        let Some(node) = access.near.or_else(|| self.placement.place(&self.machine, &request)) else {
            return Ok(Wish::Stay(Why::NotPlaced));
        };
        match self.node_ids.binary_search(&node) {
            Err(_) => Err(AccessError::NoBudget { node, nodes: self.node_ids.clone() }),
            Ok(_) if range.is_empty() => Ok(Wish::Stay(Why::Empty)),
            Ok(position) => Ok(Wish::Near(&self.nodes[position])),
        }
    }

    fn count_hit(&self, slot: &Slot<Block>) {
        let is_ready = slot.near().is_some();
        let counter = if is_ready { &self.counters.hits_ready } else { &self.counters.hits_in_flight };
        counter.add(1);
    }

    /// Finds room for a new slot and gives its copy to the mover; whether there was room.
    fn launch(&self, near: &Near, slot: sync::Arc<Slot<Block>>, flags: Flags) -> bool {
        let (size_bytes, home) = (slot.range.len(), slot.source.home);
        let flight = Flight::new(slot, near.index.clone(), self.counters.clone());
        match near.room_for(size_bytes, &self.counters) {
            None => {
                flight.turn_back();
                false
            }
            Some(block) => {
                let copy = flight.copy_into(block).with_block_on_fault(flags.contains(Flags::BLOCK_ON_FAULT));
                self.mover.start(copy, home, Some(near.pool.node()));
                true
            }
        }
    }

    /// Lets go of what `take` takes out of each index, after the index is unlocked.
    fn drop_slots(&self, take: impl Fn(&Index<Block>) -> Vec<sync::Arc<Slot<Block>>>) -> usize {
        self.nodes.iter().map(|near| take(&near.index).len()).sum()
    }

    /// The last [`Region`] of this source is gone: nobody can ask for its entries any more.
    fn forget_region(&self, source: &Source) {
        let dropped = self.drop_slots(|index| index.take_overlapping(source.id, &(0..usize::MAX)));
        self.counters.dropped.add(dropped);
    }
}

/// Copies in flight hold the index of their node, so that what is near has to be taken out of it: otherwise it would
/// stay as long as any copy flies.
impl Drop for Shared {
    fn drop(&mut self) {
        let dropped = self.drop_slots(Index::take_everything);
        self.counters.dropped.add(dropped);
    }
}

impl Near {
    fn usage(&self) -> NodeUsage {
        let pool = self.pool.stats();
        NodeUsage {
            node: self.pool.node(),
            budget_bytes: pool.budget_bytes,
            used_bytes: pool.used_bytes,
            peak_bytes: pool.used_bytes_max,
            entries_count: self.index.len(),
        }
    }

    /// A block, for which unused entries leave if they must and if that can help.
    ///
    /// It cannot help, and the answer is `None` (counted as no room), when the range is larger than the budget, and
    /// when memory is refused for another reason than that too little is free. It might not help when enough is free
    /// but in pieces: then at most [`FRAGMENTED_ROUNDS_MAX`] more entries leave.
    fn room_for(&self, size_bytes: usize, counters: &Counters) -> Option<Block> {
        let mut fragmented_rounds = 0;
        loop {
            let missing_bytes = match self.pool.allocate(size_bytes) {
                Ok(block) => return Some(block),
                Err(PoolError::TooLarge { .. }) => return None,
                Err(PoolError::Full { size_bytes, used_bytes, budget_bytes, .. }) => {
                    let missing_bytes = (used_bytes + size_bytes).saturating_sub(budget_bytes);
                    // Nothing missing, and yet full: the free pages lie apart, so one more entry leaves.
                    if missing_bytes == 0 {
                        fragmented_rounds += 1;
                        if fragmented_rounds > FRAGMENTED_ROUNDS_MAX {
                            return None;
                        }
                    }
                    missing_bytes
                }
                // The machine has less memory than the budget promised: what the cache has must do.
                Err(PoolError::Memory(MemoryError::NoRoom { .. } | MemoryError::Misplaced { .. })) => {
                    size_bytes
                }
                // A refused call or an unreadable file stays so, however many entries leave.
                Err(PoolError::Memory(_)) => return None,
            };
            // Each round frees something or ends the search; what another thread takes in between is of use to it.
            let evicted = self.index.evict(missing_bytes, Block::rounded_bytes);
            if evicted.is_empty() {
                return None;
            }
            counters.evictions.add(evicted.len());
        }
    }
}

/// Configures a [`Cache`].
#[must_use]
pub struct CacheBuilder {
    mover: Mover,
    budgets: BTreeMap<NodeId, usize>,
    placement: Option<Box<dyn Placement>>,
    flags: Flags,
}

impl CacheBuilder {
    /// Near copies on `node` may take up to `budget_bytes`. Several nodes may have budgets; the last word on each counts.
    pub fn budget(mut self, node: NodeId, budget_bytes: usize) -> CacheBuilder {
        self.budgets.insert(node, budget_bytes);
        self
    }

    /// Where copies go when the access does not say. Without this: [`FixedNode`], the first node with a budget.
    pub fn placement(mut self, placement: impl Placement) -> CacheBuilder {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Flags of every access.
    pub fn flags(mut self, flags: Flags) -> CacheBuilder {
        self.flags = flags;
        self
    }

    /// Builds it. Memory is taken when the first copies need it.
    ///
    /// # Errors
    /// [`BuildError`]: no budget, one below a page, or one on a node that the machine does not have.
    pub fn build(self) -> Result<Cache, BuildError> {
        let machine = self.mover.machine().clone();
        let mut nodes = Vec::new();
        for (&node, &budget_bytes) in &self.budgets {
            machine.node(node)?;
            let pool = Pool::new(machine.clone(), node, budget_bytes)?;
            if pool.budget_bytes() == 0 {
                return Err(BuildError::BudgetTooSmall { node, budget_bytes });
            }
            nodes.push(Near { pool, index: sync::Arc::new(Index::new()) });
        }
        let node_ids: Vec<NodeId> = self.budgets.into_keys().collect();
        let first = *node_ids.first().ok_or(BuildError::NoBudget)?;
        let placement = self.placement.unwrap_or_else(|| Box::new(FixedNode(first)));
        let Self { mover, flags, .. } = self;
        let counters = Arc::new(Counters::default());
        let shared = Shared { mover, machine, placement, flags, nodes, node_ids, counters };
        Ok(Cache { shared: Arc::new(shared) })
    }
}

impl std::fmt::Debug for CacheBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheBuilder")
            .field("budgets", &self.budgets)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
