//! A read in progress, and its pieces.
//!
//! ```text
//!   RawRequest ──▶ Job ── Piece ── Piece ── Piece      in flight at once, completed in any order
//!                   └──── the last completed piece finishes the request
//! ```
//!
//! A piece is read in one call, unless the kernel returns fewer bytes; then another call continues it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::DiskFaults;
use crate::moment::Moment;
use crate::mover::error::CopyError;
use crate::mover::request::{CopyReport, CopyResult, RawRequest};
use crate::mover::stats::{Counters, trace};
use crate::storage::{BLOCK_BYTES, StorageError, StoredFile, syscall};
use crate::sync::{Mutex, lock};

/// A read that has started.
///
/// `request` is taken by the thread that completes the last piece. `left_count` counts pieces that are not complete; any
/// thread that fails a piece sets `error`, once. The rest never changes.
pub(super) struct Job {
    request: Mutex<Option<RawRequest>>,
    file: Arc<StoredFile>,
    offset: u64,
    target: Target,
    size_bytes: usize,
    made: Moment,
    left_count: AtomicUsize,
    has_failed: AtomicBool,
    error: OnceLock<CopyError>,
}

/// The address of the target.
#[derive(Copy, Clone)]
struct Target(*mut u8);

// SAFETY: the address is used under the contract of `RawRequest::read`, which does not depend on the thread.
unsafe impl Send for Target {}
// SAFETY: as above; pieces write to separate parts.
unsafe impl Sync for Target {}

/// A part of a job.
pub(super) struct Piece {
    pub(super) job: Arc<Job>,
    /// In the job.
    bytes: Range<usize>,
    done_bytes: usize,
    /// The last call bypassed the page cache.
    was_direct: bool,
}

/// The next call for a piece.
pub(super) struct Call<'a> {
    pub(super) file: BorrowedFd<'a>,
    pub(super) is_direct: bool,
    pub(super) target: *mut u8,
    pub(super) len: usize,
    pub(super) offset: u64,
}

/// The state of a piece after a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All bytes are there.
    Done,
    /// Another call must follow.
    Again,
    /// It failed.
    Failed(CopyError),
}

impl Job {
    pub(super) fn new(request: RawRequest, piece_bytes: usize) -> Job {
        let (file, offset) = request.file().expect("a storage engine takes reads only");
        let (file, size_bytes) = (file.clone(), request.size_bytes());
        Job {
            file,
            offset,
            target: Target(request.target()),
            size_bytes,
            made: request.made(),
            left_count: AtomicUsize::new(size_bytes.div_ceil(piece_bytes)),
            request: Mutex::new(Some(request)),
            has_failed: AtomicBool::new(false),
            error: OnceLock::new(),
        }
    }

