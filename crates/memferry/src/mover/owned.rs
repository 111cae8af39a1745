//! Buffers that belong to an operation while it is under way: what every handle of the mover is made of.
//!
//! The buffers are put into one shared allocation *before* their addresses are taken, and they are neither moved,
//! touched nor referred to again until the engine is done. So the borrow by which their addresses were had really
//! lasts as long as the operation, and no `Box` or `&mut` is moved meanwhile, which would assert that nobody else
//! writes there.
//!
//! ```text
//!   Owned ──▶ Shared { buffers, result, finished } ◀── End, inside of the engine
//! ```
//!
//! Whichever of the two lets go last drops the buffers. If the device may still write to them, the end never lets go.

use std::error::Error;
use std::fmt;
use std::task::Waker;

use super::done::Done;
#[cfg(not(memferry_loom))]
use super::done::{Ending, Ends};
use super::{CopyError, CopyReport};
use crate::sync::{Arc, Latch, Place, UnsafeCell};

/// The side of whoever asked for an operation.
pub(super) struct Owned<B, R> {
    shared: Arc<Shared<B, R>>,
    /// In `Shared::finished`.
    place: Place,
}

/// The side of whoever does it.
pub(super) struct End<B, R> {
    shared: Arc<Shared<B, R>>,
}

/// Who touches what: `buffers` belong to the engine until `finished` is set, `result` to the end; both belong to
/// the one `Owned` afterwards, or, if that is gone, to whoever drops this.
struct Shared<B, R> {
    buffers: UnsafeCell<Option<B>>,
    result: UnsafeCell<Option<Result<R, CopyError>>>,
    finished: Latch,
}

// SAFETY: the cells are handed from thread to thread as said above, and `finished` orders the hand-over;
// nothing in them is ever used by two threads at once, so B and R need to be Send only.
unsafe impl<B: Send, R: Send> Sync for Shared<B, R> {}
// SAFETY: as above.
unsafe impl<B: Send, R: Send> Send for Shared<B, R> {}

impl<B, R> Owned<B, R> {
    /// Takes the buffers. `plan` looks at them where they are to stay; what it returns holds their addresses, and is
    /// handed to `start` with the end.
    ///
    /// The addresses are good until the end has finished; for ever, if it says that the buffers are lost.
    pub(super) fn begin<P>(
        buffers: B,
        plan: impl FnOnce(&mut B) -> P,
        start: impl FnOnce(P, End<B, R>),
    ) -> Owned<B, R> {
        let shared = Arc::new(Shared {
            buffers: UnsafeCell::new(Some(buffers)),
            result: UnsafeCell::new(None),
            finished: Latch::new(),
        });
        // SAFETY: nobody else has `shared` yet. The reference ends with `plan`.
        let plan =
            shared.buffers.with_mut(|buffers| plan(unsafe { (*buffers).as_mut().expect("put there above") }));
        start(plan, End { shared: shared.clone() });
        Owned { shared, place: Place::default() }
    }

    /// Blocks until it is finished.
    pub(super) fn wait(&self) {
        self.shared.finished.wait();
    }

    /// Is it finished? Never blocks.
    pub(super) fn is_done(&self) -> bool {
        self.shared.finished.is_set() || self.shared.finished.is_orphaned()
    }

    /// As [`is_done`](Self::is_done), and wakes `waker` when it is.
    pub(super) fn poll(&mut self, waker: &Waker) -> bool {
        self.shared.finished.poll(&mut self.place, waker)
    }

    /// The buffers and the result of what is done.
    pub(super) fn take(&self) -> Result<(B, R), OperationError<B>> {
        if !self.shared.finished.is_set() {
            // Orphaned. What the engine holds of the buffers keeps them, as for a lost device.
            return Err(OperationError { error: CopyError::Forked, buffers: None });
        }
        // SAFETY: `finished` is set, and was seen so by this thread: both cells belong to this, the only `Owned`.
        let result = self.shared.result.with_mut(|result| unsafe { (*result).take() });
        let result = result.expect("an operation was polled after it had returned its buffers");
        if let Err(error) = result
            && error.buffers_are_lost()
        {
            return Err(OperationError { error, buffers: None });
        }
        // SAFETY: as above, and the engine has let go of the buffers.
        let buffers = self.shared.buffers.with_mut(|buffers| unsafe { (*buffers).take() });
        let buffers = buffers.expect("taken only together with the result");
        match result {
            Ok(result) => Ok((buffers, result)),
            Err(error) => Err(OperationError { error, buffers: Some(buffers) }),
        }
    }
}

impl<B, R> Drop for Owned<B, R> {
    fn drop(&mut self) {
        self.shared.finished.leave(&mut self.place);
    }
}

impl<B, R> End<B, R> {
    /// Reports the end. If the buffers are lost, they are leaked.
    pub(super) fn finish(self, result: Result<R, CopyError>) {
        finish(self.shared, result);
    }
}

impl<B: Send + 'static> End<B, CopyReport> {
    /// Is told the end, and costs no allocation.
    #[cfg(not(memferry_loom))]
    pub(super) fn into_done(self) -> Done {
        Done::ends(self.shared)
    }

    /// loom's pointers know no dynamic types.
    #[cfg(memferry_loom)]
    pub(super) fn into_done(self) -> Done {
        Done::call(move |ending| self.finish(ending))
    }
}

#[cfg(not(memferry_loom))]
impl<B: Send + 'static> Ends for Shared<B, CopyReport> {
    fn end(self: Arc<Self>, ending: Ending) {
        finish(self, ending);
    }
}

/// For the one `End` of these buffers.
fn finish<B, R>(shared: Arc<Shared<B, R>>, result: Result<R, CopyError>) {
    if result.as_ref().is_err_and(|error| error.buffers_are_lost()) {
        std::mem::forget(shared.clone());
    }
    // SAFETY: `result` is the end's until `finished` is set.
    shared.result.with_mut(|place| unsafe { *place = Some(result) });
    shared.finished.set();
}

/// An operation that failed, with the buffers that it owned.
pub struct OperationError<B> {
    /// What went wrong.
    pub error: CopyError,
    /// The buffers; `None` when a device may still touch them. What should have been written is undefined.
    pub buffers: Option<B>,
}

impl<B> fmt::Debug for OperationError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for OperationError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> Error for OperationError<B> {}
