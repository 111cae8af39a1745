//! What became of a portal's submissions.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a portal has answered so far, in this process and those that it was forked from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortalCounters {
    /// Descriptors that the queue took.
    pub accepted: u64,
    /// Times that the queue was full, or its entries were all taken.
    pub retries: u64,
    /// Descriptors that could not be submitted: refused, or the device was gone.
    pub refused: u64,
    /// Times that the queue was opened again in a forked process.
    pub reopened: u64,
    /// Entries in use, of a dedicated queue; 0 for shared ones, which do not tell.
    pub in_flight: u32,
}

/// The counters of a portal while it counts, for types that implement [`Portal`](super::Portal). They have a cache line of
/// their own, which all submitters write.
#[derive(Default)]
#[repr(align(128))]
pub struct SubmissionCounters {
    accepted: AtomicU64,
    retries: AtomicU64,
    refused: AtomicU64,
    pub(crate) reopened: AtomicU64,
}

impl SubmissionCounters {
    /// Counts an answer, and passes it on.
    pub fn count<E>(&self, answer: Result<super::Submission, E>) -> Result<super::Submission, E> {
        let counter = match &answer {
            Ok(super::Submission::Accepted) => &self.accepted,
            Ok(super::Submission::Retry) => &self.retries,
            Err(_) => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// The counts so far. `in_flight` are the taken entries of a dedicated queue.
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
