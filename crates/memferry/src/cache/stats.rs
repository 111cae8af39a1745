//! What the cache did, in figures that add up.
//!
//! The counters are written with Relaxed increments by whoever does the thing counted; nobody decides anything by
//! them. A snapshot taken while calls are under way may show one of them half counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::topology::NodeId;

/// A snapshot of a cache's counters. When no call is under way and no copy in flight:
///
/// - `accesses = hits_ready + hits_in_flight + misses + unplaced`
/// - `misses = submissions + no_room + absent`
/// - `submissions = arrived + failed`; before that, the difference is in flight
/// - `arrived >= evictions` and `used_bytes <= peak_bytes <= budget_bytes` on every node, always
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Calls of `access` and `access_weak` that returned `Ok`.
    pub accesses: u64,
    /// Accesses that found a near copy ready.
    pub hits_ready: u64,
    /// Accesses that found a copy under way.
    pub hits_in_flight: u64,
    /// Accesses that found nothing and looked for it.
    pub misses: u64,
    /// Accesses for which no copy was wanted: the policy named no node, or the range is empty.
    pub unplaced: u64,
    /// Misses that gave a copy to the mover.
    pub submissions: u64,
    /// Misses for which the node had no room, and nothing was found whose leaving would have helped. Where more than 64
    /// entries are held, what was let go of a moment ago may be found by a later miss only.
    pub no_room: u64,
    /// Misses of `access_weak`, which starts nothing.
    pub absent: u64,
    /// Copies that arrived.
    pub arrived: u64,
    /// Copies that failed; their entries answer with the source.
    pub failed: u64,
    /// Unused entries that left because room was needed.
    pub evictions: u64,
    /// Entries dropped by `invalidate`.
    pub invalidated: u64,
    /// Entries dropped by `flush`, `clear` and by the end of their region.
    pub dropped: u64,
    /// Per node that has a budget, ascending.
    pub nodes: Vec<NodeUsage>,
}

/// Bytes of near copies on one node, in the pool's granularity.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct NodeUsage {
    /// The node.
    pub node: NodeId,
    /// What the builder gave it; never exceeded.
    pub budget_bytes: usize,
    /// Ready, in flight, and held although no longer in the cache.
    pub used_bytes: usize,
    /// The most that was ever in use.
    pub peak_bytes: usize,
    /// Entries that can be found.
    pub entries_count: usize,
}

/// The live counters behind [`CacheStats`]; the fields of the same names mean the same.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hits_ready: Striped,
    pub(super) hits_in_flight: Counter,
    pub(super) unplaced: Counter,
    pub(super) submissions: Counter,
    pub(super) no_room: Counter,
    pub(super) absent: Counter,
    pub(super) arrived: Counter,
    pub(super) failed: Counter,
    pub(super) evictions: Counter,
    pub(super) invalidated: Counter,
    pub(super) dropped: Counter,
}

impl Counters {
    pub(super) fn snapshot(&self, nodes: Vec<NodeUsage>) -> CacheStats {
        let hits_ready = self.hits_ready.get();
        let [hits_in_flight, unplaced] = [&self.hits_in_flight, &self.unplaced].map(Counter::get);
        let [submissions, no_room, absent] =
            [&self.submissions, &self.no_room, &self.absent].map(Counter::get);
        let misses = submissions + no_room + absent;
        CacheStats {
            accesses: hits_ready + hits_in_flight + misses + unplaced,
            hits_ready,
            hits_in_flight,
            misses,
            unplaced,
            submissions,
            no_room,
            absent,
            arrived: self.arrived.get(),
            failed: self.failed.get(),
            evictions: self.evictions.get(),
            invalidated: self.invalidated.get(),
            dropped: self.dropped.get(),
            nodes,
        }
    }
}

/// One figure that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: usize) {
        // ORDERING: Relaxed, no partner: the figure is published with nothing else.
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        // ORDERING: Relaxed, no partner: see `add`.
        self.0.load(Relaxed)
    }
}

/// A figure that grows with every hit: each thread has a line of its own, and no line is ever two threads' at a time.
#[derive(Debug)]
pub(super) struct Striped(Box<[Stripe]>);

/// Two lines, since CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(Counter);

/// How many threads count for themselves; the last stripe is for all others. 8 KiB for each cache.
const STRIPES_COUNT: usize = 64;

impl Default for Striped {
    fn default() -> Striped {
        Striped((0..STRIPES_COUNT).map(|_| Stripe::default()).collect())
    }
}

impl Striped {
    /// One more, on a thread with the [`Record`](super::readers::Record) of this index, or none.
    #[inline(always)]
    pub(super) fn add_one(&self, record_index: Option<usize>) {
        let shared = STRIPES_COUNT - 1;
        match record_index {
            Some(index) if index < shared => {
                let Stripe(Counter(own)) = &self.0[index];
                // ORDERING: Relaxed, no partner: only the thread with the record writes here, and records change
                // hands under a lock.
                own.store(own.load(Relaxed) + 1, Relaxed);
            }
            _ => self.0[shared].0.add(1),
        }
    }

    pub(super) fn get(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.get()).sum()
    }
}
