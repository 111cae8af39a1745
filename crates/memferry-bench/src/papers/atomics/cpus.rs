//! CPUs by distance.

use std::collections::BTreeMap;
use std::fs;

use memferry::internals::parse_id_list;
use memferry::topology::{Machine, Node};

use super::Distance;

/// CPUs by distance. The first N of a list have its distance from each other, as nearly as N allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places {
    sibling: Vec<u32>,
    node: Vec<u32>,
    nodes: Vec<u32>,
    sockets: Vec<u32>,
    first: Option<u32>,
}

impl Places {
    /// The usable CPUs of a machine. For another machine the cores of its CPUs are not known; each CPU counts as a core.
    pub fn of(machine: &Machine) -> Places {
        let siblings = |cpu: u32| -> Option<Vec<u32>> {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            parse_id_list(&fs::read_to_string(file).ok()?)
        };
        match machine.is_this_machine() {
            true => Places::with(machine, &siblings),
            false => Places::with(machine, &|_| None),
        }
    }

    /// CPUs by distance; `siblings` returns the siblings of a CPU, itself included.
    pub(super) fn with(machine: &Machine, siblings: &dyn Fn(u32) -> Option<Vec<u32>>) -> Places {
        let with_cpus = || machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty());
        // Cores first: the first CPU of each core.
        let cores = |node: &Node| -> Vec<u32> {
            let is_first = |cpu: &u32| siblings(*cpu).is_none_or(|all| all.first() == Some(cpu));
            let cores: Vec<u32> = node.allowed_cpus.iter().copied().filter(is_first).collect();
            if cores.is_empty() { node.allowed_cpus.clone() } else { cores }
        };
        let allowed: Vec<u32> = with_cpus().flat_map(|node| node.allowed_cpus.iter().copied()).collect();
        let of_core = |cpu: u32| -> Vec<u32> {
            siblings(cpu).unwrap_or_default().into_iter().filter(|cpu| allowed.contains(cpu)).collect()
        };
        let mut sockets: BTreeMap<u32, Vec<&Node>> = BTreeMap::new();
        for node in with_cpus() {
            // A node of unknown socket may be on any socket: it does not count as one of its own.
            if let Some(socket) = node.socket {
                sockets.entry(socket).or_default().push(node);
            }
        }
        let in_turn_of = |nodes: &[&Node]| in_turn(nodes.iter().map(|node| cores(node)).collect());
        let widest = sockets.values().rev().max_by_key(|nodes| nodes.len()).filter(|nodes| nodes.len() > 1);
        let several = |lists: Vec<Vec<u32>>| if lists.len() > 1 { in_turn(lists) } else { Vec::new() };
        let longest = |lists: Vec<Vec<u32>>| {
            lists.into_iter().rev().max_by_key(Vec::len).filter(|list| list.len() > 1).unwrap_or_default()
        };
        Places {
            sibling: longest(allowed.iter().map(|&cpu| of_core(cpu)).collect()),
            node: longest(with_cpus().map(cores).collect()),
            nodes: widest.map(|nodes| in_turn_of(nodes)).unwrap_or_default(),
            sockets: several(sockets.values().map(|nodes| in_turn_of(nodes)).collect()),
            first: allowed.first().copied(),
        }
    }

    /// CPUs at a distance; none, or at least two.
    pub fn cpus(&self, distance: Distance) -> &[u32] {
        match distance {
            Distance::Sibling => &self.sibling,
            Distance::Node => &self.node,
            Distance::Nodes => &self.nodes,
            Distance::Sockets => &self.sockets,
        }
    }

    /// The CPU of a single thread.
    pub(super) fn first(&self) -> Option<u32> {
        self.first
    }
}

/// The first of each list, then the second of each, and so on.
fn in_turn(lists: Vec<Vec<u32>>) -> Vec<u32> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|turn| lists.iter().filter_map(move |list| list.get(turn).copied())).collect()
}
