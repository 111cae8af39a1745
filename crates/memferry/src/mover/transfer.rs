//! A copy that owns its buffers, as a future.
//!
//! Both buffers are put into one shared allocation *before* their addresses are taken, and neither is moved,
//! touched nor referred to again until the engine is done. So `as_mut`'s borrow really lasts as long as the
//! copy, and no `Box` or `&mut` is moved meanwhile, which would assert that nobody else writes there.
//!
//! ```text
//!   Transfer ──▶ Shared { buffers, result, finished } ◀── the copy's `done`, inside the engine
//! ```
//!
//! Whichever of the two lets go last drops the buffers. If the device may still write to them, `done` never
//! lets go.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{CopyError, CopyReport, RawCopy};
use crate::sync::{Arc, Latch, UnsafeCell};
use crate::topology::NodeId;

/// How to copy. `CopyOptions::default()` knows nothing and asks for nothing.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Node of the source, if known: routes look at it. A node that the machine does not have counts as unknown.
    pub source_node: Option<NodeId>,
    /// Node of the target, if known.
    pub target_node: Option<NodeId>,
    /// Lets a device wait for pages that it misses, where its queue allows that. Usually slower than the default, to
    /// stop there and have software touch the page.
    pub block_on_fault: bool,
}

/// What a transfer ends with: both buffers and a report, or an error with the buffers in it.
pub type Outcome<S, T> = Result<(S, T, CopyReport), TransferError<S, T>>;

/// A copy under way. It owns its buffers and returns them when it is done.
///
/// Await it, or call [`wait`](Transfer::wait).
/// Cancel: dropping or forgetting it neither blocks nor frees; the copy goes on and the buffers are dropped
/// after it, on the thread that finished it.
/// Fork: a copy under way goes on in the parent; in the child the transfer ends with [`CopyError::Forked`].
#[must_use = "a transfer returns its buffers; dropping it drops them once the copy is done"]
pub struct Transfer<S, T> {
    shared: Arc<Shared<S, T>>,
}

/// Who touches what: `buffers` belong to the engine until `finished` is set, `result` to `done`; both belong to
/// the one `Transfer` afterwards, or, if that is gone, to whoever drops this.
struct Shared<S, T> {
    buffers: UnsafeCell<Option<(S, T)>>,
    result: UnsafeCell<Option<Result<CopyReport, CopyError>>>,
    finished: Latch,
}

// SAFETY: the cells are handed from thread to thread as said above, and `finished` orders the hand-over;
// nothing in them is ever used by two threads at once, so S and T need to be Send only.
unsafe impl<S: Send, T: Send> Sync for Shared<S, T> {}
// SAFETY: as above.
unsafe impl<S: Send, T: Send> Send for Shared<S, T> {}

impl<S, T> Transfer<S, T>
where
    S: AsRef<[u8]> + Send + 'static,
    T: AsMut<[u8]> + Send + 'static,
{
    /// Takes the buffers and hands the copy to `start`, unless the lengths differ or there is nothing to copy.
    pub(super) fn begin(source: S, target: T, start: impl FnOnce(RawCopy)) -> Transfer<S, T> {
        let shared = Arc::new(Shared {
            buffers: UnsafeCell::new(Some((source, target))),
            result: UnsafeCell::new(None),
            finished: Latch::new(),
        });
        // SAFETY: nobody else has `shared` yet. The references end with the closure; the addresses stay good,
        // as the values stay where they are, untouched, until `finished`.
        let (source, target) = shared.buffers.with_mut(|buffers| unsafe {
            let (source, target) = (*buffers).as_mut().expect("put there above");
            (source.as_ref() as *const [u8], target.as_mut() as *mut [u8])
        });
        if source.len() != target.len() {
            let (source_bytes, target_bytes) = (source.len(), target.len());
            finish(&shared, Err(CopyError::LengthMismatch { source_bytes, target_bytes }));
        } else if source.len() == 0 {
            finish(&shared, Ok(CopyReport::default()));
        } else {
            let held = shared.clone();
            // SAFETY: the ranges belong to values that live in `held`, borrowed by nobody else, and `held`
            // lives until `done` has run; when the buffers are lost, `finish` leaks them. `source` is borrowed
            // from one value and `target` uniquely from another, so they do not overlap.
            start(unsafe {
                RawCopy::new(source.cast(), target.cast(), source.len(), move |result| finish(&held, result))
            });
        }
        Transfer { shared }
    }
}

/// Called once, by whoever ends the copy.
fn finish<S, T>(shared: &Arc<Shared<S, T>>, result: Result<CopyReport, CopyError>) {
    if result.is_err_and(|error| error.buffers_are_lost()) {
        std::mem::forget(shared.clone());
    }
    // SAFETY: `result` is this caller's until `finished` is set.
    shared.result.with_mut(|place| unsafe { *place = Some(result) });
    shared.finished.set();
}

impl<S, T> Transfer<S, T> {
    /// Waits for the copy to be done.
    ///
    /// Blocks the thread: in asynchronous code await the transfer instead. Never call it from a copy's `done`.
    ///
    /// # Errors
    /// [`TransferError`], with the buffers in it unless they are lost.
    pub fn wait(self) -> Outcome<S, T> {
        self.shared.finished.wait();
        self.take()
    }

    /// Looks once: the outcome if the copy is done, the transfer itself if not.
    ///
    /// # Errors
    /// The transfer, still under way.
    pub fn try_wait(self) -> Result<Outcome<S, T>, Transfer<S, T>> {
        if self.is_done() { Ok(self.take()) } else { Err(self) }
    }

    /// Is the copy done? Never blocks.
    pub fn is_done(&self) -> bool {
        self.shared.finished.is_set() || self.shared.finished.is_orphaned()
    }

    /// The outcome of a transfer that is done.
    fn take(&self) -> Outcome<S, T> {
        if !self.shared.finished.is_set() {
            // Orphaned. What the engine holds of the buffers keeps them, as for a lost device.
            return Err(TransferError { error: CopyError::Forked, buffers: None });
        }
        // SAFETY: `finished` is set, and was seen so by this thread: both cells belong to this, the only
        // `Transfer`.
        let result = self.shared.result.with_mut(|result| unsafe { (*result).take() });
        let result = result.expect("a transfer was polled after it had returned its buffers");
        if let Err(error) = result
            && error.buffers_are_lost()
        {
            return Err(TransferError { error, buffers: None });
        }
        // SAFETY: as above, and the engine has let go of the buffers.
        let buffers = self.shared.buffers.with_mut(|buffers| unsafe { (*buffers).take() });
        let (source, target) = buffers.expect("taken only together with the result");
        match result {
            Ok(report) => Ok((source, target, report)),
            Err(error) => Err(TransferError { error, buffers: Some((source, target)) }),
        }
    }
}

impl<S, T> Future for Transfer<S, T> {
    type Output = Outcome<S, T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<S, T>> {
        if self.shared.finished.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl<S, T> fmt::Debug for Transfer<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

/// A transfer that failed, with the buffers that it owned.
pub struct TransferError<S, T> {
    /// What went wrong.
    pub error: CopyError,
    /// Source and target; `None` when a device may still touch them. The target's content is undefined.
    pub buffers: Option<(S, T)>,
}

impl<S, T> fmt::Debug for TransferError<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<S, T> fmt::Display for TransferError<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S, T> Error for TransferError<S, T> {}
