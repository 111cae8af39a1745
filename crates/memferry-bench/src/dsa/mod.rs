//! Benchmarks of `memferry-dsa` and of its emulation: `memferry bench dsa` and `memferry bench emulate`.

#[allow(unsafe_code)]
pub mod device;
#[cfg(target_os = "linux")]
pub mod load;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
mod page;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
pub mod sharing;
pub mod software;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)]
pub mod submission;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use page::NoPage;
#[allow(unsafe_code)]
pub mod waiting;
