//! The machine as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::profile::{self, Placeholders};
use super::{NodeSet, TopologyError, sysfs};

/// Number of a NUMA node, as the kernel counts. Numbers need not be dense.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which kind of memory a node has. Deliberately without an order: see [`Machine::faster_than`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Tier {
    /// High-bandwidth memory on the package.
    Hbm,
    /// DDR behind the CPU's own controllers.
    Dram,
    /// Memory behind a CXL link.
    Cxl,
    /// Persistent memory used as volatile memory.
    Pmem,
    /// The kernel does not tell.
    Unknown,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tier::Hbm => "HBM",
            Tier::Dram => "DRAM",
            Tier::Cxl => "CXL",
            Tier::Pmem => "PMem",
            Tier::Unknown => "unknown",
        })
    }
}

/// One NUMA node: CPUs, memory, or both.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// The socket it sits on.
    pub socket: Option<u32>,
    /// Its online CPUs, ascending; empty on a memory-only node.
    pub cpus: Vec<u32>,
    /// Those of its CPUs that this process may run on (cpusets, affinity).
    pub allowed_cpus: Vec<u32>,
    /// Whether this process may take memory from it (cpusets).
    pub is_allowed: bool,
    /// Size of its memory; 0 on a node without memory, `None` if a profile does not know.
    pub memory_bytes: Option<u64>,
    /// Free memory when the machine was looked at; unknown in a profile.
    pub free_bytes: Option<u64>,
    /// Kind of its memory.
    pub tier: Tier,
    /// The kernel's memory tier: the lower, the faster. Only comparable within one machine.
    pub kernel_tier: Option<u32>,
    /// The node whose CPUs it belongs to; itself if it has CPUs.
    pub cpu_node: NodeId,
}

/// What is known of the way from the CPUs of one node to the memory of another.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Link {
    /// ACPI distance, 10 = local.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
    /// Read bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_s: Option<u64>,
    /// Write bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_s: Option<u64>,
    /// Read latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency_ns: Option<f64>,
    /// Write latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency_ns: Option<f64>,
}

/// A copy engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Accelerator {
    /// The kernel's name, e.g. `dsa0`.
    pub name: String,
    /// The node it is attached to; `None` if there is none or that node is offline.
    pub node: Option<NodeId>,
    /// Work queues the device can have.
    pub work_queues_count: Option<u32>,
    /// Processing engines in it.
    pub engines_count: Option<u32>,
    /// What it can copy at most.
    pub bytes_per_s_max: Option<u64>,
}

/// Where the description of a machine comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// This machine, now.
    Discovered,
    /// A recorded sysfs tree, perhaps of another machine.
    Recorded,
    /// A profile. Bytes "on its nodes" lie in this machine's memory, unbound; reports must say so.
    Profile,
}

/// A published figure about a machine that has no place in the other types; models use them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// How much.
    pub value: f64,
    /// In which unit.
    pub unit: String,
    /// Where it was taken from.
    pub source: String,
}

/// Nodes, links between them, and accelerators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub(super) name: String,
    pub(super) cpu: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) origin: Origin,
    /// Why the figures are not those of a real machine, if they are not.
    pub(super) placeholder: Option<String>,
    /// Ascending by id, never empty.
    pub(super) nodes: Vec<Node>,
    /// `links[i][j]`: from the CPUs of `nodes[i]` to the memory of `nodes[j]`.
    pub(super) links: Vec<Vec<Link>>,
    /// Possible, and not online.
    pub(super) offline: NodeSet,
    pub(super) accelerators: Vec<Accelerator>,
    pub(super) facts: Vec<Fact>,
    /// Short name of a publication and its full name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) references: BTreeMap<String, String>,
}

/// How much more bandwidth makes a memory "faster". Less is not worth a copy, and within what equal memories
/// differ in measurements: up to 0.3 % between the sub-domains of a socket (Greinsmark 2020, table 8).
const FASTER_RATIO: f64 = 1.1;

