//! Reads a machine from sysfs and procfs, of this machine or recorded below another root.
//!
//! What every kernel has (`node/online`, `cpulist`, `distance`, `meminfo`) must be there and agree; what only
//! some have (HMAT, memory tiers, DSA) may be missing, but not be nonsense. A kernel without NUMA has no
//! `node` directory: then everything is node 0.
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-devices-node`, `.../admin-guide/mm/numaperf.rst`,
//! `.../ABI/testing/sysfs-kernel-mm-memory-tiers`, `.../ABI/stable/sysfs-driver-dma-idxd`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::shorten;
use super::machine::{Accelerator, Link, Machine, Node, NodeId, Origin, Tier};
use super::{NodeSet, TopologyError, list, meminfo};

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";
const TIERS: &str = "sys/devices/virtual/memory_tiering";
const DAX: &str = "sys/bus/dax/devices";
const DSA: &str = "sys/bus/dsa/devices";

pub(super) fn read(root: &Path, origin: Origin) -> Result<Machine, TopologyError> {
    let tree = Tree { root };
    let (mut nodes, distances) =
        if tree.exists(NODES)? { tree.nodes()? } else { (vec![tree.only_node()?], vec![]) };
    tree.prefer_machine_totals(&mut nodes)?;
    let name = match tree.optional("proc/sys/kernel/hostname")? {
        Some(name) => name,
        None => root.display().to_string(),
    };
    let mut machine = Machine {
        name,
        cpu: tree.cpu_model()?,
        kernel: tree.optional("proc/sys/kernel/osrelease")?,
        origin,
        placeholder: None,
        links: vec![vec![Link::default(); nodes.len()]; nodes.len()],
        nodes,
        offline: NodeSet::default(),
        accelerators: Vec::new(),
        facts: Vec::new(),
        references: BTreeMap::new(),
    };
    for (links, distances) in machine.links.iter_mut().zip(distances) {
        for (link, distance) in links.iter_mut().zip(distances) {
            link.distance = Some(distance);
        }
    }
    tree.performance(&mut machine)?;
    tree.tiers(&mut machine)?;
    machine.accelerators = tree.accelerators(&machine)?;
    match machine.contradiction() {
        Some(what) => Err(tree.contradiction(what)),
        None => Ok(machine),
    }
}

/// A root directory with `sys` and `proc` in it.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    /// The online nodes, and the rows of their distance matrix.
    fn nodes(&self) -> Result<(Vec<Node>, Vec<Vec<u32>>), TopologyError> {
        let online = self.list(&format!("{NODES}/online"))?;
        let mut nodes = Vec::with_capacity(online.len());
        let mut distances = Vec::with_capacity(online.len());
        for &id in &online {
            let at = |file: &str| format!("{NODES}/node{id}/{file}");
            let cpus = self.list(&at("cpulist"))?;
            let row = self.numbers(&at("distance"))?;
            if row.len() != online.len() {
                return Err(self.contradiction(format!(
                    "{} lists {} distances, {NODES}/online {} nodes",
                    at("distance"),
                    row.len(),
                    online.len()
                )));
            }
            distances.push(row);
            let memory = self.meminfo(&at("meminfo"))?;
            nodes.push(Node {
                id: NodeId(id),
                socket: self.socket(&cpus)?,
                tier: if memory.total_bytes > 0 && !cpus.is_empty() { Tier::Dram } else { Tier::Unknown },
                allowed_cpus: cpus.clone(),
                cpus,
                is_allowed: true,
                memory_bytes: Some(memory.total_bytes),
                free_bytes: Some(memory.available_bytes),
                kernel_tier: None,
                cpu_node: NodeId(id),
            });
        }
        Ok((nodes, distances))
    }

    /// What a kernel without NUMA has.
    fn only_node(&self) -> Result<Node, TopologyError> {
        let cpus = self.list(&format!("{CPUS}/online"))?;
        let memory = self.meminfo("proc/meminfo")?;
        Ok(Node {
            id: NodeId(0),
            socket: self.socket(&cpus)?,
            allowed_cpus: cpus.clone(),
            cpus,
            is_allowed: true,
            memory_bytes: Some(memory.total_bytes),
            free_bytes: Some(memory.available_bytes),
            tier: Tier::Dram,
            kernel_tier: None,
            cpu_node: NodeId(0),
        })
    }

    /// With one node, `/proc/meminfo` is about that node and knows more than the node's own file: memory that
    /// a hypervisor added late has been seen to be missing there (Firecracker, Linux 6.18).
    fn prefer_machine_totals(&self, nodes: &mut [Node]) -> Result<(), TopologyError> {
        if let [node] = nodes
            && self.exists("proc/meminfo")?
        {
            let memory = self.meminfo("proc/meminfo")?;
            node.memory_bytes = Some(memory.total_bytes);
            node.free_bytes = Some(memory.available_bytes);
        }
        Ok(())
    }

    fn socket(&self, cpus: &[u32]) -> Result<Option<u32>, TopologyError> {
        let Some(cpu) = cpus.first() else { return Ok(None) };
        let file = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
        // The kernel answers -1 where the firmware does not tell.
        Ok(self.optional_number::<i64>(&file)?.and_then(|id| u32::try_from(id).ok()))
    }

    fn cpu_model(&self) -> Result<Option<String>, TopologyError> {
        let Some(cpuinfo) = self.optional("proc/cpuinfo")? else { return Ok(None) };
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Ok(model.map(|(_, model)| model.trim().to_owned()))
    }

    /// Bandwidth and latency from the initiators that the kernel ranks best (HMAT), and with them the CPU
    /// node of each memory-only node.
    fn performance(&self, machine: &mut Machine) -> Result<(), TopologyError> {
        for target in 0..machine.nodes.len() {
            let id = machine.nodes[target].id;
            // access1 ranks CPUs only; access0 also other initiators, and is all that older kernels have.
            let directory = |class| format!("{NODES}/node{id}/{class}/initiators");
            let class = if self.exists(&directory("access1"))? { "access1" } else { "access0" };
            let directory = directory(class);
            let mut initiators: Vec<usize> = (self.entries(&directory)?.iter())
                .filter_map(|name| name.strip_prefix("node")?.parse().ok())
                .filter_map(|initiator| machine.position(NodeId(initiator)))
                .filter(|&initiator| !machine.nodes[initiator].cpus.is_empty())
                .collect();
            initiators.sort_unstable();
            let mib = |n: u64| n.saturating_mul(1 << 20);
            let figure = |name: &str| -> Result<Option<u64>, TopologyError> {
                Ok(self.optional_number(&format!("{directory}/{name}"))?.filter(|&figure| figure != 0))
            };
            let figures = Link {
                distance: None,
                read_bytes_per_s: figure("read_bandwidth")?.map(mib),
                write_bytes_per_s: figure("write_bandwidth")?.map(mib),
                read_latency_ns: figure("read_latency")?.map(|ns| ns as f64),
                write_latency_ns: figure("write_latency")?.map(|ns| ns as f64),
            };
            for &initiator in &initiators {
                let link = &mut machine.links[initiator][target];
                *link = Link { distance: link.distance, ..figures };
            }
            self.assign_cpu_node(machine, target, initiators)?;
        }
        Ok(())
    }

    /// The nearest of the best initiators; without HMAT the nearest node with CPUs.
    fn assign_cpu_node(
        &self,
        machine: &mut Machine,
        target: usize,
        mut candidates: Vec<usize>,
    ) -> Result<(), TopologyError> {
        if !machine.nodes[target].cpus.is_empty() {
            return Ok(());
        }
        if candidates.is_empty() {
            candidates = (0..machine.nodes.len()).filter(|&i| !machine.nodes[i].cpus.is_empty()).collect();
        }
        let nearest = candidates.into_iter().min_by_key(|&i| machine.links[i][target].distance);
        let Some(nearest) = nearest else {
            return Err(self.contradiction(format!("no node below {NODES} has a CPU")));
        };
        let Node { id, socket, .. } = machine.nodes[nearest];
        machine.nodes[target].cpu_node = id;
        machine.nodes[target].socket = socket;
        Ok(())
    }

    /// The kernel's memory tiers, and from them, HMAT and the DAX devices the kind of each memory-only node.
    ///
    /// Memory next to CPUs stays `Dram`: nothing tells a Xeon Max without DIMMs from a machine with DDR.
    fn tiers(&self, machine: &mut Machine) -> Result<(), TopologyError> {
        for name in self.entries(TIERS)? {
            let Some(tier) = name.strip_prefix("memory_tier").and_then(|tier| tier.parse().ok()) else {
                continue;
            };
            for id in self.list(&format!("{TIERS}/{name}/nodelist"))? {
                if let Some(index) = machine.position(NodeId(id)) {
                    machine.nodes[index].kernel_tier = Some(tier);
                }
            }
        }
        let onlined = self.dax_nodes()?;
        for index in 0..machine.nodes.len() {
            let node = &machine.nodes[index];
            if !node.cpus.is_empty() || node.memory_bytes == Some(0) {
                continue;
            }
            let onlined = onlined.iter().find(|(id, _)| *id == node.id).map(|&(_, tier)| tier);
            let faster = || {
                let own = machine.node(node.cpu_node).ok()?;
                machine.is_faster(node, own, own.id).then_some(Tier::Hbm)
            };
            machine.nodes[index].tier = onlined.or_else(faster).unwrap_or(Tier::Unknown);
        }
        Ok(())
    }

    /// Nodes made of DAX memory, with what their place in the device tree says about it. Memory that the
    /// firmware merely set aside (`hmem`) may be HBM as well as CXL, so it is not in the list.
    fn dax_nodes(&self) -> Result<Vec<(NodeId, Tier)>, TopologyError> {
        let mut nodes = Vec::new();
        for name in self.entries(DAX)? {
            let Ok(device) = fs::read_link(self.root.join(DAX).join(&name)) else { continue };
            let device = device.to_string_lossy().into_owned();
            let tier = match () {
                () if device.contains("/ndbus") => Tier::Pmem,
                () if device.contains("/cxl") || device.contains("/decoder") => Tier::Cxl,
                () => continue,
            };
            if let Some(id) = self.optional_number::<i64>(&format!("{DAX}/{name}/target_node"))?
                && let Ok(id) = u32::try_from(id)
            {
                nodes.push((NodeId(id), tier));
            }
        }
        Ok(nodes)
    }

    fn accelerators(&self, machine: &Machine) -> Result<Vec<Accelerator>, TopologyError> {
        let mut found = Vec::new();
        for name in self.entries(DSA)? {
            let Some(number) = name.strip_prefix("dsa").and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            let at = |file: &str| format!("{DSA}/{name}/{file}");
            let node =
                self.optional_number::<i64>(&at("numa_node"))?.and_then(|node| u32::try_from(node).ok());
            let accelerator = Accelerator {
                node: node.map(NodeId).filter(|&node| machine.position(node).is_some()),
                work_queues_count: self.optional_number(&at("max_work_queues"))?,
                engines_count: self.optional_number(&at("max_engines"))?,
                bytes_per_s_max: None,
                name,
            };
            found.push((number, accelerator));
        }
        found.sort_by_key(|&(number, _)| number);
        Ok(found.into_iter().map(|(_, accelerator)| accelerator).collect())
    }

    fn meminfo(&self, file: &str) -> Result<meminfo::Memory, TopologyError> {
        let text = self.required(file)?;
        meminfo::parse(&text).ok_or_else(|| self.nonsense(file, &text, "lines such as `MemTotal: 8192 kB`"))
    }

    fn list(&self, file: &str) -> Result<Vec<u32>, TopologyError> {
        let text = self.required(file)?;
        list::parse(&text).ok_or_else(|| self.nonsense(file, &text, "a list such as 0-3,8"))
    }

    fn numbers(&self, file: &str) -> Result<Vec<u32>, TopologyError> {
        let text = self.required(file)?;
        let numbers: Result<_, _> = text.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| self.nonsense(file, &text, "numbers such as 10 21"))
    }

    fn optional_number<T: std::str::FromStr>(&self, file: &str) -> Result<Option<T>, TopologyError> {
        let Some(text) = self.optional(file)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.nonsense(file, &text, "a number"))
    }

    fn required(&self, file: &str) -> Result<String, TopologyError> {
        fs::read_to_string(self.root.join(file)).map(trimmed).map_err(|error| self.unreadable(file, error))
    }

    fn optional(&self, file: &str) -> Result<Option<String>, TopologyError> {
        match fs::read_to_string(self.root.join(file)) {
            Ok(text) => Ok(Some(trimmed(text))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(file, error)),
        }
    }

    /// Names in a directory, sorted; none if there is no such directory.
    fn entries(&self, directory: &str) -> Result<Vec<String>, TopologyError> {
        let read = || -> io::Result<Vec<String>> {
            fs::read_dir(self.root.join(directory))?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        };
        match read() {
            Ok(mut names) => {
                names.sort_unstable();
                Ok(names)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.unreadable(directory, error)),
        }
    }

    fn exists(&self, path: &str) -> Result<bool, TopologyError> {
        self.root.join(path).try_exists().map_err(|error| self.unreadable(path, error))
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    fn unreadable(&self, file: &str, source: io::Error) -> TopologyError {
        let advice = match source.kind() {
            ErrorKind::NotFound => {
                "sysfs and procfs must be mounted and complete; if a node just went offline, try again"
            }
            ErrorKind::PermissionDenied => "make it readable for this user, or use a profile instead",
            _ => "look at that file, or use a profile instead",
        };
        TopologyError::Read { path: self.path(file), source, advice }
    }

    fn nonsense(&self, file: &str, text: &str, expected: &'static str) -> TopologyError {
        TopologyError::Parse { path: self.path(file), found: shorten(text), expected }
    }

    fn contradiction(&self, what: String) -> TopologyError {
        TopologyError::Contradiction { machine: self.root.display().to_string(), what }
    }
}

fn trimmed(text: String) -> String {
    text.trim().to_owned()
}
