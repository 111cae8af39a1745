//! A request in progress: its rest, and its results so far.
//!
//! ```text
//! next:    the current piece, or a new one within the limit of the queue
//! a device, or the CPU, executes it and returns a completion
//! absorb:  a page fault leaves a smaller piece; the end of a piece leads to the next one, or ends the request
//! ```
//!
//! The CPU's completions have the format of the device's, so that both can execute parts of one request.

use std::cell::Cell;
use std::marker::PhantomData;

use super::check::{fits, overlap, unit_bytes};
use super::execute::{self, bytes_at};
use super::outcome::Ended;
use super::resume::{has_room_for, is_partial, piece, rest};
use super::{OnCpu, Request};
use crate::address::Address;
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::WorkQueueInfo;
use crate::software::dif::Mismatch;
use crate::software::{Delta, DeltaError, ENTRY_BYTES};
use crate::system::Version;

/// Flags that do not change the outcome of a request.
pub(crate) const HINTS: Flags = Flags::CACHE_CONTROL.union(Flags::BLOCK_ON_FAULT);

/// A checked request in progress. The request borrows its memory.
pub(crate) struct Work<'a> {
    request: [u64; 8], // the descriptor of the request; as words, whose alignment is smaller
    rest: Option<Box<Rest>>, // none while the request is whole
    borrow: PhantomData<&'a Cell<u8>>, // not `Send`: the memory may be cells
}

/// The rest of a request that runs in several pieces, or has completed in part. Most requests never have one.
#[derive(Clone, Copy)]
struct Rest {
    whole: Descriptor, // from the current piece to the end
    piece: Descriptor, // the rest of the piece
    piece_bytes: u32,  // the size of the whole piece
    is_begun: bool,    // a part of the piece has completed, so its size is fixed
}

/// The meaning of a completion for a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Step {
    /// It has ended.
    Ended(Ended),
    /// A piece has completed, and another follows.
    Next,
    /// A page fault: [`Work::touch`] the page and continue.
    Fault,
    /// The device lacks the operation, or these flags.
    NotTaken(Flags),
    /// The device failed, or its completion is impossible.
    Failed,
}

impl<'a> Work<'a> {
    pub(crate) fn new<O>(request: &Request<'a, O>) -> Work<'a> {
        Work::of(request.descriptor)
    }

    /// A request by its descriptor alone. The caller keeps the memory for `'a`.
    #[inline]
    pub(super) fn of(request: Descriptor) -> Work<'a> {
        Work { request: request.to_words(), rest: None, borrow: PhantomData }
    }

    #[inline]
    fn request(&self) -> Descriptor {
        Descriptor::from_words(self.request)
    }

    #[inline]
    fn whole(&self) -> Descriptor {
        self.rest.as_ref().map_or_else(|| self.request(), |rest| rest.whole)
    }

    #[inline]
    fn piece(&self) -> Descriptor {
        self.rest.as_ref().map_or_else(|| self.request(), |rest| rest.piece)
    }

