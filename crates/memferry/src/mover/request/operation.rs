//! Operations of DSA that own their buffers, as futures.
//!
//! [`Mover::run`](crate::mover::Mover::run) starts all of them. The operation is a [`Request`]: its type names the
//! outcome, and it is checked before it starts. A device executes it if one of its queues supports the operation;
//! otherwise a CPU engine does, with `memferry_dsa::internals::software`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use memferry_dsa::internals::request::{Ended, Task};
use memferry_dsa::{Outcome as Yields, Request};

use super::completion::CopyReport;
use super::owned::{Completion, OperationError, Owned};
use super::raw::RawRequest;
use super::transfer::CopyOptions;
use crate::mover::error::CopyError;
use crate::mover::guidelines::Guidelines;

/// An operation in flight. It owns its buffers and returns them, with its outcome `O`, when it is done.
///
/// Await it, or call [`wait`](Operation::wait). Drop, forget and fork have the effect that they have on a
/// [`Transfer`](super::Transfer).
#[must_use = "an operation returns its buffers; dropping it drops them once it is done"]
pub struct Operation<B, O> {
    owned: Owned<B, (O, CopyReport)>,
}

impl<B, O> Operation<B, O>
where
    B: Send + 'static,
    O: Yields + Send + 'static,
{
    /// Takes the buffers and hands the operation to `start`, unless the request breaks a rule.
    pub(in crate::mover) fn begin(
        buffers: B,
        make: impl for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
        guidelines: &Guidelines,
        options: CopyOptions,
        start: impl FnOnce(RawRequest),
    ) -> Operation<B, O> {
        let plan = |buffers: &mut B| {
            let request = make(buffers);
            // SAFETY: the request borrows from the buffers, which stay where they are, untouched, until the completion,
            // or for ever if they are lost; or the borrow outlives them ('static), and is then shared for reading or
            // unique for ever. A task takes no cells. It is executed only before the callback is called.
            let mut task = unsafe { Task::new(&request) }?;
            let into_cache = guidelines.into_cache(options.consumer, task.size_bytes() as usize);
            task.add_hints(into_cache, options.block_on_fault);
            Ok(task)
        };
        let owned = Owned::begin(
            buffers,
            plan,
            |task: Result<Task, _>, completion: Completion<B, (O, CopyReport)>| match task {
                Err(invalid) => completion.complete(Err(CopyError::Invalid(invalid))),
                Ok(task) => {
                    let callback = move |result: Result<(Ended, CopyReport), _>| {
                        completion.complete(result.map(|(ended, report)| {
                            (ended.outcome().expect("the request's type names the outcome"), report)
                        }));
                    };
                    start(RawRequest::of_task(task, callback).with_choice(options));
                }
            },
        );
        Operation { owned }
    }
}

impl<B, O> Operation<B, O> {
    pub(in crate::mover) fn new(owned: Owned<B, (O, CopyReport)>) -> Operation<B, O> {
        Operation { owned }
    }

    /// Blocks until it is done. Asynchronous code awaits it instead. Never call it in the callback of a copy.
    ///
    /// # Errors
    /// [`OperationError`], with the buffers in it unless they are lost.
    pub fn wait(self) -> Result<(B, O, CopyReport), OperationError<B>> {
        self.owned.wait();
        self.take()
    }

    /// Returns the result if it is done, otherwise the operation.
    ///
    /// # Errors
    /// The operation, still in flight.
    pub fn try_wait(self) -> Result<<Self as Future>::Output, Operation<B, O>> {
        if self.is_done() { Ok(self.take()) } else { Err(self) }
    }

    /// Whether it is done. Never blocks.
    pub fn is_done(&self) -> bool {
        self.owned.is_done()
    }

    fn take(&self) -> Result<(B, O, CopyReport), OperationError<B>> {
        let (buffers, (outcome, report)) = self.owned.take()?;
        Ok((buffers, outcome, report))
    }
}

impl<B, O> Future for Operation<B, O> {
    type Output = Result<(B, O, CopyReport), OperationError<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.owned.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl<B, O> fmt::Debug for Operation<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
