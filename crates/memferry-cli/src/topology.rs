//! `memferry topology`: the machine at a glance, or all that is known of it as JSON.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use memferry::topology::{Link, Machine, Node, NodeId, Origin, TopologyError};

use crate::error::usage;
use crate::output::{self, Align, Table, count, ranges, size};

/// Shows sockets, nodes, memory tiers, distances and copy engines.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Show this machine instead: the name of a built-in profile, or a JSON file.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "sysfs")]
    profile: Option<String>,
    /// Show a recorded machine: the directory that holds its `sys` and `proc`.
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
    /// Print everything that is known as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let machine = match &arguments.sysfs {
        Some(root) => Machine::discover_at(root)?,
        None => open(arguments.profile.as_deref())?,
    };
    if arguments.json { output::json(out, &machine) } else { Ok(write!(out, "{}", draw(&machine))?) }
}

/// The machine that an option names, or this one.
pub(crate) fn open(profile: Option<&str>) -> Result<Machine> {
    let machine = match profile {
        Some(name) => Machine::from_profile(name),
        None => Machine::discover(),
    };
    machine.map_err(|error| match error {
        TopologyError::UnknownProfile { .. } => usage(error),
        _ => error.into(),
    })
}

/// The machine as text that one understands at a glance.
pub(crate) fn draw(machine: &Machine) -> String {
    let mut text = format!("{}\n{}\n", heading(machine), nodes(machine));
    // On a machine with one node the figures tell nothing.
    for (title, figure) in FIGURES.iter().filter(|_| machine.node_count() > 1) {
        if let Some(matrix) = matrix(machine, *figure) {
            text += &format!("{title}, from the CPUs of a row to the memory of a column\n{matrix}\n");
        }
    }
    text + &tiers(machine)
}

