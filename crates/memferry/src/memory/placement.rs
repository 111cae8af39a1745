//! Placement: the nodes of pages.

use std::collections::BTreeMap;
use std::fmt;

use super::reservation::pages_of;
use super::{MemoryError, syscall};
use crate::topology::NodeId;

/// The number of pages of some memory on each node. Prints as `node 0: 12, node 8: 500, no page: 3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement(BTreeMap<Option<NodeId>, usize>);

impl Placement {
    /// Looks at the pages that `bytes` touches.
    ///
    /// The kernel answers for this machine, also if the memory was made for another [`Machine`](crate::topology::Machine).
    ///
    /// ```
    /// # use memferry::memory::Placement;
    /// let bytes = vec![1_u8; 1 << 20];
    /// if let Ok(placement) = Placement::of(&bytes) {
    ///     println!("{placement}"); // node 0: 257
    /// }
    /// ```
    ///
    /// # Errors
    /// [`MemoryError::Refused`] if the system call is not available.
    ///
    /// Source: move_pages(2) without target nodes.
    pub fn of(bytes: &[u8]) -> Result<Placement, MemoryError> {
        Ok(look(bytes)?.into_iter().map(node_of).collect())
    }

    /// Pages on `node`.
    pub fn on(&self, node: NodeId) -> usize {
        self.0.get(&Some(node)).copied().unwrap_or(0)
    }

    /// Pages that are not in memory: never touched, swapped out, or in migration, perhaps within a node (compaction).
    pub fn absent(&self) -> usize {
        self.0.get(&None).copied().unwrap_or(0)
    }

    /// All pages, including absent ones.
    pub fn pages_count(&self) -> usize {
        self.0.values().sum()
    }

    /// Pages on nodes other than `node`.
    pub fn elsewhere(&self, node: NodeId) -> usize {
        self.pages_count() - self.absent() - self.on(node)
    }

    pub(super) fn add(&mut self, node: Option<NodeId>, pages_count: usize) {
        if pages_count > 0 {
            *self.0.entry(node).or_default() += pages_count;
        }
    }

    /// Page counts by node, absent pages first, without zeros.
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

/// The node of each page that `bytes` touches, first to last; `None` where there is no page. See [`Placement::of`].
///
/// # Errors
/// [`MemoryError::Refused`] if the system call is not available.
#[cfg(feature = "internals")]
pub fn nodes_of_pages(bytes: &[u8]) -> Result<Vec<Option<NodeId>>, MemoryError> {
    Ok(look(bytes)?.into_iter().map(node_of).collect())
}

fn look(bytes: &[u8]) -> Result<Vec<i16>, MemoryError> {
    syscall::nodes_of(pages_of(bytes.as_ptr(), bytes.len()))
        .map_err(|source| MemoryError::refused("move_pages", bytes.len(), source))
}

/// The node in the kernel's answer for a page; `None` for an error number.
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
