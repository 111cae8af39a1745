//! How to open a queue, and how that went.

use std::time::Duration;
use std::{fmt, io};

use super::{QueueMode, Slots};

/// How to open a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Which ways in are good enough.
    pub method: SubmitMethod,
    /// Where in a mapped page descriptors are written.
    pub slots: Slots,
    /// How long to wait for the answer whether a device takes batches, where that is not known
    /// ([`probe_batch`](super::probe_batch)); `None` does not ask.
    pub batch_probe_timeout: Option<Duration>,
}

impl Default for OpenOptions {
    /// Any way, rotating places, 100 ms for the question about batches.
    fn default() -> OpenOptions {
        OpenOptions {
            method: SubmitMethod::Any,
            slots: Slots::Rotating,
            batch_probe_timeout: Some(Duration::from_millis(100)),
        }
    }
}

/// Which ways into a queue are good enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitMethod {
    /// The mapped page if possible, else `write(2)`.
    Any,
    /// The mapped page or nothing.
    Mapped,
    /// `write(2)`, also where the page could be mapped.
    Write,
}

/// Why a portal uses `write(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteReason {
    /// It was asked for.
    Requested,
    /// The page may not be mapped: EPERM without CAP_SYS_RAWIO since INTEL-SA-01084, or another error with this
    /// number.
    MapRefused(i32),
    /// The CPU has no ENQCMD (shared queue) or no MOVDIR64B (dedicated queue).
    NoInstruction(QueueMode),
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteReason::Requested => f.write_str("write(2) was asked for"),
            WriteReason::MapRefused(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "the kernel refused the page ({error}); CAP_SYS_RAWIO allows it")
            }
            WriteReason::NoInstruction(QueueMode::Shared) => f.write_str("this CPU has no ENQCMD"),
            WriteReason::NoInstruction(QueueMode::Dedicated) => f.write_str("this CPU has no MOVDIR64B"),
        }
    }
}
