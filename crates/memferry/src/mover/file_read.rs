//! Reads of files into memory of their own.

use std::alloc::{self, Layout};
use std::fmt;
use std::future::Future;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::error::ReadError;
use super::request::{Callback, Completion, CopyReport, Demand, FileSource, Owned, RawRequest};
use super::schedule::Scheduler;
use crate::storage::{BLOCK_BYTES, StorageError, StoredFile};

/// The bytes of a range of a file. They belong to nobody else, and to no budget.
pub struct FileBytes {
    blocks: Blocks,
    /// In `blocks`.
    range: Range<usize>,
}

/// Aligned memory. Initialised once a read into it has completed: see [`Scheduler::fills_reads`].
struct Blocks {
    start: NonNull<u8>,
    /// Whole blocks; `start` dangles for 0.
    size_bytes: usize,
}

// SAFETY: it owns its memory, like a box.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    /// Zeroes the memory unless `is_filled` by the read: std clears aligned memory byte by byte, even if it is fresh.
    fn new(size_bytes: usize, is_filled: bool) -> Blocks {
        if size_bytes == 0 {
            return Blocks { start: NonNull::dangling(), size_bytes };
        }
        let layout = Blocks::layout(size_bytes);
        let allocate = if is_filled { alloc::alloc } else { alloc::alloc_zeroed };
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { allocate(layout) });
        Blocks { start: start.unwrap_or_else(|| alloc::handle_alloc_error(layout)), size_bytes }
    }

    fn layout(size_bytes: usize) -> Layout {
        Layout::from_size_align(size_bytes, BLOCK_BYTES)
            .expect("no file has more bytes than there are addresses")
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if self.size_bytes > 0 {
            // SAFETY: allocated by `new` with this layout.
            unsafe { alloc::dealloc(self.start.as_ptr(), Blocks::layout(self.size_bytes)) };
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.range.is_empty() {
            return &[];
        }
        // SAFETY: `FileRead` makes this after a read of all bytes up to the end of the range has completed; they lie in the
        // allocation, which lives as long as this and is not written any more. They are initialised: by the read, or by
        // `Blocks::new` if an engine may finish a read without making it.
        unsafe { slice::from_raw_parts(self.blocks.start.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBytes").field("size_bytes", &self.len()).finish_non_exhaustive()
    }
}

/// A read in flight.
///
/// Await it, or call [`wait`](FileRead::wait).
/// Cancel: dropping it before the read has started cancels the read. Later the read goes on, and its memory is freed by the
/// thread that completes it.
/// Fork: a read in flight goes on in the parent; in the child it fails.
#[must_use = "dropping it cancels the read"]
pub struct FileRead {
    file: Arc<StoredFile>,
    /// In the file.
    range: Range<u64>,
    /// In the blocks.
    inside: Range<usize>,
    owned: Owned<Blocks, CopyReport>,
    demand: Arc<Demand>,
    /// A range that is not in the file.
    refused: Option<StorageError>,
}

impl FileRead {
    /// Starts the read.
    pub(super) fn begin(scheduler: &Arc<Scheduler>, file: &Arc<StoredFile>, range: Range<u64>) -> FileRead {
        let refused = file.check_range(&range).err();
        let wanted = if refused.is_some() { 0..0 } else { range.clone() };
        let aligned = if wanted.is_empty() { 0..0 } else { file.aligned(&wanted) };
        let in_memory =
            |bytes: u64| usize::try_from(bytes).expect("the memory has room for the file's range");
        let size_bytes = in_memory(aligned.end - aligned.start);
        let inside = in_memory(wanted.start - aligned.start)..in_memory(wanted.end - aligned.start);
        let demand = Arc::new(Demand::one());
        let source = FileSource::on_demand(file.clone(), aligned.start, demand.clone());
        let blocks = Blocks::new(size_bytes.next_multiple_of(BLOCK_BYTES), scheduler.fills_reads());
        let owned = Owned::begin(
            blocks,
            |blocks| blocks.start.as_ptr(),
            |target, completion: Completion<Blocks, CopyReport>| {
                if size_bytes == 0 {
                    return completion.complete(Ok(CopyReport::default()));
                }
                let callback: Callback = completion.into_callback();
                // SAFETY: the blocks are kept by the completion until it is complete, and leaked if they are lost. Nobody
                // reads or writes them before. They have the size of the read in whole blocks.
                let read = unsafe { RawRequest::read_with_callback(source, target, size_bytes, callback) };
                scheduler.start(read, None, None);
            },
        );
        FileRead { file: file.clone(), range, inside, owned, demand, refused }
    }

    /// Blocks until the read is done. Asynchronous code awaits it instead.
    ///
    /// # Errors
    /// [`ReadError::Storage`], [`Engine`](ReadError::Engine).
    pub fn wait(mut self) -> Result<FileBytes, ReadError> {
        self.owned.wait();
        self.take()
    }

    /// Whether it is done. Never blocks.
    pub fn is_done(&self) -> bool {
        self.owned.is_done()
    }

    fn take(&mut self) -> Result<FileBytes, ReadError> {
        if let Some(refused) = self.refused.take() {
            return Err(refused.into());
        }
        match self.owned.take() {
            Ok((blocks, _)) => Ok(FileBytes { blocks, range: self.inside.clone() }),
            Err(failed) => Err(ReadError::of(&self.file, &self.range, failed.error)),
        }
    }
}

impl Future for FileRead {
    type Output = Result<FileBytes, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.owned.poll(context.waker()) { Poll::Ready(self.take()) } else { Poll::Pending }
    }
}

impl Drop for FileRead {
    fn drop(&mut self) {
        self.demand.leave();
    }
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRead")
            .field("path", &self.file.path())
            .field("range", &self.range)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
