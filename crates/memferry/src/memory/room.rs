//! Is there room for so many bytes, here or on that node?

use std::fs;
use std::path::Path;

use super::MemoryError;
use crate::topology::{Machine, NodeId, TopologyError, meminfo};

/// This part of a memory stays free: its last pages are dear to the kernel (watermarks, per-CPU lists), and
/// the answer is a little old when it is used. Chosen, not measured; the kernel's own low watermarks are
/// below 1 %.
const SPARE_DIVISOR: u64 = 32;

/// An error unless `size_bytes` more fit into this machine, and, given a node, on it. `root` is `/`.
pub(super) fn check(
    root: &Path,
    machine: &Machine,
    node: Option<NodeId>,
    size_bytes: usize,
) -> Result<(), MemoryError> {
    fits("this machine", &root.join("proc/meminfo"), size_bytes)?;
    match node {
        // With one node the machine's figures are the node's, and better (see topology::sysfs).
        Some(node) if machine.node_count() > 1 => {
            let file = format!("sys/devices/system/node/node{node}/meminfo");
            fits(&format!("node {node}"), &root.join(file), size_bytes)
        }
        _ => Ok(()),
    }
}

fn fits(place: &str, file: &Path, size_bytes: usize) -> Result<(), MemoryError> {
    let text = fs::read_to_string(file).map_err(|source| TopologyError::Read {
        path: file.to_owned(),
        source,
        advice: "without it nobody knows how much memory is free; mount it, or if a node went offline choose another",
    })?;
    let Some(memory) = meminfo::parse(&text) else {
        return Err(TopologyError::Parse {
            path: file.to_owned(),
            found: text.lines().next().unwrap_or_default().to_owned(),
            expected: "lines such as `MemTotal: 8192 kB`",
        }
        .into());
    };
    let spare_bytes = memory.total_bytes / SPARE_DIVISOR;
    if (size_bytes as u64).saturating_add(spare_bytes) <= memory.available_bytes {
        return Ok(());
    }
    let place = place.to_owned();
    Err(MemoryError::NoRoom { place, size_bytes, available_bytes: memory.available_bytes, spare_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(machine_kib: u64, node_1_kib: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join("sys/devices/system/node/node1");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let machine = format!("MemTotal: 64000 kB\nMemFree: 0 kB\nMemAvailable: {machine_kib} kB\n");
        fs::write(root.path().join("proc/meminfo"), machine).unwrap();
        let node_1 = format!("Node 1 MemTotal: 32000 kB\nNode 1 MemFree: {node_1_kib} kB\n");
        fs::write(node.join("meminfo"), node_1).unwrap();
        root
    }

    #[test]
    fn a_node_keeps_a_spare() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        // A thirty-second of 32000 kB stays free: 4000 of the 5000 kB can be had.
        let check = |kib: usize| check(root.path(), &machine, Some(NodeId(1)), kib << 10);
        check(4000).unwrap();
        let error = check(4001).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
        assert!(error.to_string().contains("node 1 has 5120000 bytes available"), "{error}");
        assert!(matches!(check(usize::MAX >> 10), Err(MemoryError::NoRoom { .. })));
    }

    #[test]
    fn the_machine_counts_too() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(3000, 30000);
        check(root.path(), &machine, Some(NodeId(1)), 1000 << 10).unwrap();
        let error = check(root.path(), &machine, Some(NodeId(1)), 1001 << 10).unwrap_err();
        assert!(error.to_string().contains("this machine"), "{error}");
        assert!(check(root.path(), &machine, None, 1001 << 10).is_err());
    }

    #[test]
    fn a_node_that_vanished_is_an_error() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let error = check(root.path(), &machine, Some(NodeId(7)), 4096).unwrap_err();
        assert!(error.to_string().contains("node7/meminfo"), "{error}");
    }
}
