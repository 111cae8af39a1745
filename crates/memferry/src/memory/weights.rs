//! The kernel's weights for weighted interleaving.
//!
//! Source: Linux `Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::MemoryError;
use super::syscall::Policy;
use crate::topology::sysfs::WEIGHTS;
use crate::topology::{Machine, NodeId, TopologyError};

/// The weight of each node with memory: its units in a row under
/// [`WeightedInterleave`](super::Binding::WeightedInterleave).
///
/// The weights apply to all processes; root sets them in the files `node*` of
/// `/sys/kernel/mm/mempolicy/weighted_interleave`. For a machine that is not this one they are 1, the kernel's default.
///
/// # Errors
/// [`MemoryError::Unsupported`] before Linux 6.9, [`MemoryError::Topology`] for unreadable or invalid files.
pub fn interleave_weights(machine: &Machine) -> Result<BTreeMap<NodeId, u32>, MemoryError> {
    let nodes = machine.nodes().iter().filter(|node| node.has_memory()).map(|node| node.id);
    match machine.is_this_machine() {
        true => read(Path::new("/"), nodes),
        false => Ok(nodes.map(|node| (node, 1)).collect()),
    }
}

fn read(root: &Path, nodes: impl Iterator<Item = NodeId>) -> Result<BTreeMap<NodeId, u32>, MemoryError> {
    let directory = root.join(WEIGHTS);
    if matches!(directory.try_exists(), Ok(false)) {
        return Err(MemoryError::unsupported(Policy::WeightedInterleave, io::ErrorKind::NotFound.into()));
    }
    let weight = |node: NodeId| {
        let path = directory.join(format!("node{node}"));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // The kernel lists possible nodes; a missing one has the default weight.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(1),
            Err(source) => {
                let advice = "make it readable for this user, or interleave without weights";
                return Err(TopologyError::Read { path, source, advice });
            }
        };
        match text.trim().parse::<u8>() {
            Ok(weight) => Ok(u32::from(weight).max(1)),
            Err(_) => Err(TopologyError::Parse {
                path,
                found: text.trim().to_owned(),
                expected: "a number up to 255",
            }),
        }
    };
    let weights: Result<_, _> = nodes.map(|node| Ok((node, weight(node)?))).collect();
    weights.map_err(|error: TopologyError| error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_node_by_node() {
        let root = tempfile::tempdir().unwrap();
        let nodes = || [0, 8, 9].map(NodeId).into_iter();
        let error = read(root.path(), nodes()).unwrap_err();
        assert!(error.to_string().contains("Linux 6.9"), "{error}");
        let directory = root.path().join(WEIGHTS);
        fs::create_dir_all(&directory).unwrap();
        let weight = |node: &str, text: &str| fs::write(directory.join(node), text).unwrap();
        weight("node0", "3\n");
        weight("node8", "255\n");
        let weights = read(root.path(), nodes()).unwrap();
        assert_eq!(weights, BTreeMap::from([(NodeId(0), 3), (NodeId(8), 255), (NodeId(9), 1)]));
        for nonsense in ["", "256", "-1", "x"] {
            weight("node9", nonsense);
            let error = read(root.path(), nodes()).unwrap_err();
            assert!(error.to_string().contains("node9"), "{error}");
        }
    }

    #[test]
    fn other_machines_have_the_default() {
        let weights = interleave_weights(&Machine::two_tiers().unwrap()).unwrap();
        assert_eq!(weights, BTreeMap::from([(NodeId(0), 1), (NodeId(1), 1)]));
    }
}
