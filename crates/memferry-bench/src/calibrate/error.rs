//! Errors of calibration.

use memferry::memory::MemoryError;
use memferry::model::ModelError;
use memferry::mover::{CopyError, MoverError};
use memferry::topology::TopologyError;

/// A failed calibration. Earlier measurements are lost; all memory is released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// A profile or a recording cannot be measured.
    #[error(
        "{machine} is a description and not the machine that this runs on; calibrate on the machine itself"
    )]
    NotHere {
        /// Name of the machine.
        machine: String,
    },
    /// This process may use no node with CPUs and memory.
    #[error("this process may use no node with CPUs and memory; run it in a cpuset that has both")]
    NoCpus,
    /// A thread could not be confined to a CPU.
    #[error(
        "a thread cannot be confined to a CPU ({0}); run it where sched_setaffinity is allowed, on CPUs that stay online"
    )]
    Pin(#[from] std::io::Error),
    /// Implausible times, such as larger copies that take less time.
    #[error("{what} is implausible: other programs disturb it; end them and run it again")]
    Disturbed {
        /// The measured quantity.
        what: &'static str,
    },
    /// The memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The copying threads could not be started.
    #[error(transparent)]
    Mover(#[from] MoverError),
    /// A copy failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The measured values contradict each other.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The model cannot predict from these values.
    #[error(transparent)]
    Model(#[from] ModelError),
}
