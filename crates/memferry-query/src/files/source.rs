//! A source of byte ranges: the file of a scan, wherever it is.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::FileError;

/// One version of one file, of which ranges are read.
pub(crate) trait RangeSource: fmt::Debug + Send + Sync {
    /// Size of the file.
    fn size_bytes(&self) -> u64;

    /// Name of the file in errors.
    fn name(&self) -> &str;

    /// Starts a read. It proceeds without being polled; dropping it cancels what has not started.
    ///
    /// The caller has checked that the range is inside the file.
    fn start(&self, range: Range<u64>) -> Read;

    /// Merges ranges that one read serves better than several. The result is sorted and covers all of them.
    fn merge(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>>;

    /// Whether the file is still the version that was opened.
    ///
    /// # Errors
    /// [`FileError::Changed`], [`FileError::Vanished`].
    fn check_unchanged(&self) -> Result<(), FileError>;

    /// Bytes that reads ahead of one partition may take.
    fn window_bytes_max(&self) -> u64;
}

/// A read that was started.
pub(crate) struct Read {
    pub(crate) range: Range<u64>,
    pub(crate) bytes: BoxFuture<'static, Result<Bytes, FileError>>,
    /// Where the bytes come from.
    pub(crate) from: From,
}

/// Where the bytes of a read come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// A near copy that was ready or in flight before.
    Near,
    /// The file, to a near copy.
    File,
    /// The file, to a buffer that is not kept, because the budget has no room.
    FileUncached,
}

impl Read {
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").field("range", &self.range).field("from", &self.from).finish_non_exhaustive()
    }
}
