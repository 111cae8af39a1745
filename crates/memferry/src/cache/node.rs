//! A node of a cache: its pool, its index, and allocation with eviction.

use std::sync::Arc;

use super::index::Index;
use super::readers::readers;
use super::slot::Slot;
use super::stats::{Counters, NodeUsage};
use crate::memory::{Block, MemoryError, Pool};
use crate::sync;

/// Most evictions, one after another, for a range that would fit if the free pages were contiguous. Without a limit one
/// large access empties the cache in vain. Chosen, not measured.
const FRAGMENTED_ROUNDS_MAX: usize = 8;

/// One node with a budget. Loom counts the `Arc`s of `sync`.
pub(super) struct CacheNode {
    pub(super) pool: Pool,
    pub(super) index: sync::Arc<Index<Block>>,
}

impl CacheNode {
    /// The node at `position` of the cache.
    pub(super) fn new(pool: Pool, position: usize) -> CacheNode {
        CacheNode { pool, index: sync::Arc::new(Index::new(position, readers())) }
    }

    pub(super) fn usage(&self) -> NodeUsage {
        let pool = self.pool.stats();
        NodeUsage {
            node: self.pool.node(),
            budget_bytes: pool.budget_bytes,
            used_bytes: pool.used_bytes,
            peak_bytes: pool.used_bytes_max,
            entries_count: self.index.len(),
        }
    }

    /// Allocates a block; evicts unused entries if necessary and useful.
    ///
    /// `None` if eviction cannot help: the range exceeds the budget, or memory is refused for another reason than a lack
    /// of free memory. If enough memory is free but fragmented, evicts at most [`FRAGMENTED_ROUNDS_MAX`] more entries.
    pub(super) fn room_for(&self, size_bytes: usize, counters: &Arc<Counters>) -> Option<Block> {
        let mut fragmented_rounds = 0;
        loop {
            let missing_bytes = match self.pool.allocate(size_bytes) {
                Ok(block) => return Some(block),
                Err(MemoryError::TooLarge { .. }) => return None,
                Err(MemoryError::Full { size_bytes, used_bytes, budget_bytes, .. }) => {
                    let missing_bytes = (used_bytes + size_bytes).saturating_sub(budget_bytes);
                    // Full although nothing is missing: the free pages are fragmented, so one more entry is evicted.
                    if missing_bytes == 0 {
                        fragmented_rounds += 1;
                        if fragmented_rounds > FRAGMENTED_ROUNDS_MAX {
                            return None;
                        }
                    }
                    missing_bytes
                }
                // The machine has less memory than the budget promised: what the cache has must do.
                Err(MemoryError::NoRoom { .. } | MemoryError::Misplaced { .. }) => size_bytes,
                // Eviction does not help against a refused call or an unreadable file.
                Err(_) => return None,
            };
            // Each round frees memory or ends the search. Another thread may allocate the freed memory in between.
            let evicted = self.index.evict(missing_bytes, Block::rounded_bytes);
            if evicted.is_empty() {
                if self.index.catch_up() {
                    continue;
                }
                return None;
            }
            counters.evictions.add(evicted.len());
            // Usually one entry is evicted for another of its size: its pages need not go through the pool.
            if let Some(block) = only(evicted).and_then(|slot| slot.into_near()?.resized(size_bytes).ok()) {
                return Some(block);
            }
        }
    }
}

/// The slot, if there is exactly one and this is its last reference.
fn only(slots: Vec<sync::Arc<Slot<Block>>>) -> Option<Slot<Block>> {
    let [slot] = <[_; 1]>::try_from(slots).ok()?;
    sync::Arc::try_unwrap(slot).ok()
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::cache::{Access, Cache, Location, Region, Request};
    use crate::mover::Mover;
    use crate::topology::{Machine, NodeId};

    const PAGE: usize = 4096;
    const FREE: NodeId = NodeId(0);
    /// The faster one, which every reader prefers.
    const BUSY: NodeId = NodeId(1);

    /// Makes hits, misses and evictions on `FREE`, by readers that prefer `BUSY`. Returns the region, whose drop concerns
    /// all nodes.
    fn use_the_free_one(cache: &Cache) -> Region {
        let region = cache.register_chunked(vec![7; 8 * PAGE], None, PAGE);
        let access = Access { requester: Some(FREE), ..Access::default() };
        for page in (0..8).flat_map(|page| [page, page, page / 2]) {
            // A chunk, and a range that is not in a directory.
            for range in [page * PAGE..(page + 1) * PAGE, page * PAGE..page * PAGE + PAGE / 2 + page] {
                assert_eq!(
                    cache.access(&region, range.clone(), access).unwrap().wait(),
                    Location::Near(FREE)
                );
                assert!(cache.view(&region, range.clone(), access).unwrap().is_ready());
                assert!(cache.access_weak(&region, range, access).unwrap().is_some());
            }
        }
        region
    }

    /// Drops `held` after these accesses.
    fn use_the_free_one_beside<H>(cache: &Cache, held: H) {
        let (done, is_done) = channel();
        let user = thread::spawn({
            let cache = cache.clone();
            move || done.send(use_the_free_one(&cache)).unwrap()
        });
        let in_time = is_done.recv_timeout(Duration::from_secs(30));
        drop(held);
        user.join().unwrap();
        in_time.expect("an access waited for a node that it did not request");
    }

    /// While a thread evicts or allocates on one node, accesses to other nodes do not wait.
    #[test]
    fn pressure_on_one_node_delays_no_other() {
        let machine = Arc::new(Machine::two_tiers().unwrap());
        let mover = Mover::builder(machine).build().unwrap();
        let policy = |_: &Machine, _: &Request<'_>| Some(FREE);
        let builder = Cache::builder(mover).budget(FREE, 2 * PAGE).budget(BUSY, 2 * PAGE);
        let cache = builder.placement(policy).build().unwrap();
        let near = &cache.shared.nodes[cache.shared.position(BUSY).unwrap()];
        use_the_free_one_beside(&cache, near.index.hold());
        use_the_free_one_beside(&cache, near.pool.hold());
        assert!(cache.stats().evictions > 0, "too tame");
    }
}
