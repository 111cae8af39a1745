//! The error of mappings and pools.

use std::io;

use super::Placement;
use super::syscall::Policy;
use crate::topology::{NodeId, NodeSet, TopologyError};

/// The error of a mapping or a pool. Existing memory keeps its content. Pages of a failed request are freed, except those of
/// [`Mapping::populate`](super::Mapping::populate).
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
    /// The cpuset of this process, or of its container, excludes the node.
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
    /// An empty set of nodes.
    #[error("the binding names no node; choose from {}, or use no binding", or_none(allowed))]
    NoNodes {
        /// The nodes with memory that this process may use.
        allowed: NodeSet,
    },
    /// The kernel is too old for the binding.
    #[error("this kernel has no {what} ({source}), which came with Linux {since}; use {instead} instead")]
    Unsupported {
        /// The missing feature.
        what: &'static str,
        /// The first release that has it.
        since: &'static str,
        /// A similar binding.
        instead: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The node is smaller than the budget.
    #[error(
        "a budget of {budget_bytes} bytes is more than the {memory_bytes} bytes of node {node}; lower it"
    )]
    BudgetTooLarge {
        /// The node.
        node: NodeId,
        /// The requested budget.
        budget_bytes: usize,
        /// The memory of the node.
        memory_bytes: u64,
    },
    /// Too little memory is free now. Retry after some is freed.
    #[error(
        "{size_bytes} bytes do not fit: {place} has {available_bytes} bytes available, of which {spare_bytes} must \
         stay free; request less, or free some memory"
    )]
    NoRoom {
        /// `this machine`, the nodes that this process may use, one of its cgroups, or a node.
        place: String,
        /// The requested size, or the counted part of it that was still missing.
        size_bytes: usize,
        /// Memory available without swapping.
        available_bytes: u64,
        /// The part of it that must stay free.
        spare_bytes: u64,
    },
    /// The node filled up meanwhile. The pages were freed; retry later, or use a preference.
    #[error(
        "{pages_elsewhere_count} or more of {pages_count} pages did not fit on node {node}, and all were freed; \
         request less, or prefer the node instead of binding to it"
    )]
    Misplaced {
        /// The node.
        node: NodeId,
        /// Pages on other nodes at the time of the failure.
        pages_elsewhere_count: usize,
        /// All pages.
        pages_count: usize,
    },
    /// Existing memory did not fit on the node. Its content and binding are unchanged, and moved pages were moved back as
    /// far as there was room.
    #[error(
        "{pages_elsewhere_count} or more of {pages_count} pages did not fit on node {node}; their nodes now: \
         {placement}; free memory there and try again, or prefer the node instead of binding to it"
    )]
    NotMoved {
        /// The node.
        node: NodeId,
        /// Pages that were not on the node at the time of the failure.
        pages_elsewhere_count: usize,
        /// All pages that the binding puts there.
        pages_count: usize,
        /// The nodes of all pages of the memory now.
        placement: Placement,
    },
    /// The kernel dropped or swapped out pages as often as they were populated.
    #[error(
        "the kernel reclaims pages as soon as they are populated, {pages_absent_count} of {pages_count} last; free some \
         memory, and try again"
    )]
    Reclaimed {
        /// Pages that are not in memory.
        pages_absent_count: usize,
        /// All pages of the step.
        pages_count: usize,
    },
    /// The pages of a failed request could not be freed and stay allocated.
    #[error("{error}; its pages could not be freed and stay allocated ({source})")]
    NotGivenBack {
        /// The error of the request.
        error: Box<MemoryError>,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The memory was made for this machine, and the description is of another one, or the reverse. Nothing was changed.
    #[error("this memory was not made for the machine {machine}; pass the description that it was made with")]
    OtherMachine {
        /// The machine of the call.
        machine: String,
    },
    /// No node that the CPUs can use has enough free memory.
    #[error(
        "no memory for the CPUs of node {cpus} has {size_bytes} bytes free ({}); request less, or free some memory",
        each(free_bytes)
    )]
    NoneWithRoom {
        /// The node with the CPUs.
        cpus: NodeId,
        /// The requested size.
        size_bytes: usize,
        /// The free memory of each allowed node, fastest first.
        free_bytes: Vec<(NodeId, u64)>,
    },
    /// The pool has no room now; it is unchanged. Retry after blocks are dropped.
    #[error(
        "the pool on node {node} has no {size_bytes} contiguous bytes left ({used_bytes} of {budget_bytes} in \
         use); drop blocks, or raise its budget"
    )]
    Full {
        /// The pool's node.
        node: NodeId,
        /// The requested size, rounded up to pages.
        size_bytes: usize,
        /// Bytes in blocks.
        used_bytes: usize,
        /// The budget.
        budget_bytes: usize,
    },
    /// More than the budget of the pool. A retry fails again.
    #[error(
        "{size_bytes} bytes exceed the budget of {budget_bytes} bytes of the pool on node {node}; request less, or \
         raise its budget"
    )]
    TooLarge {
        /// The pool's node.
        node: NodeId,
        /// The requested size.
        size_bytes: usize,
        /// The budget.
        budget_bytes: usize,
    },
    /// A system call failed.
    #[error("{call} for {size_bytes} bytes failed: {source}; {advice}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// The size of the memory.
        size_bytes: usize,
        /// The error of the kernel.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
}

/// The "call" of errors of a [`PoolMemory`](super::PoolMemory).
pub(super) const SUPPLIER: &str = "the supplier of the pool";

impl MemoryError {
    pub(super) fn refused(call: &'static str, size_bytes: usize, source: io::Error) -> MemoryError {
        let advice = match call {
            "mmap" | "mprotect" | "mlock2" => {
                "request less, or raise the limits (ulimit -v, vm.overcommit_memory, vm.max_map_count; after mlockall \
                 also ulimit -l)"
            }
            SUPPLIER => "request less, or supply more memory",
            "madvise" => "request less, or free some memory",
            "mbind" => "the node must be online and allowed: see Mems_allowed_list in /proc/self/status",
            "PAGEMAP_SCAN" => "it needs Linux 6.7",
            _ => {
                "the node must be allowed (Mems_allowed_list in /proc/self/status), and the container must \
                 allow the call"
            }
        };
        MemoryError::Refused { call, size_bytes, source, advice }
    }

    /// The error of a policy on nodes that have been checked.
    pub(super) fn policy(policy: Policy, size_bytes: usize, source: io::Error) -> MemoryError {
        // On such nodes only a kernel that does not know the policy answers with an invalid argument.
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
