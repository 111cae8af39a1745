//! What `memferry bench dsa` measures: the speed of this crate's parts. For the project's own benchmarks; it may change
//! with any version.

#[allow(unsafe_code)]
pub mod device;
pub mod software;
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
