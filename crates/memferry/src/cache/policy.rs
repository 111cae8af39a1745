//! Placement policies: the node of a near copy.
//!
//! The cache calls its policy, a function, once for every access without a node. The arguments are those of the thesis'
//! policy functions - source node, requesting node, size - and the nodes with a budget.

use crate::topology::{Machine, NodeId};

/// The arguments of a placement policy. See [`CacheBuilder::placement`](super::CacheBuilder::placement).
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

impl Request<'_> {
    /// The nearest node with a budget that serves the reader faster than the source; not the fastest one.
    ///
    /// The reader is the requester, otherwise the node of the source. If both are unknown, it is `None`.
    pub fn nearest_faster(&self, machine: &Machine) -> Option<NodeId> {
        let reader = self.requester.or(self.source_node)?;
        let faster = machine.faster_than(reader).into_iter().map(|node| node.id);
        faster.take_while(|&node| Some(node) != self.source_node).find(|node| self.nodes.contains(node))
    }
}

/// A placement policy.
pub(super) type Placement = Box<dyn Fn(&Machine, &Request<'_>) -> Option<NodeId> + Send + Sync>;
