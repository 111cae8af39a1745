//! How to open a queue, and how that went.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use super::{QueueMode, Slots};

/// How to open a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Which ways in are good enough.
    pub way: Way,
    /// Where in a mapped page descriptors are written.
    pub slots: Slots,
    /// How long to wait for the answer whether a device takes batches, where that is not known
    /// ([`probe_batch`](super::probe_batch)); `None` does not ask.
    pub batch_probe_timeout: Option<Duration>,
    /// Files that contain `enabled` while the queue works, for [`Portal::is_gone`](super::Portal::is_gone); those that do not exist when the
    /// queue is opened are ignored. `None`: the states of queue and device in `/sys/bus/dsa/devices`, by the
    /// queue's name.
    pub state_files: Option<Vec<PathBuf>>,
}

impl Default for OpenOptions {
    /// Any way, rotating places, 100 ms for the question about batches, the state in sysfs.
    fn default() -> OpenOptions {
        OpenOptions {
            way: Way::Any,
            slots: Slots::Rotating,
            batch_probe_timeout: Some(Duration::from_millis(100)),
            state_files: None,
        }
    }
}

/// Which ways into a queue are good enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The mapped page if possible, else `write(2)`.
    Any,
    /// The mapped page or nothing.
    Mapped,
    /// `write(2)`, also where the page could be mapped.
    Write,
}

/// Why a portal uses `write(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhyWrite {
    /// It was asked for.
    Wanted,
    /// The page may not be mapped: EPERM without CAP_SYS_RAWIO since INTEL-SA-01084, or another error with this
    /// number.
    MapRefused(i32),
    /// The CPU has no ENQCMD (shared queue) or no MOVDIR64B (dedicated queue).
    NoInstruction(QueueMode),
}

impl fmt::Display for WhyWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyWrite::Wanted => f.write_str("write(2) was asked for"),
            WhyWrite::MapRefused(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "the kernel refused the page ({error}); CAP_SYS_RAWIO allows it")
            }
            WhyWrite::NoInstruction(QueueMode::Shared) => f.write_str("this CPU has no ENQCMD"),
            WhyWrite::NoInstruction(QueueMode::Dedicated) => f.write_str("this CPU has no MOVDIR64B"),
        }
    }
}

/// The states of a queue and its device in sysfs, by the queue's name.
pub(super) fn state_files(queue: &str) -> Vec<PathBuf> {
    let devices = Path::new("/sys/bus/dsa/devices");
    let numbers = queue.strip_prefix("wq").and_then(|numbers| numbers.split_once('.'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match numbers {
        Some((device, number)) if is_number(device) && is_number(number) => {
            vec![devices.join(queue).join("state"), devices.join(format!("dsa{device}")).join("state")]
        }
        // Any other name is no path of sysfs.
        _ => Vec::new(),
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn states_are_found_by_name() {
        let files = state_files("wq12.3");
        let files: Vec<_> = files.iter().filter_map(|file| file.to_str()).collect();
        assert_eq!(files, ["/sys/bus/dsa/devices/wq12.3/state", "/sys/bus/dsa/devices/dsa12/state"]);
        for strange in ["", "wq", "wq1", "wq1.", "wq.1", "wq1.2/../..", "../wq1.2", "copyq"] {
            assert_eq!(state_files(strange), Vec::<PathBuf>::new(), "{strange}");
        }
    }
}
