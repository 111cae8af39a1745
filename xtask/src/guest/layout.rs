//! From a machine profile to nodes that a small guest can have.
//!
//! Nodes, their numbers, sockets and distances are the profile's. Memory is scaled by one factor; CPUs are one or two a
//! node; rates are rounded to what QEMU can say. The result is also written into the guest as `/layout.json`, so that
//! tests compare what they discover with what the guest was built from.
//!
//! Sources: QEMU `hw/core/numa.c`, `hw/acpi/hmat.c`; Linux `drivers/acpi/numa/srat.c` and `hmat.c`.

use std::collections::BTreeMap;

use memferry::topology::{Machine, Tier};
use serde::{Deserialize, Serialize};

use crate::shell::Failure;

/// What the largest node of a profile becomes, before that is rounded to sections and to what a node with CPUs needs.
/// Tests fill whole nodes, which under emulation takes some 5 s a GiB.
const LARGEST_MIB: u64 = 320;
/// A memory section of Linux on x86-64 (`SECTION_SIZE_BITS`): no section is shared by two nodes.
const SECTION_MIB: u64 = 128;
/// What a node with CPUs has at least: the kernel's own data, and room for a test.
const CPU_NODE_MIB_MIN: u64 = 384;
/// CPUs of the guest. They are all emulated by one thread.
const CPUS_MAX: usize = 8;
/// QEMU writes a rate as 16 bits times a common power of two; with 64 MiB/s that reaches 4 TiB/s.
const RATE_STEP_MIB: u64 = 64;

/// What the guest shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// The profile it was made from.
    pub(crate) profile: String,
    /// Online nodes, ascending.
    pub(crate) nodes: Vec<LayoutNode>,
    /// Nodes that are possible and not online.
    pub(crate) offline: Vec<u32>,
    /// In the order of `nodes`.
    pub(crate) distances: Vec<Vec<u32>>,
    /// From each node with CPUs to each with memory; empty if the guest has no HMAT.
    pub(crate) links: Vec<LayoutLink>,
    /// Sockets with CPUs.
    pub(crate) sockets: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayoutNode {
    pub(crate) id: u32,
    pub(crate) cpus: Vec<u32>,
    pub(crate) memory_mib: u64,
    /// What the kernel can tell of it; without HMAT it cannot tell HBM.
    pub(crate) tier: Tier,
    pub(crate) cpu_node: u32,
    /// Of the profile's sockets the how-manieth: QEMU counts them from 0.
    pub(crate) socket: u32,
}

/// Rates and latencies as the guest's kernel prints them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayoutLink {
    pub(crate) initiator: u32,
    pub(crate) target: u32,
    pub(crate) read_mib_per_s: u64,
    pub(crate) write_mib_per_s: u64,
    pub(crate) read_latency_ns: u64,
    pub(crate) write_latency_ns: u64,
}

impl Layout {
    /// `files_mib` is what the guest will keep in memory as files; node 0 is that much larger, because they go there.
    pub(crate) fn of(profile: &str, files_mib: u64) -> Result<Layout, Failure> {
        let machine = Machine::from_profile_with_placeholders(profile)
            .map_err(|error| Failure(format!("no guest can be built: {error}")))?;
        Layout::of_machine(&machine, files_mib)
            .map_err(|why| Failure(format!("no guest can be built after {profile}: {why}")))
    }

