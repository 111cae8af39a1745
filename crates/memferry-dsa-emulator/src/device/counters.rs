//! What a device counts, and the sum of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::Status;

use crate::queue::QueueOrder;

/// What a device counts, all zero at its start. Only its thread writes.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) members: AtomicU64,
    pub(crate) members_abandoned: AtomicU64,
    pub(crate) ended: [AtomicU64; 64], // by status code
    pub(crate) aborted: AtomicU64,
    pub(crate) bytes_copied: AtomicU64,
    pub(crate) bytes_done: AtomicU64,
    pub(crate) page_faults: AtomicU64,
    pub(crate) page_requests: AtomicU64,
    pub(crate) records_written: AtomicU64,
    pub(crate) records_lost: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        let zero = || AtomicU64::new(0);
        Counters {
            members: zero(),
            members_abandoned: zero(),
            ended: std::array::from_fn(|_| zero()),
            aborted: zero(),
            bytes_copied: zero(),
            bytes_done: zero(),
            page_faults: zero(),
            page_requests: zero(),
            records_written: zero(),
            records_lost: zero(),
        }
    }
}

/// Adds to a counter that only this thread writes, without a locked instruction.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// A counter, for the thread that writes it.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A counter that another process writes, which may write anything: the sum over all clients does not overflow.
pub(crate) fn told(counter: &AtomicU64) -> u64 {
    const MOST: u64 = 1 << 54; // bytes of a week at 30 GB/s
    get(counter).min(MOST)
}

/// What a device has done since it was enabled.
///
/// Every descriptor is accounted for: `accepted + members` is the number that
/// [`ended_count`](Self::ended_count), plus `aborted`, plus those [`in_flight`](Self::in_flight).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCounters {
    /// Descriptors that queues took.
    pub accepted: u64,
    /// Times that a shared queue answered Retry.
    pub retried: u64,
    /// Descriptors lost because a dedicated queue was full.
    pub dropped: u64,
    /// Descriptors that left their queue.
    pub dispatched: u64,
    /// Members of batches that were started.
    pub members: u64,
    /// Members of batches that a fence after a failure kept from starting.
    pub members_abandoned: u64,
    /// Descriptors and members that ended, by how.
    pub ended: BTreeMap<Status, u64>,
    /// Descriptors and members that were in flight when the device was aborted.
    pub aborted: u64,
    /// Bytes that Memory Move wrote.
    pub bytes_copied: u64,
    /// Bytes of all operations' transfers: the source's, or what there is in its place.
    pub bytes_done: u64,
    /// Page faults that stopped an operation.
    pub page_faults: u64,
    /// Page faults that the operating system served while the operation waited.
    pub page_requests: u64,
    /// Completion records written.
    pub records_written: u64,
    /// Completion records that could not be written, or were not when the device was aborted.
    pub records_lost: u64,
}

impl DeviceCounters {
    /// Descriptors and members that ended in whatever way.
    pub fn ended_count(&self) -> u64 {
        self.ended.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Descriptors and members that are in a queue or an engine; exact while nobody submits and the device rests.
    pub fn in_flight(&self) -> u64 {
        let begun = self.accepted.saturating_add(self.members);
        begun.saturating_sub(self.ended_count().saturating_add(self.aborted))
    }
}

impl Counters {
    /// Each counter with the one of `other`: what is done with all of them is written once.
    fn zip<'a>(&'a self, other: &'a Counters) -> impl Iterator<Item = (&'a AtomicU64, &'a AtomicU64)> {
        let rest = |counters: &'a Counters| {
            [
                &counters.members,
                &counters.members_abandoned,
                &counters.aborted,
                &counters.bytes_copied,
                &counters.bytes_done,
                &counters.page_faults,
                &counters.page_requests,
                &counters.records_written,
                &counters.records_lost,
            ]
        };
        self.ended.iter().zip(&other.ended).chain(rest(self).into_iter().zip(rest(other)))
    }

    /// Adds what `other` has counted.
    pub(crate) fn add(&self, other: &Counters) {
        for (mine, theirs) in self.zip(other) {
            mine.fetch_add(told(theirs), Ordering::Relaxed);
        }
    }

    /// The sum, with what the queues have counted.
    pub(crate) fn snapshot(&self, queues: &QueueTotals) -> DeviceCounters {
        let ended = self.ended.iter().enumerate().filter(|(_, count)| get(count) > 0);
        DeviceCounters {
            accepted: queues.accepted,
            retried: queues.retried,
            dropped: queues.dropped,
            dispatched: queues.dispatched,
            members: get(&self.members),
            members_abandoned: get(&self.members_abandoned),
            ended: ended.map(|(code, count)| (Status::from_code(code as u8), get(count))).collect(),
            aborted: get(&self.aborted),
            bytes_copied: get(&self.bytes_copied),
            bytes_done: get(&self.bytes_done),
            page_faults: get(&self.page_faults),
            page_requests: get(&self.page_requests),
            records_written: get(&self.records_written),
            records_lost: get(&self.records_lost),
        }
    }
}

/// What queues have counted together.
#[derive(Clone, Copy, Default)]
pub(crate) struct QueueTotals {
    pub(crate) accepted: u64,
    pub(crate) retried: u64,
    pub(crate) dropped: u64,
    pub(crate) dispatched: u64,
}

impl QueueTotals {
    pub(crate) fn add(&mut self, queue: &QueueOrder) {
        self.accepted += queue.ring.pushed();
        self.retried += told(&queue.counts.0.retried);
        self.dropped += told(&queue.counts.0.dropped);
        self.dispatched += queue.ring.popped();
    }
}
