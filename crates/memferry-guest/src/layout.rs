//! Scales the machine of a profile to a layout that a small guest can have.
//!
//! Nodes, their numbers, sockets and distances come from the profile. Memory is scaled by one factor, a node has one or
//! two CPUs, and rates are rounded to values that QEMU can express. The guest has the layout as `/layout.json`, so that
//! tests compare it with the discovered machine.
//!
//! Persistent memory has a size of its own: its file outlives guests of different sizes.
//!
//! Sources: QEMU `hw/core/numa.c`, `hw/acpi/hmat.c`; Linux `drivers/acpi/numa/srat.c` and `hmat.c`.

use std::collections::BTreeMap;

use memferry::internals::PersistentMemory;
use memferry::topology::{Machine, Tier};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Size of the largest node, before rounding to sections and to the minimum of a node with CPUs. Tests fill whole nodes,
/// which takes about 5 s per GiB under emulation.
const LARGEST_MIB: u64 = 320;
/// Memory section of Linux on x86-64 (`SECTION_SIZE_BITS`): two nodes cannot share a section.
const SECTION_MIB: u64 = 128;
/// Minimum of a node with CPUs: the data of the kernel, and room for a test.
const CPU_NODE_MIB_MIN: u64 = 384;
/// Most CPUs of a guest. One thread emulates them all.
const CPUS_MAX: usize = 8;
/// Most of a region of persistent memory. Its file is sparse, but the guest needs 1/64 of it for the descriptions of its pages.
const REGION_MIB_MAX: u64 = 512;
/// QEMU stores a rate as 16 bits times a common power of two; with 64 MiB/s that reaches 4 TiB/s.
const RATE_STEP_MIB: u64 = 64;

/// The machine of a guest, as tests should discover it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Name of the profile.
    pub profile: String,
    /// Memory of the machine, before it is scaled.
    pub machine_mib: u64,
    /// Online nodes, ascending.
    pub nodes: Vec<LayoutNode>,
    /// Possible nodes that are not online.
    pub offline: Vec<u32>,
    /// In the order of `nodes`.
    pub distances: Vec<Vec<u32>>,
    /// From each node with CPUs to each with memory; empty if the guest has no HMAT.
    pub links: Vec<LayoutLink>,
    /// Sockets with CPUs.
    pub sockets: u32,
    /// Regions of persistent memory, `/dev/pmem0` and so on in the guest.
    #[serde(default)]
    pub regions: Vec<LayoutRegion>,
}

/// A region of persistent memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutRegion {
    /// The node that it is attached to.
    pub node: u32,
    /// Its size.
    pub size_mib: u64,
    /// Its size in the machine of the profile.
    pub machine_mib: u64,
}

/// An online node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs, ascending.
    pub cpus: Vec<u32>,
    /// Size of its memory.
    pub memory_mib: u64,
    /// The tier that discovery reports; without HMAT it cannot recognise HBM.
    pub tier: Tier,
    /// The node whose CPUs it belongs to.
    pub cpu_node: u32,
    /// Rank among the profile's sockets; QEMU counts them from 0.
    pub socket: u32,
}

/// Rates and latencies as the guest's kernel prints them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayoutLink {
    /// The node of the CPUs.
    pub initiator: u32,
    /// The node of the memory.
    pub target: u32,
    /// Read bandwidth.
    pub read_mib_per_s: u64,
    /// Write bandwidth.
    pub write_mib_per_s: u64,
    /// Read latency.
    pub read_latency_ns: u64,
    /// Write latency.
    pub write_latency_ns: u64,
}

impl Layout {
    /// The smallest useful layout of a profile, for tests. Node 0 is larger by `files_mib`, the files that the guest keeps
    /// there.
    ///
    /// # Errors
    /// The profile is unknown or wrong, or QEMU and Linux cannot have its machine.
    pub fn of(profile: &str, files_mib: u64) -> Result<Layout, Error> {
        Layout::scaled(profile, Scale::LargestNode(LARGEST_MIB), files_mib)
    }

