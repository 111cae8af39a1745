//! The benchmarks of the papers, each of which runs on this machine, on an emulated device, and in the model.
//!
//! ```text
//! Benchmark    name, figures, and axes with their values: sizes, batches, submitters, routes ...
//!    │ points       all combinations that make sense
//!    ▼
//! Point ──▶ Backend   runs it and says what came out, or why it cannot
//!              OnMachine    cores and queues of this machine, in threads     measured
//!              OnEmulated   the emulated device in virtual time              emulated
//!              OnModel      crate::model on a profile                        modelled
//! ```
//!
//! A point says everything about what runs, so that all backends and all benchmarks take the same options. What
//! a backend does not know, it refuses with a sentence: a figure with a gap is better than one with a guess.
//!
//! The papers' query ([`qdp`]) and what sharing costs ([`atomics`]) have points of their own, on the same machines.
//!
//! Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), chapter 3;
//! Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon Scalable
//! Processors" (2024), chapter 4.

pub mod atomics;
mod axis;
mod benchmark;
mod emulated;
mod figure;
mod load;
mod machine;
mod modelled;
mod papers;
mod peers;
mod point;
pub mod qdp;

pub use axis::Axis;
pub use benchmark::{Benchmark, benchmark};
pub use emulated::OnEmulated;
pub use figure::Figure;
pub use machine::OnMachine;
use memferry::topology::Machine;
pub use modelled::OnModel;
pub use papers::BENCHMARKS;
pub use peers::{Published, published};
pub use point::{Axes, Data, Pages, Point, Way};

/// Whoever runs points.
pub trait Backend {
    /// The machine that it is, has devices like, or computes.
    fn machine(&self) -> &Machine;

    /// The ways of working that a benchmark has here unless somebody asks for others, of those of the papers.
    fn ways(&self, wanted: &[Way]) -> Vec<Way>;

    /// Runs a point.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is a result too, and [`Skipped::Failed`] the end of the run.
    fn run(&self, point: &Point, figures: &[Figure], effort: Effort) -> Result<Vec<Taken>, Skipped>;
}

/// What a point yields of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Which one.
    pub figure: Figure,
    /// Of each iteration, in the figure's unit; empty if it has none here, and then there is a note.
    pub values: Vec<f64>,
    /// What to know of it, if anything.
    pub note: Option<String>,
    /// The median of something that was measured beside it, and what that is.
    pub peer: Option<(&'static str, f64)>,
    /// What measuring took, as a share of what was measured; `None` if nobody knows.
    pub overhead: Option<f64>,
}

impl Taken {
    fn new(figure: Figure, values: Vec<f64>) -> Taken {
        Taken { figure, values, note: None, peer: None, overhead: None }
    }

    fn missing(figure: Figure, why: &str) -> Taken {
        Taken { note: Some(why.to_owned()), ..Taken::new(figure, Vec::new()) }
    }

    /// Says one thing more of it.
    fn add_note(&mut self, words: &str) {
        match &mut self.note {
            Some(note) => *note += &format!("; {words}"),
            None => self.note = Some(words.to_owned()),
        }
    }
}

/// Why a point has no figures.
#[derive(Debug, thiserror::Error)]
pub enum Skipped {
    /// This backend, or this machine, cannot do that.
    #[error("{0}")]
    Cannot(String),
    /// It could, but something went wrong.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl Skipped {
    fn cannot<T>(what: impl Into<String>) -> Result<T, Skipped> {
        Err(Skipped::Cannot(what.into()))
    }
}

impl From<crate::dsa::load::Failed> for Skipped {
    fn from(failed: crate::dsa::load::Failed) -> Skipped {
        use crate::dsa::load::Failed;
        match failed {
            Failed::Load(_) | Failed::Config(_) => Skipped::Cannot(failed.to_string()),
            _ => Skipped::Failed(failed.into()),
        }
    }
}

/// How often everything is done.
///
/// Source: Fürst 2024, 3.1: 10 iterations; 10 000 repetitions within each up to 8 KiB, 1000 up to 1 MiB, 1 above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Values of each figure, where there is noise.
    pub iterations: usize,
    /// Repetitions within an iteration are divided by this, down to 1.
    pub divisor: usize,
}

impl Effort {
    /// As in the papers.
    pub const FULL: Effort = Effort { iterations: 10, divisor: 1 };
    /// To see that it works.
    pub const QUICK: Effort = Effort { iterations: 2, divisor: 100 };

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
