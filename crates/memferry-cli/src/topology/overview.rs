//! The hierarchy of a machine, as it is drawn.
//!
//! ```text
//! machine > sockets > domains > memories, copy engines
//! ```
//!
//! A domain is the CPUs of one node with their memory, nearby memories without CPUs, and copy engines. With sub-NUMA
//! clustering a socket has several domains.

use memferry::internals::Origin;
use memferry::topology::{Accelerator, Machine, Node, NodeId, NodeSet, Tier};
use memferry_dsa::system::{Config, SystemState};

use super::links::Links;
use crate::devices::Findings;
use crate::output::{capitalised, count, printable, ranges, size};

/// A machine as it is drawn. Plain data, so that tests can make up machines.
#[derive(Clone, Debug)]
pub(super) struct Overview {
    pub(super) name: String,
    pub(super) cpu: Option<String>,
    pub(super) kernel: Option<String>,
    pub(super) origin: Origin,
    pub(super) placeholder: Option<String>,
    /// Publications, one sentence each.
    pub(super) references: Vec<String>,
    pub(super) sockets: Vec<Socket>,
    /// Copy engines whose node is unknown.
    pub(super) stray: Vec<Accelerator>,
    pub(super) offline: NodeSet,
    pub(super) is_numa_balancing_on: Option<bool>,
    pub(super) links: Links,
    /// Pairs for prefetching: a domain's own memory and the nearest faster one.
    pub(super) upgrades: Vec<(Node, Node)>,
    /// The state of the DSA devices; profiles do not have it.
    pub(super) dsa: Option<Dsa>,
}

/// The DSA devices as the driver shows them.
#[derive(Clone, Debug)]
pub(super) struct Dsa {
    pub(super) state: SystemState,
    /// Their current configuration.
    pub(super) config: Config,
    pub(super) findings: Findings,
}

/// A socket, or the domains whose socket is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Socket {
    pub(super) id: Option<u32>,
    pub(super) domains: Vec<Domain>,
}

/// The CPUs of a node with their memories and copy engines.
#[derive(Clone, Debug, Default)]
pub(super) struct Domain {
    pub(super) cpus: Vec<u32>,
    pub(super) allowed_cpus: Vec<u32>,
    /// For memory on another socket than its nearest CPUs, or on none: the node of those CPUs.
    pub(super) nearest: Option<NodeId>,
    /// The nodes; the node of the CPUs comes first.
    pub(super) nodes: Vec<Node>,
    pub(super) engines: Vec<Accelerator>,
}

/// The memory of one tier.
#[derive(Clone, Debug)]
pub(super) struct TierSum {
    pub(super) tier: Tier,
    pub(super) nodes: NodeSet,
    /// Sum over the nodes whose size is known.
    pub(super) known_bytes: u64,
    /// Nodes of known size.
    pub(super) known_count: usize,
    pub(super) kernel_tiers: Vec<u32>,
}

impl Overview {
    pub(super) fn of(machine: &Machine) -> Overview {
        let upgrades = machine.nodes().iter().filter(|node| node.cpu_node == node.id);
        let upgrades =
            upgrades.filter_map(|home| Some((home.clone(), machine.nearest_faster(home.id)?.clone())));
        let stray = machine.accelerators().iter().filter(|engine| engine.node.is_none());
        Overview {
            name: printable(machine.name()),
            cpu: machine.cpu().map(printable),
            kernel: machine.kernel().map(printable),
            origin: machine.origin(),
            placeholder: machine.placeholder().map(printable),
            references: (machine.references().iter())
                .map(|(name, full)| printable(&format!("{name} ({full})")))
                .collect(),
            sockets: sockets(machine),
            stray: stray.cloned().map(printable_engine).collect(),
            offline: machine.offline().clone(),
            is_numa_balancing_on: machine.is_numa_balancing_on(),
            links: Links::of(machine),
            upgrades: upgrades.collect(),
            dsa: None,
        }
    }

    /// Adds the state of the DSA devices.
    pub(super) fn with_dsa(self, state: SystemState) -> Overview {
        let (config, findings) = (Config::of(&state), Findings::of(&state));
        Overview { dsa: Some(Dsa { state, config, findings }), ..self }
    }

