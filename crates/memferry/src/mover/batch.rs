//! Batches: many small copies and operations, submitted together.
//!
//! A [`Batch`] has a handle for each; [`Mover::copy_all`] and [`Mover::copy_ranges`] have one for all. Adjacent ranges of
//! one buffer are joined before submission ([`guidelines::coalesce`]). A DSA engine puts small copies into the batches of
//! its devices ([`guidelines::batch_len`]), under one lock.

use std::fmt;

use memferry_dsa::{Outcome as Yields, Request};

use super::guidelines::{self, Move};
use super::request::{Completion, Owned, join};
use super::{CopyError, CopyOptions, CopyReport, Mover, Operation, RawRequest, Transfer};
use crate::moment::Moment;

/// Copies and operations that start when [`submit`](Batch::submit) is called.
///
/// Dropping the batch instead completes them with [`CopyError::Abandoned`]. They run in any order: none may use the
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

    /// Copies the source of each pair to its target, of equal length; one handle for all.
    ///
    /// If one copy fails, the operation fails, and the content of all targets is undefined.
    pub fn copy_all<S, T>(&self, pairs: Vec<(S, T)>, options: CopyOptions) -> Operation<Vec<(S, T)>, ()>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let plan = |pairs: &mut Vec<(S, T)>| {
            let of = |(source, target): &mut (S, T)| BatchCopy::of((*source).as_ref(), target.as_mut());
            let copies = pairs.iter_mut().map(of).collect::<Result<Vec<_>, _>>()?;
            Ok(copies.into_iter().filter(|copy| copy.size_bytes > 0).collect())
        };
        Operation::new(Owned::begin(pairs, plan, |copies, completion| {
            self.start_copies(copies, options, completion)
        }))
    }

    /// Copies ranges of `source` to places in `target`; one handle for all. Ranges that are adjacent in both are one copy.
    ///
    /// Shapes: moves lie within the buffers, and no two write the same byte.
    ///
    /// # Errors
    /// Otherwise it completes with [`CopyError::OutOfRange`] or [`CopyError::TargetsOverlap`]; then nothing was copied.
    pub fn copy_ranges<S, T>(
        &self,
        source: S,
        target: T,
        moves: &[Move],
        options: CopyOptions,
    ) -> Operation<(S, T), ()>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let plan = |(source, target): &mut (S, T)| {
            let (source, mut rest) = ((*source).as_ref(), target.as_mut());
            check(moves, source.len(), rest.len())?;
            let mut joined = guidelines::coalesce(moves);
            joined.sort_by_key(|one| one.target);
            let (mut copies, mut begin) = (Vec::new(), 0);
            for Move { source: bytes, target: at } in joined {
                let behind = rest.split_at_mut_checked(at.wrapping_sub(begin)).map(|(_, behind)| behind);
                let piece = behind.and_then(|behind| behind.split_at_mut_checked(bytes.len()));
                let Some((to, behind)) = piece else { return Err(CopyError::TargetsOverlap) };
                begin = at + to.len();
                copies.push(BatchCopy::of(&source[bytes], to)?);
                rest = behind;
            }
            Ok(copies)
        };
        Operation::new(Owned::begin((source, target), plan, |copies, completion| {
            self.start_copies(copies, options, completion)
        }))
    }

    fn start_copies<B: Send + 'static>(
        &self,
        copies: Result<Vec<BatchCopy>, CopyError>,
        options: CopyOptions,
        completion: Completion<B, ((), CopyReport)>,
    ) {
        let copies = match copies {
            Ok(copies) => copies,
            Err(error) => return completion.complete(Err(error)),
        };
        let made = Moment::now();
        let callbacks =
            join(copies.len(), move |result| completion.complete(result.map(|report| ((), report))));
        let raw = |(BatchCopy { source, target, size_bytes }, callback)| {
            // SAFETY: the ranges are parts of buffers that the joined completion keeps where they are until the last
            // copy is done, and leaks if one is lost. Each copy had a unique borrow of its target, so targets are apart
            // from each other and from the sources.
            let copy = unsafe { RawRequest::with_callback(source, target, size_bytes, callback, made) };
            self.with_hints(copy, options)
        };
        let raws = copies.into_iter().zip(callbacks).map(raw).collect();
        self.start_all(raws, options);
    }
}

/// Addresses and size of one copy of a batch.
struct BatchCopy {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
}

impl BatchCopy {
    fn of(source: &[u8], target: &mut [u8]) -> Result<BatchCopy, CopyError> {
        let (source_bytes, target_bytes) = (source.len(), target.len());
        if source_bytes != target_bytes {
            return Err(CopyError::LengthMismatch { source_bytes, target_bytes });
        }
        Ok(BatchCopy { source: source.as_ptr(), target: target.as_mut_ptr(), size_bytes: source_bytes })
    }
}

/// Checks that every move is within both buffers.
fn check(moves: &[Move], source_bytes: usize, target_bytes: usize) -> Result<(), CopyError> {
    let is_within = |Move { source, target }: &Move| {
        let target_end = source.end.checked_sub(source.start).and_then(|len| target.checked_add(len));
        source.end <= source_bytes && target_end.is_some_and(|end| end <= target_bytes)
    };
    match moves.iter().position(|one| !is_within(one)) {
        Some(index) => Err(CopyError::OutOfRange { index }),
        None => Ok(()),
    }
}