    /// The layout of a profile with about this much memory, or with the memory of the machine if that is less. Nodes keep
    /// their minimum, so that a guest may be larger.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn of_size(profile: &str, memory_mib: u64) -> Result<Layout, Error> {
        Layout::scaled(profile, Scale::Total(memory_mib), 0)
    }

    fn scaled(profile: &str, scale: Scale, files_mib: u64) -> Result<Layout, Error> {
        let machine = Machine::from_profile_with_placeholders(profile)?;
        Layout::of_machine(&machine, scale, files_mib)
            .map_err(|why| Error::Layout { profile: profile.to_owned(), why })
    }

    fn of_machine(machine: &Machine, scale: Scale, files_mib: u64) -> Result<Layout, String> {
        let mut nodes = Vec::new();
        let sockets = ranks(machine.nodes().iter().map(|node| node.socket));
        let memories = memories(machine, scale, files_mib)?;
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
            machine_mib: machine.nodes().iter().filter_map(|node| node.memory_bytes).sum::<u64>() >> 20,
            nodes,
            offline: machine.offline().iter().map(|id| id.0).collect(),
            distances: distances(machine)?,
            links: Vec::new(),
            sockets: 0,
            regions: machine.persistent_memory().iter().map(region).collect(),
        };
        layout.number_cpus(machine)?;
        layout.check_numbering()?;
        // QEMU lists every node in its HMAT, and Linux ignores the table if one of them has no memory.
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

    /// Whether a guest can have these nodes full. Process 1 reserves all of their free memory as huge pages.
    ///
    /// # Errors
    /// One of them is not there, has no memory, or is the first node, in which the kernel and the first programs live.
    pub fn check_full(&self, full: &[u32]) -> Result<(), Error> {
        let why_not = |id: &u32| match self.nodes.iter().position(|node| node.id == *id) {
            None => Some(format!(
                "node {id} cannot be full: it does not exist; `memferry topology --profile {}` lists the nodes",
                self.profile
            )),
            Some(0) => Some(format!("node {id} cannot be full: the kernel needs it; choose another node")),
            Some(position) if self.nodes[position].memory_mib == 0 => {
                Some(format!("node {id} cannot be full: it has no memory; choose another node"))
            }
            Some(_) => None,
        };
        match full.iter().find_map(why_not) {
            Some(why) => Err(Error::Layout { profile: self.profile.clone(), why }),
            None => Ok(()),
        }
    }

    /// Whether the guest's firmware has rates and latencies.
    pub fn has_hmat(&self) -> bool {
        !self.links.is_empty()
    }

    /// CPUs of each socket.
    pub fn cores_per_socket(&self) -> usize {
        self.cpus_count() / self.sockets as usize
    }

    /// CPUs of all nodes.
    pub fn cpus_count(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    /// Memory of all nodes.
    pub fn memory_mib(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_mib).sum()
    }

    /// Numbers CPUs as QEMU does: through the nodes of a socket, then through the next socket.
    fn number_cpus(&mut self, machine: &Machine) -> Result<(), String> {
        let owners: Vec<usize> =
            (0..self.nodes.len()).filter(|&i| !machine.nodes()[i].cpus.is_empty()).collect();
        if owners.len() > CPUS_MAX {
            return Err(format!(
                "it has {} nodes with CPUs, but a guest has at most {CPUS_MAX} CPUs",
                owners.len()
            ));
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
            return Err(
                "its sockets have different numbers of nodes with CPUs, which QEMU cannot emulate".into()
            );
        }
        if owners.windows(2).any(|pair| self.nodes[pair[0]].socket > self.nodes[pair[1]].socket) {
            return Err("a node of a later socket comes before one of an earlier socket".into());
        }
        self.sockets = counts.len() as u32;
        // Linux reports a node without CPUs on the socket of its nearest CPUs.
        let socket_of = |id: u32| self.nodes.iter().find(|node| node.id == id).map(|node| node.socket);
        if let Some(node) = self.nodes.iter().find(|node| socket_of(node.cpu_node) != Some(node.socket)) {
            let LayoutNode { id, cpu_node, .. } = node;
            return Err(format!(
                "node {id} is on another socket than the CPUs of node {cpu_node}, its nearest"
            ));
        }
        Ok(())
    }

    /// Checks that Linux will keep the numbers. It numbers nodes in the order of the SRAT: nodes with present or possible
    /// CPUs first, then nodes with memory only.
    fn check_numbering(&self) -> Result<(), String> {
        let owners = self.nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id);
        let others = self.nodes.iter().filter(|node| node.cpus.is_empty()).map(|node| node.id);
        let met: Vec<u32> = owners.chain(self.offline.iter().copied()).chain(others).collect();
        if met.iter().copied().eq(0..met.len() as u32) {
            return Ok(());
        }
        Err(format!(
            "Linux would renumber its nodes; nodes with CPUs must come first, then offline nodes, then nodes with memory \
             only, without a gap, but that order is {met:?}"
        ))
    }
}

