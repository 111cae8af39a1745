//! Statistics of a cache: counters that add up.
//!
//! The counters are relaxed; no decision depends on them. A snapshot during a call may contain a part of its counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memferry_dsa::internals::fork::PerProcess;

use crate::topology::NodeId;

/// A snapshot of a cache's counters. Without running calls and copies in flight:
///
/// - `accesses = hits_ready + hits_in_flight + misses + unplaced`
/// - `misses = submissions + no_room + absent`
/// - `submissions = arrived + failed`; otherwise the difference is in flight
/// - in a forked child, copies that were in flight at the fork stay so, because they complete in the parent
/// - `arrived >= evictions` and `used_bytes <= peak_bytes <= budget_bytes` on every node, always
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Calls of `access`, `access_weak`, `read`, `keep` and `kept` that returned `Ok`. One of `keep` counts as a miss.
    pub accesses: u64,
    /// Accesses that found a near copy ready.
    pub hits_ready: u64,
    /// Accesses that found a copy in flight.
    pub hits_in_flight: u64,
    /// Accesses that found no copy.
    pub misses: u64,
    /// Accesses without a copy: the policy chose no node, or the range is empty.
    pub unplaced: u64,
    /// Misses that started a copy.
    pub submissions: u64,
    /// Misses for which the node had no room and no useful victim was found. With more than 64 held entries, a released
    /// one may become a victim of a later miss only.
    pub no_room: u64,
    /// Misses of `access_weak` and `kept`, which start no copy.
    pub absent: u64,
    /// Copies that completed.
    pub arrived: u64,
    /// Copies that failed; their entries read from the source.
    pub failed: u64,
    /// Unused entries that were evicted.
    pub evictions: u64,
    /// Entries removed by `invalidate`.
    pub invalidated: u64,
    /// Entries removed by `flush`, by `clear` and by the end of their region.
    pub dropped: u64,
    /// Nodes with a budget, ascending.
    pub nodes: Vec<NodeUsage>,
}

/// Bytes of near copies on one node, in the pool's granularity.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct NodeUsage {
    /// The node.
    pub node: NodeId,
    /// The budget; never exceeded.
    pub budget_bytes: usize,
    /// Bytes ready, in flight, or held by entries that are no longer in the cache.
    pub used_bytes: usize,
    /// Maximum of `used_bytes`.
    pub peak_bytes: usize,
    /// Entries in the cache.
    pub entries_count: usize,
}

/// The counters behind [`CacheStats`], with the same names. Any thread writes them, relaxed.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hits_ready: StripedCounter,
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

/// A counter.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: usize) {
        // ORDERING: Relaxed, no partner: nothing else is published with it.
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        // ORDERING: Relaxed, no partner: see `add`.
        self.0.load(Relaxed)
    }
}

/// A counter of hits: each thread writes a cache line of its own.
///
/// The lines of the first threads are allocated with the counter. Further lines come in segments, each as large as all
/// before it, so that none moves, and a cache in a program with few threads is small.
#[derive(Debug)]
pub(super) struct StripedCounter {
    first: Box<[Stripe; FIRST_COUNT]>,
    /// Segments of further lines, each from [`FIRST_COUNT`] times a power of two to the next. A forked child starts
    /// without them, because the fork may interrupt their creation.
    more: [PerProcess<Box<[Stripe]>>; SEGMENTS_COUNT],
    /// For threads without record, at their end.
    shared: Counter,
}

/// The counter of one thread, in two cache lines, because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(Counter);

/// 8 KiB for each cache.
const FIRST_COUNT: usize = 64;
/// Enough for 2^22 threads, the limit of Linux (PID_MAX_LIMIT).
const SEGMENTS_COUNT: usize = 16;

impl Default for StripedCounter {
    fn default() -> StripedCounter {
        StripedCounter {
            first: Box::new(std::array::from_fn(|_| Stripe::default())),
            more: Default::default(),
            shared: Counter::default(),
        }
    }
}

impl StripedCounter {
    /// Adds one, on a thread with the [`Record`](super::readers::Record) of this index, or without record.
    #[inline(always)]
    pub(super) fn add_one(&self, record_index: Option<usize>) {
        match record_index {
            Some(index) if index < FIRST_COUNT => self.first[index].add_one(),
            _ => self.add_one_further(record_index),
        }
    }

    #[inline(never)]
    fn add_one_further(&self, record_index: Option<usize>) {
        match record_index.and_then(|index| self.further(index)) {
            Some(stripe) => stripe.add_one(),
            None => self.shared.add(1),
        }
    }

    /// The stripe of an index from [`FIRST_COUNT`] on.
    fn further(&self, index: usize) -> Option<&Stripe> {
        let segment = (index / FIRST_COUNT).ilog2();
        let start = FIRST_COUNT << segment;
        let stripes = self.more.get(segment as usize)?;
        stripes.get_or_init(|| (0..start).map(|_| Stripe::default()).collect()).get(index - start)
    }

    pub(super) fn get(&self) -> u64 {
        let more = self.more.iter().filter_map(PerProcess::get).flatten();
        self.shared.get() + self.first.iter().chain(more).map(|stripe| stripe.0.get()).sum::<u64>()
    }
}

impl Stripe {
    /// Adds one; called by the thread of this stripe only.
    #[inline(always)]
    fn add_one(&self) {
        let Stripe(Counter(own)) = self;
        // ORDERING: Relaxed, no partner: only the thread with the record writes here, and records change threads under
        // a lock.
        own.store(own.load(Relaxed) + 1, Relaxed);
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::collections::HashSet;
    use std::ptr;

    use super::*;

    /// Regression: all threads from the 64th on wrote one line, each with a locked instruction.
    #[test]
    fn no_two_threads_count_in_one_line() {
        const COUNT: usize = 5 * FIRST_COUNT + 1;
        let striped = StripedCounter::default();
        (0..COUNT).for_each(|index| (0..=index).for_each(|_| striped.add_one(Some(index))));
        let first = striped.first.iter();
        let stripes: Vec<&Stripe> =
            first.chain((FIRST_COUNT..COUNT).map(|index| striped.further(index).unwrap())).collect();
        let lines: HashSet<usize> =
            stripes.iter().map(|stripe| ptr::from_ref(*stripe).addr() / 128).collect();
        assert_eq!(lines.len(), COUNT);
        assert!(stripes.iter().enumerate().all(|(index, stripe)| stripe.0.get() == index as u64 + 1));
        assert_eq!(striped.shared.get(), 0);
        striped.add_one(None);
        striped.add_one(Some(usize::MAX));
        assert_eq!((striped.shared.get(), striped.get()), (2, (COUNT * (COUNT + 1) / 2) as u64 + 2));
    }
}
