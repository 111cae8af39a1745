//! Why there is no memory.

use std::io;

use crate::topology::{NodeId, TopologyError};

/// Why memory could not be had. After an error nothing stays allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The machine has no such node, or its free memory cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The node has CPUs only.
    #[error("node {node} has no memory; choose one of the nodes with memory that `memferry topology` lists")]
    NodeWithoutMemory {
        /// The node.
        node: NodeId,
    },
    /// The node can never hold that much.
    #[error(
        "a budget of {budget_bytes} bytes is more than the {memory_bytes} bytes of node {node}; lower it"
    )]
    BudgetTooLarge {
        /// The node.
        node: NodeId,
        /// What was asked for.
        budget_bytes: usize,
        /// What the node has.
        memory_bytes: u64,
    },
    /// Too little is free now. Nothing was touched; try again when memory has been freed.
    #[error(
        "{size_bytes} bytes do not fit: {place} has {available_bytes} bytes available, of which {spare_bytes} must \
         stay free; ask for less, or free some memory"
    )]
    NoRoom {
        /// `this machine`, a cgroup of this process, or a node.
        place: String,
        /// What was asked for.
        size_bytes: usize,
        /// What could be had without swapping.
        available_bytes: u64,
        /// What is kept back from it.
        spare_bytes: u64,
    },
    /// The node filled up meanwhile. The pages were given back; try again later, or prefer the node.
    #[error(
        "{pages_elsewhere_count} of {pages_count} pages did not fit on node {node} and were given back; ask for \
         less, or prefer the node instead of binding to it"
    )]
    Misplaced {
        /// The node.
        node: NodeId,
        /// Pages that ended up on other nodes.
        pages_elsewhere_count: usize,
        /// All pages.
        pages_count: usize,
    },
    /// The kernel refused a call.
    #[error("{call} for {size_bytes} bytes failed: {source}; {advice}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// How much memory it was about.
        size_bytes: usize,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
}

impl MemoryError {
    pub(super) fn refused(call: &'static str, size_bytes: usize, source: io::Error) -> MemoryError {
        let advice = match call {
            "mmap" => "ask for less, or raise the limits (ulimit -v, vm.overcommit_memory, vm.max_map_count)",
            "madvise" => "ask for less, or free some memory",
            "mbind" => "the node must be online and allowed: see Mems_allowed_list in /proc/self/status",
            _ => {
                "the node must be allowed (Mems_allowed_list in /proc/self/status), and the container must \
                 allow the call"
            }
        };
        MemoryError::Refused { call, size_bytes, source, advice }
    }
}

/// Why a pool has no block to give. The pool is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No room now. Try again when blocks have been dropped.
    #[error(
        "the pool on node {node} has no {size_bytes} bytes in one piece left ({used_bytes} of {budget_bytes} in \
         use); drop blocks, or give it a larger budget"
    )]
    Full {
        /// The pool's node.
        node: NodeId,
        /// What was asked for, rounded up to pages.
        size_bytes: usize,
        /// What is in blocks.
        used_bytes: usize,
        /// All that may be.
        budget_bytes: usize,
    },
    /// More than the whole budget. Trying again is of no use.
    #[error(
        "{size_bytes} bytes never fit into the pool on node {node} with its {budget_bytes} bytes; ask for less, or \
         give it a larger budget"
    )]
    TooLarge {
        /// The pool's node.
        node: NodeId,
        /// What was asked for.
        size_bytes: usize,
        /// All that may be in blocks.
        budget_bytes: usize,
    },
    /// The budget has room, but the machine has not.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
