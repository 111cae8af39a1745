//! Reads a machine from sysfs and procfs, of this machine or recorded.
//!
//! The files of every kernel (`node/online`, `cpulist`, `distance`, `meminfo`) must exist and agree. Those of some kernels
//! (HMAT, memory tiers, DSA, cpusets) may be missing, but must be valid. A kernel without NUMA has no `node` directory:
//! then everything is node 0.
//!
//! A machine may change while it is read: memory is removed, a CPU goes offline. The list of online nodes is read before
//! and after everything else. If it changed, or if a file vanished or contradicts another one, all is read again.
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-devices-node`, `.../admin-guide/mm/numaperf.rst`,
//! `.../ABI/testing/sysfs-kernel-mm-memory-tiers`, `.../ABI/testing/sysfs-kernel-mm-numa`,
//! `.../ABI/stable/sysfs-driver-dma-idxd`, `.../admin-guide/sysctl/kernel.rst` (numa_balancing), `cpuset(7)`.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use memferry_dsa::internals::system;

use super::allowed::Allowed;
use super::files::Files;
use super::machine::{Accelerator, Link, Machine, Node, NodeId, NumaBalancing, Origin, Tier};
use super::{NodeSet, TopologyError, meminfo};

pub(crate) const NODES: &str = "sys/devices/system/node";
pub(super) const CPUS: &str = "sys/devices/system/cpu";
pub(super) const TIERS: &str = "sys/devices/virtual/memory_tiering";
pub(super) const DAX: &str = "sys/bus/dax/devices";
pub(super) const DSA: &str = "sys/bus/dsa/devices";
/// The weight of each node for weighted interleave.
pub(crate) const WEIGHTS: &str = "sys/kernel/mm/mempolicy/weighted_interleave";
/// The mount point of cgroups.
pub(crate) const CGROUPS: &str = "sys/fs/cgroup";
pub(super) const NUMA: &str = "sys/kernel/mm/numa";

/// access1 ranks CPUs only; access0 also other initiators. Kernels before 5.9 have access0 only.
pub(super) const ACCESS_CLASSES: [&str; 2] = ["access1", "access0"];

/// The read part of `/proc/cpuinfo`: `model name` is the fifth line of a CPU. The file of a large machine has some MiB.
pub(super) const CPUINFO_BYTES: usize = 16 << 10;

/// The pauses between attempts are longer than the kernel takes to change nodes.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(10);

/// The limit of Linux (`NODES_SHIFT` is at most 10); the number of links is its square.
pub(super) const NODES_MAX: usize = 1024;

pub(super) fn read(source: &dyn system::Files, origin: Origin) -> Result<Machine, TopologyError> {
    let reader = Reader { files: Files::new(source) };
    let online = || reader.files.optional(&format!("{NODES}/online"));
    let mut attempt = 1;
    loop {
        let before = online()?;
        let outcome = reader.machine(origin);
        let after = online()?;
        let error = match outcome {
            Ok(machine) if before == after => return Ok(machine),
            // Invalid content does not become valid.
            Err(error) if before == after && !may_be_halfway(&error) => return Err(error),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if attempt == ATTEMPTS {
            return Err(match error {
                Some(error) if before == after => error,
                _ => TopologyError::Changing {
                    machine: source.name(),
                    attempts: ATTEMPTS,
                    before: before.unwrap_or_default(),
                    after: after.unwrap_or_default(),
                },
            });
        }
        attempt += 1;
        if origin == Origin::Discovered {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether the error may come from files of two states.
fn may_be_halfway(error: &TopologyError) -> bool {
    matches!(error, TopologyError::Read { .. } | TopologyError::Contradiction { .. })
}

struct Reader<'a> {
    files: Files<'a>,
}

/// Name; family and number.
type CpuModel = (Option<String>, Option<(u32, u32)>);

/// The CPUs of the machine, read once for all nodes.
struct Cpus {
    /// The CPUs with a directory in sysfs, ascending. A list of CPUs may name many others.
    described: Vec<u32>,
    allowed: Allowed,
}

impl Reader<'_> {
    fn machine(&self, origin: Origin) -> Result<Machine, TopologyError> {
        let files = &self.files;
        let cpus = Cpus {
            described: files.numbered(CPUS, "cpu")?,
            allowed: Allowed::read(files, &format!("{CPUS}/online"))?,
        };
        let (mut nodes, distances) = match files.directory(NODES)? {
            Some(_) => self.nodes(&cpus)?,
            None => (vec![self.only_node(&cpus)?], vec![]),
        };
        self.prefer_machine_totals(&mut nodes)?;
        let (cpu, cpu_family_and_model) = self.cpu_model()?;
        let mut machine = Machine {
            name: files.optional("proc/sys/kernel/hostname")?.unwrap_or_else(|| files.name()),
            cpu,
            cpu_family_and_model,
            kernel: files.optional("proc/sys/kernel/osrelease")?,
            origin,
            placeholder: None,
            links: vec![vec![Link::default(); nodes.len()]; nodes.len()],
            offline: self.offline(&nodes)?,
            offline_cpus: self.offline_cpus(&nodes)?,
            nodes,
            accelerators: Vec::new(),
            persistent_memory: Vec::new(),
            numa_balancing: self
                .files
                .number("proc/sys/kernel/numa_balancing")?
                .map(NumaBalancing::from_bits),
            is_demotion_enabled: self.files.switch(&format!("{NUMA}/demotion_enabled"))?,
            facts: Vec::new(),
            parameters: Vec::new(),
            copy_methods: None,
            storage: Vec::new(),
            references: BTreeMap::new(),
        };
        for (links, distances) in machine.links.iter_mut().zip(distances) {
            for (link, distance) in links.iter_mut().zip(distances) {
                link.distance = Some(distance);
            }
        }
        self.performance(&mut machine)?;
        self.tiers(&mut machine)?;
        machine.accelerators = self.accelerators(&machine)?;
        match machine.contradiction() {
            Some(what) => Err(files.contradiction(what)),
            None => Ok(machine),
        }
    }

    /// The online nodes, and the rows of their distance matrix.
    fn nodes(&self, machine: &Cpus) -> Result<(Vec<Node>, Vec<Vec<u32>>), TopologyError> {
        let online = self.files.list(&format!("{NODES}/online"))?;
        if online.len() > NODES_MAX {
            let what = format!("{NODES}/online lists {} nodes, Linux has at most {NODES_MAX}", online.len());
            return Err(self.files.contradiction(what));
        }
        let mut nodes = Vec::with_capacity(online.len());
        let mut distances = Vec::with_capacity(online.len());
        for &id in &online {
            let at = |file: &str| format!("{NODES}/node{id}/{file}");
            let cpus = self.files.list(&at("cpulist"))?;
            let row = self.files.numbers(&at("distance"))?;
            if row.len() != online.len() {
                return Err(self.files.contradiction(format!(
                    "{} lists {} distances, {NODES}/online {} nodes",
                    at("distance"),
                    row.len(),
                    online.len()
                )));
            }
            distances.push(row);
            nodes.push(self.node(machine, id, cpus, self.meminfo(&at("meminfo"))?)?);
        }
        Ok((nodes, distances))
    }

    /// The node of a kernel without NUMA.
    fn only_node(&self, machine: &Cpus) -> Result<Node, TopologyError> {
        let cpus = self.files.list(&format!("{CPUS}/online"))?;
        self.node(machine, 0, cpus, self.meminfo("proc/meminfo")?)
    }

    fn node(
        &self,
        machine: &Cpus,
        id: u32,
        cpus: Vec<u32>,
        memory: meminfo::Memory,
    ) -> Result<Node, TopologyError> {
        Ok(Node {
            id: NodeId(id),
            socket: self.socket(machine, &cpus)?,
            tier: if memory.total_bytes > 0 && !cpus.is_empty() { Tier::Dram } else { Tier::Unknown },
            allowed_cpus: machine.allowed.cpus(&cpus),
            cpus,
            is_allowed: machine.allowed.node(id),
            memory_bytes: Some(memory.total_bytes),
            free_bytes: Some(memory.available_bytes),
            side_cache_bytes: self.side_cache(id)?,
            kernel_tier: None,
            cpu_node: NodeId(id),
        })
    }

    /// With one node, `/proc/meminfo` describes that node better than the node's own file, which lacked memory that a
    /// hypervisor had added late (Firecracker, Linux 6.18).
    fn prefer_machine_totals(&self, nodes: &mut [Node]) -> Result<(), TopologyError> {
        if let [node] = nodes
            && let Some(memory) = self.optional_meminfo("proc/meminfo")?
        {
            node.memory_bytes = Some(memory.total_bytes);
            node.free_bytes = Some(memory.available_bytes);
        }
        Ok(())
    }

    /// The socket of all these CPUs; `None` if they are on several, as in virtual machines.
    fn socket(&self, machine: &Cpus, cpus: &[u32]) -> Result<Option<u32>, TopologyError> {
        let mut sockets = BTreeSet::new();
        for cpu in cpus.iter().filter(|cpu| machine.described.binary_search(cpu).is_ok()) {
            let file = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
            // The kernel reports -1 if the firmware reports nothing.
            sockets.extend(self.files.number::<i64>(&file)?.and_then(|id| u32::try_from(id).ok()));
        }
        Ok(if sockets.len() == 1 { sockets.pop_first() } else { None })
    }

    /// Model name of the first CPU, and its family and model.
    fn cpu_model(&self) -> Result<CpuModel, TopologyError> {
        let cpuinfo = self.files.head("proc/cpuinfo", CPUINFO_BYTES)?.unwrap_or_default();
        let field = |name: &str| {
            let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            fields.find_map(|(key, value)| (key.trim_end() == name).then(|| value.trim()))
        };
        let number = |name: &str| field(name)?.parse().ok();
        Ok((field("model name").map(str::to_owned), number("cpu family").zip(number("model"))))
    }

    /// Nodes that are possible and not online. Virtual machines may list hundreds.
    fn offline(&self, nodes: &[Node]) -> Result<NodeSet, TopologyError> {
        let file = format!("{NODES}/possible");
        let Some(possible) = self.files.optional_list(&file)? else { return Ok(NodeSet::default()) };
        if let Some(node) = nodes.iter().find(|node| possible.binary_search(&node.id.0).is_err()) {
            let what = format!("node {} is online, and {file} does not list it", node.id);
            return Err(self.files.contradiction(what));
        }
        let is_online = |id: &NodeId| nodes.binary_search_by_key(id, |node| node.id).is_ok();
        Ok(possible.into_iter().map(NodeId).filter(|id| !is_online(id)).collect())
    }

    /// CPUs that are present and in no node, as offline ones are.
    fn offline_cpus(&self, nodes: &[Node]) -> Result<Vec<u32>, TopologyError> {
        let mut offline = self.files.optional_list(&format!("{CPUS}/present"))?.unwrap_or_default();
        let online: BTreeSet<u32> = nodes.iter().flat_map(|node| &node.cpus).copied().collect();
        offline.retain(|cpu| !online.contains(cpu));
        Ok(offline)
    }

    /// All levels of the memory-side cache, e.g. HBM in cache mode.
    fn side_cache(&self, id: u32) -> Result<Option<u64>, TopologyError> {
        let caches = format!("{NODES}/node{id}/memory_side_cache");
        let mut total_bytes: Option<u64> = None;
        for index in self.files.numbered(&caches, "index")? {
            if let Some(bytes) = self.files.number::<u64>(&format!("{caches}/index{index}/size"))? {
                total_bytes = Some(total_bytes.unwrap_or(0).saturating_add(bytes));
            }
        }
        Ok(total_bytes)
    }

    /// Bandwidth and latency from the initiators that the kernel ranks best (HMAT), and with them the CPU
    /// node of each memory-only node.
    ///
    /// Initiators that are offline are skipped: the kernel keeps the links to a removed node.
    fn performance(&self, machine: &mut Machine) -> Result<(), TopologyError> {
        for target in 0..machine.nodes.len() {
            let id = machine.nodes[target].id;
            let directory = |class| format!("{NODES}/node{id}/{class}/initiators");
            let mut class = ACCESS_CLASSES[1];
            if self.files.directory(&directory(ACCESS_CLASSES[0]))?.is_some() {
                class = ACCESS_CLASSES[0];
            }
            let directory = directory(class);
            let initiators: Vec<usize> = (self.files.numbered(&directory, "node")?.into_iter())
                .filter_map(|initiator| machine.position(NodeId(initiator)))
                .filter(|&initiator| !machine.nodes[initiator].cpus.is_empty())
                .collect();
            // numaperf.rst says MiB/s, sysfs-devices-node MB/s; the kernel reports the figure of the firmware, for which
            // the ACPI specification leaves the same choice. The error is the same for all nodes of a machine.
            let mib = |n: u64| n.saturating_mul(1 << 20);
            let figure = |name: &str| -> Result<Option<u64>, TopologyError> {
                Ok(self.files.number(&format!("{directory}/{name}"))?.filter(|&figure| figure != 0))
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
            return Err(self.files.contradiction(format!("no node below {NODES} has a CPU")));
        };
        let Node { id, socket, .. } = machine.nodes[nearest];
        machine.nodes[target].cpu_node = id;
        machine.nodes[target].socket = socket;
        Ok(())
    }

    /// The kernel's memory tiers, and from them, HMAT and the DAX devices the kind of each memory-only node.
    ///
    /// Memory next to CPUs stays `Dram`: nothing distinguishes a Xeon Max without DIMMs from a machine with DDR.
    fn tiers(&self, machine: &mut Machine) -> Result<(), TopologyError> {
        for tier in self.files.numbered(TIERS, "memory_tier")? {
            for id in self.files.list(&format!("{TIERS}/memory_tier{tier}/nodelist"))? {
                if let Some(index) = machine.position(NodeId(id)) {
                    machine.nodes[index].kernel_tier = Some(tier);
                }
            }
        }
        let onlined = self.dax_nodes()?;
        for index in 0..machine.nodes.len() {
            let node = &machine.nodes[index];
            if !node.cpus.is_empty() || !node.has_memory() {
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

    /// Nodes of DAX memory, with the kind that their place in the device tree implies. Memory that the firmware reserved
    /// (`hmem`) may be HBM or CXL, so it is not in the list.
    fn dax_nodes(&self) -> Result<Vec<(NodeId, Tier)>, TopologyError> {
        let mut nodes = Vec::new();
        for name in self.files.entries(DAX)? {
            let Some(device) = self.files.link(&format!("{DAX}/{name}")) else { continue };
            let tier = match () {
                () if device.contains("/ndbus") => Tier::Pmem,
                () if device.contains("/cxl") || device.contains("/decoder") => Tier::Cxl,
                () => continue,
            };
            if let Some(id) = self.files.number::<i64>(&format!("{DAX}/{name}/target_node"))?
                && let Ok(id) = u32::try_from(id)
            {
                nodes.push((NodeId(id), tier));
            }
        }
        Ok(nodes)
    }

    fn accelerators(&self, machine: &Machine) -> Result<Vec<Accelerator>, TopologyError> {
        let mut found = Vec::new();
        for number in self.files.numbered(DSA, "dsa")? {
            let name = format!("dsa{number}");
            let at = |file: &str| format!("{DSA}/{name}/{file}");
            let node = self.files.number::<i64>(&at("numa_node"))?.and_then(|node| u32::try_from(node).ok());
            found.push(Accelerator {
                node: node.map(NodeId).filter(|&node| machine.position(node).is_some()),
                work_queues_count: self.files.number(&at("max_work_queues"))?,
                engines_count: self.files.number(&at("max_engines"))?,
                bytes_per_s_max: None,
                name,
            });
        }
        Ok(found)
    }

    fn meminfo(&self, file: &str) -> Result<meminfo::Memory, TopologyError> {
        self.parse_meminfo(file, &self.files.required(file)?)
    }

    fn optional_meminfo(&self, file: &str) -> Result<Option<meminfo::Memory>, TopologyError> {
        self.files.optional(file)?.map(|text| self.parse_meminfo(file, &text)).transpose()
    }

    fn parse_meminfo(&self, file: &str, text: &str) -> Result<meminfo::Memory, TopologyError> {
        meminfo::parse(text)
            .ok_or_else(|| self.files.nonsense(file, text, "lines such as `MemTotal: 8192 kB`"))
    }
}
