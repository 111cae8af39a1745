//! Automatic NUMA balancing of the kernel, switched for a run.
//!
//! Source: Linux, `Documentation/admin-guide/sysctl/kernel.rst`, `numa_balancing`: 0 is off, 1 normal, 2 tiering.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::workload::Balancing;
use crate::QueryError;

/// The kernel's switch; kernels without NUMA balancing have none.
const SWITCH: &str = "/proc/sys/kernel/numa_balancing";

/// The kernel's switch of automatic NUMA balancing. Copies of it know what a run has changed.
#[derive(Clone, Debug)]
pub struct KernelBalancing {
    path: PathBuf,
    change: Arc<Mutex<Change>>,
}

#[derive(Debug)]
enum Change {
    /// No run has changed it.
    None,
    /// The state before the run.
    Before(String),
    /// It was restored for good.
    Final,
}

impl KernelBalancing {
    /// The switch of this kernel.
    pub(super) fn of_kernel() -> KernelBalancing {
        KernelBalancing::at(Path::new(SWITCH))
    }

    fn at(path: &Path) -> KernelBalancing {
        KernelBalancing { path: path.to_owned(), change: Arc::new(Mutex::new(Change::None)) }
    }

    /// Restores the state before a run, for good: no other run changes it. For a process that a signal ends in mid-run.
    pub fn restore(&self) {
        self.write_back(Change::Final);
    }

    /// Sets the switch for a run.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: the kernel has no switch, or does not let this process change it.
    pub(super) fn set(&self, wanted: Balancing) -> Result<BalancingSwitch<'_>, QueryError> {
        let mut change = self.change();
        let found = fs::read_to_string(&self.path).map(|text| text.trim().to_owned());
        let new = match wanted {
            Balancing::Kept => None,
            Balancing::Off => Some("0"),
            Balancing::On => Some("1"),
        };
        let failed = |error: io::Error| {
            QueryError::Invalid(format!(
                "automatic NUMA balancing cannot be switched {wanted} in {}: {error}; run as root on a kernel with several \
                 nodes, or choose --balancing kept",
                self.path.display()
            ))
        };
        let state = match (found, new) {
            (Ok(found), Some(new)) if found != new && matches!(*change, Change::None) => {
                fs::write(&self.path, new).map_err(failed)?;
                *change = Change::Before(found);
                new.to_owned()
            }
            (Ok(found), _) => found,
            (Err(_), None) => "none".to_owned(),
            (Err(error), Some(_)) => return Err(failed(error)),
        };
        Ok(BalancingSwitch { kernel: self, state })
    }

    fn write_back(&self, then: Change) {
        let mut change = self.change();
        if let Change::Before(before) = &*change {
            // Nobody is left to be told.
            let _ = fs::write(&self.path, before);
        }
        if !matches!(*change, Change::Final) {
            *change = then;
        }
    }

    fn change(&self) -> MutexGuard<'_, Change> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the switch during a run. Dropping it restores the state before.
#[derive(Debug)]
pub(super) struct BalancingSwitch<'a> {
    kernel: &'a KernelBalancing,
    state: String,
}

impl BalancingSwitch<'_> {
    /// As rows say it: `off`, `on`, `tiering`, or `none` if the kernel has no switch.
    pub(super) fn state(&self) -> &str {
        match self.state.as_str() {
            "0" => "off",
            "1" => "on",
            "2" => "tiering",
            other => other,
        }
    }
}

impl Drop for BalancingSwitch<'_> {
    fn drop(&mut self) {
        self.kernel.write_back(Change::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numa_balancing");
        fs::write(&path, "1\n").unwrap();
        let read = || fs::read_to_string(&path).unwrap().trim().to_owned();
        let kernel = KernelBalancing::at(&path);
        let kept = kernel.set(Balancing::Kept).unwrap();
        assert_eq!((kept.state(), read().as_str()), ("on", "1"));
        drop(kept);
        for _ in 0..2 {
            let off = kernel.set(Balancing::Off).unwrap();
            assert_eq!((off.state(), read().as_str()), ("off", "0"));
            drop(off);
            assert_eq!(read(), "1");
        }
        assert_eq!(kernel.set(Balancing::On).unwrap().state(), "on");
    }

    #[test]
    fn a_process_that_ends_restores_the_switch_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numa_balancing");
        fs::write(&path, "2\n").unwrap();
        let kernel = KernelBalancing::at(&path);
        let read = || fs::read_to_string(&path).unwrap().trim().to_owned();
        let off = kernel.set(Balancing::Off).unwrap();
        assert_eq!(read(), "0");
        // Another thread does so, while the run goes on for a moment.
        kernel.clone().restore();
        assert_eq!(read(), "2");
        drop(off);
        let last = kernel.set(Balancing::Off).unwrap();
        assert_eq!((last.state(), read().as_str()), ("tiering", "2"));
    }

    #[test]
    fn a_kernel_without_the_switch_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numa_balancing");
        assert_eq!(KernelBalancing::at(&path).set(Balancing::Kept).unwrap().state(), "none");
        let error = KernelBalancing::at(&path).set(Balancing::On).unwrap_err().to_string();
        assert!(error.contains("--balancing kept") && !path.exists(), "{error}");
    }
}
