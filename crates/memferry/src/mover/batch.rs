//! Batches: many small copies and operations, submitted together.
//!
//! A DSA engine puts small copies into the batches of its devices
//! ([`batch_len`](memferry_dsa::internals::driver::batch_len)), under one lock.

use std::fmt;

use memferry_dsa::{Outcome as Yields, Request};

use super::{CopyOptions, Mover, Operation, RawRequest, Transfer};
use crate::moment::Moment;

/// Copies and operations that start when [`submit`](Batch::submit) is called.
///
/// Dropping the batch instead completes them with [`CopyError::Abandoned`](super::CopyError::Abandoned). They run in any order: none may use the
/// result of another.
#[must_use = "a batch starts when it is submitted"]
pub struct Batch<'m> {
    mover: &'m Mover,
    options: CopyOptions,
    made: Moment,
    raws: Vec<RawRequest>,
}

impl Batch<'_> {
    /// Adds a copy; see [`Mover::copy`].
    pub fn copy<S, T>(&mut self, source: S, target: T) -> Transfer<S, T>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let Batch { mover, options, made, raws } = self;
        Transfer::begin(source, target, *made, |copy| raws.push(mover.with_hints(copy, *options)))
    }

    /// Adds an operation; see [`Mover::run`].
    pub fn run<B, O, M>(&mut self, buffers: B, make: M) -> Operation<B, O>
    where
        B: Send + 'static,
        O: Yields + Send + 'static,
        M: for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
    {
        let Batch { mover, options, raws, .. } = self;
        Operation::begin(buffers, make, mover.guidelines(), *options, |raw| raws.push(raw))
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.raws.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.raws.is_empty()
    }

    /// Starts all requests. Never blocks; see [`Mover::start`].
    pub fn submit(mut self) {
        let now = Moment::now();
        self.raws.iter_mut().for_each(|raw| raw.set_made(now));
        self.mover.start_all(self.raws, self.options);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Mover {
    /// Starts an empty batch.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let mut batch = mover.batch(CopyOptions::default());
    /// let transfers: Vec<_> = (0..16).map(|byte| batch.copy(vec![byte; 1000], vec![0; 1000])).collect();
    /// batch.submit();
    /// for transfer in transfers {
    ///     let (source, target, _) = transfer.wait()?;
    ///     assert_eq!(source, target);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn batch(&self, options: CopyOptions) -> Batch<'_> {
        Batch { mover: self, options, made: Moment::now(), raws: Vec::new() }
    }
}
