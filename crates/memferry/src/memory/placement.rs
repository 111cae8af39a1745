//! Where pages are.

use std::collections::BTreeMap;
use std::fmt;

use super::reservation::pages_of;
use super::{MemoryError, syscall};
use crate::topology::NodeId;

/// How many pages each node holds of some memory. Prints as `node 0: 12, node 8: 500, no page: 3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement(BTreeMap<Option<NodeId>, usize>);

impl Placement {
    /// Pages on `node`.
    pub fn on(&self, node: NodeId) -> usize {
        self.0.get(&Some(node)).copied().unwrap_or(0)
    }

    /// Pages that are nowhere: not touched yet, swapped out, or just then on their way from one place to another,
    /// also of the same node (compaction).
    pub fn absent(&self) -> usize {
        self.0.get(&None).copied().unwrap_or(0)
    }

    /// All pages, those that are nowhere included.
    pub fn pages_count(&self) -> usize {
        self.0.values().sum()
    }

    /// Pages that are on other nodes than `node`.
    pub fn elsewhere(&self, node: NodeId) -> usize {
        self.pages_count() - self.absent() - self.on(node)
    }

    pub(super) fn add(&mut self, node: Option<NodeId>, pages_count: usize) {
        if pages_count > 0 {
            *self.0.entry(node).or_default() += pages_count;
        }
    }

    /// Node by node, first what is nowhere; none with 0 pages.
    pub fn iter(&self) -> impl Iterator<Item = (Option<NodeId>, usize)> + '_ {
        self.0.iter().map(|(&node, &pages_count)| (node, pages_count))
    }
}

impl FromIterator<Option<NodeId>> for Placement {
    fn from_iter<I: IntoIterator<Item = Option<NodeId>>>(pages: I) -> Placement {
        let mut placement = Placement::default();
        pages.into_iter().for_each(|node| placement.add(node, 1));
        placement
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_nodes = self.iter().filter_map(|(node, count)| Some(format!("node {}: {count}", node?)));
        let absent = Some(self.absent()).filter(|&count| count > 0).map(|count| format!("no page: {count}"));
        f.pad(&on_nodes.chain(absent).collect::<Vec<_>>().join(", "))
    }
}

/// The node of each page that `bytes` touches, first to last; `None` where there is no page.
///
/// Asks the kernel, so the answer is about this machine, whatever [`Machine`](crate::topology::Machine) the
/// memory was made for.
///
/// # Errors
/// [`MemoryError::Refused`] where the call is not to be had.
///
/// Source: move_pages(2) without target nodes.
pub fn nodes_of_pages(bytes: &[u8]) -> Result<Vec<Option<NodeId>>, MemoryError> {
    Ok(look(bytes)?.into_iter().map(node_of).collect())
}

/// How many of the pages that `bytes` touches are on which node: [`nodes_of_pages`], counted.
///
/// # Errors
/// As [`nodes_of_pages`].
pub fn pages_per_node(bytes: &[u8]) -> Result<Placement, MemoryError> {
    Ok(look(bytes)?.into_iter().map(node_of).collect())
}

fn look(bytes: &[u8]) -> Result<Vec<i16>, MemoryError> {
    syscall::nodes_of(pages_of(bytes.as_ptr(), bytes.len()))
        .map_err(|source| MemoryError::refused("move_pages", bytes.len(), source))
}

/// What the kernel says of a page: its node, or why there is none.
pub(super) fn node_of(answer: i16) -> Option<NodeId> {
    u32::try_from(answer).ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_prints() {
        let pages = [Some(8), None, Some(0), Some(8)].map(|node| node.map(NodeId));
        let placement: Placement = pages.into_iter().collect();
        assert_eq!(placement.to_string(), "node 0: 1, node 8: 2, no page: 1");
        assert_eq!((placement.on(NodeId(8)), placement.on(NodeId(9)), placement.absent()), (2, 0, 1));
        assert_eq!((placement.pages_count(), placement.elsewhere(NodeId(0))), (4, 2));
        assert_eq!(Placement::default().to_string(), "");
    }
}
