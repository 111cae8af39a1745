//! A machine as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use memferry_dsa::internals::system::Directory;
#[cfg(feature = "internals")]
use memferry_dsa::internals::system::Files;
use serde::{Deserialize, Serialize};

use super::parameter::{Fact, Parameter};
use super::profile::{self, Figure, Placeholders};
use super::recording::Recording;
use super::storage::Storage;
use super::{NodeSet, TopologyError, meminfo, sysfs};
use crate::copy_method::CopyMethods;

/// The kernel's number of a NUMA node. Numbers need not be dense.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A kind of memory. Deliberately without an order: see [`Machine::faster_than`].
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
    /// Unknown to the kernel.
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
    /// Its socket; `None` if unknown, or if its CPUs are on several, as in virtual machines.
    pub socket: Option<u32>,
    /// Its online CPUs, ascending; empty on a memory-only node.
    pub cpus: Vec<u32>,
    /// Those of its CPUs that this process may run on (cpusets, affinity), at the time of discovery.
    pub allowed_cpus: Vec<u32>,
    /// Whether this process may use its memory (cpusets).
    pub is_allowed: bool,
    /// Size of its memory; 0 on a node without memory, `None` if a profile lacks it.
    pub memory_bytes: Option<u64>,
    /// Memory available without swapping at the time of discovery; unknown in a profile.
    pub free_bytes: Option<u64>,
    /// Size of the faster memory that caches this one, for example HBM in cache mode; `None` if none is known.
    pub side_cache_bytes: Option<u64>,
    /// Kind of its memory.
    pub tier: Tier,
    /// The kernel's memory tier: the lower, the faster. Only comparable within one machine.
    pub kernel_tier: Option<u32>,
    /// The node whose CPUs it belongs to; itself if it has CPUs.
    pub cpu_node: NodeId,
}

impl Node {
    /// Whether it has memory, or may have some; nodes with CPUs only are online too.
    pub fn has_memory(&self) -> bool {
        self.memory_bytes != Some(0)
    }

    /// Whether so many bytes fit on it besides the spare: by the free memory at discovery, or by the size in a profile. A
    /// node of unknown size counts as large.
    pub fn has_room(&self, size_bytes: u64) -> bool {
        let spare_bytes = self.memory_bytes.map_or(0, meminfo::spare_bytes);
        let available_bytes = self.free_bytes.or(self.memory_bytes);
        available_bytes.is_none_or(|available| size_bytes.saturating_add(spare_bytes) <= available)
    }
}

/// The known figures of the link from the CPUs of one node to the memory of another.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
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
    /// The kernel's name, for example `dsa0`.
    pub name: String,
    /// The node it is attached to; `None` if there is none or that node is offline.
    pub node: Option<NodeId>,
    /// Work queues the device can have.
    pub work_queues_count: Option<u32>,
    /// Processing engines in it.
    pub engines_count: Option<u32>,
    /// Its maximum copy rate.
    pub bytes_per_s_max: Option<u64>,
}

/// Persistent memory that programs use as files, not as memory of a node (fsdax).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PersistentMemory {
    /// The node that it is attached to.
    pub node: NodeId,
    /// Its size.
    pub size_bytes: u64,
}

/// The source of a machine's description.
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

/// The kernel's automatic moving of pages (`numa_balancing`).
///
/// Source: Linux `Documentation/admin-guide/sysctl/kernel.rst`.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct NumaBalancing {
    /// Pages go to the node whose CPUs use them.
    is_normal: bool,
    /// Hot pages go from slower tiers to faster ones.
    is_tiering: bool,
}

impl NumaBalancing {
    /// Ignores bits of later kernels.
    pub(super) fn from_bits(bits: u32) -> NumaBalancing {
        NumaBalancing { is_normal: bits & 1 != 0, is_tiering: bits & 2 != 0 }
    }

    fn is_on(self) -> bool {
        self.is_normal || self.is_tiering
    }
}

