//! How an access is made, and what can be wrong with one.

use std::ops::BitOr;

use crate::memory::MemoryError;
use crate::mover::{Consumer, Route};
use crate::topology::{NodeId, TopologyError};

/// Wishes that hold for a cache, a call, or a handle; those of the cache are added to those of each call, and an entry
/// starts with both.
#[derive(Copy, Clone, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No wishes.
    pub const NONE: Flags = Flags(0);
    /// [`Entry::wait`](super::Entry::wait) looks once instead of sleeping.
    pub const WEAK_WAIT: Flags = Flags(1);
    /// The device resolves page faults itself, blocking other work of its engine meanwhile, instead of handing them
    /// back to software. Matters to the call that starts the copy.
    pub const BLOCK_ON_FAULT: Flags = Flags(2);

    /// Whether all of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [(Flags::WEAK_WAIT, "WEAK_WAIT"), (Flags::BLOCK_ON_FAULT, "BLOCK_ON_FAULT")];
        f.debug_set()
            .entries(names.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name))
            .finish()
    }
}

/// Options of one access; the default leaves everything to the cache.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Added to the cache's.
    pub flags: Flags,
    /// The node to copy to; asks no placement policy.
    pub near: Option<NodeId>,
    /// The node whose CPUs will read, for the placement policy.
    pub requester: Option<NodeId>,
    /// Who copies, if it starts a copy; `None` leaves it to the mover.
    pub route: Option<Route>,
    /// Who reads next, if it starts a copy: whether a device writes to the last-level cache or to the node's memory.
    pub consumer: Consumer,
}

impl Access {
    /// To this node, whatever the policy says.
    pub fn near(node: NodeId) -> Access {
        Access { near: Some(node), ..Access::default() }
    }

    /// With these flags.
    pub fn flags(flags: Flags) -> Access {
        Access { flags, ..Access::default() }
    }
}

/// Why an access was refused. Nothing was counted or started; asking the same again gives the same answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is not inside the region.
    #[error("bytes {start}..{end} are not a range of a region of {len} bytes; ask for a part of 0..{len}")]
    OutOfRange {
        /// First byte asked for.
        start: usize,
        /// The byte after the last one asked for.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The call or the placement policy named a node without a budget.
    #[error(
        "the cache has no budget on node {node}, only on {}; name one of these or give it one when building",
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

/// Why a cache was not built. No memory was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No node was given a budget.
    #[error("a cache needs a budget on at least one node; add `.budget(node, bytes)`")]
    NoBudget,
    /// A budget that holds nothing.
    #[error(
        "a budget of {budget_bytes} bytes on node {node} holds nothing; give it at least one page, or leave it out"
    )]
    BudgetTooSmall {
        /// The node.
        node: NodeId,
        /// What it was given.
        budget_bytes: usize,
    },
    /// The mover's machine has no such node.
    #[error(transparent)]
    UnknownNode(#[from] TopologyError),
    /// The pool of a node could not be set up.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

fn join(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
