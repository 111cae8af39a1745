//! Errors of files.

use std::fmt;
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
        /// The first difference.
        change: Change,
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

/// The difference between a file and the one that was opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Nothing is at the path any more.
    Vanished,
    /// Another file is at the path: device or inode differ.
    Replaced,
    /// The size differs.
    Size {
        /// The size when it was opened.
        before_bytes: u64,
        /// The size now.
        now_bytes: u64,
    },
    /// It was written: the modification time differs.
    Written,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Vanished => write!(f, "it was removed or renamed"),
            Change::Replaced => write!(f, "another file is at its path"),
            Change::Size { before_bytes, now_bytes } => {
                write!(f, "its size changed from {before_bytes} to {now_bytes} bytes")
            }
            Change::Written => write!(f, "it was written"),
        }
    }
}

/// The text of an error number.
pub(crate) fn system(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
