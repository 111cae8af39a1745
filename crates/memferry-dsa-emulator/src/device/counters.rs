//! The counters of a device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::Status;

use crate::queue::QueueOrder;

/// Lists the counters of a device once, for the live counters and the snapshot.
macro_rules! device_counters {
    ($($(#[$about:meta])+ $name:ident)*) => {
        /// The counters that a device writes, zero at its start. Only the device's thread writes them; any thread reads
        /// them.
        #[repr(C)]
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            pub(crate) completed: ByStatus,
        }

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
            /// Descriptors and members that completed, by status.
            pub completed: BTreeMap<Status, u64>,
            $($(#[$about])+ pub $name: u64,)*
        }

        impl Counters {
            /// Adds the counters of `other`.
            pub(crate) fn add(&self, other: &Counters) {
                let rest = [$((&self.$name, &other.$name),)*];
                for (mine, theirs) in self.completed.0.iter().zip(&other.completed.0).chain(rest) {
                    mine.fetch_add(capped(theirs), Ordering::Relaxed);
                }
            }

            /// The public counters: these and those of the queues.
            pub(crate) fn snapshot(&self, queues: &QueueTotals) -> DeviceCounters {
                let QueueTotals { accepted, retried, dropped, dispatched } = *queues;
                let completed = self.completed.0.iter().map(get).enumerate().filter(|(_, count)| *count > 0);
                let completed = completed.map(|(code, count)| (Status::from_code(code as u8), count)).collect();
                DeviceCounters { accepted, retried, dropped, dispatched, completed, $($name: get(&self.$name),)* }
            }
        }
    };
}

device_counters! {
    /// Members of batches that were started.
    members
    /// Members of batches that a fence after a failure kept from starting.
    members_abandoned
    /// Descriptors and members that were in flight when the device was aborted.
    aborted
    /// Bytes that Memory Move wrote.
    bytes_copied
    /// Bytes of all operations' transfers: of the source, or of the target if there is no source.
    bytes_done
    /// Page faults that stopped an operation.
    page_faults
    /// Page faults that the operating system served while the operation waited.
    page_requests
    /// Completion records written.
    records_written
    /// Completion records that could not be written, or were still due when the device was aborted.
    records_lost
}

/// A counter for each status code.
#[repr(transparent)]
pub(crate) struct ByStatus(pub(crate) [AtomicU64; 64]);

impl Default for ByStatus {
    fn default() -> ByStatus {
        ByStatus(std::array::from_fn(|_| AtomicU64::new(0)))
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
