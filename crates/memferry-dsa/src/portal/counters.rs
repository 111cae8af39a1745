//! Counters of a portal's submissions.

use std::sync::atomic::{AtomicU64, Ordering};

/// A portal's counts of submissions, in this process and in the processes that it was forked from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortalCounters {
    /// Descriptors that the queue accepted.
    pub accepted: u64,
    /// Submissions that found the queue full.
    pub retries: u64,
    /// Submissions that failed: refused descriptors, or a device that was gone.
    pub refused: u64,
    /// Times that a forked process reopened the queue.
    pub reopened: u64,
    /// Entries in use of a dedicated queue; 0 for shared queues, which do not report it.
    pub in_flight: u32,
}

/// The live counters of a portal, for types that implement [`Portal`](super::Portal).
///
/// All submitters write them (Relaxed), so they have a cache line of their own; [`snapshot`](Self::snapshot) reads them.
#[derive(Default)]
#[repr(align(128))]
pub struct SubmissionCounters {
    accepted: AtomicU64,
    retries: AtomicU64,
    refused: AtomicU64,
    pub(crate) reopened: AtomicU64,
}

impl SubmissionCounters {
    /// Counts an answer and returns it.
    #[inline]
    pub fn count<E>(&self, answer: Result<super::Submission, E>) -> Result<super::Submission, E> {
        let counter = match &answer {
            Ok(super::Submission::Accepted) => &self.accepted,
            Ok(super::Submission::Retry) => &self.retries,
            Err(_) => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// The current counts. `in_flight` is the number of entries in use of a dedicated queue.
    pub fn snapshot(&self, in_flight: u32) -> PortalCounters {
        PortalCounters {
            accepted: self.accepted.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            reopened: self.reopened.load(Ordering::Relaxed),
            in_flight,
        }
    }
}
