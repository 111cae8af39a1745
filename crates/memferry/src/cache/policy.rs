//! Placement policies: the node of a near copy.
//!
//! The cache calls its [`Placement`] once for every access without a node. A policy gets the arguments of the thesis'
//! policy functions - source node, requesting node, size - and the nodes with a budget.

use crate::topology::{Machine, NodeId};

/// The arguments of a placement policy.
#[derive(Copy, Clone, Debug)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The node of the source, if given at registration.
    pub source_node: Option<NodeId>,
    /// The node whose CPUs will read, if given in the access.
    pub requester: Option<NodeId>,
    /// Length of the range.
    pub size_bytes: usize,
    /// The nodes with a budget, ascending.
    pub nodes: &'a [NodeId],
}

/// Chooses the node of a near copy.
///
/// `place` runs on the accessing thread, without a lock of the cache, also on hits: keep it short. A panic in it reaches
/// the caller of [`Cache::access`](super::Cache::access) and does not change the cache.
pub trait Placement: Send + Sync + 'static {
    /// The node to copy to, one of `request.nodes`; `None` for no copy.
    ///
    /// Any other node is an [`AccessError::NoBudget`](super::AccessError::NoBudget).
    fn place(&self, machine: &Machine, request: &Request<'_>) -> Option<NodeId>;
}

/// Copies everything to one node, also data of that node itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FixedNode(pub NodeId);

impl Placement for FixedNode {
    fn place(&self, _: &Machine, _: &Request<'_>) -> Option<NodeId> {
        Some(self.0)
    }
}

/// Copies to the nearest node with a budget that serves the reader faster than the source; not to the fastest one.
///
/// The reader is the requester, otherwise the node of the source. If both are unknown, nothing is copied.
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
