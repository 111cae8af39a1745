//! What `memferry bench dsa` and `memferry bench emulate` measure: the speed of this crate's parts, and of submissions.
//! For the project's own benchmarks; it may change with any version.

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

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// For records.
    Full,
    /// For tests: every line runs.
    Quick,
}

impl Effort {
    /// One of two figures.
    pub fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}
