//! Many small copies and operations, submitted together.
//!
//! A [`Batch`] has a handle for each; [`Mover::copy_all`] and [`Mover::copy_ranges`] have one for all. What lies together
//! in one buffer is joined before it is submitted ([`guidelines::coalesce`]); a DSA engine puts what is small into the
//! batches of its devices ([`guidelines::batch_len`]), under one lock, and all who wait are served by the same completions.

use std::fmt;

use memferry_dsa::Request;
use memferry_dsa::request::Outcome as Yields;

use super::guidelines::{self, Move};
use super::joint::Joint;
use super::moment::Moment;
use super::owned::{End, Owned};
use super::{CopyError, CopyOptions, CopyReport, Mover, Operation, RawRequest, Transfer};

/// Copies and operations that begin when [`submit`](Batch::submit) is called.
///
/// If it is dropped before, they end with [`CopyError::Abandoned`]. Their order is not kept: none may use what another
/// yields.
#[must_use = "a batch begins when it is submitted"]
pub struct Batch<'m> {
    mover: &'m Mover,
    options: CopyOptions,
    made: Moment,
    raws: Vec<RawRequest>,
}

impl Batch<'_> {
    /// Adds a copy, as [`Mover::copy`] makes one.
    pub fn copy<S, T>(&mut self, source: S, target: T) -> Transfer<S, T>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let Batch { mover, options, made, raws } = self;
        Transfer::begin(source, target, *made, |copy| raws.push(mover.with_hints(copy, *options)))
    }

    /// Adds an operation, as [`Mover::run`] makes one.
    pub fn run<B, O, M>(&mut self, buffers: B, make: M) -> Operation<B, O>
    where
        B: Send + 'static,
        O: Yields + Send + 'static,
        M: for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
    {
        let Batch { mover, options, raws, .. } = self;
        Operation::begin(buffers, make, mover.guidelines(), *options, |raw| raws.push(raw))
    }

    /// How many are to be begun.
    pub fn len(&self) -> usize {
        self.raws.len()
    }

    /// Whether there is nothing to begin.
    pub fn is_empty(&self) -> bool {
        self.raws.is_empty()
    }

    /// Begins all. Never blocks, as [`Mover::start`].
    pub fn submit(mut self) {
        let now = Moment::now();
        self.raws.iter_mut().for_each(|raw| raw.set_made(now));
        self.mover.start_all(self.raws, self.options.source_node, self.options.target_node);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Mover {
    /// A batch to which copies and operations are added.
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
    pub fn batch(&self, options: CopyOptions) -> Batch<'_> {
        Batch { mover: self, options, made: Moment::now(), raws: Vec::new() }
    }

    /// Copies the source of each pair to its target, which is equally long; one handle for all.
    ///
    /// If one fails all do, and the content of all targets is undefined.
    pub fn copy_all<S, T>(&self, pairs: Vec<(S, T)>, options: CopyOptions) -> Operation<Vec<(S, T)>, ()>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        let plan = |pairs: &mut Vec<(S, T)>| {
            let of = |(source, target): &mut (S, T)| Piece::of((*source).as_ref(), target.as_mut());
            let pieces = pairs.iter_mut().map(of).collect::<Result<Vec<_>, _>>()?;
            Ok(pieces.into_iter().filter(|piece| piece.size_bytes > 0).collect())
        };
        Operation::new(Owned::begin(pairs, plan, |pieces, end| self.start_pieces(pieces, options, end)))
    }

    /// Copies parts of `source` to places in `target`; one handle for all. Parts that follow each other in both are one
    /// copy.
    ///
    /// Shapes: moves lie within the buffers, and no two write the same byte.
    ///
    /// # Errors
    /// It ends with [`CopyError::OutOfRange`] or [`CopyError::TargetsOverlap`] otherwise; then nothing was copied.
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
            let (mut pieces, mut begin) = (Vec::new(), 0);
            for Move { source: bytes, target: at } in joined {
                let behind = rest.split_at_mut_checked(at.wrapping_sub(begin)).map(|(_, behind)| behind);
                let piece = behind.and_then(|behind| behind.split_at_mut_checked(bytes.len()));
                let Some((to, behind)) = piece else { return Err(CopyError::TargetsOverlap) };
                begin = at + to.len();
                pieces.push(Piece::of(&source[bytes], to)?);
                rest = behind;
            }
            Ok(pieces)
        };
        Operation::new(Owned::begin((source, target), plan, |pieces, end| {
            self.start_pieces(pieces, options, end)
        }))
    }

    fn start_pieces<B: Send + 'static>(
        &self,
        pieces: Result<Vec<Piece>, CopyError>,
        options: CopyOptions,
        end: End<B, ((), CopyReport)>,
    ) {
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => return end.finish(Err(error)),
        };
        let made = Moment::now();
        let ends = Joint::of(pieces.len(), move |result| end.finish(result.map(|report| ((), report))));
        let raw = |(Piece { source, target, size_bytes }, end)| {
            // SAFETY: the ranges are parts of buffers that the end of all keeps where they are until the last piece is
            // done, and leaks if one is lost. Each piece had a unique borrow of its target, so targets are apart from
            // each other and from the sources.
            self.with_hints(unsafe { RawRequest::told(source, target, size_bytes, end, made) }, options)
        };
        let raws = pieces.into_iter().zip(ends).map(raw).collect();
        self.start_all(raws, options.source_node, options.target_node);
    }
}

/// A copy that is to be begun.
struct Piece {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
}

impl Piece {
    fn of(source: &[u8], target: &mut [u8]) -> Result<Piece, CopyError> {
        let (source_bytes, target_bytes) = (source.len(), target.len());
        if source_bytes != target_bytes {
            return Err(CopyError::LengthMismatch { source_bytes, target_bytes });
        }
        Ok(Piece { source: source.as_ptr(), target: target.as_mut_ptr(), size_bytes: source_bytes })
    }
}

/// Every move is within both buffers.
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