    fn of_machine(machine: &Machine, files_mib: u64) -> Result<Layout, String> {
        let mut nodes = Vec::new();
        let sockets = ranks(machine.nodes().iter().map(|node| node.socket));
        let memories = memories(machine, files_mib)?;
        for (node, memory_mib) in machine.nodes().iter().zip(memories) {
            nodes.push(LayoutNode {
                id: node.id.0,
                cpus: Vec::new(),
                memory_mib,
                tier: node.tier,
                cpu_node: node.cpu_node.0,
                socket: sockets[&node.socket],
            });
        }
        let mut layout = Layout {
            profile: machine.name().to_owned(),
            nodes,
            offline: machine.offline().iter().map(|id| id.0).collect(),
            distances: distances(machine)?,
            links: Vec::new(),
            sockets: 0,
        };
        layout.number_cpus(machine)?;
        layout.check_numbering()?;
        // QEMU lists every node in its HMAT, and Linux ignores a table with a node that has no memory.
        if layout.offline.is_empty() && layout.nodes.iter().all(|node| node.memory_mib > 0) {
            layout.links = links(machine, &layout.nodes);
        }
        for node in &mut layout.nodes {
            node.tier = match node.tier {
                _ if node.memory_mib == 0 => Tier::Unknown,
                _ if !node.cpus.is_empty() => Tier::Dram,
                Tier::Hbm if !layout.links.is_empty() => Tier::Hbm,
                _ => Tier::Unknown,
            };
        }
        Ok(layout)
    }

    pub(crate) fn has_hmat(&self) -> bool {
        !self.links.is_empty()
    }

    pub(crate) fn cores_per_socket(&self) -> usize {
        self.cpus_count() / self.sockets as usize
    }

    pub(crate) fn cpus_count(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_mib).sum()
    }

    /// CPUs count through the nodes of a socket, then through the next socket, as QEMU numbers them.
    fn number_cpus(&mut self, machine: &Machine) -> Result<(), String> {
        let owners: Vec<usize> =
            (0..self.nodes.len()).filter(|&i| !machine.nodes()[i].cpus.is_empty()).collect();
        if owners.len() > CPUS_MAX {
            return Err(format!("it has {} nodes with CPUs, and a guest {CPUS_MAX} CPUs", owners.len()));
        }
        let few = owners.iter().map(|&i| machine.nodes()[i].cpus.len()).min().unwrap_or(1);
        let per_node = (CPUS_MAX / owners.len()).clamp(1, 2).min(few);
        let mut counts = BTreeMap::<u32, usize>::new();
        let mut next = 0..;
        for &i in &owners {
            self.nodes[i].cpus = next.by_ref().take(per_node).collect();
            *counts.entry(self.nodes[i].socket).or_default() += 1;
        }
        let mut sizes = counts.values();
        let first = sizes.next().copied().unwrap_or(0);
        if sizes.any(|&size| size != first) {
            return Err("its sockets have different numbers of nodes with CPUs; QEMU's are all alike".into());
        }
        if owners.windows(2).any(|pair| self.nodes[pair[0]].socket > self.nodes[pair[1]].socket) {
            return Err("a node of a later socket comes before one of an earlier socket".into());
        }
        self.sockets = counts.len() as u32;
        // What Linux says of a node without CPUs is the socket of the CPUs next to it.
        let socket_of = |id: u32| self.nodes.iter().find(|node| node.id == id).map(|node| node.socket);
        if let Some(node) = self.nodes.iter().find(|node| socket_of(node.cpu_node) != Some(node.socket)) {
            let LayoutNode { id, cpu_node, .. } = node;
            return Err(format!("node {id} is on another socket than the CPUs of node {cpu_node}, its own"));
        }
        Ok(())
    }

    /// Linux numbers nodes as it meets them in the SRAT: where CPUs are or could be, then where memory is.
    fn check_numbering(&self) -> Result<(), String> {
        let owners = self.nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id);
        let others = self.nodes.iter().filter(|node| node.cpus.is_empty()).map(|node| node.id);
        let met: Vec<u32> = owners.chain(self.offline.iter().copied()).chain(others).collect();
        if met.iter().copied().eq(0..met.len() as u32) {
            return Ok(());
        }
        Err(format!(
            "Linux would number its nodes anew; nodes with CPUs must come first, then those offline, then those with \
             memory only, without a gap, and here that order is {met:?}"
        ))
    }
}

/// Sockets counted from 0; a profile's numbers need not be dense.
fn ranks(sockets: impl Iterator<Item = Option<u32>>) -> BTreeMap<Option<u32>, u32> {
    let mut ranks: BTreeMap<Option<u32>, u32> = sockets.map(|socket| (socket, 0)).collect();
    for (rank, known) in (0..).zip(ranks.values_mut()) {
        *known = rank;
    }
    ranks
}

