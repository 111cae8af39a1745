//! Options for opening a queue.

use std::time::Duration;
use std::{fmt, io};

use super::{QueueMode, Slots};

/// Options for opening a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// The allowed methods of submission.
    pub method: SubmitMethod,
    /// The addresses in a mapped page that descriptors are written to.
    pub slots: Slots,
    /// Time limit of the batch probe, a batch of two no-ops that runs only if `op_cap` does not list Batch; `None` skips
    /// the probe.
    pub batch_probe_timeout: Option<Duration>,
}

impl Default for OpenOptions {
    /// Any method, rotating slots, 100 ms for the batch probe.
    fn default() -> OpenOptions {
        OpenOptions {
            method: SubmitMethod::Any,
            slots: Slots::Rotating,
            batch_probe_timeout: Some(Duration::from_millis(100)),
        }
    }
}

/// The allowed methods of submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitMethod {
    /// The mapped page if possible, else `write(2)`.
    Any,
    /// Only the mapped page; opening fails if it cannot be mapped.
    Mapped,
    /// Only `write(2)`, even if the page could be mapped.
    Write,
}

/// The reason for a portal to use `write(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteReason {
    /// The options requested it.
    Requested,
    /// `mmap` failed with this error number: EPERM without CAP_SYS_RAWIO since INTEL-SA-01084.
    MapRefused(i32),
    /// The CPU has no ENQCMD (shared queue) or no MOVDIR64B (dedicated queue).
    NoInstruction(QueueMode),
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteReason::Requested => f.write_str("the options request write(2)"),
            WriteReason::MapRefused(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "the kernel refused to map the page ({error}); CAP_SYS_RAWIO allows it")
            }
            WriteReason::NoInstruction(QueueMode::Shared) => f.write_str("this CPU has no ENQCMD"),
            WriteReason::NoInstruction(QueueMode::Dedicated) => f.write_str("this CPU has no MOVDIR64B"),
        }
    }
}