fn region(memory: &PersistentMemory) -> LayoutRegion {
    let machine_mib = memory.size_bytes >> 20;
    let sections = machine_mib.min(REGION_MIB_MAX).div_ceil(SECTION_MIB);
    LayoutRegion { node: memory.node.0, size_mib: sections * SECTION_MIB, machine_mib }
}

/// Ranks of the sockets from 0; the numbers of a profile may have gaps.
fn ranks(sockets: impl Iterator<Item = Option<u32>>) -> BTreeMap<Option<u32>, u32> {
    let mut ranks: BTreeMap<Option<u32>, u32> = sockets.map(|socket| (socket, 0)).collect();
    for (rank, known) in (0..).zip(ranks.values_mut()) {
        *known = rank;
    }
    ranks
}

/// The size that memory is scaled to.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// MiB of the largest node.
    LargestNode(u64),
    /// MiB of all nodes.
    Total(u64),
}

/// Sizes of the nodes in MiB, in whole sections.
fn memories(machine: &Machine, scale: Scale, files_mib: u64) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for node in machine.nodes() {
        sizes.push(node.memory_bytes.ok_or_else(|| {
            format!("the memory size of node {} is unknown; add it to the placeholders", node.id)
        })?);
    }
    let total: u64 = sizes.iter().sum();
    let (to_mib, from_bytes) = match scale {
        Scale::LargestNode(mib) => (mib, sizes.iter().copied().max().unwrap_or(0)),
        Scale::Total(mib) => (mib.min(total >> 20), total),
    };
    let scaled = sizes.iter().zip(machine.nodes()).enumerate().map(|(index, (&size, node))| {
        if size == 0 {
            return 0;
        }
        let mib = (u128::from(size) * u128::from(to_mib) / u128::from(from_bytes)) as u64;
        let least = if node.cpus.is_empty() { SECTION_MIB } else { CPU_NODE_MIB_MIN };
        let sections = (mib.max(least) + SECTION_MIB / 2) / SECTION_MIB;
        // Twice: while the kernel unpacks the image, it has both, and the file system of the unpacked one takes half of the
        // memory at most.
        let files = if index == 0 { (2 * files_mib).div_ceil(SECTION_MIB) } else { 0 };
        (sections + files) * SECTION_MIB
    });
    let scaled: Vec<u64> = scaled.collect();
    if scaled[0] == 0 {
        return Err("its first node has no memory, which the kernel needs".into());
    }
    Ok(scaled)
}

