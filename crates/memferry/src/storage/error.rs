//! Errors of files.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// The error of opening, checking or reading a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The file cannot be opened.
    #[error("cannot open {}: {}; check the path and its permissions", path.display(), system(*errno))]
    Open {
        /// The path.
        path: PathBuf,
        /// The error number of the system.
        errno: i32,
    },
    /// A directory, pipe or device.
    #[error("{} is not a regular file; pass the path of a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The attributes of the file cannot be read.
    #[error("cannot look up {}: {}; check the permissions of its directories", path.display(), system(*errno))]
    LookUp {
        /// The path.
        path: PathBuf,
        /// The error number of the system.
        errno: i32,
    },
    /// The file is not the one that was opened. All later reads of it fail as well.
    #[error("{} changed while it was in use: {change}; open it again and repeat what read it", path.display())]
    Changed {
        /// The path.
        path: PathBuf,
        /// The first difference: removed, replaced, resized or written.
        change: String,
    },
    /// The disk or the file system failed the read.
    #[error(
        "cannot read bytes {}..{} of {}: {}; check the disk (dmesg) and repeat the read",
        range.start, range.end, path.display(), system(*errno)
    )]
    Read {
        /// The path.
        path: PathBuf,
        /// The requested bytes.
        range: Range<u64>,
        /// The error number of the system.
        errno: i32,
    },
    /// The file ended before the last requested byte.
    #[error(
        "{} ended before byte {}: it was truncated; restore the file and open it again", path.display(), range.end
    )]
    Ended {
        /// The path.
        path: PathBuf,
        /// The requested bytes.
        range: Range<u64>,
    },
    /// The range is not inside the file.
    #[error(
        "bytes {}..{} are not a range of {}, which has {size_bytes} bytes; pass a part of 0..{size_bytes}",
        range.start, range.end, path.display()
    )]
    OutOfRange {
        /// The path.
        path: PathBuf,
        /// The requested bytes.
        range: Range<u64>,
        /// The size of the file.
        size_bytes: u64,
    },
}

/// The text of an error number.
pub(crate) fn system(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
