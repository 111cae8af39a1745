//! Why a machine was not measured.

use memferry::memory::MemoryError;
use memferry::model::ModelError;
use memferry::mover::{CopyError, MoverError};
use memferry::topology::TopologyError;

/// Why there is no calibration. What was measured before is lost; all memory has been given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// A profile or a recording cannot be measured.
    #[error(
        "{machine} is a description and not the machine that this runs on; calibrate on the machine itself"
    )]
    NotHere {
        /// Its name.
        machine: String,
    },
    /// No node has both, or this process may use none.
    #[error("this process may use no node with CPUs and memory; run it in a cpuset that has both")]
    NoCpus,
    /// A thread could not be confined to a CPU.
    #[error(
        "a thread cannot be confined to a CPU ({0}); run it where sched_setaffinity is allowed, on CPUs that stay"
    )]
    Pin(#[from] std::io::Error),
    /// Times that no machine has, such as larger copies that take less time.
    #[error("{what} makes no sense, other programs disturb it; end them and run it again")]
    Disturbed {
        /// What was measured.
        what: &'static str,
    },
    /// There is no memory to measure in.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The copying threads could not be started.
    #[error(transparent)]
    Mover(#[from] MoverError),
    /// A copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The measured figures contradict each other.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The model cannot predict from these figures.
    #[error(transparent)]
    Model(#[from] ModelError),
}
