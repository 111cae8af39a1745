//! Every operation of DSA as an asynchronous call that owns its buffers.
//!
//! There is one call for all of them, [`Mover::run`]: the operation is a [`Request`], which says what it yields by its
//! type and is checked before anything is done. A device does it where one of its queues has the operation; otherwise
//! a CPU engine does, with `memferry_dsa::software`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use memferry_dsa::Request;
use memferry_dsa::request::{Ended, Outcome as Yields, Task};

use super::owned::{End, OperationError, Owned};
use super::{CopyError, CopyOptions, CopyReport, Guidelines, Mover, RawRequest};

/// What an operation ends with: its buffers, what it yields and a report, or an error with the buffers in it.
pub type Finished<B, O> = Result<(B, O, CopyReport), OperationError<B>>;

/// An operation under way. It owns its buffers and returns them, with an `O`, when it is done.
///
/// Await it, or call [`wait`](Operation::wait). Dropped, forgotten, or in a forked child it does what a
/// [`Transfer`](super::Transfer) does.
#[must_use = "an operation returns its buffers; dropping it drops them once it is done"]
pub struct Operation<B, O> {
    owned: Owned<B, (O, CopyReport)>,
}

impl Mover {
    /// Does what `make` asks for with the buffers.
    ///
    /// The requests are those of [`memferry_dsa::Request`], with slices and not cells: fill, compare, compare with a
    /// pattern, CRC-32C, copy with CRC, dualcast, delta records, data integrity fields, cache flush, no-op. What is larger
    /// than a queue takes is done piece by piece, by one engine.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
    /// use memferry_dsa::Request;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let buffers = (b"123456789".to_vec(), vec![0; 9]);
    /// let copied = mover.run(buffers, |(from, to)| Request::copy_crc(0, &*from, to), CopyOptions::default());
    /// let ((from, to), crc, _) = copied.wait()?;
    /// assert_eq!((to, crc), (from, 0xe306_9283));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation ends with [`CopyError::Invalid`] if the request is wrong; then nothing was done.
    pub fn run<B, O, M>(&self, buffers: B, make: M, options: CopyOptions) -> Operation<B, O>
    where
        B: Send + 'static,
        O: Yields + Send + 'static,
        M: for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
    {
        let start = |raw| self.start(raw, options.source_node, options.target_node);
        Operation::begin(buffers, make, self.guidelines(), options, start)
    }
}

impl<B, O> Operation<B, O>
where
    B: Send + 'static,
    O: Yields + Send + 'static,
{
    /// Takes the buffers and hands the operation to `start`, unless the request is wrong.
    pub(super) fn begin(
        buffers: B,
        make: impl for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
        guidelines: &Guidelines,
        options: CopyOptions,
        start: impl FnOnce(RawRequest),
    ) -> Operation<B, O> {
        let plan = |buffers: &mut B| {
            let request = make(buffers);
            // SAFETY: what the request borrows is the buffers', which stay where they are, untouched, until `end` has
            // finished, or for ever if they are lost; or it outlives them ('static), and is then shared for reading or
            // borrowed uniquely for ever. A task takes no cells. It is executed only before `done` is called.
            let mut task = unsafe { Task::new(&request) }?;
            let into_cache = guidelines.into_cache(options.consumer, task.size_bytes() as usize);
            task.add_hints(into_cache, options.block_on_fault);
            Ok(task)
        };
        let owned =
            Owned::begin(buffers, plan, |task: Result<Task, _>, end: End<B, (O, CopyReport)>| match task {
                Err(invalid) => end.finish(Err(CopyError::Invalid(invalid))),
                Ok(task) => {
                    let done = move |result: Result<(Ended, CopyReport), _>| {
                        end.finish(result.map(|(ended, report)| {
                            (ended.outcome().expect("an operation ends as its request's type says"), report)
                        }));
                    };
                    start(RawRequest::of_task(task, done).with_route(options.route));
                }
            });
        Operation { owned }
    }
}

impl<B, O> Operation<B, O> {
    pub(super) fn new(owned: Owned<B, (O, CopyReport)>) -> Operation<B, O> {
        Operation { owned }
    }

    /// Waits for it to be done.
    ///
    /// Blocks the thread: in asynchronous code await it instead. Never call it from a copy's `done`.
    ///
    /// # Errors
    /// [`OperationError`], with the buffers in it unless they are lost.
    pub fn wait(self) -> Finished<B, O> {
        self.owned.wait();
        self.take()
    }

    /// Looks once: the outcome if it is done, the operation itself if not.
    ///
    /// # Errors
    /// The operation, still under way.
    pub fn try_wait(self) -> Result<Finished<B, O>, Operation<B, O>> {
        if self.is_done() { Ok(self.take()) } else { Err(self) }
    }

    /// Is it done? Never blocks.
    pub fn is_done(&self) -> bool {
        self.owned.is_done()
    }

    fn take(&self) -> Finished<B, O> {
        let (buffers, (outcome, report)) = self.owned.take()?;
        Ok((buffers, outcome, report))
    }
}

impl<B, O> Future for Operation<B, O> {
    type Output = Finished<B, O>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finished<B, O>> {
        if self.owned.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl<B, O> fmt::Debug for Operation<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