impl Machine {
    /// This machine, from `/sys` and `/proc`.
    ///
    /// # Errors
    /// [`TopologyError::Read`], [`Parse`](TopologyError::Parse),
    /// [`Contradiction`](TopologyError::Contradiction).
    pub fn discover() -> Result<Machine, TopologyError> {
        sysfs::read(Path::new("/"), Origin::Discovered)
    }

    /// The machine whose `sys` and `proc` lie below `root`.
    ///
    /// # Errors
    /// As [`discover`](Machine::discover).
    pub fn discover_at(root: &Path) -> Result<Machine, TopologyError> {
        sysfs::read(root, Origin::Recorded)
    }

    /// A built-in profile (see [`profiles`](Machine::profiles)), or the JSON file of that path.
    ///
    /// # Errors
    /// [`TopologyError::UnknownProfile`], [`Profile`](TopologyError::Profile), `Read`, `Contradiction`.
    pub fn from_profile(name_or_path: &str) -> Result<Machine, TopologyError> {
        profile::open(name_or_path, Placeholders::Ignored)
    }

    /// The same, with figures of ours where a profile has none that is published, and
    /// [`placeholder`](Machine::placeholder) saying so.
    ///
    /// For machines that are built after a profile (`cargo xtask numa`), where every figure must be something.
    /// Never plan with it.
    ///
    /// # Errors
    /// As [`from_profile`](Machine::from_profile).
    pub fn from_profile_with_placeholders(name_or_path: &str) -> Result<Machine, TopologyError> {
        profile::open(name_or_path, Placeholders::Used)
    }

