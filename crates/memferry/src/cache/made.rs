//! Bytes that a program makes and can make again, such as decoded columns: kept in the memory of a node while that pays.
//!
//! ```text
//! keep ─▶ pool: a block, perhaps after evictions ─▶ the program writes it ─▶ index: an entry like others
//! kept ─▶ index: still there? ──▶ Entry, or None: the program makes the bytes again
//! ```
//!
//! They share budget and eviction with near copies and stored bytes. The block is allocated before it is written, so the
//! budget is kept at every moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::index::Found;
use super::region::Source;
use super::sieve::ROUNDS_MAX;
use super::slot::Slot;
use super::{AccessError, Cache, Entry, Region};
use crate::topology::NodeId;

/// A group of kept bytes that end together, such as the columns of one version of a file.
///
/// Dropping it removes its bytes from the cache; held entries stay readable.
pub struct MadeRegion {
    region: Region,
    /// The first address that no bytes had. Addresses are never reused.
    next: AtomicUsize,
}

/// How to keep bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The node whose memory holds them.
    pub node: NodeId,
    /// How many times as much time a hit saves per byte as one on a stored copy: a hit survives as many rounds of the eviction.
    /// From 1 to [`ROUNDS_MAX`](Keep::ROUNDS_MAX); others are taken as the nearest of these.
    pub rounds: u8,
    /// Whether entries that are not in use, and were not hit for their rounds, may be evicted for them.
    pub evicts: bool,
}

impl Keep {
    /// The largest `rounds`.
    pub const ROUNDS_MAX: u8 = ROUNDS_MAX;
}

impl Cache {
    /// Registers a group of bytes that the program makes.
    pub fn register_made(&self) -> MadeRegion {
        let source = Source::of_program(self.shared.nodes.len());
        let region = Region::new(source, Arc::downgrade(&self.shared));
        MadeRegion { region, next: AtomicUsize::new(0) }
    }

    /// Keeps `size_bytes` that `write` fills. Their [range](Entry::range) is their name for [`kept`](Cache::kept).
    ///
    /// `None` if there is no room, or none without evictions that `how` excludes; `write` is not called then. It gets zeroed
    /// memory or that of earlier entries.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use memferry::cache::Keep;
    /// use memferry::{Cache, Machine, Mover};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let machine = Arc::new(Machine::discover()?);
    /// let node = machine.nodes()[0].id;
    /// let cache = Cache::builder(Mover::builder(machine).build()?).budget(node, 64 << 20).build()?;
    /// let squares = cache.register_made();
    /// let how = Keep { node, rounds: 1, evicts: true };
    /// let entry = cache.keep(&squares, 100, how, |bytes| bytes.fill(49))?.expect("an empty cache has room");
    /// let name = entry.range();
    /// assert_eq!(cache.kept(&squares, name, node)?.expect("nothing was evicted").as_slice(), [49; 100]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::NoBudget`], [`AccessError::ForeignRegion`], [`AccessError::OutOfRange`] once all addresses were given
    /// out: register another group.
    pub fn keep(
        &self,
        made: &MadeRegion,
        size_bytes: usize,
        how: Keep,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<Option<Entry>, AccessError> {
        let shared = &self.shared;
        shared.check(&made.region, &(0..0))?;
        let near = &shared.nodes[shared.position(how.node)?];
        // ORDERING: Relaxed, no partner: only uniqueness matters.
        let start = made
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |start| start.checked_add(size_bytes.max(1)));
        let Ok(start) = start else {
            let start = made.next.load(Ordering::Relaxed);
            return Err(AccessError::OutOfRange { start, end: usize::MAX, len: usize::MAX });
        };
        let range = start..start + size_bytes;
        let block = match how.evicts {
            true => near.room_for(size_bytes, &shared.counters),
            false => near.pool.allocate(size_bytes).ok(),
        };
        let Some(mut block) = block else {
            shared.counters.no_room.add(1);
            return Ok(None);
        };
        write(block.as_mut_slice());
        let source = made.region.source();
        let make = || Slot::made(source, range.clone(), block, how.rounds.min(ROUNDS_MAX));
        let slot = match near.index.find_or_insert(source, &range, make) {
            Found::New(slot) => slot,
            Found::Known(_) => unreachable!("addresses are given out once"),
        };
        shared.counters.submissions.add(1);
        shared.counters.arrived.add(1);
        Ok(Some(Entry::new(slot, range, true)))
    }

    /// The bytes that were kept under the name `range`; `None` if they were evicted, or on another node.
    ///
    /// Cost: one lock and a lookup.
    ///
    /// # Errors
    /// [`AccessError::NoBudget`], [`AccessError::ForeignRegion`].
    pub fn kept(
        &self,
        made: &MadeRegion,
        range: std::ops::Range<usize>,
        node: NodeId,
    ) -> Result<Option<Entry>, AccessError> {
        let shared = &self.shared;
        shared.check(&made.region, &(0..0))?;
        match shared.nodes[shared.position(node)?].index.find(made.region.source(), &range) {
            Some(slot) => {
                shared.count_hit(&slot);
                Ok(Some(Entry::new(slot, range, false)))
            }
            None => {
                shared.counters.absent.add(1);
                Ok(None)
            }
        }
    }
}

impl std::fmt::Debug for MadeRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeRegion").field("id", &self.region.id()).finish_non_exhaustive()
    }
}