/// The distances of the profile; unknown ones as of firmware without a table: 10 for a node to itself and 20 otherwise.
fn distances(machine: &Machine) -> Result<Vec<Vec<u32>>, String> {
    let mut rows = Vec::new();
    for from in machine.nodes() {
        let mut row = Vec::new();
        for to in machine.nodes() {
            let usual = if from.id == to.id { 10 } else { 20 };
            let distance = machine.link(from.id, to.id).distance.unwrap_or(usual);
            // The check of Linux (slit_valid in drivers/acpi/numa/srat.c); 255 means unreachable.
            if (from.id == to.id) != (distance == 10) || !(10..255).contains(&distance) {
                return Err(format!(
                    "Linux refuses the distance {distance} from node {} to node {}",
                    from.id, to.id
                ));
            }
            row.push(distance);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Rates and latencies; none if one is missing, because HMAT has no unknown value. Writes default to reads.
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
    // 16 bits without the two reserved values.
    let steps = (bytes_per_s / step + u64::from(bytes_per_s % step >= step / 2)).clamp(1, 0xfffd);
    steps * RATE_STEP_MIB
}

fn nanoseconds(latency: f64) -> u64 {
    latency.round().clamp(1.0, f64::from(0xfffd)) as u64
}

#[cfg(test)]
mod tests {
    use memferry::topology::NodeId;

    use super::*;

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
    }

    #[test]
    fn a_node_without_memory_disables_hmat() {
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
    fn files_enlarge_the_first_node() {
        let (without, with) = (of("skylake-8180-snc-off"), Layout::of("skylake-8180-snc-off", 129).unwrap());
        assert_eq!(with.nodes[0].memory_mib, without.nodes[0].memory_mib + 384);
        assert_eq!(with.nodes[1], without.nodes[1]);
    }

    #[test]
    fn some_nodes_can_be_full() {
        let layout = of("made-up-odd-nodes");
        layout.check_full(&[]).unwrap();
        layout.check_full(&[4, 3]).unwrap();
        for (full, words) in [
            ([3, 9], "node 9 cannot be full: it does not exist"),
            ([1, 3], "node 1 cannot be full: it has no memory"),
            ([3, 0], "node 0 cannot be full: the kernel needs it"),
        ] {
            let error = layout.check_full(&full).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn memory_is_scaled_to_a_size() {
        let of = |profile, mib| Layout::of_size(profile, mib).unwrap();
        let sizes = |layout: Layout| layout.nodes.iter().map(|node| node.memory_mib).collect::<Vec<_>>();
        assert_eq!(of("skylake-8180-snc-on", 0).machine_mib, 4 * 49152);
        assert_eq!(sizes(of("skylake-8180-snc-on", 4096)), [1024; 4]);
        // A node keeps its minimum, and no node grows.
        assert_eq!(sizes(of("skylake-8180-snc-on", 100)), [CPU_NODE_MIB_MIN; 4]);
        assert_eq!(sizes(of("skylake-8180-snc-on", u64::MAX)), [49152; 4]);
        assert_eq!(sizes(of("made-up-two-tiers", 6144)), [4096, 2048]);
    }

    #[test]
    fn persistent_memory_has_the_same_size_in_all_guests() {
        let expected = [LayoutRegion { node: 1, size_mib: 512, machine_mib: 16384 }];
        assert_eq!(of("made-up-fsdax-node").regions, expected);
        assert_eq!(Layout::of_size("made-up-fsdax-node", u64::MAX).unwrap().regions, expected);
        let region = |mib: u64| region(&PersistentMemory { node: NodeId(3), size_bytes: mib << 20 });
        assert_eq!((region(1).size_mib, region(300).size_mib), (128, 384));
        assert_eq!(of("made-up-cxl-node").regions, []);
    }

    #[test]
    fn rates_are_rounded_for_qemu() {
        let mib = 1 << 20;
        assert_eq!([0, 1, 95, 97, 160].map(|rate_mib| rate(rate_mib * mib)), [64, 64, 64, 128, 192]);
        assert_eq!(rate(u64::MAX), 0xfffd * 64);
        assert_eq!((nanoseconds(0.2), nanoseconds(74.5), nanoseconds(1e9)), (1, 75, 0xfffd));
    }

    /// The error for a profile in which `from` is replaced by `to`.
    fn refused(from: &str, to: &str) -> String {
        let text = include_str!("../../memferry/machines/made-up-odd-nodes.json");
        assert!(text.contains(from), "{from}");
        let file = std::env::temp_dir().join(format!("memferry-layout-{}.json", std::process::id()));
        std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
        let failure = Layout::of(file.to_str().unwrap(), 0).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        failure
    }

    #[test]
    fn impossible_guests_are_explained() {
        for (from, to, words) in [
            (r#""memory_mib": 1024"#, r#""memory_mib": null"#, "memory size of node 4 is unknown"),
            (r#""memory_mib": 8192"#, r#""memory_mib": 0"#, "first node has no memory"),
            (r#""offline": [2]"#, r#""offline": [7]"#, "renumber its nodes"),
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
