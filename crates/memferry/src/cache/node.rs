//! One node with a budget: its pool, its index, and how room is made.

use std::sync::Arc;

use super::index::Index;
use super::readers::readers;
use super::slot::Slot;
use super::stats::{Counters, NodeUsage};
use crate::memory::{Block, MemoryError, Pool, PoolError};
use crate::sync;

/// How many entries may leave, one after another, for a range that would fit if the free pages lay together. Without a
/// limit one large access empties the cache in vain. Chosen, not measured.
const FRAGMENTED_ROUNDS_MAX: usize = 8;

/// One node with a budget. Arcs that loom has to count come from `sync`.
pub(super) struct Near {
    pub(super) pool: Pool,
    pub(super) index: sync::Arc<Index<Block>>,
}

impl Near {
    /// At `position` among the cache's nodes.
    pub(super) fn new(pool: Pool, position: usize) -> Near {
        Near { pool, index: sync::Arc::new(Index::new(position, readers())) }
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

    /// A block, for which unused entries leave if they must and if that can help.
    ///
    /// It cannot help, and the answer is `None` (counted as no room), when the range is larger than the budget, and
    /// when memory is refused for another reason than that too little is free. It might not help when enough is free
    /// but in pieces: then at most [`FRAGMENTED_ROUNDS_MAX`] more entries leave.
    pub(super) fn room_for(&self, size_bytes: usize, counters: &Arc<Counters>) -> Option<Block> {
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
            // Mostly one leaves for another of its size, and its pages need not go through the pool.
            if let Some(block) = only(evicted).and_then(|slot| slot.into_near()?.resized(size_bytes).ok()) {
                return Some(block);
            }
        }
    }
}

/// The slot, if there is one and nobody else has it.
fn only(slots: Vec<sync::Arc<Slot<Block>>>) -> Option<Slot<Block>> {
    let [slot] = <[_; 1]>::try_from(slots).ok()?;
    sync::Arc::try_unwrap(slot).ok()
}
