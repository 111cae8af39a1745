//! Full nodes: nearly all of their free memory is reserved as huge pages, which nobody uses, and process 1 holds the rest.
//!
//! Huge pages that are only reserved are not cleared, which would take seconds for each GiB under emulation. A program gives them
//! back by writing 0 to the same file.
//!
//! Source: Linux `Documentation/admin-guide/mm/hugetlbpage.rst`.

use std::fs;
use std::path::{Path, PathBuf};

use memferry::memory::{Binding, Mapping};
use memferry::topology::{Machine, NodeId};

/// Sizes of the pieces that process 1 takes, the largest first.
const PIECES: [usize; 3] = [4 << 20, 1 << 20, 64 << 10];

/// MiB of a huge page.
const PAGE_MIB: u64 = 2;

/// Takes the memory of the nodes.
pub(super) fn fill(nodes: &[u32]) -> Result<(), String> {
    nodes.iter().try_for_each(|&node| {
        fill_node(Path::new("/sys/devices/system/node"), node)?;
        hold_rest(node)
    })
}

/// Takes what the kernel left of a node, for the life of process 1. A mapping that has no room is refused.
fn hold_rest(node: u32) -> Result<(), String> {
    let machine = Machine::discover().map_err(|error| format!("node {node} cannot be filled: {error}"))?;
    for size_bytes in PIECES {
        while let Ok(piece) = Mapping::new(&machine, size_bytes, Binding::Bind(NodeId(node))) {
            std::mem::forget(piece);
        }
    }
    Ok(())
}

fn fill_node(root: &Path, node: u32) -> Result<(), String> {
    let directory = root.join(format!("node{node}"));
    let file = directory.join("hugepages/hugepages-2048kB/nr_hugepages");
    let failed = |file: &PathBuf, why: &dyn std::fmt::Display| {
        format!(
            "node {node} cannot be filled: {}: {why}; the kernel needs huge pages of 2 MiB",
            file.display()
        )
    };
    let meminfo = directory.join("meminfo");
    let text = fs::read_to_string(&meminfo).map_err(|error| failed(&meminfo, &error))?;
    let free_mib = free_kib(&text).ok_or_else(|| failed(&meminfo, &"it has no MemFree"))? >> 10;
    // The kernel takes as many as it finds, and says nothing if these are fewer.
    fs::write(&file, (free_mib / PAGE_MIB).to_string()).map_err(|error| failed(&file, &error))?;
    let taken = fs::read_to_string(&file).map_err(|error| failed(&file, &error))?;
    match taken.trim().parse::<u64>() {
        Ok(taken) if taken > 0 => {
            println!("guest: node {node} is full, {} of {free_mib} MiB are reserved", taken * PAGE_MIB);
            Ok(())
        }
        _ => Err(failed(&file, &format!("it has {} pages now", taken.trim()))),
    }
}

/// The free memory in the node's `meminfo`.
fn free_kib(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemFree:"))?;
    line.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gives_what_is_free() {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join("node3");
        let error = fill_node(root.path(), 3).unwrap_err();
        assert!(error.contains("node 3 cannot be filled") && error.contains("meminfo"), "{error}");
        let pages = node.join("hugepages/hugepages-2048kB");
        fs::create_dir_all(&pages).unwrap();
        fs::write(node.join("meminfo"), "Node 3 MemTotal: 131072 kB\nNode 3 MemFree:  120832 kB\n").unwrap();
        fill_node(root.path(), 3).unwrap();
        assert_eq!(fs::read_to_string(pages.join("nr_hugepages")).unwrap(), "59");
        fs::write(node.join("meminfo"), "Node 3 MemFree: 1024 kB\n").unwrap();
        let error = fill_node(root.path(), 3).unwrap_err();
        assert!(error.contains("it has 0 pages now"), "{error}");
    }
}