    pub(super) fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.sockets.iter().flat_map(|socket| &socket.domains)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.domains().flat_map(|domain| &domain.nodes)
    }

    /// All copy engines.
    pub(super) fn engines(&self) -> impl Iterator<Item = &Accelerator> {
        self.domains().flat_map(|domain| &domain.engines).chain(&self.stray)
    }

    /// The tiers of the machine.
    pub(super) fn tiers(&self) -> Vec<TierSum> {
        let mut tiers: Vec<Tier> =
            self.nodes().filter(|node| node.has_memory()).map(|node| node.tier).collect();
        tiers.sort_by_key(|tier| tier_rank(*tier));
        tiers.dedup();
        let sum = |tier| {
            let nodes: Vec<&Node> =
                self.nodes().filter(|node| node.tier == tier && node.has_memory()).collect();
            let known = nodes.iter().filter_map(|node| node.memory_bytes);
            let mut kernel_tiers: Vec<u32> = nodes.iter().filter_map(|node| node.kernel_tier).collect();
            kernel_tiers.sort_unstable();
            kernel_tiers.dedup();
            TierSum {
                tier,
                nodes: nodes.iter().map(|node| node.id).collect(),
                known_bytes: known.clone().fold(0, u64::saturating_add),
                known_count: known.count(),
                kernel_tiers,
            }
        };
        tiers.into_iter().map(sum).collect()
    }

    /// The amounts of all parts, with no-break spaces within each amount.
    pub(super) fn amounts(&self) -> String {
        let domains = self.domains().filter(|domain| !domain.cpus.is_empty()).count();
        let sockets = self.sockets.iter().filter(|socket| socket.id.is_some()).count();
        let cpus = self.domains().map(|domain| domain.cpus.len()).sum();
        let mut amounts = Vec::new();
        if sockets > 0 {
            amounts.push(count(sockets, "socket"));
        }
        if domains > sockets && sockets > 0 {
            amounts.push(count(domains, "domain"));
        }
        amounts.push(count(self.nodes().count(), "node"));
        amounts.push(count(cpus, "CPU"));
        amounts.extend(self.tiers().iter().map(|sum| match sum.known_count {
            0 => format!("{} of unknown size", tier_of_memory(sum.tier)),
            _ => format!("{} {}", sum.size(), tier_of_memory(sum.tier)),
        }));
        let engines = self.engines().count();
        amounts.push(if engines == 0 {
            "no copy engine (DSA)".into()
        } else {
            count(engines, "copy engine")
        });
        amounts.iter().map(|amount| unbroken(amount)).collect::<Vec<_>>().join(", ")
    }

    /// The origin of the data, as a sentence.
    pub(super) fn origin_sentence(&self) -> &'static str {
        match self.origin {
            Origin::Discovered => "This machine, as it is now.",
            Origin::Recorded => "From a recording of a machine's sysfs, perhaps of another machine.",
            _ => {
                "From a profile; what is placed on its nodes lies in this machine's memory, wherever that is."
            }
        }
    }

    /// What prefetching `auto` copies on this machine, as a sentence.
    pub(super) fn upgrade_sentence(&self) -> String {
        let Some((home, near)) = self.upgrades.first() else {
            return "No memory is known to be faster than the CPUs' own: prefetching `auto` copies nothing here."
                .to_owned();
        };
        let alike = self.upgrades.iter().all(|(from, to)| from.tier == home.tier && to.tier == near.tier);
        let beside = self.upgrades.iter().all(|(from, to)| to.cpu_node == from.id);
        let pairs: Vec<String> = self
            .upgrades
            .iter()
            .map(|(from, to)| match alike {
                true => unbroken(&format!("{} to {}", from.id, to.id)),
                false => unbroken(&format!("{} ({}) to {} ({})", from.id, from.tier, to.id, to.tier)),
            })
            .collect();
        let pairs = pairs.join(", ");
        let (from, to) = (tier_of_memory(home.tier), tier_of_memory(near.tier));
        let between = match (alike, beside) {
            (true, true) => format!(" from {from} to the {to} beside it:"),
            (true, false) => format!(" from {from} to {to}:"),
            _ => " from".to_owned(),
        };
        format!("Prefetching `auto` copies what pays{between} node {pairs}.")
    }

    /// Remarks about resources that cannot be used, and about NUMA balancing.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let refused: NodeSet =
            self.nodes().filter(|node| node.has_memory() && !node.is_allowed).map(|node| node.id).collect();
        if !refused.is_empty() {
            remarks
                .push(format!("This process may not take memory from {} (cpusets).", named_nodes(&refused)));
        }
        if self.domains().any(|domain| domain.cpus.len() > domain.allowed_cpus.len()) {
            let allowed: usize = self.domains().map(|domain| domain.allowed_cpus.len()).sum();
            let all: usize = self.domains().map(|domain| domain.cpus.len()).sum();
            remarks
                .push(format!("This process may run on {allowed} of the {all} CPUs (cpusets or affinity)."));
        }
        if !self.offline.is_empty() {
            let verb = if self.offline.len() == 1 { "is" } else { "are" };
            remarks.push(format!("{} {verb} offline.", capitalised(&named_nodes(&self.offline))));
        }
        if !self.stray.is_empty() {
            let names: Vec<&str> = self.stray.iter().map(|engine| engine.name.as_str()).collect();
            remarks.push(format!(
                "Copy engines on no known node: {}. Which memory they are near is for the firmware to say (numa_node).",
                names.join(", ")
            ));
        }
        let without_queue = self.nodes_without_queue();
        if !without_queue.is_empty() {
            remarks.push(format!(
                "No work queue on {} can be used: copies there are for devices of other nodes, or for the CPU.",
                named_nodes(&without_queue)
            ));
        }
        if self.is_numa_balancing_on == Some(true) {
            remarks.push("Automatic NUMA balancing is on; it moves pages that nobody has bound.".to_owned());
        }
        remarks
    }

    /// Nodes whose devices have no usable queue, if other nodes have one.
    fn nodes_without_queue(&self) -> NodeSet {
        let Some(dsa) = &self.dsa else { return NodeSet::default() };
        let is_usable = |engine: &Accelerator| {
            dsa.findings.usable().iter().any(|queue| queue.device.to_string() == engine.name)
        };
        if !self.engines().any(is_usable) {
            return NodeSet::default();
        }
        let nodes = self.domains().filter(|domain| !domain.engines.iter().any(is_usable));
        nodes.flat_map(|domain| domain.engines.iter().filter_map(|engine| engine.node)).collect()
    }

    /// Groups of copy engines with the same properties: names and properties.
    pub(super) fn engine_groups(&self) -> Vec<(Vec<&str>, String)> {
        let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
        for engine in self.engines() {
            let facts = engine_facts(engine);
            match groups.iter_mut().find(|(_, known)| *known == facts) {
                Some((names, _)) => names.push(&engine.name),
                None => groups.push((vec![&engine.name], facts)),
            }
        }
        groups
    }
}

