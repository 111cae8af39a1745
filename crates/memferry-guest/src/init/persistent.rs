//! Persistent memory, mounted with DAX.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{PAUSE, mount};
use crate::plan::{self, PlanPersistent};

/// Time limit for the appearance of a device. The kernel describes its pages first.
const DEVICE_MAX: Duration = Duration::from_secs(20);

/// Mounts each device at its place below `root`. The modules are loaded, and `/dev` below `root` is the guest's.
pub(super) fn mount_all(memory: &PlanPersistent, root: &Path) -> Result<(), String> {
    let started = Instant::now();
    for number in 0..memory.count {
        let device = root.join(format!("dev/pmem{number}"));
        while !device.exists() {
            if started.elapsed() > DEVICE_MAX {
                return Err(format!(
                    "there is no /dev/pmem{number}; the kernel needs ACPI_NFIT, BLK_DEV_PMEM and NVDIMM_PFN"
                ));
            }
            std::thread::sleep(PAUSE);
        }
        let at = format!("{}{number}", plan::PERSISTENT);
        let below = root.join(&at[1..]);
        fs::create_dir_all(&below)
            .and_then(|()| mount(&device, &below, "ext4", 0, "dax=always"))
            .map_err(|error| format!("cannot mount /dev/pmem{number} on {at} with DAX: {error}"))?;
    }
    Ok(())
}
