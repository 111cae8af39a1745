//! Automatic NUMA balancing of the kernel, switched for a run.
//!
//! Source: Linux, `Documentation/admin-guide/sysctl/kernel.rst`, `numa_balancing`: 0 is off, 1 normal, 2 tiering.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::workload::Balancing;
use crate::QueryError;

/// The kernel's switch; kernels without NUMA balancing have none.
const SWITCH: &str = "/proc/sys/kernel/numa_balancing";

/// The state of the switch during a run. Dropping it restores the state before.
#[derive(Debug)]
pub(super) struct BalancingSwitch {
    path: PathBuf,
    /// `None` if it was not changed.
    before: Option<String>,
    state: String,
}

impl BalancingSwitch {
    /// Sets the switch of this kernel.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: the kernel has no switch, or does not let this process change it.
    pub(super) fn set(wanted: Balancing) -> Result<BalancingSwitch, QueryError> {
        BalancingSwitch::at(Path::new(SWITCH), wanted)
    }

    fn at(path: &Path, wanted: Balancing) -> Result<BalancingSwitch, QueryError> {
        let found = fs::read_to_string(path).map(|text| text.trim().to_owned());
        let new = match wanted {
            Balancing::Kept => None,
            Balancing::Off => Some("0"),
            Balancing::On => Some("1"),
        };
        let failed = |error: io::Error| {
            QueryError::Invalid(format!(
                "automatic NUMA balancing cannot be switched {wanted} in {}: {error}; run as root on a kernel with several \
                 nodes, or choose --balancing kept",
                path.display()
            ))
        };
        let mut switch = BalancingSwitch { path: path.to_owned(), before: None, state: "none".to_owned() };
        match (found, new) {
            (Ok(found), Some(new)) if found != new => {
                fs::write(path, new).map_err(failed)?;
                switch.before = Some(found);
                switch.state = new.to_owned();
            }
            (Ok(found), _) => switch.state = found,
            (Err(_), None) => {}
            (Err(error), Some(_)) => return Err(failed(error)),
        }
        Ok(switch)
    }

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

impl Drop for BalancingSwitch {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Nobody is left to be told.
            let _ = fs::write(&self.path, before);
        }
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
        let read = || fs::read_to_string(&path).unwrap();
        let kept = BalancingSwitch::at(&path, Balancing::Kept).unwrap();
        assert_eq!((kept.state(), read().trim()), ("on", "1"));
        let off = BalancingSwitch::at(&path, Balancing::Off).unwrap();
        assert_eq!((off.state(), read().trim()), ("off", "0"));
        drop((kept, off));
        assert_eq!(read().trim(), "1");
        assert_eq!(BalancingSwitch::at(&path, Balancing::On).unwrap().state(), "on");
    }

    #[test]
    fn a_kernel_without_the_switch_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numa_balancing");
        assert_eq!(BalancingSwitch::at(&path, Balancing::Kept).unwrap().state(), "none");
        let error = BalancingSwitch::at(&path, Balancing::On).unwrap_err().to_string();
        assert!(error.contains("--balancing kept") && !path.exists(), "{error}");
    }
}
