//! Bindings: the nodes of a mapping's pages.
//!
//! Interleaving is a fixed pattern of the kernel over addresses: unit `i` of the address space (a huge page or a page)
//! comes from place `i` modulo the sum of the weights. So the share of each node is known in advance, if the huge pages
//! are known, and an existing mapping can be moved into the pattern.
//!
//! Source: `interleave_nid` and `weighted_interleave_nid` in Linux mm/mempolicy.c.

use super::syscall::{self, HUGE_PAGE_BYTES, Policy, page_bytes};
use super::{MemoryError, weights};
use crate::topology::{Machine, Node, NodeId, NodeSet};

/// The nodes of a mapping's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binding {
    /// Any node, chosen by the kernel.
    #[default]
    Any,
    /// All pages on this node, or an error.
    Bind(NodeId),
    /// This node while it has room; [`Placement::of`](super::Placement::of) shows the result.
    Prefer(NodeId),
    /// These nodes while they have room, first the one nearest to the thread that first touches a page. Like
    /// [`Prefer`](Binding::Prefer) it checks no room in advance. Linux 5.15.
    PreferMany(NodeSet),
    /// These nodes in turn, by page, or by huge page where those are used. Each node must have room for its share; pages
    /// that do not fit there later come from other nodes.
    Interleave(NodeSet),
    /// `Interleave` with as many units in a row per node as its weight, which root sets
    /// in `/sys/kernel/mm/mempolicy/weighted_interleave`. Linux 6.9.
    WeightedInterleave(NodeSet),
}

impl Binding {
    /// Its node, if it names exactly one.
    pub fn node(&self) -> Option<NodeId> {
        match *self {
            Binding::Bind(node) | Binding::Prefer(node) => Some(node),
            _ => None,
        }
    }

    /// The nodes that it names: none, one, or a set.
    pub fn nodes(&self) -> NodeSet {
        match self {
            Binding::Any => NodeSet::default(),
            Binding::Bind(node) | Binding::Prefer(node) => NodeSet::from(*node),
            Binding::PreferMany(nodes) | Binding::Interleave(nodes) | Binding::WeightedInterleave(nodes) => {
                nodes.clone()
            }
        }
    }

    pub(super) fn policy(&self) -> Policy {
        match self {
            Binding::Any => Policy::Default,
            Binding::Bind(_) | Binding::Prefer(_) => Policy::Preferred,
            Binding::PreferMany(_) => Policy::PreferredMany,
            Binding::Interleave(_) => Policy::Interleave,
            Binding::WeightedInterleave(_) => Policy::WeightedInterleave,
        }
    }

    /// Checks that all nodes exist, have memory, and are allowed. `now` is the set of nodes that the kernel allows this
    /// thread now, if known: the machine's description may be older, and of another thread.
    pub(super) fn check(&self, machine: &Machine, now: Option<&NodeSet>) -> Result<(), MemoryError> {
        let is_allowed = |node: &Node| is_allowed(node, now);
        let allowed = || -> NodeSet {
            let usable = machine.nodes().iter().filter(|node| node.has_memory() && is_allowed(node));
            usable.map(|node| node.id).collect()
        };
        let nodes = self.nodes();
        if nodes.is_empty() && *self != Binding::Any {
            return Err(MemoryError::NoNodes { allowed: allowed() });
        }
        for id in nodes.iter() {
            let node = machine.node(id)?;
            if !node.has_memory() {
                return Err(MemoryError::NodeWithoutMemory { node: id });
            }
            if !is_allowed(node) {
                return Err(MemoryError::NotAllowed { node: id, allowed: allowed() });
            }
        }
        Ok(())
    }

    /// The nodes that limit this thread when it populates pages with this binding.
    pub(super) fn reach(&self) -> Reach {
        let Ok(allowed) = syscall::allowed_nodes() else { return Reach::default() };
        let Ok(Some(strict)) = syscall::strictly_bound_nodes() else {
            return Reach { pages: Some(allowed), tables: None };
        };
        // A preference fills the node, and then a strictly bound thread finds no memory for its page tables.
        let fills_up = match self {
            Binding::Any => true,
            Binding::Prefer(_) | Binding::PreferMany(_) => {
                self.nodes().iter().any(|node| strict.contains(node))
            }
            // These are checked for each node.
            Binding::Bind(_) | Binding::Interleave(_) | Binding::WeightedInterleave(_) => false,
        };
        let pages = allowed.iter().filter(|&node| !fills_up || strict.contains(node)).collect();
        Reach { pages: Some(pages), tables: Some(strict) }
    }

    /// The node that must hold all pages, if there is one.
    pub(super) fn bound_node(&self) -> Option<NodeId> {
        match *self {
            Binding::Bind(node) => Some(node),
            _ => None,
        }
    }

