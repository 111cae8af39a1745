//! What can go wrong with a copy or another operation, and with building a mover.

use memferry_dsa::request::Invalid;
use memferry_dsa::system::SystemError;

use crate::topology::TopologyError;

/// Why a copy did not succeed. The content of the target is undefined then, the source is untouched.
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
    /// A move begins or ends outside of its buffers, or ends before it begins. Nothing was copied.
    #[error("move {index} is not within the source and the target; keep both ends inside")]
    OutOfRange {
        /// Which one.
        index: usize,
    },
    /// Two moves write the same bytes. Nothing was copied.
    #[error("two moves write the same bytes of the target; give each its own")]
    TargetsOverlap,
    /// The request breaks a rule of its operation. Nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The device ended the operation with an error. It does not touch the buffers any more.
    #[error(
        "the device ended the copy with status {status:#04x}; retry elsewhere and read the device's errors in sysfs"
    )]
    Device {
        /// Completion status, as the DSA specification numbers them.
        status: u8,
    },
    /// The device died, or lost the operation, and may still touch the buffers: they are leaked on purpose.
    #[error(
        "the device was lost with the copy in flight, so its buffers were leaked; retry with other buffers"
    )]
    DeviceLost,
    /// The copy was begun by the process that this one was forked from, which goes on with it. What the buffers look
    /// like here is undefined.
    #[error(
        "the copy is that of the process that this one was forked from; begin it again, with other buffers"
    )]
    Forked,
    /// The engine gave the copy up: without trying it, or because what did it panicked.
    #[error("the engine gave the copy up; retry it")]
    Abandoned,
    /// A [`Faulty`](super::Faulty) engine was asked to fail.
    #[error("the copy failed because a fault was injected; retry it")]
    Injected,
}

impl CopyError {
    /// True when something may still read the source and write the target, at any later time: whoever owns them
    /// must leak them.
    pub fn buffers_are_lost(&self) -> bool {
        matches!(self, CopyError::DeviceLost | CopyError::Forked)
    }
}

/// Why an engine or a mover could not be built. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoverError {
    /// A CPU engine without workers would never copy anything.
    #[error("a CPU engine needs at least one worker; pass 1 or more")]
    NoWorkers,
    /// A DSA engine was given no portal.
    #[error("a DSA engine needs at least one work queue; pass its portal, or use the CPU engine alone")]
    NoPortals,
    /// This machine has no work queue that this process can use.
    #[error("no DSA of this machine can be used: {why}")]
    NoDsa {
        /// A sentence for each device and queue, or for the driver.
        why: String,
    },
    /// What the driver shows of its devices cannot be read, or makes no sense.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A queue of no length was asked for.
    #[error("an engine whose queue holds nothing refuses everything; pass 1 or more")]
    NoQueue,
    /// The operating system refused a thread.
    #[error(
        "cannot start a thread of engine {engine}: {source}; raise the limit on processes or use fewer workers"
    )]
    Thread {
        /// Name of the engine.
        engine: String,
        /// What the operating system answered.
        source: std::io::Error,
    },
    /// The operating system gives no page by which forks are noticed.
    #[error("forks of this process could not be noticed: {0}; free some memory")]
    Forks(#[source] std::io::Error),
    /// A node was named that the machine does not have.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
