//! Errors of copies, of other operations, and of building a mover.

use std::ops::Range;
use std::path::PathBuf;

use memferry_dsa::Invalid;
use memferry_dsa::system::SystemError;

use crate::storage::{StorageError, StoredFile};
use crate::topology::{NodeId, TopologyError};

/// The error of a copy or another operation. The content of the target is undefined then; the source is unchanged.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Source and target differ in length. Nothing was copied.
    #[error(
        "the source has {source_bytes} bytes and the target {target_bytes}; pass buffers of equal length"
    )]
    LengthMismatch {
        /// Length of the source.
        source_bytes: usize,
        /// Length of the target.
        target_bytes: usize,
    },
    /// The request breaks a rule of its operation. Nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device completed the operation with an error. It no longer touches the buffers.
    #[error(
        "the device completed the copy with status {status:#04x}; retry on another engine and read the device's errors in sysfs"
    )]
    Device {
        /// Completion status of the DSA specification.
        status: u8,
    },
    /// The device is lost, or lost the operation, and may still touch the buffers. They are leaked on purpose.
    #[error(
        "the device was lost with the copy in flight, so its buffers were leaked; retry with other buffers"
    )]
    DeviceLost,
    /// The copy was in flight at the fork of this process, and goes on in the parent. The content of the buffers here is
    /// undefined.
    #[error("the copy belongs to the parent of this forked process; start it again, with other buffers")]
    Forked,
    /// The engine dropped the copy without executing it, or a panic interrupted it.
    #[error("the engine abandoned the copy; retry it")]
    Abandoned,
    /// The disk or the file system failed the read of a file.
    #[error("the file cannot be read: {}; check the disk (dmesg) and repeat the read", crate::storage::system(*errno))]
    Read {
        /// The error number of the system.
        errno: i32,
    },
    /// The file ended before the last requested byte.
    #[error("the file ended before the last requested byte: it was truncated; open it again")]
    FileEnded,
    /// The file was changed since it was opened.
    #[error("the file was changed since it was opened; open it again")]
    FileChanged,
    /// Nobody wanted the bytes any more when the read was about to start.
    #[error("the read was cancelled before it started, because nobody waited for it; start it again")]
    Cancelled,
    /// An engine of a test injected a failure.
    #[error("the copy failed because a fault was injected; retry it")]
    Injected,
}

impl CopyError {
    /// Whether a device or another process may still access the buffers at any later time. The owner must leak them
    /// then.
    #[inline]
    pub fn buffers_are_lost(&self) -> bool {
        matches!(self, CopyError::DeviceLost | CopyError::Forked)
    }
}

/// The error of a read of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file changed, ended early, or cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The cache has no room for the range: it exceeds the budget of the node, or all of the budget is in use. Nothing
    /// was read.
    #[error(
        "the cache has no room on node {node} for {size_bytes} bytes of {}; read them with Mover::read, drop entries, or raise the budget",
        path.display()
    )]
    NoRoom {
        /// The path of the file.
        path: PathBuf,
        /// The node.
        node: NodeId,
        /// The size of the range in whole blocks.
        size_bytes: usize,
    },
    /// The engine did not finish the read.
    #[error("cannot read {}: {error}", path.display())]
    Engine {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        error: CopyError,
    },
}

impl ReadError {
    /// The error of a read of `range` that an engine finished with `error`.
    pub(crate) fn of(file: &StoredFile, range: &Range<u64>, error: CopyError) -> ReadError {
        let (path, range) = (file.path().to_owned(), range.clone());
        ReadError::Storage(match error {
            CopyError::Read { errno } => StorageError::Read { path, range, errno },
            CopyError::FileEnded => match file.check_descriptor() {
                Err(changed) => changed,
                Ok(()) => StorageError::Ended { path, range },
            },
            CopyError::FileChanged if let Some(changed) = file.known_change() => changed,
            error => return ReadError::Engine { path, error },
        })
    }
}

/// The error of building an engine or a mover. No thread of it is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoverError {
    /// A CPU engine without workers.
    #[error("a CPU engine needs at least one worker; pass 1 or more")]
    NoWorkers,
    /// A DSA engine without portals.
    #[error("a DSA engine needs at least one work queue; pass its portal, or use the CPU engine alone")]
    NoPortals,
    /// No work queue of this machine is usable by this process.
    #[error("no DSA of this machine can be used: {why}")]
    NoDsa {
        /// The reason: one sentence for each device and queue, or for the driver.
        why: String,
    },
    /// The files of the driver are unreadable or inconsistent.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A storage engine with a piece size of zero or of no whole number of blocks.
    #[error(
        "pieces of {piece_bytes} bytes cannot be read past the page cache; pass a positive multiple of 4096"
    )]
    PieceBytes {
        /// The size.
        piece_bytes: usize,
    },
    /// A queue of length 0.
    #[error("an engine or pipeline needs room for at least one copy; pass 1 or more")]
    NoQueue,
    /// The operating system refused a thread.
    #[error(
        "cannot start a thread of engine {engine}: {source}; raise the limit on processes or use fewer workers"
    )]
    Thread {
        /// Name of the engine.
        engine: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The page that detects forks cannot be mapped.
    #[error("cannot map the page that detects forks of this process: {0}; free some memory")]
    Forks(#[source] std::io::Error),
    /// A node that the machine does not have.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
