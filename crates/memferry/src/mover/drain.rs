//! Waiting for all that was begun before, whoever does it.
//!
//! ```text
//!   requests ──▶ Epoch 0 ──next──▶ Epoch 1 ──next──▶ Epoch 2: the current one
//!                   └ its drain       └ its drain
//! ```
//!
//! A request holds the epoch in which it was begun until it has ended. A drain begins the next one, which the former
//! holds: so an epoch ends when its last request has ended, and all before it, and tells its drain. Nothing is counted
//! but the references, and nobody looks.
//!
//! The device's own Drain waits for what one queue has. Here what was begun may be in several queues, in the backlog of
//! an engine, half done by a device and about to be resumed, or with a worker.

use std::sync::Arc;

use memferry_dsa::fork::PerProcess;

use super::owned::{End, Owned};
use super::{CopyReport, Mover, Operation};
use crate::sync::{Mutex, MutexGuard, lock};

/// Held by what was begun in it.
#[derive(Default)]
pub(crate) struct Epoch(Mutex<Option<Drain>>);

/// What ends with an epoch.
struct Drain {
    end: End<(), ((), CopyReport)>,
    next: Arc<Epoch>,
}

/// The epochs of whatever is drained: a mover, or a source of the cache. What the process has begun from which this one was
/// forked ends there: a child begins anew.
#[derive(Default)]
pub(crate) struct Epochs(PerProcess<Mutex<Arc<Epoch>>>);

impl Epochs {
    /// The current one, for what begins now.
    pub(crate) fn current(&self) -> Arc<Epoch> {
        self.lock().clone()
    }

    /// Ends when all has ended that was begun before.
    pub(crate) fn drain(&self) -> Operation<(), ()> {
        Operation::new(Owned::begin((), |()| (), |(), end| self.begin_next(end)))
    }

    fn begin_next(&self, end: End<(), ((), CopyReport)>) {
        let next = Arc::new(Epoch::default());
        let former = std::mem::replace(&mut *self.lock(), next.clone());
        *lock(&former.0) = Some(Drain { end, next });
        // If nothing holds it any more, it ends here.
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Epoch>> {
        lock(self.0.get_or_init(Mutex::default))
    }
}

impl Drop for Epoch {
    /// One after the other: a drop within a drop for each of many drains would need a deep stack.
    fn drop(&mut self) {
        let mut drain = self.take();
        while let Some(Drain { end, next }) = drain {
            end.finish(Ok(((), CopyReport::default())));
            drain = Arc::into_inner(next).and_then(|mut epoch| epoch.take());
        }
    }
}

impl Epoch {
    /// Under the lock, although nobody else has the epoch: loom knows the lock's order, and not that of std's counts.
    fn take(&mut self) -> Option<Drain> {
        lock(&self.0).take()
    }
}

impl Mover {
    /// Ends when all copies and operations have ended that were begun before with this mover, or a clone of it,
    /// whichever engines have them, and whether they succeed or not. What begins later is not waited for.
    ///
    /// This is Drain for a mover: the device's operation of that name concerns one queue, in which only a part may be.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let copies: Vec<_> =
    ///     (0..4).map(|byte| mover.copy(vec![byte; 1 << 20], vec![0; 1 << 20], CopyOptions::default())).collect();
    /// mover.drain().wait()?;
    /// assert!(copies.iter().all(|copy| copy.is_done()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self) -> Operation<(), ()> {
        self.epochs().drain()
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_drain_waits_for_what_was_before_it_and_nothing_else() {
        let epochs = Epochs::default();
        let (first, second) = (epochs.current(), epochs.current());
        let one = epochs.drain();
        let later = epochs.current();
        let two = epochs.drain();
        let latest = epochs.current();
        assert!(!one.is_done() && !two.is_done());
        drop(later);
        assert!(!one.is_done() && !two.is_done(), "what was before the first is before the second");
        drop(first);
        assert!(!one.is_done());
        drop(second);
        assert!(one.is_done() && two.is_done());
        assert!(!epochs.drain().is_done());
        drop(latest);
        assert!(epochs.drain().is_done(), "nothing is under way");
    }

    #[test]
    fn many_drains_end_without_a_deep_stack() {
        let epochs = Epochs::default();
        let request = epochs.current();
        let drains: Vec<_> = (0..100_000).map(|_| epochs.drain()).collect();
        assert!(drains.iter().all(|drain| !drain.is_done()));
        drop(request);
        assert!(drains.iter().all(|drain| drain.is_done()));
    }
}
