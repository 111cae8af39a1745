//! Copies that engines end in any order, retired strictly in the order in which they were submitted.
//!
//! ```text
//!   submit ──▶ newest │ done │ under way │ done │ done │ oldest ──▶ retire: as long as the oldest is done
//! ```
//!
//! Whoever submits goes on computing, and retires now and then what has arrived: the array in which Vhost records the
//! packets that are on their way, so that a virtual machine gets them in order although several queues carry them.
//!
//! A pipeline belongs to one thread at a time, as a virtqueue does. It is bounded: one that is full hands back what it
//! is given, until something is retired.
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), section 6.4.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::ready;

use super::{CopyOptions, Mover, MoverError, Outcome, Transfer};

/// A bounded pipeline of copies that keeps their order.
///
/// Errors come in their turn, and stop nothing. Dropping it lets go of the copies, whose buffers are dropped when they are
/// done.
pub struct Ordered<S, T> {
    mover: Mover,
    options: CopyOptions,
    len_max: usize,
    line: Line<S, T>,
}

/// A pipeline that is full, and what it was given.
pub struct Full<S, T> {
    /// The source.
    pub source: S,
    /// The target.
    pub target: T,
}

impl<S, T> Ordered<S, T>
where
    S: AsRef<[u8]> + Send + 'static,
    T: AsMut<[u8]> + Send + 'static,
{
    /// A pipeline that holds up to `len_max` copies, made as `options` say.
    ///
    /// The paper's bursts have 32 packets: twice that lets one be copied while the other is worked on.
    ///
    /// # Errors
    /// [`MoverError::NoQueue`]: it would hold nothing.
    pub fn new(mover: Mover, len_max: usize, options: CopyOptions) -> Result<Ordered<S, T>, MoverError> {
        if len_max == 0 {
            return Err(MoverError::NoQueue);
        }
        Ok(Ordered { mover, options, len_max, line: Line::default() })
    }

    /// Begins a copy from `source` to `target`, behind all others.
    ///
    /// # Errors
    /// [`Full`], with the buffers: retire something first.
    pub fn submit(&mut self, source: S, target: T) -> Result<(), Full<S, T>> {
        if self.room() == 0 {
            return Err(Full { source, target });
        }
        self.line.push(self.mover.copy(source, target, self.options));
        Ok(())
    }

    /// Begins copies from the front of `burst`, in order and submitted together, as many as there is room for. The rest
    /// stays in it.
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
    /// The oldest copy, if it is done. Never blocks.
    pub fn retire(&mut self) -> Option<Outcome<S, T>> {
        self.line.retire()
    }

    /// The oldest copy; waits for it. `None` if there is none.
    ///
    /// Blocks the thread: asynchronous code has [`next`](Ordered::next).
    pub fn retire_wait(&mut self) -> Option<Outcome<S, T>> {
        self.line.retire_wait()
    }

    /// The oldest copy, once it is done. `None` if there is none.
    ///
    /// Cancel: nothing is lost, the copy stays the oldest.
    pub async fn next(&mut self) -> Option<Outcome<S, T>> {
        self.line.next().await
    }

    /// Copies that are not retired.
    pub fn len(&self) -> usize {
        self.line.0.len()
    }

    /// Whether all copies are retired.
    pub fn is_empty(&self) -> bool {
        self.line.0.is_empty()
    }

    /// Copies that can be submitted now.
    pub fn room(&self) -> usize {
        self.len_max - self.len()
    }
}

/// Copies in the order of their submission: what is left of a pipeline without mover and bound.
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

    pub(super) fn retire(&mut self) -> Option<Outcome<S, T>> {
        if !self.0.front()?.is_done() {
            return None;
        }
        self.retire_wait()
    }

    pub(super) fn retire_wait(&mut self) -> Option<Outcome<S, T>> {
        self.0.pop_front().map(Transfer::wait)
    }

    pub(super) async fn next(&mut self) -> Option<Outcome<S, T>> {
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

impl<S, T> fmt::Debug for Full<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Full").finish_non_exhaustive()
    }
}

impl<S, T> fmt::Display for Full<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pipeline is full; retire a copy, then submit again")
    }
}

impl<S, T> std::error::Error for Full<S, T> {}
