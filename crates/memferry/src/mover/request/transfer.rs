//! Transfers: copies that own their buffers, as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::completion::CopyReport;
use super::owned::{OperationError, Owned};
use super::raw::RawRequest;
use crate::moment::Moment;
use crate::mover::error::CopyError;
use crate::mover::guidelines::Consumer;
use crate::route::Route;
use crate::topology::NodeId;

/// Options of a copy. The default has no hints.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Node of the source, for the route. A node that the machine does not have counts as unknown.
    pub source_node: Option<NodeId>,
    /// Node of the target, as for the source.
    pub target_node: Option<NodeId>,
    /// The next reader of the target. A device writes to the last-level cache or to memory accordingly.
    pub consumer: Consumer,
    /// Lets a device wait on page faults, if its queue allows that. Usually slower than the default: the device stops
    /// there, and software touches the page.
    pub block_on_fault: bool,
    /// The route of this copy; `None` for the mover's [route](crate::mover::MoverBuilder::route).
    pub route: Option<Route>,
    /// The node whose CPUs ask for the copy, for a [copy policy](crate::mover::MoverBuilder::copy_policy).
    pub requester: Option<NodeId>,
    /// Whether the calling thread waits for the copy at once. A device then gets it only from
    /// [`offload_waited_bytes_min`](crate::mover::Guidelines::offload_waited_bytes_min) on, since nothing happens meanwhile.
    pub waits: bool,
}

/// A copy in flight. It owns its buffers and returns them when it is done.
///
/// Await it, or call [`wait`](Transfer::wait).
/// Cancel: dropping or forgetting it neither blocks nor frees. The copy goes on, and the thread that finishes it drops
/// the buffers.
/// Fork: a copy in flight goes on in the parent; in the child the transfer completes with [`CopyError::Forked`].
#[must_use = "a transfer returns its buffers; dropping it drops them once the copy is done"]
pub struct Transfer<S, T> {
    owned: Owned<(S, T), CopyReport>,
}

impl<S, T> Transfer<S, T>
where
    S: AsRef<[u8]> + Send + 'static,
    T: AsMut<[u8]> + Send + 'static,
{
    /// Takes the buffers and hands the copy, created at `made`, to `start`. Completes at once if the lengths differ or
    /// are zero.
    pub(in crate::mover) fn begin(
        source: S,
        target: T,
        made: Moment,
        start: impl FnOnce(RawRequest),
    ) -> Transfer<S, T> {
        let plan =
            |(source, target): &mut (S, T)| (source.as_ref() as *const [u8], target.as_mut() as *mut [u8]);
        let owned = Owned::begin((source, target), plan, |(source, target), completion| {
            let (source_bytes, target_bytes) = (source.len(), target.len());
            if source_bytes != target_bytes {
                completion.complete(Err(CopyError::LengthMismatch { source_bytes, target_bytes }));
            } else if source_bytes == 0 {
                completion.complete(Ok(CopyReport::default()));
            } else {
                // SAFETY: the ranges belong to values that `completion` keeps where they are, borrowed by nobody else,
                // until it is complete; when the buffers are lost, it leaks them. `source` is borrowed from one value
                // and `target` uniquely from another, so they do not overlap.
                start(unsafe {
                    RawRequest::with_callback(
                        source.cast(),
                        target.cast(),
                        source_bytes,
                        completion.into_callback(),
                        made,
                    )
                });
            }
        });
        Transfer { owned }
    }
}

impl<S, T> Transfer<S, T> {
    /// Blocks until the copy is done. Asynchronous code awaits the transfer instead. Never call it in the callback of a
    /// copy.
    ///
    /// # Errors
    /// [`OperationError`], with the buffers in it unless they are lost.
    pub fn wait(self) -> Result<(S, T, CopyReport), OperationError<(S, T)>> {
        self.owned.wait();
        self.take()
    }

    /// Returns the result if the copy is done, otherwise the transfer.
    ///
    /// # Errors
    /// The transfer, still in flight.
    pub fn try_wait(self) -> Result<<Self as Future>::Output, Transfer<S, T>> {
        if self.is_done() { Ok(self.take()) } else { Err(self) }
    }

    /// Whether the copy is done. Never blocks.
    pub fn is_done(&self) -> bool {
        self.owned.is_done()
    }

    fn take(&self) -> Result<(S, T, CopyReport), OperationError<(S, T)>> {
        let ((source, target), report) = self.owned.take()?;
        Ok((source, target, report))
    }
}

impl<S, T> Future for Transfer<S, T> {
    type Output = Result<(S, T, CopyReport), OperationError<(S, T)>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.owned.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl<S, T> fmt::Debug for Transfer<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
