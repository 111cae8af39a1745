//! Checks for room in the machine, its cgroups and its nodes.

use std::fs;
use std::path::Path;

use super::binding::Reach;
use super::{MemoryError, cgroups};
use crate::topology::sysfs::NODES;
use crate::topology::{Machine, NodeId, NodeSet, TopologyError, list, meminfo};

/// x86-64: a page table of 4 KiB for 2 MiB, and as much again for other data of the kernel.
const PAGE_TABLES_DIVISOR: u64 = 256;

/// Additional memory that stays free on a node that a thread is strictly bound to. A CPU takes more than requested from a
/// node, up to 8 MiB at once, and huge pages, and keeps the rest in its lists. A guest's node of 128 MiB was filled to its
/// watermark, and the next page table called the OOM killer.
///
/// Source: `nr_pcp_alloc` in Linux mm/page_alloc.c: 63 pages times 2^5 (CONFIG_PCP_BATCH_SCALE_MAX).
const CPU_LISTS_BYTES: u64 = 16 << 20;

/// A source of memory with a size: the machine, a cgroup or a node.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// `this machine`, a cgroup, or a node.
    pub(super) name: String,
    total_bytes: u64,
    available_bytes: u64,
    /// Memory that the kernel keeps free.
    watermark_bytes: u64,
}

impl Place {
    pub(super) fn new(name: String, total_bytes: u64, available_bytes: u64) -> Place {
        Place { name, total_bytes, available_bytes, watermark_bytes: 0 }
    }

    fn spare_bytes(&self) -> u64 {
        self.watermark_bytes.max(meminfo::spare_bytes(self.total_bytes))
    }

    /// The memory that can be allocated from it.
    pub(super) fn room(&self) -> u64 {
        self.available_bytes.saturating_sub(self.spare_bytes())
    }

    fn check(&self, size_bytes: u64) -> Result<(), MemoryError> {
        if size_bytes <= self.room() {
            return Ok(());
        }
        Err(MemoryError::NoRoom {
            place: self.name.clone(),
            size_bytes: size_bytes as usize,
            available_bytes: self.available_bytes,
            spare_bytes: self.spare_bytes(),
        })
    }
}

/// A place, and the number of bytes of pages per byte of it.
type Bound = (Place, u64);

/// Fails unless `size_bytes` more fit into the memory that this thread can use, and the shares on their nodes.
/// `root` is `/`.
pub(super) fn check(
    root: &Path,
    machine: &Machine,
    reach: &Reach,
    size_bytes: usize,
    shares: &[(NodeId, usize)],
) -> Result<(), MemoryError> {
    let bounds = around(root, reach)?;
    bounds.iter().try_for_each(|(place, divisor)| place.check(size_bytes as u64 / divisor))?;
    check_nodes(root, machine, reach, shares)
}

/// The memory that this thread can allocate on any node.
pub(super) fn within_reach(root: &Path, reach: &Reach) -> Result<u64, MemoryError> {
    let bounds = around(root, reach)?;
    Ok(bounds.iter().map(|(place, divisor)| place.room().saturating_mul(*divisor)).min().unwrap_or(u64::MAX))
}

/// Fails unless the shares fit on their nodes.
fn check_nodes(
    root: &Path,
    machine: &Machine,
    reach: &Reach,
    shares: &[(NodeId, usize)],
) -> Result<(), MemoryError> {
    let mut shares = shares.iter().filter(|&&(_, bytes)| bytes > 0);
    shares.try_for_each(|&(node, bytes)| match on_node(root, machine, reach, node)? {
        Some(place) => place.check(bytes as u64),
        None => Ok(()),
    })
}

