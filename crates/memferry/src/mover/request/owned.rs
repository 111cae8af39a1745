//! Buffers that an operation owns while it is in flight: the base of transfers and operations.
//!
//! The buffers are put into one shared allocation *before* their addresses are taken. Until the engine is done they are
//! not moved, touched or borrowed again. So the borrow that gave the addresses really lasts as long as the operation,
//! and no `Box` or `&mut` is moved meanwhile, which would assert that nothing else writes there.
//!
//! ```text
//!   Owned ──▶ Shared { buffers, result, is_complete } ◀── Completion, in the engine
//! ```
//!
//! The last of the two drops the buffers. If a device may still write to them, the completion leaks its reference.

use std::error::Error;
use std::fmt;
use std::task::Waker;

use super::completion::{Callback, CopyReport};
#[cfg(not(memferry_loom))]
use super::completion::{Complete, CopyResult};
use crate::mover::error::CopyError;
use crate::sync::{Arc, Latch, Place, UnsafeCell};

/// The caller's half of an operation.
pub(in crate::mover) struct Owned<B, R> {
    shared: Arc<Shared<B, R>>,
    /// This waiter's place in `Shared::is_complete`.
    place: Place,
}

/// The engine's half of an operation.
pub(in crate::mover) struct Completion<B, R> {
    shared: Arc<Shared<B, R>>,
}

/// The state that both halves share.
///
/// Until `is_complete` is set, the engine uses `buffers` and the `Completion` writes `result`. Afterwards both belong to
/// the one `Owned`; if that is gone, to the thread that drops this.
struct Shared<B, R> {
    buffers: UnsafeCell<Option<B>>,
    result: UnsafeCell<Option<Result<R, CopyError>>>,
    is_complete: Latch,
}

// SAFETY: the cells are handed from thread to thread as said above, and `is_complete` orders the hand-over;
// no two threads use them at the same time, so B and R need to be Send only.
unsafe impl<B: Send, R: Send> Sync for Shared<B, R> {}
// SAFETY: as above.
unsafe impl<B: Send, R: Send> Send for Shared<B, R> {}

impl<B, R> Owned<B, R> {
    /// Takes the buffers and moves them to where they stay. `plan` takes their addresses there; `start` gets its result
    /// and the completion.
    ///
    /// The addresses are valid until the completion; for ever, if its error says that the buffers are lost.
    pub(in crate::mover) fn begin<P>(
        buffers: B,
        plan: impl FnOnce(&mut B) -> P,
        start: impl FnOnce(P, Completion<B, R>),
    ) -> Owned<B, R> {
        let shared = Arc::new(Shared {
            buffers: UnsafeCell::new(Some(buffers)),
            result: UnsafeCell::new(None),
            is_complete: Latch::new(),
        });
        // SAFETY: no other thread has `shared` yet. The reference ends with `plan`.
        let plan =
            shared.buffers.with_mut(|buffers| plan(unsafe { (*buffers).as_mut().expect("put there above") }));
        start(plan, Completion { shared: shared.clone() });
        Owned { shared, place: Place::default() }
    }

    /// Blocks until the completion.
    pub(in crate::mover) fn wait(&self) {
        self.shared.is_complete.wait();
    }

    /// Whether it is complete. Never blocks.
    pub(in crate::mover) fn is_done(&self) -> bool {
        self.shared.is_complete.is_set() || self.shared.is_complete.is_orphaned()
    }

    /// As [`is_done`](Self::is_done); if not, wakes `waker` on completion.
    pub(in crate::mover) fn poll(&mut self, waker: &Waker) -> bool {
        self.shared.is_complete.poll(&mut self.place, waker)
    }

    /// Takes the buffers and the result of a complete operation.
    pub(in crate::mover) fn take(&self) -> Result<(B, R), OperationError<B>> {
        if !self.shared.is_complete.is_set() {
            // Orphaned. The reference of the engine's half keeps the buffers, as for a lost device.
            return Err(OperationError { error: CopyError::Forked, buffers: None });
        }
        // SAFETY: this thread has seen `is_complete` set: both cells belong to this, the only `Owned`.
        let result = self.shared.result.with_mut(|result| unsafe { (*result).take() });
        let result = result.expect("an operation was polled after it had returned its buffers");
        if let Err(error) = result
            && error.buffers_are_lost()
        {
            return Err(OperationError { error, buffers: None });
        }
        // SAFETY: as above, and the engine no longer uses the buffers.
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
        self.shared.is_complete.leave(&mut self.place);
    }
}

impl<B, R> Completion<B, R> {
    /// Completes the operation. Lost buffers are leaked.
    pub(in crate::mover) fn complete(self, result: Result<R, CopyError>) {
        complete(self.shared, result);
    }
}

impl<B: Send + 'static> Completion<B, CopyReport> {
    /// This as a callback, without an allocation.
    #[cfg(not(memferry_loom))]
    pub(in crate::mover) fn into_callback(self) -> Callback {
        Callback::shared(self.shared)
    }

    /// This as a callback; loom's `Arc` supports no trait objects.
    #[cfg(memferry_loom)]
    pub(in crate::mover) fn into_callback(self) -> Callback {
        Callback::new(move |result| self.complete(result))
    }
}

#[cfg(not(memferry_loom))]
impl<B: Send + 'static> Complete for Shared<B, CopyReport> {
    fn complete(self: Arc<Self>, result: CopyResult) {
        complete(self, result);
    }
}

/// Called once, for the one `Completion` of these buffers.
fn complete<B, R>(shared: Arc<Shared<B, R>>, result: Result<R, CopyError>) {
    if result.as_ref().is_err_and(|error| error.buffers_are_lost()) {
        std::mem::forget(shared.clone());
    }
    // SAFETY: `result` belongs to the `Completion` until `is_complete` is set.
    shared.result.with_mut(|place| unsafe { *place = Some(result) });
    shared.is_complete.set();
}

/// The error of an operation, with the buffers that it owned.
pub struct OperationError<B> {
    /// The error.
    pub error: CopyError,
    /// The buffers; `None` if a device may still touch them. The content of targets is undefined.
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
