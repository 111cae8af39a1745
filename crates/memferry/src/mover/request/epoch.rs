//! Epochs: drains wait for all requests that were started before them.
//!
//! ```text
//!   requests ──▶ Epoch 0 ──next──▶ Epoch 1 ──next──▶ Epoch 2: the current one
//!                   └ its drain       └ its drain
//! ```
//!
//! A request holds the current epoch until its completion. A drain starts the next epoch and stores itself, with a
//! reference to the next epoch, in the former one. So an epoch is dropped when its last request and all earlier epochs
//! are gone, and its drop completes the drain. Nothing is counted but references, and nothing polls.
//!
//! The device operation Drain waits for one queue. The requests here may be in several queues, in the backlog of an
//! engine, about to be resumed, or with a worker.

use std::sync::Arc;

use memferry_dsa::internals::fork::PerProcess;

use super::completion::CopyReport;
use super::operation::Operation;
use super::owned::{Completion, Owned};
use crate::sync::{Mutex, MutexGuard, lock};

/// An epoch, held by its requests. The lock guards the drain that ends it: [`Epochs`] stores it, the epoch's drop takes
/// it.
#[derive(Default)]
pub(crate) struct Epoch(Mutex<Option<Drain>>);

/// A drain, completed by the end of its epoch.
struct Drain {
    completion: Completion<(), ((), CopyReport)>,
    next: Arc<Epoch>,
}

/// The epochs of a mover or of a cache source; the lock guards the current one.
///
/// A forked child starts with a new epoch: requests of its parent complete there.
#[derive(Default)]
pub(crate) struct Epochs(PerProcess<Mutex<Arc<Epoch>>>);

impl Epochs {
    /// The current epoch, for a request that starts now.
    pub(crate) fn current(&self) -> Arc<Epoch> {
        self.lock().clone()
    }

    /// Completes when all requests of the current and earlier epochs have completed.
    pub(crate) fn drain(&self) -> Operation<(), ()> {
        Operation::new(Owned::begin((), |()| (), |(), completion| self.start_next(completion)))
    }

    fn start_next(&self, completion: Completion<(), ((), CopyReport)>) {
        let next = Arc::new(Epoch::default());
        let former = std::mem::replace(&mut *self.lock(), next.clone());
        *lock(&former.0) = Some(Drain { completion, next });
        // `former` is dropped here. Without requests this completes the drain.
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Epoch>> {
        lock(self.0.get_or_init(Mutex::default))
    }
}

impl Drop for Epoch {
    /// Completes the drain. Iterative, because recursion over many drains would need a deep stack.
    fn drop(&mut self) {
        let mut drain = self.take();
        while let Some(Drain { completion, next }) = drain {
            completion.complete(Ok(((), CopyReport::default())));
            drain = Arc::into_inner(next).and_then(|mut epoch| epoch.take());
        }
    }
}

impl Epoch {
    /// Takes the lock although no other thread has the epoch: loom knows the order of locks, but not of std's reference
    /// counts.
    fn take(&mut self) -> Option<Drain> {
        lock(&self.0).take()
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_drain_waits_for_earlier_requests_only() {
        let epochs = Epochs::default();
        let (first, second) = (epochs.current(), epochs.current());
        let one = epochs.drain();
        let later = epochs.current();
        let two = epochs.drain();
        let latest = epochs.current();
        assert!(!one.is_done() && !two.is_done());
        drop(later);
        assert!(!one.is_done() && !two.is_done(), "the second drain waits for the requests of the first");
        drop(first);
        assert!(!one.is_done());
        drop(second);
        assert!(one.is_done() && two.is_done());
        assert!(!epochs.drain().is_done());
        drop(latest);
        assert!(epochs.drain().is_done(), "nothing is in flight");
    }

    #[test]
    fn many_drains_complete_without_a_deep_stack() {
        let epochs = Epochs::default();
        let request = epochs.current();
        let drains: Vec<_> = (0..100_000).map(|_| epochs.drain()).collect();
        assert!(drains.iter().all(|drain| !drain.is_done()));
        drop(request);
        assert!(drains.iter().all(|drain| drain.is_done()));
    }
}
