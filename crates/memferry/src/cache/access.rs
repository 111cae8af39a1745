//! Options and errors of accesses.

use crate::memory::MemoryError;
use crate::mover::{Consumer, Route};
use crate::topology::{NodeId, TopologyError};

/// Options of one access. The default leaves all decisions to the cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The node to copy to, in place of the placement policy.
    pub near: Option<NodeId>,
    /// The node whose CPUs will read, for the placement policy and for the mover's copy policy.
    pub requester: Option<NodeId>,
    /// The route of a started copy; `None` for the mover's.
    pub route: Option<Route>,
    /// The next reader of a started copy. A device writes to the last-level cache or to memory accordingly.
    pub consumer: Consumer,
    /// Lets the device that makes a started copy wait on page faults, if its queue allows that; see
    /// [`CopyOptions::block_on_fault`](crate::mover::CopyOptions::block_on_fault).
    pub block_on_fault: bool,
}

impl Access {
    /// An access that copies to `node`.
    pub fn near(node: NodeId) -> Access {
        Access { near: Some(node), ..Access::default() }
    }
}

/// The error of an access. Nothing was counted or started; a retry fails again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is not inside the region.
    #[error("bytes {start}..{end} are not a range of a region of {len} bytes; pass a part of 0..{len}")]
    OutOfRange {
        /// Start of the requested range.
        start: usize,
        /// End of the requested range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The call or the placement policy named a node without a budget.
    #[error(
        "the cache has no budget on node {node}, only on {}; pass one of these nodes, or add a budget to the builder",
        join(nodes)
    )]
    NoBudget {
        /// The node.
        node: NodeId,
        /// Nodes with a budget.
        nodes: Vec<NodeId>,
    },
    /// Another cache registered the region.
    #[error("region {id} was registered with another cache; register its owner with this one")]
    ForeignRegion {
        /// The region's id.
        id: u64,
    },
}

/// The error of building a cache. No memory was allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No node has a budget.
    #[error("a cache needs a budget on at least one node; add `.budget(node, bytes)`")]
    NoBudget,
    /// A budget below one page.
    #[error(
        "the budget of {budget_bytes} bytes on node {node} is below one page; raise it to at least one page, or leave the node out"
    )]
    BudgetTooSmall {
        /// The node.
        node: NodeId,
        /// Its budget.
        budget_bytes: usize,
    },
    /// The mover's machine has no such node.
    #[error(transparent)]
    UnknownNode(#[from] TopologyError),
    /// The pool of a node could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

fn join(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