    /// The interleaving pattern, if there is one.
    pub(super) fn pattern(
        &self,
        machine: &Machine,
        comes_huge: bool,
    ) -> Result<Option<Pattern>, MemoryError> {
        let turns = match self {
            Binding::Interleave(nodes) => nodes.iter().map(|node| (node, 1)).collect(),
            Binding::WeightedInterleave(nodes) => {
                let weights = weights::interleave_weights(machine)?;
                nodes.iter().map(|node| (node, weights.get(&node).copied().unwrap_or(1))).collect()
            }
            _ => return Ok(None),
        };
        Ok(Some(Pattern::new(turns, comes_huge)))
    }
}

/// Whether this process may use a node's memory: by the kernel's set `now`, else by the description.
pub(super) fn is_allowed(node: &Node, now: Option<&NodeSet>) -> bool {
    now.map_or(node.is_allowed, |now| now.contains(node.id))
}

/// The nodes that this thread may use now, if `machine` is this one and the kernel tells.
pub(super) fn allowed_now(machine: &Machine) -> Option<NodeSet> {
    if machine.is_this_machine() { syscall::allowed_nodes().ok() } else { None }
}

/// The nodes that a thread's memory comes from, where known.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// For the requested pages.
    pub(super) pages: Option<NodeSet>,
    /// For their page tables, if the policy of the thread is strict (`numactl --membind`).
    pub(super) tables: Option<NodeSet>,
}

/// A repeating order of nodes over units of addresses.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Nodes, ascending, and the units in a row of each; never 0.
    turns: Vec<(NodeId, u32)>,
    /// Sum of the turns.
    period: usize,
    /// Whether empty huge-page units get huge pages.
    pub(super) comes_huge: bool,
}

impl Pattern {
    pub(super) fn new(turns: Vec<(NodeId, u32)>, comes_huge: bool) -> Pattern {
        let period = turns.iter().map(|&(_, units)| units as usize).sum();
        Pattern { turns, period, comes_huge }
    }

    /// The node of an address in a huge or a small page. A mapping has both: tails and fragmented parts are small.
    pub(super) fn node_at(&self, address: usize, is_huge: bool) -> NodeId {
        let unit_bytes = if is_huge { HUGE_PAGE_BYTES } else { page_bytes() };
        let mut place = address / unit_bytes % self.period;
        for &(node, units) in &self.turns {
            match place.checked_sub(units as usize) {
                Some(rest) => place = rest,
                None => return node,
            }
        }
        unreachable!("the place is below the sum of the turns")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sets_are_checked_node_by_node() {
        let machine = Machine::two_tiers().unwrap();
        let set = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<NodeSet>();
        for many in [Binding::PreferMany, Binding::Interleave, Binding::WeightedInterleave] {
            many(set(&[0, 1])).check(&machine, None).unwrap();
            let error = many(set(&[])).check(&machine, None).unwrap_err();
            assert!(error.to_string().contains("0-1"), "{error}");
            let error = many(set(&[0, 1, 9])).check(&machine, None).unwrap_err();
            assert!(error.to_string().contains("has no node 9"), "{error}");
            let error = many(set(&[0, 1])).check(&machine, Some(&set(&[0]))).unwrap_err();
            let MemoryError::NotAllowed { node, allowed } = &error else { panic!("{error:?}") };
            assert_eq!((*node, allowed), (NodeId(1), &set(&[0])));
            assert!(error.to_string().contains("choose from 0"), "{error}");
        }
        Binding::Any.check(&machine, Some(&set(&[]))).unwrap();
        assert!(Binding::Prefer(NodeId(1)).check(&machine, Some(&set(&[0]))).is_err());
    }

    proptest! {
        /// In one period each node has one turn, as long as its weight.
        #[test]
        fn turns_follow_the_weights(weights in prop::collection::vec(1u32..300, 1..5), round in 0usize..9) {
            let turns: Vec<_> = (0u32..).map(NodeId).zip(weights).collect();
            let pattern = Pattern::new(turns.clone(), true);
            let start = round * pattern.period;
            let units = start..start + pattern.period;
            let expected: Vec<_> =
                turns.iter().flat_map(|&(node, units)| std::iter::repeat_n(node, units as usize)).collect();
            for (is_huge, unit_bytes) in [(false, page_bytes()), (true, HUGE_PAGE_BYTES)] {
                // The last page of each.
                let node_at = |unit| pattern.node_at((unit + 1) * unit_bytes - page_bytes(), is_huge);
                let nodes: Vec<_> = units.clone().map(node_at).collect();
                prop_assert_eq!(&nodes, &expected);
            }
        }
    }
}