/// A machine: nodes, links between them, and accelerators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub(super) name: String,
    pub(super) cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_family_and_model: Option<(u32, u32)>,
    pub(super) kernel: Option<String>,
    pub(super) origin: Origin,
    /// The reason why the figures are not those of a real machine, if they are not.
    pub(super) placeholder: Option<String>,
    /// Ascending by id, never empty.
    pub(super) nodes: Vec<Node>,
    /// `links[i][j]`: from the CPUs of `nodes[i]` to the memory of `nodes[j]`.
    pub(super) links: Vec<Vec<Link>>,
    /// Possible nodes that are not online.
    pub(super) offline: NodeSet,
    /// Present CPUs in no node.
    pub(super) offline_cpus: Vec<u32>,
    pub(super) accelerators: Vec<Accelerator>,
    /// Only profiles have it; discovery does not look for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) persistent_memory: Vec<PersistentMemory>,
    pub(super) numa_balancing: Option<NumaBalancing>,
    pub(super) is_demotion_enabled: Option<bool>,
    pub(super) facts: Vec<Fact>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parameters: Vec<Parameter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) copy_methods: Option<Figure<CopyMethods>>,
    /// The measured storages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) storage: Vec<Storage>,
    /// Short name of a publication and its full name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) references: BTreeMap<String, String>,
}

impl Machine {
    /// This machine, from `/sys` and `/proc`; read again, up to three times, if it changes meanwhile.
    ///
    /// Allowed CPUs and nodes (cpusets, affinity) are those of the process' main thread.
    ///
    /// # Errors
    /// [`TopologyError::Read`], [`Parse`](TopologyError::Parse),
    /// [`Contradiction`](TopologyError::Contradiction), [`Changing`](TopologyError::Changing).
    pub fn discover() -> Result<Machine, TopologyError> {
        sysfs::read(&Directory::system(), Origin::Discovered)
    }