impl Socket {
    pub(super) fn title(&self) -> String {
        self.id.map_or("no socket known".to_owned(), |id| format!("socket {id}"))
    }
}

impl Domain {
    /// `CPUs 0-11`, or a phrase for a domain without CPUs.
    pub(super) fn title(&self) -> String {
        match self.nearest {
            _ if !self.cpus.is_empty() => format!("CPUs {}", short_ranges(&self.cpus)),
            Some(node) => format!("no CPUs, near node {node}"),
            None => "no CPUs".to_owned(),
        }
    }

    /// The CPUs that this process may use, if not all.
    pub(super) fn restriction(&self) -> Option<String> {
        match self.allowed_cpus.len() {
            all if all >= self.cpus.len() => None,
            0 => Some("none allowed".to_owned()),
            _ => Some(format!("allowed: {}", short_ranges(&self.allowed_cpus))),
        }
    }
}

impl TierSum {
    pub(super) fn size(&self) -> String {
        match self.known_count {
            0 => "?".to_owned(),
            all if all == self.nodes.len() => size(self.known_bytes),
            _ => format!("at least {}", size(self.known_bytes)),
        }
    }

    /// `in node 0`, `in 8 nodes: 8-15`.
    pub(super) fn place(&self) -> String {
        match self.nodes.len() {
            1 => format!("in node {}", self.nodes),
            many => {
                let ids: Vec<u32> = self.nodes.iter().map(|node| node.0).collect();
                format!("in {many} nodes: {}", short_ranges(&ids))
            }
        }
    }
}

/// A node's size; `?` if it is unknown.
pub(super) fn node_size(node: &Node) -> String {
    match node.memory_bytes {
        Some(0) => "no memory".to_owned(),
        Some(bytes) => size(bytes),
        None => "?".to_owned(),
    }
}

