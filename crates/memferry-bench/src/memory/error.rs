//! Errors of the benchmark.

use std::io;

use memferry::memory::MemoryError;
use memferry::topology::{NodeId, TopologyError};

/// A failed run. All memory is released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryBenchError {
    /// None of the nodes has CPUs that this process may use.
    #[error("none of the nodes has a CPU that this process may use; name a node with CPUs too")]
    NoCpus,
    /// None of the nodes has memory that this process may use.
    #[error("none of the nodes has memory that this process may use; name a node with memory too")]
    NoMemory,
    /// A node without CPUs and memory for this process.
    #[error(
        "this process may use neither CPUs nor memory of node {node}; `memferry topology` shows the nodes"
    )]
    NotUsable {
        /// The node.
        node: NodeId,
    },
    /// More threads than CPUs.
    #[error("{threads} threads are more than the largest domain has CPUs for; measure {cpus} at most")]
    TooManyThreads {
        /// The requested number.
        threads: usize,
        /// CPUs of the largest domain.
        cpus: usize,
    },
    /// A region above [`REGION_BYTES_MAX`](super::REGION_BYTES_MAX).
    #[error("{size_bytes} bytes for each thread are too many; measure 128 GiB at most")]
    TooLarge {
        /// The requested size.
        size_bytes: usize,
    },
    /// No kind of pages could be measured.
    #[error("the system gives no huge pages, and small ones are not requested: {0}")]
    NoPages(String),
    /// A node is unknown.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A thread could not be confined to a CPU.
    #[error(
        "a thread cannot be confined to a CPU ({0}); run it where sched_setaffinity is allowed, on CPUs that stay online"
    )]
    Pin(#[from] io::Error),
}