    /// A recorded machine: a directory with `sys` and `proc` in it, or the JSON file that `memferry topology --record` writes.
    ///
    /// # Errors
    /// Those of [`discover`](Machine::discover), and [`TopologyError::Recording`].
    pub fn discover_at(path: impl AsRef<Path>) -> Result<Machine, TopologyError> {
        let path = path.as_ref();
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => sysfs::read(&Directory::below(path), Origin::Recorded),
            // Its error describes a path that is neither.
            _ => sysfs::read(&Recording::open(path)?, Origin::Recorded),
        }
    }

    /// The machine that these files describe.
    ///
    /// # Errors
    /// Those of [`discover`](Machine::discover).
    #[cfg(feature = "internals")]
    pub fn discover_in(files: &dyn Files) -> Result<Machine, TopologyError> {
        sysfs::read(files, Origin::Recorded)
    }

    /// A built-in profile (see [`profiles`](Machine::profiles)), or the JSON file of that path.
    ///
    /// # Errors
    /// [`TopologyError::UnknownProfile`], [`Profile`](TopologyError::Profile), `Read`, `Contradiction`.
    pub fn from_profile(name_or_path: &str) -> Result<Machine, TopologyError> {
        profile::open(name_or_path, Placeholders::Ignored)
    }

    /// A profile with placeholders for figures that are not published; [`placeholder`](Machine::placeholder) says so.
    ///
    /// For machines that are built from a profile (`cargo xtask numa`), which need every figure. Never plan with it.
    ///
    /// # Errors
    /// Those of [`from_profile`](Machine::from_profile).
    #[cfg(feature = "internals")]
    pub fn from_profile_with_placeholders(name_or_path: &str) -> Result<Machine, TopologyError> {
        profile::open(name_or_path, Placeholders::Used)
    }

    /// Parses a profile; errors call it `name`.
    ///
    /// # Errors
    /// [`TopologyError::Profile`], `Contradiction`.
    pub fn from_profile_text(name: &str, text: &str) -> Result<Machine, TopologyError> {
        profile::parse(name, text, Placeholders::Ignored)
    }

    /// Names of the built-in profiles.
    pub fn profiles() -> Vec<&'static str> {
        profile::names()
    }

    /// An invented machine for tests and benchmarks: node 0 DRAM with CPUs, node 1 HBM.
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

    /// Family and model of the CPU, from the CPU. They identify its generation where [`cpu`](Machine::cpu) does not, as in
    /// many virtual machines: `(26, 2)` is a Zen 5, `(25, 17)` a Zen 4, and both may be called "AMD EPYC". `None` for
    /// profiles.
    ///
    /// Source: proc_cpuinfo(5).
    pub fn cpu_family_and_model(&self) -> Option<(u32, u32)> {
        self.cpu_family_and_model
    }

    /// Kernel release.
    pub fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// The source of this description.
    #[cfg(feature = "internals")]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether these are the nodes of the machine that this program runs on, so that memory can be bound to them.
    pub fn is_this_machine(&self) -> bool {
        self.origin == Origin::Discovered
    }

    /// The reason why the figures are not those of a real machine, if they are not.
    pub fn placeholder(&self) -> Option<&str> {
        self.placeholder.as_deref()
    }

    /// All nodes, ascending by id; never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Possible nodes that are not online, for removed or future memory.
    pub fn offline(&self) -> &NodeSet {
        &self.offline
    }

    /// CPUs that are present and offline.
    pub fn offline_cpus(&self) -> &[u32] {
        &self.offline_cpus
    }

    /// Whether the kernel moves pages between nodes automatically (`numa_balancing`), also those that a program placed, unless
    /// they are bound to their node; `None` if it cannot, or if unknown.
    pub fn is_numa_balancing_on(&self) -> Option<bool> {
        self.numa_balancing.map(NumaBalancing::is_on)
    }

    /// Whether the kernel demotes pages of a full node to a slower tier instead of dropping or swapping them; `None` if it
    /// cannot, or if unknown.
    pub fn is_demotion_enabled(&self) -> Option<bool> {
        self.is_demotion_enabled
    }

    /// Number of nodes. Ids may be larger: see [`NodeId`].
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

    /// The link from the CPUs of `from` to the memory of `to`; without figures for unknown nodes.
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

    /// Persistent memory that programs use as files; only profiles have it.
    #[cfg(feature = "internals")]
    pub fn persistent_memory(&self) -> &[PersistentMemory] {
        &self.persistent_memory
    }

    /// Published figures beyond nodes and links; only profiles have them.
    #[cfg(feature = "internals")]
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// Parameters for models, each with its basis; only profiles have them.
    #[cfg(feature = "internals")]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The value of a parameter for models, such as `core_mb_per_s`; only calibrated and published machines have them.
    pub fn parameter(&self, name: &str) -> Option<f64> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.value)
    }

    /// The storages that a calibration measured.
    pub fn storage(&self) -> &[Storage] {
        &self.storage
    }

    /// The fastest copy methods of its cores, if measured; only profiles have them.
    pub fn copy_methods(&self) -> Option<CopyMethods> {
        self.copy_methods.as_ref().map(|figure| figure.value)
    }

    /// The publications of its figures: short name and full name; only profiles have them.
    #[cfg(feature = "internals")]
    pub fn references(&self) -> &BTreeMap<String, String> {
        &self.references
    }

    /// Marks a node's memory as not allowed, like a cpuset.
    #[cfg(test)]
    pub(crate) fn forbid_memory(&mut self, id: NodeId) {
        let index = self.position(id).expect("it is a node");
        self.nodes[index].is_allowed = false;
    }

    pub(super) fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// The first contradiction in it, if any: files and profiles are external input.
    pub(super) fn contradiction(&self) -> Option<String> {
        if self.nodes.is_empty() {
            return Some("it has no node".into());
        }
        if let Some(pair) = self.nodes.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Some(format!("node {} comes after node {}; ids must ascend", pair[1].id, pair[0].id));
        }
        for node in &self.nodes {
            let distance = |to: &Node| self.link(node.id, to.id).distance;
            let Some(own) = distance(node) else { continue };
            let nearer = |to: &Node| distance(to).filter(|&distance| distance < own);
            if let Some((to, distance)) = self.nodes.iter().find_map(|to| Some((to.id, nearer(to)?))) {
                let id = node.id;
                return Some(format!(
                    "node {id} is {distance} from node {to}, nearer than the {own} from itself"
                ));
            }
        }
        if let Some(node) = self.nodes.iter().find(|node| self.offline.contains(node.id)) {
            return Some(format!("node {} is there and offline", node.id));
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
        for (index, storage) in self.storage.iter().enumerate() {
            if let Some(what) = storage.contradiction() {
                return Some(what);
            }
            if self.storage[..index].iter().any(|before| before.directory == storage.directory) {
                return Some(format!("storage {} is there twice", storage.directory.display()));
            }
        }
        for (index, parameter) in self.parameters.iter().enumerate() {
            if let Some(what) = parameter.contradiction() {
                return Some(what);
            }
            if self.parameters[..index].iter().any(|before| before.name == parameter.name) {
                return Some(format!("parameter {} is there twice", parameter.name));
            }
        }
        for memory in &self.persistent_memory {
            if self.position(memory.node).is_none() {
                return Some(format!(
                    "persistent memory is attached to node {}, which does not exist",
                    memory.node
                ));
            }
            if memory.size_bytes == 0 {
                return Some(format!("the persistent memory of node {} has no size", memory.node));
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
