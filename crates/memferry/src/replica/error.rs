//! Errors of replicas.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The error of a [`Replica`](crate::Replica). None leaves a mixture of versions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaError {
    /// The system refused an operation on the file.
    #[error("cannot {action} {}: {source}; {}", path.display(), advice(source))]
    System {
        /// The path.
        path: PathBuf,
        /// The operation, for example `flush`.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process, or another `Replica` of this one, has the file open.
    #[error("{} is locked: another process or another Replica has it open; close that one first", path.display())]
    Locked {
        /// The path.
        path: PathBuf,
    },
    /// The file was not made by [`Replica::create`](crate::Replica::create).
    #[error("{} is not a replica: {why}; pass the path of a file that Replica::create made", path.display())]
    NotAReplica {
        /// The path.
        path: PathBuf,
        /// What it is instead.
        why: &'static str,
    },
    /// The process or the machine ended during [`Replica::create`](crate::Replica::create).
    #[error("the creation of {} did not finish; remove the file and create it again", path.display())]
    Unfinished {
        /// The path.
        path: PathBuf,
    },
    /// The file has the format of another version of memferry.
    #[error(
        "{} has format {format}, but this memferry reads format {}; open it with the memferry that wrote it",
        path.display(), super::format::FORMAT
    )]
    OtherFormat {
        /// The path.
        path: PathBuf,
        /// The number of its format.
        format: u32,
    },
    /// The file is shorter than its headers say.
    #[error(
        "{} has {size_bytes} bytes instead of {expected_bytes}: it was truncated; restore the file from a backup",
        path.display()
    )]
    Truncated {
        /// The path.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The size that its capacity needs.
        expected_bytes: u64,
    },
    /// No version matches its checksum, or the newest one was changed while the file was open.
    #[error("{} is damaged: {what}; check the disk (dmesg)", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
        /// The damaged part, and what to do.
        what: &'static str,
    },
    /// The version is larger than the capacity. Nothing was written.
    #[error(
        "a version of {size_bytes} bytes does not fit in {}, which has a capacity of {capacity_bytes}; create a larger one",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// The size of the version; `u64::MAX` if it is larger than that.
        size_bytes: u64,
        /// The capacity.
        capacity_bytes: u64,
    },
    /// There is no memory for the restored bytes.
    #[error(
        "no memory for the {size_bytes} bytes of {}; free some, or restore to memory of your own with restore_into",
        path.display()
    )]
    OutOfMemory {
        /// The path.
        path: PathBuf,
        /// The size of the version.
        size_bytes: u64,
    },
    /// This process was forked from the one that opened the replica, and both would write to the same slot.
    #[error("{} was opened before the fork; use it in the parent only, or close it there and open it here", path.display())]
    Forked {
        /// The path.
        path: PathBuf,
    },
}

impl ReplicaError {
    /// Adds the path and the operation to an error of the system.
    pub(super) fn system(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> ReplicaError {
        let path = path.to_owned();
        move |source| ReplicaError::System { path, action, source }
    }
}

/// What to do about an error of the system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "check the path; Replica::create makes a new file",
        ErrorKind::AlreadyExists => "open it with Replica::open, or remove it first",
        ErrorKind::IsADirectory => "pass the path of a file",
        ErrorKind::PermissionDenied => "check the permissions of the file and of its directories",
        ErrorKind::ReadOnlyFilesystem => "mount the file system writable",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free some space, or choose a smaller capacity"
        }
        // Of mapping, and of locks and allocation on some network file systems.
        _ if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            "the file system cannot do that; mapping needs one with DAX (mount -o dax)"
        }
        _ => "check the disk (dmesg) and try again",
    }
}
