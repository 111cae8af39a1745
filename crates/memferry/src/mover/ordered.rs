//! A pipeline of copies: engines complete them in any order, the caller retires them in the order of submission.
//!
//! ```text
//!   submit ──▶ newest │ done │ in flight │ done │ done │ oldest ──▶ retire, while the oldest is done
//! ```
//!
//! The caller computes after a submission and retires completed copies now and then. Vhost has such an array for packets
//! in flight: a virtual machine gets them in order although several queues carry them.
//!
//! A pipeline belongs to one thread at a time, like a virtqueue. It is bounded: a full one hands submissions back until
//! a copy is retired.
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), section 6.4.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::ready;

use super::{CopyOptions, CopyReport, Mover, MoverError, OperationError, Transfer};

/// The result of a transfer.
type Retired<S, T> = Result<(S, T, CopyReport), OperationError<(S, T)>>;

/// A bounded pipeline of copies that keeps their order.
///
/// A failed copy is retired in its turn and does not stop the others. After a drop of the pipeline its copies go on;
/// their buffers are dropped on completion.
pub struct Ordered<S, T> {
    mover: Mover,
    options: CopyOptions,
    len_max: usize,
    line: Line<S, T>,
}

impl<S, T> Ordered<S, T>
where
    S: AsRef<[u8]> + Send + 'static,
    T: AsMut<[u8]> + Send + 'static,
{
    /// A pipeline of up to `len_max` copies with these options.
    ///
    /// The paper's bursts have 32 packets. Twice that lets one burst be copied while the other is processed.
    ///
    /// # Errors
    /// [`MoverError::NoQueue`]: `len_max` is 0.
    pub fn new(mover: Mover, len_max: usize, options: CopyOptions) -> Result<Ordered<S, T>, MoverError> {
        if len_max == 0 {
            return Err(MoverError::NoQueue);
        }
        Ok(Ordered { mover, options, len_max, line: Line::default() })
    }

    /// Starts a copy from `source` to `target` as the newest.
    ///
    /// # Errors
    /// The buffers, if the pipeline is full: retire something first.
    pub fn submit(&mut self, source: S, target: T) -> Result<(), (S, T)> {
        if self.room() == 0 {
            return Err((source, target));
        }
        self.line.push(self.mover.copy(source, target, self.options));
        Ok(())
    }

    /// Starts copies from the front of `burst`, in order and as one batch, as many as there is room for. The others stay
    /// in `burst`.
    pub fn submit_burst(&mut self, burst: &mut Vec<(S, T)>) {
        let count = self.room().min(burst.len());
        let mut batch = self.mover.batch(self.options);
        for (source, target) in burst.drain(..count) {
            self.line.push(batch.copy(source, target));
        }
        batch.submit();
    }
}

impl<S, T> Ordered<S, T> {
    /// Retires the oldest copy if it is done. Never blocks.
    pub fn retire(&mut self) -> Option<Retired<S, T>> {
        self.line.retire()
    }

    /// Waits for the oldest copy and retires it. `None` if there is none.
    ///
    /// Blocks the thread; asynchronous code calls [`next`](Ordered::next).
    pub fn retire_wait(&mut self) -> Option<Retired<S, T>> {
        self.line.retire_wait()
    }

    /// Awaits the oldest copy and retires it. `None` if there is none.
    ///
    /// Cancel: the copy stays the oldest.
    pub async fn next(&mut self) -> Option<Retired<S, T>> {
        self.line.next().await
    }

    /// Number of copies that are not retired.
    pub fn len(&self) -> usize {
        self.line.0.len()
    }

    /// Whether all copies are retired.
    pub fn is_empty(&self) -> bool {
        self.line.0.is_empty()
    }

    /// Number of copies that can be submitted now.
    pub fn room(&self) -> usize {
        self.len_max - self.len()
    }
}

/// Copies in the order of their submission: a pipeline without mover and bound, for model tests.
pub(super) struct Line<S, T>(VecDeque<Transfer<S, T>>);

impl<S, T> Default for Line<S, T> {
    fn default() -> Line<S, T> {
        Line(VecDeque::new())
    }
}

impl<S, T> Line<S, T> {
    pub(super) fn push(&mut self, transfer: Transfer<S, T>) {
        self.0.push_back(transfer);
    }

    pub(super) fn retire(&mut self) -> Option<Retired<S, T>> {
        if !self.0.front()?.is_done() {
            return None;
        }
        self.retire_wait()
    }

    pub(super) fn retire_wait(&mut self) -> Option<Retired<S, T>> {
        self.0.pop_front().map(Transfer::wait)
    }

    pub(super) async fn next(&mut self) -> Option<Retired<S, T>> {
        poll_fn(|context| {
            let Some(oldest) = self.0.front_mut() else { return None.into() };
            let outcome = ready!(Pin::new(oldest).poll(context));
            self.0.pop_front();
            Some(outcome).into()
        })
        .await
    }
}

impl<S, T> fmt::Debug for Ordered<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered")
            .field("len", &self.len())
            .field("len_max", &self.len_max)
            .finish_non_exhaustive()
    }
}
