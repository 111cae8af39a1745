//! The counters of a device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::Status;

use crate::queue::QueueOrder;

/// The counters that a device writes, zero at its start. Only the device's thread writes them; any thread reads them.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) members: AtomicU64,
    pub(crate) members_abandoned: AtomicU64,
    pub(crate) completed: [AtomicU64; 64], // by status code
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
            completed: std::array::from_fn(|_| zero()),
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

/// The value of a counter.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The value of a counter that another process writes, capped so that sums over all clients do not overflow.
pub(crate) fn capped(counter: &AtomicU64) -> u64 {
    get(counter).min(COUNT_MAX)
}

/// The largest credible value of a counter: the bytes of a week at 30 GB/s.
pub(crate) const COUNT_MAX: u64 = 1 << 54;

/// Counters of a device since it was enabled.
///
/// Every descriptor is accounted for: `accepted + members` equals [`completed_count`](Self::completed_count) plus
/// `aborted` plus [`in_flight`](Self::in_flight).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCounters {
    /// Descriptors that queues accepted.
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
    /// Descriptors and members that completed, by status.
    pub completed: BTreeMap<Status, u64>,
    /// Descriptors and members that were in flight when the device was aborted.
    pub aborted: u64,
    /// Bytes that Memory Move wrote.
    pub bytes_copied: u64,
    /// Bytes of all operations' transfers: of the source, or of the target if there is no source.
    pub bytes_done: u64,
    /// Page faults that stopped an operation.
    pub page_faults: u64,
    /// Page faults that the operating system served while the operation waited.
    pub page_requests: u64,
    /// Completion records written.
    pub records_written: u64,
    /// Completion records that could not be written, or were still due when the device was aborted.
    pub records_lost: u64,
}

impl DeviceCounters {
    /// Descriptors and members that completed, with any status.
    pub fn completed_count(&self) -> u64 {
        self.completed.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Descriptors and members in a queue or an engine; exact while no thread submits and the device is idle.
    pub fn in_flight(&self) -> u64 {
        let begun = self.accepted.saturating_add(self.members);
        begun.saturating_sub(self.completed_count().saturating_add(self.aborted))
    }
}

impl Counters {
    /// Pairs each counter with the same one of `other`.
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
        self.completed.iter().zip(&other.completed).chain(rest(self).into_iter().zip(rest(other)))
    }

    /// Adds the counters of `other`.
    pub(crate) fn add(&self, other: &Counters) {
        for (mine, theirs) in self.zip(other) {
            mine.fetch_add(capped(theirs), Ordering::Relaxed);
        }
    }

    /// The public counters: these and those of the queues.
    pub(crate) fn snapshot(&self, queues: &QueueTotals) -> DeviceCounters {
        let completed = self.completed.iter().enumerate().filter(|(_, count)| get(count) > 0);
        DeviceCounters {
            accepted: queues.accepted,
            retried: queues.retried,
            dropped: queues.dropped,
            dispatched: queues.dispatched,
            members: get(&self.members),
            members_abandoned: get(&self.members_abandoned),
            completed: completed.map(|(code, count)| (Status::from_code(code as u8), get(count))).collect(),
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

/// The sums of the counters of queues.
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
        self.retried += capped(&queue.counts.0.retried);
        self.dropped += capped(&queue.counts.0.dropped);
        self.dispatched += queue.ring.popped();
    }
}