/// The limits of this thread on any node: the machine, or the nodes that it may use, the nodes for its page tables, and its
/// cgroups. Beyond any of these the OOM killer runs.
fn around(root: &Path, reach: &Reach) -> Result<Vec<Bound>, MemoryError> {
    let some_nodes = |nodes: &Option<NodeSet>| match nodes {
        Some(nodes) => some_nodes(root, reach, nodes),
        None => Ok(None),
    };
    let machine = match some_nodes(&reach.pages)? {
        Some(nodes) => nodes,
        None => read("this machine".into(), root, "proc/meminfo")?,
    };
    let mut bounds = vec![(machine, 1)];
    bounds.extend(cgroups::limits(root).into_iter().map(|cgroup| (cgroup, 1)));
    bounds.extend(some_nodes(&reach.tables)?.map(|tables| (tables, PAGE_TABLES_DIVISOR)));
    Ok(bounds)
}

/// The nodes of a set as one place; `None` if they hold all memory of the machine, whose own figures are more exact, in
/// one file.
fn some_nodes(root: &Path, reach: &Reach, nodes: &NodeSet) -> Result<Option<Place>, MemoryError> {
    let Ok(text) = fs::read_to_string(root.join(NODES).join("has_memory")) else { return Ok(None) };
    let with_memory = list::parse(&text).unwrap_or_default().into_iter().map(NodeId);
    let (within, outside): (Vec<_>, Vec<_>) = with_memory.partition(|&node| nodes.contains(node));
    if outside.is_empty() {
        return Ok(None);
    }
    let within: Vec<_> =
        within.into_iter().map(|node| node_place(root, reach, node)).collect::<Result<_, _>>()?;
    let sum = |bytes: fn(&Place) -> u64| within.iter().map(bytes).sum();
    Ok(Some(Place {
        name: format!("what this thread may use (nodes {nodes})"),
        total_bytes: sum(|place| place.total_bytes),
        available_bytes: sum(|place| place.available_bytes),
        watermark_bytes: sum(Place::spare_bytes),
    }))
}

/// A node of this machine; `None` if it is the only one, for which the machine's figures are more exact (see
/// `topology::sysfs`).
///
/// The lists of free pages of each CPU, since Linux 6.7 up to an eighth of a node, do not count: other CPUs get these
/// pages only when the CPU returns them, some within seconds. A thread that was strictly bound to a node was killed while
/// they were full.
pub(super) fn on_node(
    root: &Path,
    machine: &Machine,
    reach: &Reach,
    node: NodeId,
) -> Result<Option<Place>, MemoryError> {
    if machine.node_count() < 2 { Ok(None) } else { node_place(root, reach, node).map(Some) }
}

fn node_place(root: &Path, reach: &Reach, node: NodeId) -> Result<Place, MemoryError> {
    let place = read(format!("node {node}"), root, &format!("{NODES}/node{node}/meminfo"))?;
    let is_strict = reach.tables.as_ref().is_some_and(|nodes| nodes.contains(node));
    let lists_bytes = if is_strict { CPU_LISTS_BYTES } else { 0 };
    Ok(Place { watermark_bytes: watermark_bytes(root, place.total_bytes) + lists_bytes, ..place })
}

/// The low watermark, below which the kernel takes pages from other nodes; 0 if unknown.
///
/// The reserve of the machine is spread over its memory, and a quarter more, or the share that is configured,
/// makes the low watermark. MemAvailable of the machine has it subtracted already.
///
/// Source: `__setup_per_zone_wmarks` in Linux mm/page_alloc.c; Documentation/admin-guide/sysctl/vm.rst.
fn watermark_bytes(root: &Path, node_bytes: u64) -> u64 {
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(root.join("proc/sys/vm").join(file)).ok()?.trim().parse().ok()
    };
    let watermark = || {
        let (all_bytes, node_bytes) = (machine_bytes(root)?, u128::from(node_bytes));
        let reserve_bytes = u128::from(number("min_free_kbytes")?) * 1024;
        let min_bytes = (reserve_bytes * node_bytes).checked_div(u128::from(all_bytes))?;
        // In ten-thousandths.
        let share = number("watermark_scale_factor").unwrap_or(0);
        let low_bytes = min_bytes + (min_bytes / 4).max(u128::from(share) * node_bytes / 10_000);
        u64::try_from(low_bytes).ok()
    };
    watermark().unwrap_or(0)
}

