//! Persistent memory, mounted with DAX.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{PAUSE, mount};
use crate::plan::{self, PlanPersistent};

/// Time limit for the appearance of a device. The kernel describes its pages first.
const DEVICE_MAX: Duration = Duration::from_secs(60);

/// Mounts each device at its place. The modules are loaded.
pub(super) fn mount_all(memory: &PlanPersistent) -> Result<(), String> {
    let started = Instant::now();
    for number in 0..memory.count {
        let device = format!("/dev/pmem{number}");
        while !Path::new(&device).exists() {
            if started.elapsed() > DEVICE_MAX {
                return Err(format!(
                    "there is no {device}; the kernel needs ACPI_NFIT, BLK_DEV_PMEM and NVDIMM_PFN"
                ));
            }
            std::thread::sleep(PAUSE);
        }
        let at = format!("{}{number}", plan::PERSISTENT);
        fs::create_dir_all(&at)
            .and_then(|()| mount(&device, Path::new(&at), "ext4", 0, "dax=always"))
            .map_err(|error| format!("cannot mount {device} on {at} with DAX: {error}"))?;
    }
    Ok(())
}
