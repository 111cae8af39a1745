//! Benchmarks of `memferry-dsa` and of its emulation: `memferry bench dsa` and `memferry bench emulate`.

use crate::harness::Provenance;

#[allow(unsafe_code)]
pub mod device;
#[cfg(target_os = "linux")]
pub mod load;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
mod page;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
pub mod promptness;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
pub mod sharing;
pub mod software;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
pub mod submission;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use page::PageError;
#[allow(unsafe_code)]
pub mod waiting;

/// Whether the DSA devices that Linux shows are those of `memferry emulate`.
pub fn are_devices_emulated() -> bool {
    std::path::Path::new("/dev/.memferry").exists()
}

/// Provenance of the times of this machine's devices.
pub fn device_provenance() -> Provenance {
    if are_devices_emulated() { Provenance::Emulated } else { Provenance::Measured }
}