/// All memory of this machine.
fn machine_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    meminfo::parse(&text).map(|memory| memory.total_bytes)
}

fn read(name: String, root: &Path, file: &str) -> Result<Place, MemoryError> {
    let file = root.join(file);
    let text = fs::read_to_string(&file).map_err(|source| TopologyError::Read {
        path: file.clone(),
        source,
        advice: "free memory is unknown without it; mount sysfs and procfs, or choose another node if this one went offline",
    })?;
    let Some(memory) = meminfo::parse(&text) else {
        return Err(TopologyError::Parse {
            path: file,
            found: text.lines().next().unwrap_or_default().to_owned(),
            expected: "lines such as `MemTotal: 8192 kB`",
        }
        .into());
    };
    Ok(Place::new(name, memory.total_bytes, memory.available_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(machine_kib: u64, node_1_kib: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let machine = format!("MemTotal: 64000 kB\nMemFree: 0 kB\nMemAvailable: {machine_kib} kB\n");
        fs::write(root.path().join("proc/meminfo"), machine).unwrap();
        for (node, kib) in [(0, 32000), (1, node_1_kib)] {
            let directory = root.path().join(NODES).join(format!("node{node}"));
            fs::create_dir_all(&directory).unwrap();
            let text = format!("Node {node} MemTotal: 32000 kB\nNode {node} MemFree: {kib} kB\n");
            fs::write(directory.join("meminfo"), text).unwrap();
        }
        fs::write(root.path().join(NODES).join("has_memory"), "0-1\n").unwrap();
        root
    }

    #[test]
    fn a_node_keeps_a_spare() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        // A thirty-second of 32000 kB stays free: 4000 of the 5000 kB can be allocated.
        let check = |kib: usize| {
            check(root.path(), &machine, &Reach::default(), kib << 10, &[(NodeId(1), kib << 10)])
        };
        check(4000).unwrap();
        let error = check(4001).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
        assert!(error.to_string().contains("node 1 has 5120000 bytes available"), "{error}");
        assert!(matches!(check(usize::MAX >> 10), Err(MemoryError::NoRoom { .. })));
    }

    /// Regression: the kernel of a guest with 16 nodes, 5 GiB and huge pages kept 5 % of each node. The reported free memory
    /// could not be allocated, and bound mappings were populated in vain.
    #[test]
    fn a_node_keeps_the_watermark_of_the_kernel() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let vm = root.path().join("proc/sys/vm");
        fs::create_dir_all(&vm).unwrap();
        let check =
            |kib: usize| check_nodes(root.path(), &machine, &Reach::default(), &[(NodeId(1), kib << 10)]);
        // Half of it, for half of the memory, and a quarter more: 2000.
        fs::write(vm.join("min_free_kbytes"), "3200\n").unwrap();
        check(3000).unwrap();
        assert!(check(3001).unwrap_err().to_string().contains("of which 2048000 must stay free"));
        // 10 % of 32000 on top of 1600, instead of the quarter.
        fs::write(vm.join("watermark_scale_factor"), "1000\n").unwrap();
        check(200).unwrap();
        assert!(check(201).is_err());
        fs::write(vm.join("min_free_kbytes"), "nonsense\n").unwrap();
        check(4000).unwrap();
    }

    #[test]
    fn each_node_has_room_for_its_share() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let check = |kib_0: usize, kib_1: usize| {
            let shares = [(NodeId(0), kib_0 << 10), (NodeId(1), kib_1 << 10)];
            check(root.path(), &machine, &Reach::default(), (kib_0 + kib_1) << 10, &shares)
        };
        check(31000, 4000).unwrap();
        assert!(check(31001, 4000).unwrap_err().to_string().contains("node 0"));
        assert!(check(0, 4001).unwrap_err().to_string().contains("node 1"));
    }

    #[test]
    fn the_machine_counts_too() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(3000, 30000);
        let on_node_1 = |kib: usize| {
            check(root.path(), &machine, &Reach::default(), kib << 10, &[(NodeId(1), kib << 10)])
        };
        on_node_1(1000).unwrap();
        assert!(on_node_1(1001).unwrap_err().to_string().contains("this machine"));
        assert!(check(root.path(), &machine, &Reach::default(), 1001 << 10, &[]).is_err());
    }

    /// The OOM killer runs in a full cpuset, whatever the rest of the machine has free.
    #[test]
    fn only_allowed_nodes_count() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let check = |nodes: &[u32], kib: usize| {
            let nodes = nodes.iter().copied().map(NodeId).collect();
            let reach = Reach { pages: Some(nodes), tables: None };
            check(root.path(), &machine, &reach, kib << 10, &[])
        };
        check(&[1], 4000).unwrap();
        let error = check(&[1], 4001).unwrap_err();
        assert!(error.to_string().contains("may use (nodes 1) has 5120000"), "{error}");
        check(&[0], 31000).unwrap();
        check(&[0, 1], 62000).unwrap();
        check(&[], 1).unwrap_err();
        // Kernels without NUMA have no such file.
        fs::remove_file(root.path().join(NODES).join("has_memory")).unwrap();
        check(&[0], 62000).unwrap();
    }

    #[test]
    fn a_strictly_bound_thread_leaves_more() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 20000);
        let room = |strict: Option<u32>| {
            let reach = Reach { pages: None, tables: strict.map(|node| NodeId(node).into()) };
            on_node(root.path(), &machine, &reach, NodeId(1)).unwrap().unwrap().room() >> 10
        };
        assert_eq!((room(None), room(Some(0)), room(Some(1))), (19000, 19000, 20000 - (16 << 10)));
    }

    /// Regression: the OOM killer was called for a page table. Page tables of a strictly bound thread come from its node,
    /// wherever the pages come from.
    #[test]
    fn page_tables_need_room_too() {
        let machine = Machine::two_tiers().unwrap();
        // 10 KiB more than the spare, for page tables.
        let root = tree(64000, (CPU_LISTS_BYTES >> 10) + 10);
        let check = |nodes: &[u32], kib: usize| {
            let tables = nodes.iter().copied().map(NodeId).collect();
            let reach = Reach { pages: None, tables: Some(tables) };
            check(root.path(), &machine, &reach, kib << 10, &[])
        };
        check(&[1], 2560).unwrap();
        let error = check(&[1], 2561 + 3).unwrap_err();
        assert!(error.to_string().contains("(nodes 1)"), "{error}");
        check(&[0, 1], 60000).unwrap();
        let tables = Reach { pages: None, tables: Some(NodeId(1).into()) };
        assert_eq!(within_reach(root.path(), &tables).unwrap(), 2560 << 10);
        assert_eq!(within_reach(root.path(), &Reach::default()).unwrap(), 62000 << 10);
    }

    #[test]
    fn cgroups_count_too() {
        let root = tree(64000, 30000);
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), "0::/ours\n").unwrap();
        let ours = root.path().join("sys/fs/cgroup/ours");
        fs::create_dir_all(&ours).unwrap();
        fs::write(ours.join("memory.max"), format!("{}\n", 16000 << 10)).unwrap();
        fs::write(ours.join("memory.current"), format!("{}\n", 10000 << 10)).unwrap();
        let machine = Machine::two_tiers().unwrap();
        // A thirty-second of 16000 KiB stays free: 500.
        check(root.path(), &machine, &Reach::default(), 5500 << 10, &[]).unwrap();
        let error = check(root.path(), &machine, &Reach::default(), 5501 << 10, &[]).unwrap_err();
        assert!(error.to_string().contains("cgroup /ours has 6144000 bytes"), "{error}");
    }

    #[test]
    fn a_node_that_vanished_is_an_error() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let error = check(root.path(), &machine, &Reach::default(), 4096, &[(NodeId(7), 4096)]).unwrap_err();
        assert!(error.to_string().contains("node7/meminfo"), "{error}");
    }
}
