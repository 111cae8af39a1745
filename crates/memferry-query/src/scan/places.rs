//! Where the columns of a scan lie, for EXPLAIN.

use std::collections::{BTreeMap, BTreeSet};

use memferry::topology::{Machine, Node, NodeId};

use super::TieredScanExec;

/// The nodes of the columns that a scan reads, seen from the CPUs beside most of the table; `None` if the table is on one
/// node.
pub(super) fn of(scan: &TieredScanExec) -> Option<String> {
    let (data, machine) = (&scan.columns.data, scan.columns.tiers.machine());
    let columns: BTreeSet<usize> = scan.projection.iter().copied().chain(scan.filter_columns()).collect();
    let mut nodes: BTreeMap<usize, BTreeSet<NodeId>> = BTreeMap::new();
    for group in data.partitions().iter().flatten() {
        for column in 0..group.batch().num_columns() {
            nodes.entry(column).or_default().insert(group.node(column));
        }
    }
    if nodes.values().flatten().collect::<BTreeSet<_>>().len() < 2 {
        return None;
    }
    let cpus = machine.node(data.home()).and_then(|home| machine.node(home.cpu_node)).ok()?;
    let place = |&node: &NodeId| format!("node {node} ({})", nearness(machine, cpus, node));
    let of_column = |column: usize| {
        let places = nodes.get(&column)?.iter().map(place).collect::<Vec<_>>().join(" and ");
        Some(format!("{} on {places}", data.schema().field(column).name()))
    };
    Some(columns.into_iter().filter_map(of_column).collect::<Vec<_>>().join(", "))
}

/// How far the memory of a node is from these CPUs.
fn nearness(machine: &Machine, cpus: &Node, node: NodeId) -> &'static str {
    let Ok(node) = machine.node(node) else { return "unknown node" };
    let is_on_other_socket = matches!((node.socket, cpus.socket), (Some(one), Some(other)) if one != other);
    match (node.cpu_node == cpus.id, is_on_other_socket) {
        (true, _) => "same node",
        (false, true) => "other socket",
        (false, false) => "other node",
    }
}
