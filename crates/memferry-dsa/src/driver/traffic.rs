//! Counts of the descriptors of this process in a queue: how many were submitted, how many have completed.
//!
//! Several threads submit to one queue, so a thread does not know its position in it. The counts bound the position:
//!
//! ```text
//! enter    before the submission, since the device may complete the descriptor before it returns
//! accept   after it: all that are counted as submitted by now may be ahead
//! ```

use crate::sync::{AtomicU64, Ordering};

pub(super) struct Traffic {
    /// Descriptors that are submitted or about to be, those of batches included.
    submitted: AtomicU64,
    /// Descriptors that are known to have completed.
    completed: AtomicU64,
}

/// Descriptors that are counted and not submitted yet.
#[must_use = "pass them to `accept` or to `leave`"]
pub(super) struct Entered {
    count: u64,
    /// Descriptors that had completed before.
    completed: u64,
}

/// Descriptors that a queue has accepted.
pub(super) struct Accepted {
    pub(super) count: u64,
    /// Descriptors that may complete after `completed` was read and before the last of these.
    pub(super) ahead: u64,
    /// Descriptors that had completed before the submission.
    pub(super) completed: u64,
}

impl Traffic {
    pub(super) fn new() -> Traffic {
        Traffic { submitted: AtomicU64::new(0), completed: AtomicU64::new(0) }
    }

    /// Counts descriptors before their submission.
    #[inline]
    pub(super) fn enter(&self, count: u64) -> Entered {
        // ORDERING: Relaxed: the counts only measure progress; one too many ahead is a longer time-out.
        let completed = self.completed.load(Ordering::Relaxed);
        self.submitted.fetch_add(count, Ordering::Relaxed);
        Entered { count, completed }
    }

    /// The queue has not accepted them.
    #[inline]
    pub(super) fn leave(&self, entered: Entered) {
        // ORDERING: Relaxed, as in `enter`.
        self.submitted.fetch_sub(entered.count, Ordering::Relaxed);
    }

    /// The queue has accepted them.
    ///
    /// A thread may be held up between counting and submitting, and a full queue holds it up: descriptors that were
    /// counted later are then before its own in the queue. So all that are counted by now are ahead, the own ones but the
    /// last included.
    #[inline]
    pub(super) fn accept(&self, entered: Entered) -> Accepted {
        let Entered { count, completed } = entered;
        // ORDERING: Relaxed, as in `enter`.
        let submitted = self.submitted.load(Ordering::Relaxed);
        Accepted { count, ahead: submitted.saturating_sub(completed + 1), completed }
    }

    /// Counts completions. Returns their total.
    #[inline]
    pub(super) fn progress(&self, count: u64) -> u64 {
        // ORDERING: Relaxed, as in `enter`.
        self.completed.fetch_add(count, Ordering::Relaxed) + count
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};

    use super::*;

    /// Two threads submit to a queue that is first in, first out, and whose completions a third one counts. Neither counts
    /// fewer descriptors ahead than complete after it has entered and before its own: it would take these completions for
    /// ones behind its own, and a device that works for silent.
    #[test]
    fn loom_descriptors_ahead_are_counted() {
        loom::model(|| {
            let shared = Arc::new((Traffic::new(), Mutex::new(0_u64)));
            let submit = |(traffic, accepted): &(Traffic, Mutex<u64>)| {
                let entered = traffic.enter(1);
                let position = {
                    let mut accepted = accepted.lock().unwrap();
                    *accepted += 1;
                    *accepted - 1
                };
                let Accepted { ahead, completed, .. } = traffic.accept(entered);
                assert!(completed + ahead >= position, "{position} before it, of which {ahead} are counted");
            };
            let other = loom::thread::spawn({
                let shared = Arc::clone(&shared);
                move || submit(&shared)
            });
            let device = loom::thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let done = *shared.1.lock().unwrap();
                    shared.0.progress(done);
                }
            });
            submit(&shared);
            other.join().unwrap();
            device.join().unwrap();
        });
    }
}
