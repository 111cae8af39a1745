//! The kernel as monitors see it: files, counters of perf, groups of resctrl.

use std::fs;
use std::io;
use std::path::Path;

use memferry_dsa::internals::system::{Directory, Files};

use super::perf_event;
use super::pmu::Encoding;

/// The seam to the kernel. [`FakeKernel`](super::FakeKernel) is the other implementation.
pub trait Kernel: Send + Sync {
    /// The files below `sys` and `proc`.
    fn files(&self) -> &dyn Files;

    /// Opens a counter of everything that happens on a CPU, or on the devices that the CPU stands for.
    ///
    /// # Errors
    /// Those of perf_event_open(2).
    fn open_counter(&self, event: &Encoding, cpu: u32) -> io::Result<Box<dyn Counter>>;

    /// Makes a monitoring group of resctrl at `path`.
    ///
    /// # Errors
    /// Those of mkdir(2). `ENOSPC`: all groups of the hardware are in use. `EBUSY`: caches still have bytes of a removed group.
    fn make_group(&self, path: &str) -> io::Result<()>;

    /// Moves a thread into the group at `path`.
    ///
    /// # Errors
    /// Those of the file `tasks`. `ESRCH`: the thread has ended.
    fn join_group(&self, path: &str, thread: u32) -> io::Result<()>;

    /// Removes the group at `path`; its threads return to the parent.
    ///
    /// # Errors
    /// Those of rmdir(2).
    fn remove_group(&self, path: &str) -> io::Result<()>;
}

/// A counter of perf. It counts from its opening to its drop.
pub trait Counter: Send {
    /// Reads it.
    ///
    /// # Errors
    /// Those of read(2).
    fn read(&self) -> io::Result<Reading>;
}

/// The state of a counter of perf: the count and two times, of which only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The count.
    pub value: u64,
    /// How long the event was to be counted.
    pub enabled_ns: u64,
    /// How long it was counted; less if more events than hardware counters take turns.
    pub running_ns: u64,
}

impl Reading {
    /// The increase since an earlier reading, and the share of the time in which it was counted. The increase is extrapolated
    /// to the whole time, as perf(1) does. `None` if it was never counted.
    pub(super) fn since(self, earlier: Reading) -> Option<(f64, f64)> {
        let enabled_ns = self.enabled_ns.saturating_sub(earlier.enabled_ns);
        let running_ns = self.running_ns.saturating_sub(earlier.running_ns);
        let counted = self.value.wrapping_sub(earlier.value) as f64;
        if running_ns >= enabled_ns {
            return Some((counted, 1.0));
        }
        let share = running_ns as f64 / enabled_ns as f64;
        (running_ns > 0).then(|| (counted / share, share))
    }
}

/// The kernel of this machine.
#[derive(Clone, Debug)]
pub struct SystemKernel {
    files: Directory,
}

impl SystemKernel {
    /// The kernel of this machine.
    #[allow(clippy::new_without_default)]
    pub fn new() -> SystemKernel {
        SystemKernel { files: Directory::system() }
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        Path::new(&self.files.name()).join(path)
    }
}

impl Kernel for SystemKernel {
    fn files(&self) -> &dyn Files {
        &self.files
    }

    fn open_counter(&self, event: &Encoding, cpu: u32) -> io::Result<Box<dyn Counter>> {
        Ok(Box::new(perf_event::PerfCounter::open(event, cpu)?))
    }

    fn make_group(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.path(path))
    }

    fn join_group(&self, path: &str, thread: u32) -> io::Result<()> {
        self.files.write(&format!("{path}/tasks"), &thread.to_string())
    }

    fn remove_group(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.path(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that shares its hardware counter with others is extrapolated; one that never had it is unknown, not 0.
    #[test]
    fn counts_of_events_that_take_turns_are_extrapolated() {
        let reading = |value, enabled_ns, running_ns| Reading { value, enabled_ns, running_ns };
        let start = reading(100, 1000, 1000);
        assert_eq!(reading(400, 3000, 3000).since(start), Some((300.0, 1.0)));
        assert_eq!(reading(400, 3000, 1500).since(start), Some((1200.0, 0.25)));
        assert_eq!(reading(100, 3000, 1000).since(start), None);
        assert_eq!(start.since(start), Some((0.0, 1.0)));
        // A counter that wraps still has the right difference.
        assert_eq!(reading(4, 2000, 2000).since(reading(u64::MAX - 5, 1000, 1000)), Some((10.0, 1.0)));
    }
}
