//! Errors of reading the files of tables.

use std::time::Duration;

use memferry::cache::AccessError;
use memferry::mover::ReadError;
use memferry::storage::StorageError;
use parquet::errors::ParquetError;

/// A read of a table's file that failed. It fails the query; near copies of a file that changed are dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file is not the one that the query was planned for, or it was replaced while the query was planned.
    #[error("{file} changed while a query read it ({what}); run the query again")]
    Changed {
        /// The file.
        file: String,
        /// The attribute that differs.
        what: String,
    },
    /// The file no longer exists.
    #[error("{file} was removed while a query read it; restore it, or register the table again")]
    Vanished {
        /// The file.
        file: String,
    },
    /// The decoder failed, or panicked.
    #[error(
        "the content of {files} is damaged{}: {why}; write the file again",
        place.as_ref().map(|place| format!(" in {place}")).unwrap_or_default()
    )]
    Damaged {
        /// The file, or the first of the files of the scan and their number.
        files: String,
        /// The row group and columns, if they are known.
        place: Option<String>,
        /// Error of the decoder.
        why: String,
    },
    /// A read of column chunks.
    #[error("cannot read {place}: {source}")]
    Chunks {
        /// The row group and columns.
        place: String,
        /// The error of the read, which names the file.
        source: Box<FileError>,
    },
    /// A range that the file does not have. Its metadata name the range, so they are damaged.
    #[error("{file} has no bytes {start}..{end}, it ends at {size_bytes}; it is damaged, write it again")]
    OutOfRange {
        /// The file.
        file: String,
        /// First byte of the range.
        start: u64,
        /// End of the range.
        end: u64,
        /// Size of the file.
        size_bytes: u64,
    },
    /// The store answered with fewer or more bytes than requested.
    #[error(
        "the store returned {returned} bytes of {file} for a request of {requested}; run the query again"
    )]
    WrongLength {
        /// The file.
        file: String,
        /// Requested bytes.
        requested: u64,
        /// Returned bytes.
        returned: u64,
    },
    /// The store did not answer in time.
    #[error(
        "the store did not return {requested} bytes of {file} within {}; run the query again, or raise \
         memferry.store_timeout_ms",
        format_time(.time_out)
    )]
    TimeOut {
        /// The file.
        file: String,
        /// Requested bytes.
        requested: u64,
        /// The limit.
        time_out: Duration,
    },
    /// The file of this machine cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file of this machine cannot be opened, or is another version.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The node of near copies cannot hold the bytes.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The store refused the request.
    #[error("cannot read {file}: {source}; check that the store can be reached and the permissions")]
    Store {
        /// The file.
        file: String,
        /// Answer of the store.
        source: object_store::Error,
    },
}

fn format_time(time: &Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

impl FileError {
    /// With the place of a read, unless the whole file is at fault.
    pub(super) fn in_chunks(self, place: Option<String>) -> FileError {
        match (self, place) {
            (error @ (Self::Changed { .. } | Self::Vanished { .. }), _) | (error, None) => error,
            (error, Some(place)) => Self::Chunks { place, source: Box::new(error) },
        }
    }
}

impl From<FileError> for ParquetError {
    fn from(error: FileError) -> Self {
        ParquetError::External(Box::new(error))
    }
}