/// Sizes in MiB, whole sections.
fn memories(machine: &Machine, files_mib: u64) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for node in machine.nodes() {
        sizes.push(node.memory_bytes.ok_or_else(|| {
            format!("it does not say how much memory node {} has; add it to its placeholders", node.id)
        })?);
    }
    let largest = u128::from(sizes.iter().copied().max().unwrap_or(0));
    let scaled = sizes.iter().zip(machine.nodes()).enumerate().map(|(index, (&size, node))| {
        if size == 0 {
            return 0;
        }
        let mib = (u128::from(size) * u128::from(LARGEST_MIB) / largest) as u64;
        let least = if node.cpus.is_empty() { SECTION_MIB } else { CPU_NODE_MIB_MIN };
        let sections = (mib.max(least) + SECTION_MIB / 2) / SECTION_MIB;
        let files = if index == 0 { files_mib.div_ceil(SECTION_MIB) } else { 0 };
        (sections + files) * SECTION_MIB
    });
    let scaled: Vec<u64> = scaled.collect();
    if scaled[0] == 0 {
        return Err("its first node has no memory, where the kernel is to go".into());
    }
    Ok(scaled)
}

/// The profile's, or what firmware without a table means: 10 here and 20 elsewhere.
fn distances(machine: &Machine) -> Result<Vec<Vec<u32>>, String> {
    let mut rows = Vec::new();
    for from in machine.nodes() {
        let mut row = Vec::new();
        for to in machine.nodes() {
            let usual = if from.id == to.id { 10 } else { 20 };
            let distance = machine.link(from.id, to.id).distance.unwrap_or(usual);
            // What Linux accepts (slit_valid in drivers/acpi/numa/srat.c); 255 means unreachable.
            if (from.id == to.id) != (distance == 10) || !(10..255).contains(&distance) {
                return Err(format!("distance {distance} from node {} to node {} cannot be", from.id, to.id));
            }
            row.push(distance);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Rates and latencies; none at all if one is missing, as HMAT has no blank. Writes default to reads.
fn links(machine: &Machine, nodes: &[LayoutNode]) -> Vec<LayoutLink> {
    let mut links = Vec::new();
    for (from, initiator) in machine.nodes().iter().zip(nodes).filter(|(_, node)| !node.cpus.is_empty()) {
        for (to, target) in machine.nodes().iter().zip(nodes) {
            let link = machine.link(from.id, to.id);
            let (Some(read), Some(latency)) = (link.read_bytes_per_s, link.read_latency_ns) else {
                return Vec::new();
            };
            links.push(LayoutLink {
                initiator: initiator.id,
                target: target.id,
                read_mib_per_s: rate(read),
                write_mib_per_s: rate(link.write_bytes_per_s.unwrap_or(read)),
                read_latency_ns: nanoseconds(latency),
                write_latency_ns: nanoseconds(link.write_latency_ns.unwrap_or(latency)),
            });
        }
    }
    links
}

fn rate(bytes_per_s: u64) -> u64 {
    let step = RATE_STEP_MIB << 20;
    // At most what 16 bits hold, without the two values that mean something else.
    let steps = (bytes_per_s / step + u64::from(bytes_per_s % step >= step / 2)).clamp(1, 0xfffd);
    steps * RATE_STEP_MIB
}

fn nanoseconds(latency: f64) -> u64 {
    latency.round().clamp(1.0, f64::from(0xfffd)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::MACHINES;

    fn of(profile: &str) -> Layout {
        Layout::of(profile, 0).unwrap()
    }

    #[test]
    fn xeon_max() {
        let layout = of("xeon-max-9468-2s-flat");
        assert_eq!((layout.nodes.len(), layout.cpus_count(), layout.sockets), (16, 8, 2));
        assert_eq!((layout.nodes[0].memory_mib, layout.nodes[8].memory_mib), (384, 128));
        assert_eq!((layout.nodes[5].cpus.as_slice(), layout.nodes[5].socket), (&[5][..], 1));
        assert_eq!((layout.nodes[13].cpu_node, layout.nodes[13].tier), (5, Tier::Hbm));
        assert_eq!(layout.distances[0][..5], [10, 12, 12, 12, 21]);
        let link = |i, t| {
            layout.links.iter().find(|link| (link.initiator, link.target) == (i, t)).unwrap().read_mib_per_s
        };
        assert_eq!((link(0, 0), link(0, 8)), (38400, 204800));
        assert_eq!(layout.links.len(), 8 * 16);
    }

    #[test]
    fn every_profile_fits() {
        for profile in Machine::profiles() {
            let layout = of(profile);
            assert!(layout.nodes.iter().all(|node| node.memory_mib <= CPU_NODE_MIB_MIN), "{profile}");
            assert!((1..=CPUS_MAX).contains(&layout.cpus_count()), "{profile}");
            assert_eq!(layout.cpus_count(), layout.sockets as usize * layout.cores_per_socket(), "{profile}");
            for node in &layout.nodes {
                assert_eq!(node.memory_mib % SECTION_MIB, 0, "{profile}, node {}", node.id);
            }
        }
        for machine in MACHINES {
            assert!(Machine::profiles().contains(&machine.profile), "{}", machine.profile);
        }
    }

    #[test]
    fn a_node_without_memory_costs_the_rates() {
        let layout = of("made-up-odd-nodes");
        assert_eq!(layout.offline, [2]);
        assert_eq!(
            layout.nodes.iter().map(|node| node.memory_mib == 0).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert!(!layout.has_hmat());
        assert!(layout.nodes[2..].iter().all(|node| node.tier == Tier::Unknown));
    }

    #[test]
    fn files_make_the_first_node_larger() {
        let (without, with) = (of("skylake-8180-snc-off"), Layout::of("skylake-8180-snc-off", 129).unwrap());
        assert_eq!(with.nodes[0].memory_mib, without.nodes[0].memory_mib + 256);
        assert_eq!(with.nodes[1], without.nodes[1]);
    }

    #[test]
    fn rates_are_what_qemu_can_say() {
        let mib = 1 << 20;
        assert_eq!([0, 1, 95, 97, 160].map(|rate_mib| rate(rate_mib * mib)), [64, 64, 64, 128, 192]);
        assert_eq!(rate(u64::MAX), 0xfffd * 64);
        assert_eq!((nanoseconds(0.2), nanoseconds(74.5), nanoseconds(1e9)), (1, 75, 0xfffd));
    }

    /// A profile with a piece replaced, and why no guest can be built after it.
    fn refused(from: &str, to: &str) -> String {
        let text = include_str!("../../../crates/memferry/machines/made-up-odd-nodes.json");
        assert!(text.contains(from), "{from}");
        let file = std::env::temp_dir().join(format!("memferry-layout-{}.json", std::process::id()));
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let failure = Layout::of(file.to_str().unwrap(), 0).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        failure
    }

    #[test]
    fn what_no_guest_can_be_is_explained() {
        for (from, to, words) in [
            (r#""memory_mib": 1024"#, r#""memory_mib": null"#, "how much memory node 4 has"),
            (r#""memory_mib": 8192"#, r#""memory_mib": 0"#, "first node has no memory"),
            (r#""offline": [2]"#, r#""offline": [7]"#, "number its nodes anew"),
            ("[10, 21, 23, 14]", "[10, 10, 23, 14]", "distance 10 from node 0 to node 1"),
            (
                r#""id": 1, "socket": 1"#,
                r#""id": 1, "socket": 0"#,
                "node 3 is on another socket than the CPUs of node 1",
            ),
            (r#""name""#, r#""nmae""#, "unknown field"),
        ] {
            let why = refused(from, to);
            assert!(why.contains(words), "{why}");
        }
    }
}
