//! Why there is no memory.

use std::io;

use super::Placement;
use super::syscall::Policy;
use crate::topology::{NodeId, NodeSet, TopologyError};

/// Why memory could not be had. Memory that was there before keeps its content. What a refused request brought goes
/// back, but for what [`Mapping::populate`](super::Mapping::populate) brought.
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
    /// This process may not take memory from the node: its cpuset, or that of its container, leaves it out.
    #[error(
        "this process may not use the memory of node {node}; choose from {}, or have the node \
         added to cpuset.mems of its cgroup",
        or_none(allowed)
    )]
    NotAllowed {
        /// The node.
        node: NodeId,
        /// The nodes with memory that it may use.
        allowed: NodeSet,
    },
    /// A set of nodes without any.
    #[error("no node was named to place memory on; choose from {}, or use no binding", or_none(allowed))]
    NoNodes {
        /// The nodes with memory that this process may use.
        allowed: NodeSet,
    },
    /// The kernel is too old for this.
    #[error("this kernel has no {what} ({source}), which came with Linux {since}; use {instead} instead")]
    Unsupported {
        /// What it does not have.
        what: &'static str,
        /// The first release that has it.
        since: &'static str,
        /// What does nearly the same.
        instead: &'static str,
        /// What the kernel answered.
        source: io::Error,
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
    /// Too little is free now. Try again when memory has been freed.
    #[error(
        "{size_bytes} bytes do not fit: {place} has {available_bytes} bytes available, of which {spare_bytes} must \
         stay free; ask for less, or free some memory"
    )]
    NoRoom {
        /// `this machine`, the nodes that this process may use, a cgroup of it, or a node.
        place: String,
        /// What was asked for, or what of it was still to come, as far as it had been counted.
        size_bytes: usize,
        /// What could be had without swapping.
        available_bytes: u64,
        /// What is kept back from it.
        spare_bytes: u64,
    },
    /// The node filled up meanwhile. The pages were given back; try again later, or prefer the node.
    #[error(
        "{pages_elsewhere_count} or more of {pages_count} pages did not fit on node {node}, and all were given \
         back; ask for less, or prefer the node instead of binding to it"
    )]
    Misplaced {
        /// The node.
        node: NodeId,
        /// Pages that ended up on other nodes, when it was given up.
        pages_elsewhere_count: usize,
        /// All pages.
        pages_count: usize,
    },
    /// Memory that was there already could not all be brought to the node. Its content is intact, its binding
    /// is what it was, and pages that had been moved were moved back as far as there was room.
    #[error(
        "{pages_elsewhere_count} or more of {pages_count} pages did not fit on node {node}; where they are now: \
         {placement}; free memory there and try again, or prefer the node instead of binding to it"
    )]
    NotMoved {
        /// The node.
        node: NodeId,
        /// Pages that did not get there, when it was given up.
        pages_elsewhere_count: usize,
        /// All pages that should be there.
        pages_count: usize,
        /// Where all pages of the memory are now.
        placement: Placement,
    },
    /// Pages were gone again, dropped or swapped out, as often as they were brought.
    #[error(
        "the kernel takes pages away as they come, {pages_absent_count} of {pages_count} last; free some memory, and \
         try again"
    )]
    Reclaimed {
        /// Pages that are nowhere.
        pages_absent_count: usize,
        /// All pages that were brought together.
        pages_count: usize,
    },
    /// What a refused request had brought could not be given back, and stays allocated.
    #[error("{error}; the pages that had come could not be given back and stay allocated ({source})")]
    NotGivenBack {
        /// Why the request was refused.
        error: Box<MemoryError>,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The memory was made for another machine than the description that was given now: for this machine with the
    /// description of another, or the other way round. Nothing was changed.
    #[error("this memory was not made for the machine {machine}; give the description that it was made with")]
    OtherMachine {
        /// The machine that was given.
        machine: String,
    },
    /// No memory that the CPUs can use has so much free.
    #[error(
        "no memory for the CPUs of node {cpus} has {size_bytes} bytes free ({}); ask for less, or free some memory",
        each(free_bytes)
    )]
    NoneWithRoom {
        /// The node with the CPUs.
        cpus: NodeId,
        /// What was asked for.
        size_bytes: usize,
        /// What each allowed memory has, fastest first.
        free_bytes: Vec<(NodeId, u64)>,
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
            "mmap" | "mprotect" | "mlock2" => {
                "ask for less, or raise the limits (ulimit -v, vm.overcommit_memory, vm.max_map_count; after mlockall \
                 also ulimit -l)"
            }
            "madvise" => "ask for less, or free some memory",
            "mbind" => "the node must be online and allowed: see Mems_allowed_list in /proc/self/status",
            _ => {
                "the node must be allowed (Mems_allowed_list in /proc/self/status), and the container must \
                 allow the call"
            }
        };
        MemoryError::Refused { call, size_bytes, source, advice }
    }

    /// Why the kernel did not take a policy on nodes that have been checked.
    pub(super) fn policy(policy: Policy, size_bytes: usize, source: io::Error) -> MemoryError {
        // On such nodes it is an invalid argument only to a kernel that does not know it.
        match policy {
            Policy::PreferredMany | Policy::WeightedInterleave
                if source.raw_os_error() == Some(libc::EINVAL) =>
            {
                MemoryError::unsupported(policy, source)
            }
            _ => MemoryError::refused("mbind", size_bytes, source),
        }
    }

    pub(super) fn unsupported(policy: Policy, source: io::Error) -> MemoryError {
        let (what, since, instead) = match policy {
            Policy::PreferredMany => ("preference for several nodes", "5.15", "Binding::Prefer"),
            _ => ("weighted interleaving", "6.9", "Binding::Interleave"),
        };
        MemoryError::Unsupported { what, since, instead, source }
    }
}

fn or_none(nodes: &NodeSet) -> String {
    if nodes.is_empty() { "none".into() } else { nodes.to_string() }
}

fn each(free_bytes: &[(NodeId, u64)]) -> String {
    let each: Vec<_> = free_bytes.iter().map(|(node, bytes)| format!("node {node}: {bytes}")).collect();
    if each.is_empty() { "there is none".into() } else { each.join(", ") }
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