    /// The piece that begins at `start`, a multiple of the piece size.
    pub(super) fn piece(self: &Arc<Job>, start: usize, piece_bytes: usize) -> Piece {
        let bytes = start..(start + piece_bytes).min(self.size_bytes);
        Piece { job: self.clone(), bytes, done_bytes: 0, was_direct: false }
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Whether a piece has failed, so that further ones are in vain.
    pub(super) fn has_failed(&self) -> bool {
        // ORDERING: Relaxed, no partner: a piece too many is read.
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Fails the read; it finishes when its last piece is complete.
    pub(super) fn fail(&self, error: CopyError) {
        let _ = self.error.set(error);
        // ORDERING: Relaxed, no partner: see `has_failed`.
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Completes `count` pieces, read or given up. The last one finishes the request.
    pub(super) fn complete(&self, count: usize, counters: &Counters) {
        // ORDERING: Release publishes the bytes of these pieces and `error`; Acquire pairs with it on the thread that
        // completes the last piece, which hands all of them to the callback.
        if self.left_count.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let request = lock(&self.request).take().expect("the last piece completes once");
        finish(request, self.result(), self.made, counters);
    }

    fn result(&self) -> CopyResult {
        if let Some(&error) = self.error.get() {
            return Err(error);
        }
        match self.file.check_descriptor() {
            Ok(()) => Ok(CopyReport { file_bytes: self.size_bytes as u64, ..CopyReport::default() }),
            Err(StorageError::LookUp { errno, .. }) => Err(CopyError::Read { errno }),
            Err(_) => Err(CopyError::FileChanged),
        }
    }
}

/// Counts and finishes a read.
pub(super) fn finish(request: RawRequest, result: CopyResult, made: Moment, counters: &Counters) {
    counters.cancelled.add(u64::from(result == Err(CopyError::Cancelled)));
    counters.end(made, result);
    if let Err(error) = result
        && error != CopyError::Cancelled
    {
        trace::safely(|| tracing::warn!(target: "memferry::mover", %error, "copy failed"));
    }
    request.finish(result);
}

impl Piece {
    /// Number of bytes that are not read.
    fn left_bytes(&self) -> usize {
        self.bytes.len() - self.done_bytes
    }

    /// The offset in the file of the first byte that is not read.
    fn offset(&self) -> u64 {
        self.job.offset + (self.bytes.start + self.done_bytes) as u64
    }

    /// The target of the first byte that is not read.
    fn target(&self) -> *mut u8 {
        // SAFETY: the target has the size of the job, and this lies inside.
        unsafe { self.job.target.0.add(self.bytes.start + self.done_bytes) }
    }

    /// Whether the page cache has all of it.
    pub(super) fn is_cached(&self) -> bool {
        self.job.file.is_cached(self.offset(), self.left_bytes())
    }

    /// Reads from the page cache what it has, without waiting. Returns whether that is all.
    pub(super) fn read_cached(&mut self, counters: &Counters) -> bool {
        // SAFETY: the target is the engine's own until the request is finished (contract of `RawRequest::read`), and no
        // other call for this piece is in flight, since this borrows it mutably.
        let read = unsafe {
            syscall::pread_cached(self.job.file.buffered(), self.target(), self.left_bytes(), self.offset())
        };
        let read_bytes = usize::try_from(read).unwrap_or(0);
        // A direct read continues at a block.
        let whole_bytes =
            if read_bytes == self.left_bytes() { read_bytes } else { read_bytes - read_bytes % BLOCK_BYTES };
        self.done_bytes += whole_bytes;
        counters.cached_bytes.add(whole_bytes as u64);
        counters.bytes.add(whole_bytes as u64);
        self.left_bytes() == 0
    }

    /// The next call: past the page cache where that is possible.
    pub(super) fn call(&mut self) -> Call<'_> {
        let (offset, target, left_bytes) = (self.offset(), self.target(), self.left_bytes());
        let direct = self.job.file.direct().filter(|_| self.done_bytes.is_multiple_of(BLOCK_BYTES));
        self.was_direct = direct.is_some();
        match direct {
            Some(file) => {
                let len = left_bytes.next_multiple_of(BLOCK_BYTES);
                Call { file, is_direct: true, target, len, offset }
            }
            None => {
                let file = self.job.file.buffered();
                Call { file, is_direct: false, target, len: left_bytes, offset }
            }
        }
    }

    /// Takes the result of a call: a number of bytes or a negated error number.
    pub(super) fn advance(
        &mut self,
        result: i32,
        faults: Option<&dyn DiskFaults>,
        counters: &Counters,
    ) -> Step {
        let result = faults.map_or(result, |faults| self.with_faults(result, faults));
        counters.reads.add(1);
        let Ok(read_bytes) = usize::try_from(result) else {
            return match -result {
                libc::EINTR => Step::Again,
                // The file system accepts the flag O_DIRECT and refuses the read, or wants larger blocks.
                libc::EINVAL | libc::EOPNOTSUPP if self.was_direct => {
                    self.job.file.refuse_direct();
                    Step::Again
                }
                errno => Step::Failed(CopyError::Read { errno }),
            };
        };
        if read_bytes == 0 {
            return Step::Failed(CopyError::FileEnded);
        }
        let read_bytes = read_bytes.min(self.left_bytes());
        self.done_bytes += read_bytes;
        counters.bytes.add(read_bytes as u64);
        if !self.was_direct {
            counters.buffered_bytes.add(read_bytes as u64);
        }
        if self.left_bytes() == 0 {
            return Step::Done;
        }
        counters.short_reads.add(1);
        Step::Again
    }

    /// The result of a call on a disk with faults. What the disk did not read has wrong bytes.
    fn with_faults(&self, result: i32, faults: &dyn DiskFaults) -> i32 {
        let faulty = faults.result(self.offset(), self.left_bytes(), result);
        let read_bytes = |result: i32| usize::try_from(result).unwrap_or(0).min(self.left_bytes());
        if read_bytes(faulty) < read_bytes(result) {
            let lost = read_bytes(faulty)..read_bytes(result);
            // SAFETY: as in `read_cached`: the bytes are inside of the piece, and no call for it is in flight.
            unsafe { self.target().add(lost.start).write_bytes(0xee, lost.len()) };
        }
        faulty
    }

    /// Completes the piece.
    pub(super) fn complete(self, step: Step, counters: &Counters) {
        if let Step::Failed(error) = step {
            self.job.fail(error);
        }
        self.job.complete(1, counters);
    }

    /// Reads it on the calling thread.
    pub(super) fn read(
        mut self,
        uses_page_cache: bool,
        faults: Option<&dyn DiskFaults>,
        counters: &Counters,
    ) {
        if uses_page_cache && self.is_cached() && self.read_cached(counters) {
            return self.complete(Step::Done, counters);
        }
        loop {
            let Call { file, target, len, offset, .. } = self.call();
            // SAFETY: as in `read_cached`; the target has whole blocks.
            let result = unsafe { syscall::pread(file, target, len, offset) };
            match self.advance(result, faults, counters) {
                Step::Again => {}
                step => return self.complete(step, counters),
            }
        }
    }
}