/// A name, a CPU, and how much of everything; two lines.
fn heading(machine: &Machine) -> String {
    let mut sockets: Vec<u32> = machine.nodes().iter().filter_map(|node| node.socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let cpus: usize = machine.nodes().iter().map(|node| node.cpus.len()).sum();
    let memory_bytes: Option<u64> = machine.nodes().iter().map(|node| node.memory_bytes).sum();
    let mut amounts = vec![count(machine.node_count(), "node"), count(cpus, "CPU")];
    if !sockets.is_empty() {
        amounts.insert(0, count(sockets.len(), "socket"));
    }
    amounts.extend(memory_bytes.map(size));

    let mut first = vec![machine.cpu().unwrap_or("CPU unknown").to_owned()];
    first.extend(machine.kernel().map(|kernel| format!("Linux {kernel}")));
    let origin = match machine.origin() {
        Origin::Discovered => "this machine, as it is now",
        Origin::Recorded => "from a recorded sysfs tree",
        _ => "from a profile: what is placed on its nodes lies in this machine's memory, wherever that is",
    };
    let mut text = format!("{}: {}\n{}\n({origin})\n", machine.name(), first.join(", "), amounts.join(", "));
    if let Some(reason) = machine.placeholder() {
        text += &format!("({reason})\n");
    }
    text
}

/// One line per node, below its socket; a memory-only node below the node whose CPUs it belongs to.
fn nodes(machine: &Machine) -> String {
    use Align::{Left, Right};
    let mut table = Table::plain(vec![Left, Left, Right, Right, Left, Left]);
    let mut socket_before = None;
    for owner in machine.nodes().iter().filter(|node| node.cpu_node == node.id) {
        if socket_before != Some(owner.socket) {
            socket_before = Some(owner.socket);
            let mut heading = vec![String::new(); 6];
            heading[0] = owner.socket.map_or("no socket".to_owned(), |socket| format!("socket {socket}"));
            table.row(heading);
        }
        table.row(node_cells(machine, owner, 2));
        for node in machine.nodes().iter().filter(|node| node.cpu_node == owner.id && node.id != owner.id) {
            table.row(node_cells(machine, node, 4));
        }
    }
    let elsewhere = devices(machine, None);
    let note = match (machine.accelerators().is_empty(), elsewhere.is_empty()) {
        (true, _) => "no copy engine (DSA)\n".to_owned(),
        (false, true) => String::new(),
        (false, false) => format!("copy engines on no known node: {elsewhere}\n"),
    };
    format!("{table}{note}")
}

fn node_cells(machine: &Machine, node: &Node, indent: usize) -> Vec<String> {
    let cpus =
        if node.cpus.is_empty() { "no CPUs".to_owned() } else { format!("CPUs {}", ranges(&node.cpus)) };
    vec![
        format!("{:indent$}node {}", "", node.id),
        node.tier.to_string(),
        node.memory_bytes.map_or("size unknown".to_owned(), size),
        node.free_bytes.map_or(String::new(), |bytes| format!("{} free", size(bytes))),
        cpus,
        devices(machine, Some(node.id)),
    ]
}

/// The names of the copy engines on a node, or on no known one.
fn devices(machine: &Machine, node: Option<NodeId>) -> String {
    let devices = machine.accelerators().iter().filter(|device| device.node == node);
    devices.map(|device| device.name.as_str()).collect::<Vec<_>>().join(" ")
}

type Figure = fn(&Link) -> Option<String>;

const FIGURES: [(&str, Figure); 3] = [
    ("distance (10 is local)", |link| link.distance.map(|distance| distance.to_string())),
    ("read bandwidth in GB/s", |link| link.read_bytes_per_s.map(|rate| format!("{:.1}", rate as f64 / 1e9))),
    ("read latency in ns", |link| link.read_latency_ns.map(|latency| format!("{latency:.0}"))),
];

/// One figure of all links, or nothing if the figure is known of none.
fn matrix(machine: &Machine, figure: Figure) -> Option<Table> {
    let ids: Vec<NodeId> = machine.nodes().iter().map(|node| node.id).collect();
    let mut table = Table::plain(vec![Align::Right; ids.len() + 1]).indent(2);
    table.row(std::iter::once(String::new()).chain(ids.iter().map(NodeId::to_string)).collect());
    let mut known = false;
    for &from in &ids {
        let cells: Vec<Option<String>> = ids.iter().map(|&to| figure(&machine.link(from, to))).collect();
        if cells.iter().any(Option::is_some) {
            known = true;
            let cells = cells.into_iter().map(|cell| cell.unwrap_or("-".to_owned()));
            table.row(std::iter::once(from.to_string()).chain(cells).collect());
        }
    }
    known.then_some(table)
}

/// What prefetching can do here: for each node with CPUs the memory that is faster than its own.
fn tiers(machine: &Machine) -> String {
    let pairs: Vec<String> = machine
        .nodes()
        .iter()
        .filter(|node| node.cpu_node == node.id)
        .filter_map(|home| {
            let near = machine.nearest_faster(home.id)?;
            Some(format!("  from node {} ({}) to node {} ({})\n", home.id, home.tier, near.id, near.tier))
        })
        .collect();
    if pairs.is_empty() {
        "No memory is known to be faster than the CPUs' own: prefetching `auto` copies nothing here.\n"
            .to_owned()
    } else {
        format!("Prefetching `auto` copies\n{}", pairs.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tiers_show_where_columns_go() {
        let text = draw(&Machine::two_tiers().unwrap());
        assert!(text.contains("socket 0\n  node 0"), "{text}");
        assert!(text.contains("\n    node 1  HBM"), "a memory-only node is indented below its CPUs:\n{text}");
        assert!(text.contains("from node 0 (DRAM) to node 1 (HBM)"), "{text}");
        assert!(text.contains("all of it is made up"), "{text}");
    }

    #[test]
    fn every_profile_can_be_drawn() {
        for name in Machine::profiles() {
            let machine = Machine::from_profile(name).unwrap();
            let text = draw(&machine);
            for node in machine.nodes() {
                assert!(
                    text.contains(&format!("node {} ", node.id)),
                    "{name} lacks node {}:\n{text}",
                    node.id
                );
            }
        }
    }
}
