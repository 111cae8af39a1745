//! A copy that owns its buffers, as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::moment::Moment;
use super::owned::{OperationError, Owned};
use super::{Consumer, CopyError, CopyReport, RawRequest, Route};
use crate::topology::NodeId;

/// How to copy. `CopyOptions::default()` knows nothing and asks for nothing.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Node of the source, if known: routes look at it. A node that the machine does not have counts as unknown.
    pub source_node: Option<NodeId>,
    /// Node of the target, if known.
    pub target_node: Option<NodeId>,
    /// Who reads the target next, if known: whether a device writes to the last-level cache or to memory.
    pub consumer: Consumer,
    /// Lets a device wait for pages that it misses, where its queue allows that. Usually slower than the default, to
    /// stop there and have software touch the page.
    pub block_on_fault: bool,
    /// Who copies; `None` leaves it to the mover's [route](super::MoverBuilder::route).
    pub route: Option<Route>,
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
    owned: Owned<(S, T), CopyReport>,
}

impl<S, T> Transfer<S, T>
where
    S: AsRef<[u8]> + Send + 'static,
    T: AsMut<[u8]> + Send + 'static,
{
    /// Takes the buffers and hands the copy, made at `made`, to `start`, unless the lengths differ or there is nothing
    /// to copy.
    pub(super) fn begin(
        source: S,
        target: T,
        made: Moment,
        start: impl FnOnce(RawRequest),
    ) -> Transfer<S, T> {
        let plan =
            |(source, target): &mut (S, T)| (source.as_ref() as *const [u8], target.as_mut() as *mut [u8]);
        let owned = Owned::begin((source, target), plan, |(source, target), end| {
            let (source_bytes, target_bytes) = (source.len(), target.len());
            if source_bytes != target_bytes {
                end.finish(Err(CopyError::LengthMismatch { source_bytes, target_bytes }));
            } else if source_bytes == 0 {
                end.finish(Ok(CopyReport::default()));
            } else {
                // SAFETY: the ranges belong to values that `end` keeps where they are, borrowed by nobody else, until
                // it is told; when the buffers are lost, it leaks them. `source` is borrowed from one value
                // and `target` uniquely from another, so they do not overlap.
                start(unsafe {
                    RawRequest::told(source.cast(), target.cast(), source_bytes, end.into_done(), made)
                });
            }
        });
        Transfer { owned }
    }
}

impl<S, T> Transfer<S, T> {
    /// Waits for the copy to be done.
    ///
    /// Blocks the thread: in asynchronous code await the transfer instead. Never call it from a copy's `done`.
    ///
    /// # Errors
    /// [`TransferError`], with the buffers in it unless they are lost.
    pub fn wait(self) -> Outcome<S, T> {
        self.owned.wait();
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
        self.owned.is_done()
    }

    fn take(&self) -> Outcome<S, T> {
        let ((source, target), report) = self.owned.take()?;
        Ok((source, target, report))
    }
}

impl<S, T> Future for Transfer<S, T> {
    type Output = Outcome<S, T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<S, T>> {
        if self.owned.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl<S, T> fmt::Debug for Transfer<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

/// A transfer that failed, with source and target, unless a device may still touch them.
pub type TransferError<S, T> = OperationError<(S, T)>;
