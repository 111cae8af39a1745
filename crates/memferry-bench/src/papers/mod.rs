//! The benchmarks of the papers. Each runs on this machine, on an emulated device, and in the model.
//!
//! ```text
//! Benchmark    name, figures, and axes with their values: sizes, batches, submitters, routes ...
//!    │ points       all sensible combinations
//!    ▼
//! Point ──▶ Backend   runs it: measurements, or the reason why it cannot
//!              OnMachine    cores and queues of this machine, in threads     measured
//!              OnEmulated   the emulated device in virtual time              emulated
//!              OnModel      crate::model on a profile                        modelled
//! ```
//!
//! A point describes a run completely, so that all backends and benchmarks take the same options. A backend refuses
//! points that it cannot run, with a reason: a gap in a figure is better than a guess.
//!
//! The papers' query ([`qdp`]) and the cost of sharing ([`atomics`]) have their own points, on the same machines.
//!
//! Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), chapter 3;
//! Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon Scalable
//! Processors" (2024), chapter 4.

mod agreement;
pub mod atomics;
mod benchmark;
mod benchmarks;
mod columns;
mod emulated;
mod load;
mod machine;
mod metric;
mod modelled;
mod peers;
mod point;
pub mod qdp;

pub use agreement::emulator_vs_model;
pub use benchmark::{Benchmark, benchmark};
pub use benchmarks::BENCHMARKS;
pub use columns::Columns;
pub use emulated::OnEmulated;
pub use machine::OnMachine;
use memferry::topology::Machine;
pub use metric::Metric;
pub use modelled::OnModel;
pub use peers::{Published, published};
pub use point::{Axes, Data, Pages, Point, Way};

/// Runs points.
pub trait Backend {
    /// The machine that is measured, emulated or modelled.
    fn machine(&self) -> &Machine;

    /// The ways among `wanted` that this backend has: the default of its benchmarks.
    fn ways(&self, wanted: &[Way]) -> Vec<Way>;

    /// Runs a point.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is recorded, [`Skipped::Failed`] ends the run.
    fn run(&self, point: &Point, metrics: &[Metric], effort: RunLength) -> Result<Vec<Measurement>, Skipped>;
}

/// Values of one metric of a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The metric.
    pub metric: Metric,
    /// One value per iteration, in the metric's unit. Empty if this backend has none; the note then says why.
    pub values: Vec<f64>,
    /// A remark for readers.
    pub note: Option<String>,
    /// Name and median of a measurement beside it.
    pub peer: Option<(&'static str, f64)>,
    /// Time of measuring as a share of the measured time, if known.
    pub overhead: Option<f64>,
    /// Whether it is other work than that of the published number, so that it is not compared.
    pub is_other_work: bool,
}

impl Measurement {
    /// A measurement without remarks.
    pub fn new(metric: Metric, values: Vec<f64>) -> Measurement {
        Measurement { metric, values, note: None, peer: None, overhead: None, is_other_work: false }
    }

    fn with_note(self, note: Option<String>) -> Measurement {
        Measurement { note, ..self }
    }

    /// No values, for this reason.
    pub fn missing(metric: Metric, why: &str) -> Measurement {
        Measurement::new(metric, Vec::new()).with_note(Some(why.to_owned()))
    }

    /// Appends a remark.
    fn add_note(&mut self, words: &str) {
        match &mut self.note {
            Some(note) => *note += &format!("; {words}"),
            None => self.note = Some(words.to_owned()),
        }
    }
}

/// A point that has no measurements.
#[derive(Debug, thiserror::Error)]
pub enum Skipped {
    /// This backend or this machine cannot run it.
    #[error("{0}")]
    Cannot(String),
    /// The run failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl Skipped {
    fn cannot<T>(what: impl Into<String>) -> Result<T, Skipped> {
        Err(Skipped::Cannot(what.into()))
    }
}

impl From<crate::dsa::load::LoadError> for Skipped {
    fn from(failed: crate::dsa::load::LoadError) -> Skipped {
        use crate::dsa::load::LoadError;
        match failed {
            LoadError::Load(_) | LoadError::Config(_) => Skipped::Cannot(failed.to_string()),
            _ => Skipped::Failed(failed.into()),
        }
    }
}

/// The length of a run.
///
/// Source: Fürst 2024, 3.1: 10 iterations; 10 000 repetitions within each up to 8 KiB, 1000 up to 1 MiB, 1 above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLength {
    /// Values of each metric, where there is noise.
    pub iterations: usize,
    /// Repetitions within an iteration are divided by this, down to 1.
    pub divisor: usize,
}

impl RunLength {
    /// The length in the papers.
    pub const FULL: RunLength = RunLength { iterations: 10, divisor: 1 };
    /// As short as possible: checks that it works.
    pub const QUICK: RunLength = RunLength { iterations: 2, divisor: 100 };

    /// Submissions of descriptors of this size within an iteration.
    pub fn repetitions(self, size_bytes: u64) -> usize {
        let full: usize = match size_bytes {
            0..=0x2000 => 10_000,
            0x2001..=0x10_0000 => 1000,
            _ => 1,
        };
        (full / self.divisor.max(1)).max(1)
    }
}

#[cfg(test)]
mod tests;
