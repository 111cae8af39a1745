//! A request on its way: what is left of it, and what has come out so far.
//!
//! ```text
//! next:    the piece at hand, or a new one as large as the queue takes
//! a device, or the CPU, executes it and tells a completion
//! absorb:  a page fault leaves a smaller piece; the end of a piece leaves the next one, or is the end of the request
//! ```
//!
//! The CPU's completions are made of the same stuff as the device's, so that both may do parts of one request.

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

/// Flags without which a request has the same outcome.
pub(crate) const HINTS: Flags = Flags::CACHE_CONTROL.union(Flags::BLOCK_ON_FAULT);

/// A checked request on its way. Its memory is borrowed by the request that it was made of.
pub(crate) struct Work<'a> {
    request: [u64; 8], // the descriptor as it was asked for; not aligned as one, to be small
    rest: Option<Box<Rest>>, // unless all of it is left, in one piece
    borrow: PhantomData<&'a Cell<u8>>, // not to be sent: the memory may be cells
}

/// What is left of a request that is done in several pieces, or in part. Most requests never have one.
#[derive(Clone, Copy)]
struct Rest {
    whole: Descriptor, // from the piece at hand to the end
    piece: Descriptor, // what is left of the piece
    piece_bytes: u32,  // that the piece had when it was cut
    is_begun: bool,    // a part of the piece is done, so that it cannot be cut anew
}

/// What a completion means for a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Step {
    /// It has ended.
    Ended(Ended),
    /// A piece is done, and another comes.
    Next,
    /// A page fault: [`Work::touch`] the page and go on.
    Fault,
    /// The device does not take it like that: an operation or a flag that it does not have.
    NotTaken(Flags),
    /// The device failed, or tells what cannot be.
    Failed,
}

impl<'a> Work<'a> {
    pub(crate) fn new<O>(request: &Request<'a, O>) -> Work<'a> {
        Work::of(request.descriptor)
    }

    /// A request by its descriptor alone. Who calls this sees to it that the memory is there for `'a`.
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

    /// Whether a queue takes what is to be done next; in pieces, if it `may_cut`.
    #[inline]
    pub(crate) fn fits(&self, queue: &WorkQueueInfo, version: Version, may_cut: bool) -> Result<(), OnCpu> {
        let next = if self.is_begun() { self.piece() } else { self.whole() };
        fits(&next, queue, version, may_cut && !self.is_begun())
    }

    /// Adds flags, before the first piece is cut.
    pub(super) fn add_flags(&mut self, flags: Flags) {
        self.request = self.request().with_flags(flags).to_words();
    }

    /// Leaves out flags that are not essential.
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

    /// Cuts a copy of regions that do not overlap, and of which nothing is done, so that at most `bytes_max` are left of it;
    /// `beyond_bytes` lie behind it. The rest, and the bytes behind that; `None` if there is no rest, or it is no such copy.
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

    /// What is to be done next, at most `bytes_max` of it.
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

    /// Takes in how [`next`](Self::next) ended.
    ///
    /// # Safety
    /// `completion` is from a device, or the CPU, that executed what `next` last returned and does not access its
    /// memory any more.
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
                    Status::DeltaOrder => DeltaError::NotAscending { applied_bytes },
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
            // Requests overlap in copies only; a device may lack that (GENCAP bit 1), which queues do not tell.
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

    /// Bytes in front of the piece at hand: of the record for Apply Delta, of the source for others that have one.
    fn done(&self) -> usize {
        (self.piece().address_1().0.wrapping_sub(self.request().address_1().0)) as usize
    }

    /// Create Delta: bytes of the record in front of the piece at hand.
    fn delta_written(&self) -> usize {
        (self.piece().delta_address().0.wrapping_sub(self.request().delta_address().0)) as usize
    }

    /// Create Delta: what the device wrote counts from the start of the piece.
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

    /// Apply Delta: the device does not know the last entry that it applied before, and so not that the next one is not
    /// above it.
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
        (entry(next) <= entry(last)).then_some(DeltaError::NotAscending { applied_bytes })
    }

    /// The place of a difference that devices may round down to a multiple of 8.
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

    /// Bytes of the operation that are left, of those that its descriptor names as its size. The state of Apply Delta is
    /// in its record: there all are left until the end.
    #[inline]
    pub(crate) fn left_bytes(&self) -> u32 {
        let Some(rest) = &self.rest else { return self.request().size() };
        let in_piece = if rest.is_begun { rest.piece_bytes - rest.piece.size() } else { 0 };
        rest.whole.size() - in_piece
    }

    /// Touches the page that a fault was about, as its owner would, so that it comes under the memory policy of its
    /// range. Whether it was one of the request's.
    ///
    /// # Safety
    /// No device accesses the memory of the request.
    pub(crate) unsafe fn touch(&self, completion: &Completion) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { execute::touch(&self.request(), completion) }
    }

    /// Does what [`next`](Self::next) returned on the CPU.
    ///
    /// # Safety
    /// No device accesses the memory of the request.
    pub(crate) unsafe fn execute(&mut self) -> Completion {
        let next = self.next(u32::MAX);
        // SAFETY: the request was checked and borrows its memory; the rest is passed on to the caller.
        unsafe { execute::execute(&next) }
    }

    /// Does all that is left on the CPU.
    ///
    /// # Errors
    /// What cannot be: the CPU has neither page faults nor limits, and knows every operation that requests are made of.
    ///
    /// # Safety
    /// As [`execute`](Self::execute), until this returns.
    pub(crate) unsafe fn finish(&mut self) -> Result<Ended, Completion> {
        loop {
            // SAFETY: passed on to the caller.
            let completion = unsafe { self.execute() };
            // SAFETY: that is how it ended.
            match unsafe { self.absorb(&completion) } {
                Step::Ended(end) => return Ok(end),
                Step::Next => {}
                Step::Fault | Step::NotTaken(_) | Step::Failed => return Err(completion),
            }
        }
    }
}
