//! Sets of nodes.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{NodeId, list};

/// Nodes, ascending, each once. Prints in the kernel's list format, `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(Vec<NodeId>);

impl NodeSet {
    /// Whether `node` is in it.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.binary_search(&node).is_ok()
    }

    /// The nodes, ascending.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.0.iter().copied()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        let mut nodes: Vec<NodeId> = nodes.into_iter().collect();
        nodes.sort_unstable();
        nodes.dedup();
        NodeSet(nodes)
    }
}

impl<const N: usize> From<[NodeId; N]> for NodeSet {
    fn from(nodes: [NodeId; N]) -> NodeSet {
        nodes.into_iter().collect()
    }
}

impl From<NodeId> for NodeSet {
    fn from(node: NodeId) -> NodeSet {
        NodeSet(vec![node])
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&list::print(self.0.iter().map(|node| node.0)))
    }
}

impl Serialize for NodeSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_the_kernel() {
        let set = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<NodeSet>();
        assert_eq!(set(&[]).to_string(), "");
        assert_eq!(set(&[5]).to_string(), "5");
        assert_eq!(set(&[8, 1, 0, 1, 3, 9]).to_string(), "0-1,3,8-9");
        assert_eq!(set(&[u32::MAX, u32::MAX - 1]).to_string(), format!("{}-{}", u32::MAX - 1, u32::MAX));
        assert!(set(&[8, 1]).contains(NodeId(8)) && !set(&[8, 1]).contains(NodeId(2)));
    }
}