/// Free memory of a node, or that this process may not use it.
pub(super) fn node_note(node: &Node) -> Option<String> {
    match node.free_bytes {
        _ if !node.has_memory() => None,
        _ if !node.is_allowed => Some("not allowed".to_owned()),
        Some(free) => Some(format!("{} free", size(free))),
        None => None,
    }
}

/// The name of a tier in sentences.
pub(super) fn tier_of_memory(tier: Tier) -> String {
    match tier {
        Tier::Unknown => "memory of unknown kind".to_owned(),
        known => known.to_string(),
    }
}

/// The position of a tier in lists: the most common first. It says nothing about speed, see [`Machine::faster_than`].
pub(super) fn tier_rank(tier: Tier) -> usize {
    const ORDER: [Tier; 4] = [Tier::Dram, Tier::Hbm, Tier::Cxl, Tier::Pmem];
    ORDER.iter().position(|&known| known == tier).unwrap_or(ORDER.len())
}

/// The known properties of a copy engine; may be empty.
pub(super) fn engine_facts(engine: &Accelerator) -> String {
    let mut facts = Vec::new();
    facts.extend(engine.bytes_per_s_max.map(|rate| format!("at most {:.1} GB/s", rate as f64 / 1e9)));
    facts.extend(engine.work_queues_count.map(|queues| count(queues as usize, "work queue")));
    facts.extend(engine.engines_count.map(|engines| count(engines as usize, "processing engine")));
    facts.join(", ")
}

/// Ranges of numbers. A long list is cut to its first and last ranges, as for numbers that alternate between sockets.
pub(super) fn short_ranges(numbers: &[u32]) -> String {
    const CHARS_MAX: usize = 24;
    let all = ranges(numbers);
    if all.len() <= CHARS_MAX {
        return all;
    }
    let parts: Vec<&str> = all.split(',').collect();
    match parts[..] {
        [first, second, .., last] if first.len() + second.len() + last.len() + 5 <= CHARS_MAX => {
            format!("{first},{second} ... {last}")
        }
        [first, .., last] => format!("{first} ... {last}"),
        _ => all,
    }
}

fn named_nodes(nodes: &NodeSet) -> String {
    // With spaces, so that a long list can be broken.
    let list = nodes.to_string().replace(',', ", ");
    if nodes.len() == 1 { format!("node {list}") } else { format!("nodes {list}") }
}

/// A phrase with no-break spaces; the line breaker replaces them by spaces.
fn unbroken(text: &str) -> String {
    text.replace(' ', "\u{a0}")
}

fn printable_engine(mut engine: Accelerator) -> Accelerator {
    engine.name = printable(&engine.name);
    engine
}

/// The sockets in ascending order, then the domains without a socket.
fn sockets(machine: &Machine) -> Vec<Socket> {
    let mut ids: Vec<Option<u32>> = machine.nodes().iter().map(|node| node.socket).collect();
    ids.sort_unstable_by_key(|id| (id.is_none(), *id));
    ids.dedup();
    ids.into_iter().map(|id| Socket { id, domains: domains(machine, id) }).collect()
}

fn domains(machine: &Machine, socket: Option<u32>) -> Vec<Domain> {
    let here = || machine.nodes().iter().filter(|node| node.socket == socket);
    let is_apart = |node: &Node| {
        node.cpu_node != node.id && machine.node(node.cpu_node).is_ok_and(|cpus| cpus.socket != socket)
    };
    let with_cpus = here().filter(|node| node.cpu_node == node.id).map(|owner| {
        let beside = here().filter(|node| node.cpu_node == owner.id && node.id != owner.id);
        let nodes = std::iter::once(owner).chain(beside).cloned().collect();
        Domain {
            cpus: owner.cpus.clone(),
            allowed_cpus: owner.allowed_cpus.clone(),
            nearest: None,
            nodes,
            engines: Vec::new(),
        }
    });
    let apart = here().filter(|node| is_apart(node)).map(|node| Domain {
        nearest: Some(node.cpu_node),
        nodes: vec![node.clone()],
        ..Domain::default()
    });
    let mut domains: Vec<Domain> = with_cpus.chain(apart).collect();
    for domain in &mut domains {
        let is_here = |engine: &&Accelerator| domain.nodes.iter().any(|node| engine.node == Some(node.id));
        let engines = machine.accelerators().iter().filter(is_here);
        domain.engines = engines.cloned().map(printable_engine).collect();
    }
    domains
}
