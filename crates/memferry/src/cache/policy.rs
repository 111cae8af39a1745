//! Where a near copy goes.
//!
//! The cache asks its [`Placement`] once for every access that does not name a node itself. A policy sees what the
//! thesis' policy functions see - source node, requesting node, size - and the nodes among which it may choose.

use crate::topology::{Machine, NodeId};

/// What a policy may look at.
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// Where the source lies, if its owner said so.
    pub source_node: Option<NodeId>,
    /// The node whose CPUs will read, if the caller said so.
    pub requester: Option<NodeId>,
    /// Length of the range.
    pub size_bytes: usize,
    /// The nodes that have a budget, ascending.
    pub nodes: &'a [NodeId],
}

/// Chooses the node of a near copy.
///
/// `place` is called on the accessing thread, without any lock of the cache, and on hits as well: keep it short. A
/// panic in it reaches the caller of [`Cache::access`](super::Cache::access) and changes nothing in the cache.
pub trait Placement: Send + Sync + 'static {
    /// The node to copy to, out of `request.nodes`; `None` leaves the data where it is.
    ///
    /// Any other node is an [`AccessError::NoBudget`](super::AccessError::NoBudget).
    fn place(&self, machine: &Machine, request: &Request<'_>) -> Option<NodeId>;
}

/// Everything to one node, wherever it comes from, that node included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FixedNode(pub NodeId);

impl Placement for FixedNode {
    fn place(&self, _: &Machine, _: &Request<'_>) -> Option<NodeId> {
        Some(self.0)
    }
}

/// To the nearest memory with a budget that serves the reader faster than where the data lies; not to the fastest.
///
/// The reader is the requester; if it is unknown, whoever sits next to the data; if both are unknown, nothing moves.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NearestFaster;

impl Placement for NearestFaster {
    fn place(&self, machine: &Machine, request: &Request<'_>) -> Option<NodeId> {
        let reader = request.requester.or(request.source_node)?;
        machine
            .faster_than(reader)
            .into_iter()
            .map(|node| node.id)
            .take_while(|&node| Some(node) != request.source_node)
            .find(|node| request.nodes.contains(node))
    }
}

impl<F> Placement for F
where
    F: Fn(&Machine, &Request<'_>) -> Option<NodeId> + Send + Sync + 'static,
{
    fn place(&self, machine: &Machine, request: &Request<'_>) -> Option<NodeId> {
        self(machine, request)
    }
}