    #[inline]
    fn is_begun(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.is_begun)
    }

    fn rest(&mut self) -> &mut Rest {
        let request = Descriptor::from_words(self.request);
        let whole = Rest { whole: request, piece: request, piece_bytes: request.size(), is_begun: false };
        self.rest.get_or_insert_with(|| Box::new(whole))
    }

    /// The operation.
    #[inline]
    pub(crate) fn opcode(&self) -> Option<Opcode> {
        self.request().opcode().ok()
    }

    /// Bytes of the memory that the request names.
    pub(crate) fn bytes(&self) -> u64 {
        execute::bytes_of(&self.request())
    }

    /// The set of results that count as success, as [`Ended::is_success`] takes it.
    pub(crate) fn expected(&self) -> Option<u8> {
        let expected = self.request().expected_result();
        self.request().flags().contains(Flags::CHECK_RESULT).then_some(match self.opcode() {
            Some(Opcode::CreateDelta) => expected,
            _ => 1 << (expected & 1),
        })
    }

    /// Whether the next piece is within the limits of a queue; it may be cut if `may_cut`.
    #[inline]
    pub(crate) fn fits(&self, queue: &WorkQueueInfo, version: Version, may_cut: bool) -> Result<(), OnCpu> {
        let next = if self.is_begun() { self.piece() } else { self.whole() };
        fits(&next, queue, version, may_cut && !self.is_begun())
    }

    /// Adds flags, before the first piece is cut.
    pub(super) fn add_flags(&mut self, flags: Flags) {
        self.request = self.request().with_flags(flags).to_words();
    }

    /// Removes flags that do not change the outcome.
    pub(crate) fn drop_flags(&mut self, flags: Flags) {
        self.request = self.request().without_flags(flags).to_words();
        if let Some(rest) = &mut self.rest {
            rest.whole = rest.whole.without_flags(flags);
            rest.piece = rest.piece.without_flags(flags);
        }
    }

    /// Whether the request asks for one of these flags.
    #[inline]
    pub(crate) fn has_any(&self, flags: Flags) -> bool {
        self.request().flags().without(flags) != self.request().flags()
    }

    /// Cuts a copy of regions that do not overlap, of which nothing has completed, to at most `bytes_max`; `beyond_bytes`
    /// lie behind it. Returns the rest and the bytes behind that; `None` without a rest, or for another operation.
    #[inline]
    pub(crate) fn split_copy(&mut self, beyond_bytes: u64, bytes_max: u32) -> Option<(Work<'a>, u64)> {
        let whole = self.whole();
        let size = whole.size();
        let rest_bytes = (u64::from(size) + beyond_bytes).checked_sub(bytes_max.into())?;
        if rest_bytes == 0 || size < bytes_max || self.is_begun() || self.opcode() != Some(Opcode::Memmove) {
            return None;
        }
        let (first, second, flags) = (whole.address_1(), whole.address_2(), whole.flags());
        let part = |skipped: u32, bytes: u32| {
            let (source, target) = (first.offset(skipped.into()), second.offset(skipped.into()));
            Work::of(Descriptor::memmove(source, target, bytes).with_flags(flags))
        };
        let named_bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX);
        *self = part(0, bytes_max);
        Some((part(bytes_max, named_bytes), rest_bytes - u64::from(named_bytes)))
    }

    /// The next piece, of at most `bytes_max`.
    #[inline]
    pub(crate) fn next(&mut self, bytes_max: u32) -> Descriptor {
        let whole = self.whole();
        let is_last = whole.size() <= bytes_max || self.opcode() == Some(Opcode::ApplyDelta);
        if self.rest.is_none() && is_last {
            return whole;
        }
        if !self.is_begun() {
            let unit = unit_bytes(&whole);
            let runs_down = self.runs_down();
            let rest = self.rest();
            if is_last {
                rest.piece = whole;
            } else {
                let bytes = (bytes_max / unit * unit).max(unit);
                rest.piece = piece(&whole, bytes, runs_down);
            }
            rest.piece_bytes = rest.piece.size();
        }
        self.piece()
    }

    /// Whether pieces are taken from the end: the target lies above a source that it overlaps.
    fn runs_down(&self) -> bool {
        let whole = self.whole();
        let (source, target) = (whole.address_1(), whole.address_2());
        let bytes = u64::from(whole.size());
        self.opcode() == Some(Opcode::Memmove) && source < target && overlap((source, bytes), (target, bytes))
    }

    /// Applies the completion of [`next`](Self::next).
    ///
    /// # Safety
    /// `completion` is from a device, or the CPU, that executed the last result of `next` and does not access its memory any
    /// more.
    pub(crate) unsafe fn absorb(&mut self, completion: &Completion) -> Step {
        let piece = self.piece();
        match completion.status {
            Status::PageFault | Status::PageFaultRefused if is_partial(&piece, completion) => {
                // SAFETY: `is_partial` has checked the size, and the caller that the device is done.
                unsafe { self.correct_entries(completion) };
                let left = self.rest();
                left.piece = rest(&piece, completion.bytes_completed, completion);
                left.is_begun = true;
                match self.last_entry_misplaced() {
                    Some(error) => Step::Ended(Ended::Applied(Err(error))),
                    None => Step::Fault,
                }
            }
            Status::Success | Status::PredicateFalse => {
                // SAFETY: passed on to the caller.
                unsafe { self.piece_done(completion) }
            }
            Status::DeltaOrder | Status::DeltaOffset if self.opcode() == Some(Opcode::ApplyDelta) => {
                let applied_bytes = self.done() + completion.bytes_completed as usize;
                Step::Ended(Ended::Applied(Err(match completion.status {
                    Status::DeltaOrder => DeltaError::Descending { applied_bytes },
                    _ => DeltaError::OutOfRange { applied_bytes },
                })))
            }
            Status::DifMismatch => {
                let bytes_completed = self.done() + completion.bytes_completed as usize;
                let wrong = completion.dif_errors();
                let mismatch = Mismatch { bytes_completed, wrong };
                match self.opcode() {
                    Some(Opcode::DifCheck | Opcode::DifStrip) => Step::Ended(Ended::Checked(Err(mismatch))),
                    Some(Opcode::DifUpdate) => Step::Ended(Ended::Updated(Err(mismatch))),
                    _ => Step::Failed,
                }
            }
            Status::InvalidFlags if self.has_any(completion.invalid_flags()) => {
                Step::NotTaken(completion.invalid_flags())
            }
            Status::BadOpcode => Step::NotTaken(Flags::NONE),
            // Only copies may overlap. A device may lack that (GENCAP bit 1), which the description of a queue does not have.
            Status::Overlap if self.opcode() == Some(Opcode::Memmove) => Step::NotTaken(Flags::NONE),
            _ => Step::Failed,
        }
    }

    /// # Safety
    /// As [`absorb`](Self::absorb).
    unsafe fn piece_done(&mut self, completion: &Completion) -> Step {
        match self.opcode() {
            Some(Opcode::Compare | Opcode::ComparePattern) if completion.differs() => {
                let at = self.done() + completion.bytes_completed as usize;
                if completion.bytes_completed >= self.piece().size() {
                    return Step::Failed;
                }
                // SAFETY: `at` is inside the request, and the device is done.
                return Step::Ended(Ended::Compared(Some(unsafe { self.exact_difference(at) })));
            }
            Some(Opcode::CreateDelta) => {
                if !has_room_for(&self.piece(), completion) {
                    return Step::Failed;
                }
                // SAFETY: the size was checked, and the device is done.
                unsafe { self.correct_entries(completion) };
                if completion.result == 2 {
                    let bytes_compared = self.done() + completion.bytes_completed as usize;
                    let size_bytes = self.delta_written() + completion.delta_bytes() as usize;
                    return Step::Ended(Ended::Created(Delta::Overflow { size_bytes, bytes_compared }));
                }
                // The next piece goes on where the record of this one ends.
                if let Some(Rest { whole, piece, .. }) = self.rest.as_deref_mut() {
                    whole.operation = piece.operation;
                }
            }
            _ => {}
        }
        let runs_down = self.rest.is_some() && self.runs_down();
        if let Some(left) = self.rest.as_deref_mut()
            && left.piece_bytes < left.whole.size()
        {
            // From the end or from the start, as it was cut.
            let mut completion = *completion;
            completion.result = runs_down.into();
            left.whole = rest(&left.whole, left.piece_bytes, &completion);
            left.is_begun = false;
            return Step::Next;
        }
        Step::Ended(self.end(completion))
    }

    /// The end of the last piece.
    fn end(&self, completion: &Completion) -> Ended {
        let (source, target) = (completion.dif_source_tags(), completion.dif_target_tags());
        match self.opcode() {
            Some(Opcode::Compare | Opcode::ComparePattern) => Ended::Compared(None),
            Some(Opcode::CreateDelta) => match self.delta_written() + completion.delta_bytes() as usize {
                0 => Ended::Created(Delta::Equal),
                size_bytes => Ended::Created(Delta::Complete { size_bytes }),
            },
            Some(Opcode::ApplyDelta) => Ended::Applied(Ok(())),
            Some(Opcode::CrcGeneration | Opcode::CopyCrc) => Ended::Crc(completion.crc()),
            Some(Opcode::DifInsert) => Ended::Inserted(target),
            Some(Opcode::DifCheck | Opcode::DifStrip) => Ended::Checked(Ok(source)),
            Some(Opcode::DifUpdate) => Ended::Updated(Ok((source, target))),
            _ => Ended::Done,
        }
    }

    /// Bytes before the current piece: of the record for Apply Delta, of the source for other operations with a source.
    fn done(&self) -> usize {
        (self.piece().address_1().0.wrapping_sub(self.request().address_1().0)) as usize
    }

    /// Create Delta: bytes of the record before the current piece.
    fn delta_written(&self) -> usize {
        (self.piece().delta_address().0.wrapping_sub(self.request().delta_address().0)) as usize
    }

    /// Create Delta: corrects offsets that the device counted from the start of the piece.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb); the record has the size that `completion` tells.
    unsafe fn correct_entries(&self, completion: &Completion) {
        if self.opcode() != Some(Opcode::CreateDelta) {
            return;
        }
        // Below 2^16, since the request has at most as many words.
        let words = (self.done() / 8) as u16;
        if words == 0 {
            return;
        }
        // SAFETY: the region is a part of the record's room, which the request borrows for writing; the device is done.
        let written =
            unsafe { execute::bytes_at_mut(self.piece().delta_address(), completion.delta_bytes() as usize) };
        for entry in written.chunks_exact_mut(ENTRY_BYTES) {
            let offset = u16::from_le_bytes([entry[0], entry[1]]).wrapping_add(words);
            entry[..2].copy_from_slice(&offset.to_le_bytes());
        }
    }

    /// Apply Delta: checks that the next entry is not below the last applied one, which the device does not know any more.
    fn last_entry_misplaced(&self) -> Option<DeltaError> {
        let applied_bytes = self.done();
        if self.opcode() != Some(Opcode::ApplyDelta) || applied_bytes == 0 {
            return None;
        }
        let entry = |address: Address| {
            // SAFETY: both entries are in the record, which the request borrows; nobody writes it meanwhile.
            let bytes = unsafe { bytes_at(address, 2) };
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        let next = self.piece().delta_address();
        let last = Address(next.0 - ENTRY_BYTES as u64);
        (entry(next) < entry(last)).then_some(DeltaError::Descending { applied_bytes })
    }

    /// The exact offset of a difference, which devices may round down to a multiple of 8.
    ///
    /// # Safety
    /// As [`absorb`](Self::absorb); `at` is inside the request.
    unsafe fn exact_difference(&self, at: usize) -> usize {
        if self.opcode() != Some(Opcode::ComparePattern) {
            return at;
        }
        let rest = rest(&self.request(), at as u32, &Completion::new(Status::Success));
        // SAFETY: the source is borrowed by the request, and nobody writes it.
        let bytes = unsafe { bytes_at(rest.address_1(), rest.size().min(8) as usize) };
        at + crate::software::compare_pattern(rest.pattern(), bytes).unwrap_or(0)
    }

    /// The remaining bytes of the size in the descriptor. For Apply Delta it is the whole size until the end, since its
    /// progress is in the record.
    #[inline]
    pub(crate) fn left_bytes(&self) -> u32 {
        let Some(rest) = &self.rest else { return self.request().size() };
        let in_piece = if rest.is_begun { rest.piece_bytes - rest.piece.size() } else { 0 };
        rest.whole.size() - in_piece
    }

    /// Touches the page of a fault as its owner would, so that the memory policy of its range places it. Returns whether
    /// the page belongs to the request.
    ///
    /// # Safety
    /// No device accesses the memory of the request.
    pub(crate) unsafe fn touch(&self, completion: &Completion) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { execute::touch(&self.request(), completion) }
    }

    /// Executes the next piece on the CPU.
    ///
    /// # Safety
    /// No device accesses the memory of the request.
    pub(crate) unsafe fn execute(&mut self) -> Completion {
        let next = self.next(u32::MAX);
        // SAFETY: the request was checked and borrows its memory; the rest is passed on to the caller.
        unsafe { execute::execute(&next) }
    }

    /// Executes the rest on the CPU.
    ///
    /// # Errors
    /// None in practice: the CPU has neither page faults nor limits, and has every operation of a request.
    ///
    /// # Safety
    /// As [`execute`](Self::execute), until this returns.
    pub(crate) unsafe fn finish(&mut self) -> Result<Ended, Completion> {
        loop {
            // SAFETY: passed on to the caller.
            let completion = unsafe { self.execute() };
            // SAFETY: it is the completion of that piece.
            match unsafe { self.absorb(&completion) } {
                Step::Ended(end) => return Ok(end),
                Step::Next => {}
                Step::Fault | Step::NotTaken(_) | Step::Failed => return Err(completion),
            }
        }
    }
}
