//! The parts that all benchmarks share: samples in pairs, statistics, rows, records.
//!
//! ```text
//! alternate ─▶ Pairs ─▶ Comparison ─▶ Row ─▶ Record ─▶ results/MACHINE/DATE-BENCH.{csv,json}
//! ```

/// Displays the variants of enums under their names in serde.
macro_rules! display_by_serde {
    ($($name:ty),+) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        }
    )+};
}

mod allocations;
mod equal;
mod pairs;
mod provenance;
mod random;
mod record;
mod row;

pub use allocations::{CountingAllocator, allocations_count, keep_freed_memory};
pub(crate) use display_by_serde;
pub use equal::{UnequalWork, WORK, check_equal_work};
pub use pairs::{Estimate, Pairs, alternate, geomean, geomean_ratio, median, try_alternate};
pub use provenance::Provenance;
pub use random::Random;
pub use record::{CsvRow, Record, RecordError, check_writable, machine_slug, rfc3339};
pub use row::{Comparison, Peer, Row};

/// The length of a benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Long enough for a record.
    Full,
    /// As short as possible: tests execute every line.
    Quick,
}

impl Effort {
    /// Selects one of two values.
    ///
    /// ```
    /// # use memferry_bench::harness::Effort;
    /// assert_eq!(Effort::Quick.of(1000, 2), 2);
    /// ```
    pub fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}