    /// Names of the built-in profiles.
    pub fn profiles() -> Vec<&'static str> {
        profile::names()
    }

    /// The made-up machine for tests and benchmarks: node 0 DRAM with CPUs, node 1 HBM.
    ///
    /// # Errors
    /// None in practice: the profile is built in.
    pub fn two_tiers() -> Result<Machine, TopologyError> {
        profile::open("made-up-two-tiers", Placeholders::Ignored)
    }

    /// Host name, or name of the profile.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Model of the CPU.
    pub fn cpu(&self) -> Option<&str> {
        self.cpu.as_deref()
    }

    /// Kernel release.
    pub fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// Where this description comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether memory can be bound to these nodes: they are the nodes of the machine this program runs on.
    pub fn is_this_machine(&self) -> bool {
        self.origin == Origin::Discovered
    }

    /// Why the figures are not those of a real machine, if they are not.
    pub fn placeholder(&self) -> Option<&str> {
        self.placeholder.as_deref()
    }

    /// All nodes, ascending by id; never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Nodes that the machine could have and that are not online: memory that was taken away, or is to come.
    pub fn offline(&self) -> &NodeSet {
        &self.offline
    }

    /// How many nodes there are. Ids may be larger: see [`NodeId`].
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node with this id.
    ///
    /// # Errors
    /// [`TopologyError::UnknownNode`].
    pub fn node(&self, id: NodeId) -> Result<&Node, TopologyError> {
        match self.position(id) {
            Some(index) => Ok(&self.nodes[index]),
            None => Err(TopologyError::UnknownNode {
                machine: self.name.clone(),
                node: id,
                known: self.nodes.iter().map(|node| node.id).collect(),
            }),
        }
    }

    /// What is known of the way from the CPUs of `from` to the memory of `to`; nothing for unknown nodes.
    pub fn link(&self, from: NodeId, to: NodeId) -> Link {
        match (self.position(from), self.position(to)) {
            (Some(from), Some(to)) => self.links[from][to],
            _ => Link::default(),
        }
    }

    /// All copy engines.
    pub fn accelerators(&self) -> &[Accelerator] {
        &self.accelerators
    }

    /// Published figures beyond nodes and links; only profiles have them.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// The publications that the figures were taken from: short name, as the sources of [`facts`](Machine::facts) use
    /// it, and full name; only profiles have them.
    pub fn references(&self) -> &BTreeMap<String, String> {
        &self.references
    }

    /// The copy engines attached to `node`, or, as memory-only nodes have none, to the node with its CPUs.
    pub fn accelerators_near(&self, node: NodeId) -> impl Iterator<Item = &Accelerator> {
        let cpu_node = self.node(node).map(|node| node.cpu_node).ok();
        self.accelerators
            .iter()
            .filter(move |engine| engine.node.is_some_and(|at| at == node || Some(at) == cpu_node))
    }

    /// Memories that feed the CPUs next to `home` better than `home` itself does, nearest first.
    ///
    /// The judge is the first of these that is known of both: read bandwidth to those CPUs (by a margin of 10
    /// %), the kernel's memory tier, the kind of memory. The last two say nothing about the way between
    /// sockets, so without bandwidth a memory on another socket is never called faster. Empty for an unknown
    /// node.
    pub fn faster_than(&self, home: NodeId) -> Vec<&Node> {
        let Ok(home) = self.node(home) else { return Vec::new() };
        let cpus = home.cpu_node;
        let mut faster: Vec<_> =
            self.nodes.iter().filter(|node| node.id != home.id && self.is_faster(node, home, cpus)).collect();
        faster.sort_by_key(|node| {
            let distance = self.link(cpus, node.id).distance.unwrap_or(u32::MAX);
            (node.cpu_node != cpus, distance, node.id)
        });
        faster
    }

    /// The best of [`faster_than`](Machine::faster_than).
    pub fn nearest_faster(&self, home: NodeId) -> Option<&Node> {
        self.faster_than(home).into_iter().next()
    }

    pub(super) fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Whether the CPUs of node `cpus` read faster from `candidate` than from `home`.
    pub(super) fn is_faster(&self, candidate: &Node, home: &Node, cpus: NodeId) -> bool {
        if candidate.memory_bytes == Some(0) {
            return false;
        }
        let read = |node: &Node| self.link(cpus, node.id).read_bytes_per_s;
        if let (Some(candidate), Some(home)) = (read(candidate), read(home)) {
            return candidate as f64 > home as f64 * FASTER_RATIO;
        }
        if candidate.socket != home.socket {
            return false;
        }
        if let (Some(candidate), Some(home)) = (candidate.kernel_tier, home.kernel_tier)
            && candidate != home
        {
            return candidate < home;
        }
        // Older kernels (6.1) put all memory into one tier, so equal tiers say nothing. Fastest first:
        let rank = |tier| [Tier::Hbm, Tier::Dram, Tier::Cxl, Tier::Pmem].iter().position(|&t| t == tier);
        matches!((rank(candidate.tier), rank(home.tier)), (Some(candidate), Some(home)) if candidate < home)
    }

    /// What is impossible about it, if anything: files and profiles come from outside.
    pub(super) fn contradiction(&self) -> Option<String> {
        if self.nodes.is_empty() {
            return Some("it has no node".into());
        }
        if let Some(pair) = self.nodes.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Some(format!("node {} comes after node {}; ids must ascend", pair[1].id, pair[0].id));
        }
        let mut owners = BTreeMap::new();
        for node in &self.nodes {
            for &cpu in &node.cpus {
                if let Some(other) = owners.insert(cpu, node.id) {
                    return Some(format!("CPU {cpu} is in node {other} and in node {}", node.id));
                }
            }
            let Node { id, cpu_node, .. } = *node;
            if !node.cpus.is_empty() && cpu_node != id {
                return Some(format!(
                    "node {id} has CPUs of its own, and belongs to those of node {cpu_node}"
                ));
            }
            if !self.node(cpu_node).is_ok_and(|node| !node.cpus.is_empty()) {
                return Some(format!("node {id} belongs to the CPUs of node {cpu_node}, which has none"));
            }
        }
        for engine in &self.accelerators {
            if let Some(node) = engine.node.filter(|&node| self.position(node).is_none()) {
                return Some(format!("{} is attached to node {node}, which does not exist", engine.name));
            }
        }
        None
    }
}
