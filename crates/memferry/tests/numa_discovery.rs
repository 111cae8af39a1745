//! Discovery on a machine with many nodes: a guest of `cargo xtask numa`, compared with the layout it was built from.
//!
//! On any other machine there is nothing to compare with, and each test says so.

use std::collections::BTreeSet;

use memferry::topology::{Machine, NodeId, Tier};
use memferry_testing::{Needs, skip};
use serde::Deserialize;

/// `/layout.json`, as `memferry_guest::Layout` is written.
#[derive(Deserialize)]
struct Layout {
    profile: String,
    nodes: Vec<LayoutNode>,
    offline: Vec<u32>,
    distances: Vec<Vec<u32>>,
    links: Vec<LayoutLink>,
}

#[derive(Deserialize)]
struct LayoutNode {
    id: u32,
    cpus: Vec<u32>,
    memory_mib: u64,
    tier: Tier,
    cpu_node: u32,
    socket: u32,
}

#[derive(Deserialize)]
struct LayoutLink {
    initiator: u32,
    target: u32,
    read_mib_per_s: u64,
    write_mib_per_s: u64,
    read_latency_ns: u64,
    write_latency_ns: u64,
}

/// The layout and what is discovered, in a guest.
fn guest() -> Option<(Layout, Machine)> {
    let Some(file) = std::env::var_os("MEMFERRY_GUEST_LAYOUT") else {
        skip(Needs::Guest, "not a guest of `cargo xtask numa`, MEMFERRY_GUEST_LAYOUT is not set");
        return None;
    };
    let layout = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    Some((layout, Machine::discover().unwrap()))
}

#[test]
fn topology_of_nodes_and_cpus() {
    let Some((layout, machine)) = guest() else { return };
    assert!(machine.is_this_machine());
    assert_eq!(machine.name(), layout.profile);
    let ids: Vec<u32> = machine.nodes().iter().map(|node| node.id.0).collect();
    assert_eq!(ids, layout.nodes.iter().map(|node| node.id).collect::<Vec<_>>());
    for (node, expected) in machine.nodes().iter().zip(&layout.nodes) {
        assert_eq!(node.cpus, expected.cpus, "CPUs of node {}", node.id);
        assert_eq!(node.cpu_node, NodeId(expected.cpu_node), "whose CPUs node {} belongs to", node.id);
        assert_eq!(node.socket, Some(expected.socket), "socket of node {}", node.id);
    }
}

#[test]
fn topology_of_memory() {
    let Some((layout, machine)) = guest() else { return };
    for (node, expected) in machine.nodes().iter().zip(&layout.nodes) {
        let whole_bytes = expected.memory_mib << 20;
        // What the kernel keeps: a page structure of 64 bytes for each page, and tables, of which the first ones are at the end
        // of memory; on nodes with CPUs also itself, and 64 MiB for devices that reach no further than 4 GiB.
        let kept_bytes = whole_bytes / 16 + if expected.cpus.is_empty() { 8 << 20 } else { 112 << 20 };
        let least_bytes = whole_bytes.saturating_sub(kept_bytes);
        let bytes = node.memory_bytes.unwrap();
        assert!(
            (least_bytes..=whole_bytes).contains(&bytes),
            "node {} has {bytes} bytes, expected {least_bytes} to {whole_bytes}",
            node.id
        );
        assert!(node.free_bytes.unwrap() <= bytes, "node {}", node.id);
        assert!(bytes == 0 || node.free_bytes.unwrap() > bytes / 4, "node {} is nearly full", node.id);
    }
}

#[test]
fn topology_of_offline_nodes() {
    let Some((layout, machine)) = guest() else { return };
    let possible = std::fs::read_to_string("/sys/devices/system/node/possible").unwrap();
    let last = layout.nodes.iter().map(|node| node.id).chain(layout.offline.iter().copied()).max().unwrap();
    assert_eq!(possible.trim(), if last == 0 { "0".to_owned() } else { format!("0-{last}") });
    let offline: Vec<u32> = machine.offline().iter().map(|node| node.0).collect();
    assert_eq!(offline, layout.offline);
    for &id in &layout.offline {
        assert!(machine.node(NodeId(id)).is_err(), "node {id} is offline");
    }
}

#[test]
fn topology_of_distances() {
    let Some((layout, machine)) = guest() else { return };
    for (from, row) in layout.nodes.iter().zip(&layout.distances) {
        for (to, &distance) in layout.nodes.iter().zip(row) {
            let found = machine.link(NodeId(from.id), NodeId(to.id)).distance;
            assert_eq!(found, Some(distance), "from node {} to node {}", from.id, to.id);
        }
    }
}

/// Linux shows the figures of the best initiators of a memory only; where it shows some, they are right.
#[test]
fn topology_of_rates_and_latencies() {
    let Some((layout, machine)) = guest() else { return };
    let mut known = BTreeSet::new();
    for link in &layout.links {
        let found = machine.link(NodeId(link.initiator), NodeId(link.target));
        let Some(read_bytes_per_s) = found.read_bytes_per_s else { continue };
        known.insert(link.target);
        let what = format!("from node {} to node {}", link.initiator, link.target);
        assert_eq!(read_bytes_per_s, link.read_mib_per_s << 20, "{what}");
        assert_eq!(found.write_bytes_per_s, Some(link.write_mib_per_s << 20), "{what}");
        assert_eq!(found.read_latency_ns, Some(link.read_latency_ns as f64), "{what}");
        assert_eq!(found.write_latency_ns, Some(link.write_latency_ns as f64), "{what}");
    }
    let expected: BTreeSet<u32> = layout.links.iter().map(|link| link.target).collect();
    assert_eq!(known, expected, "nodes whose rate is known");
    if layout.links.is_empty() {
        // Without a table nothing may be known.
        let nodes = machine.nodes();
        let mut pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from.id, to.id)));
        assert!(pairs.all(|(from, to)| machine.link(from, to).read_bytes_per_s.is_none()));
    }
}

#[test]
fn topology_of_tiers() {
    let Some((layout, machine)) = guest() else { return };
    let kernel_tier = |tier: Tier| {
        let of = machine.nodes().iter().filter(move |node| node.tier == tier);
        of.map(|node| node.kernel_tier.unwrap_or_else(|| panic!("node {} is in no tier", node.id)))
    };
    for (node, expected) in machine.nodes().iter().zip(&layout.nodes) {
        assert_eq!(node.tier, expected.tier, "kind of node {}", node.id);
        let near = machine.nearest_faster(node.id).map(|near| near.id.0);
        let hbm = layout.nodes.iter().find(|other| other.tier == Tier::Hbm && other.cpu_node == node.id.0);
        if expected.tier == Tier::Dram {
            assert_eq!(near, hbm.map(|hbm| hbm.id), "the faster memory next to node {}", node.id);
        }
    }
    if let (Some(slowest_hbm), Some(fastest_dram)) =
        (kernel_tier(Tier::Hbm).max(), kernel_tier(Tier::Dram).min())
    {
        assert!(slowest_hbm < fastest_dram, "tiers {slowest_hbm} and {fastest_dram}");
    }
}
