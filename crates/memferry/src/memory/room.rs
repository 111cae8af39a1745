//! Is there room for so many bytes, here or on that node?

use std::fs;
use std::path::{Path, PathBuf};

use super::MemoryError;
use crate::topology::{Machine, NodeId, TopologyError, meminfo};

/// Where cgroups of version 2 are.
const CGROUPS: &str = "sys/fs/cgroup";

/// An error unless `size_bytes` more fit into this machine and the limits of this process, and, given a node, on it.
/// `root` is `/`.
pub(super) fn check(
    root: &Path,
    machine: &Machine,
    node: Option<NodeId>,
    size_bytes: usize,
) -> Result<(), MemoryError> {
    fits("this machine", &root.join("proc/meminfo"), size_bytes)?;
    fits_cgroups(root, size_bytes)?;
    match node {
        // With one node the machine's figures are the node's, and better (see topology::sysfs).
        Some(node) if machine.node_count() > 1 => {
            let file = format!("sys/devices/system/node/node{node}/meminfo");
            fits(&format!("node {node}"), &root.join(file), size_bytes)
        }
        _ => Ok(()),
    }
}

fn fits(place: &str, file: &Path, size_bytes: usize) -> Result<(), MemoryError> {
    let text = fs::read_to_string(file).map_err(|source| TopologyError::Read {
        path: file.to_owned(),
        source,
        advice: "without it nobody knows how much memory is free; mount it, or if a node went offline choose another",
    })?;
    let Some(memory) = meminfo::parse(&text) else {
        return Err(TopologyError::Parse {
            path: file.to_owned(),
            found: text.lines().next().unwrap_or_default().to_owned(),
            expected: "lines such as `MemTotal: 8192 kB`",
        }
        .into());
    };
    leaves_spare(place, memory.total_bytes, memory.available_bytes, size_bytes)
}

fn leaves_spare(
    place: &str,
    total_bytes: u64,
    available_bytes: u64,
    size_bytes: usize,
) -> Result<(), MemoryError> {
    let spare_bytes = meminfo::spare_bytes(total_bytes);
    if (size_bytes as u64).saturating_add(spare_bytes) <= available_bytes {
        return Ok(());
    }
    Err(MemoryError::NoRoom { place: place.to_owned(), size_bytes, available_bytes, spare_bytes })
}

/// The limits of the cgroup that this process is in, and of those around it: the kernel kills whoever goes past them,
/// however much the machine has. What cannot be read sets no limit, as on machines without cgroups of version 2.
///
/// Source: Documentation/admin-guide/cgroup-v2.rst in Linux, "Memory Interface Files".
fn fits_cgroups(root: &Path, size_bytes: usize) -> Result<(), MemoryError> {
    let Some(own) = own_cgroup(root) else { return Ok(()) };
    own.ancestors().try_for_each(|cgroup| match cgroup_memory(&root.join(CGROUPS).join(cgroup)) {
        None => Ok(()),
        Some((limit_bytes, available_bytes)) => {
            leaves_spare(&format!("cgroup /{}", cgroup.display()), limit_bytes, available_bytes, size_bytes)
        }
    })
}

/// The path of this process' cgroup under [`CGROUPS`]. `None` also for one outside of our cgroup namespace.
fn own_cgroup(root: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.split('/').any(|part| part == "..")).then(|| path.into())
}

/// The limit of a cgroup and what it leaves, if it has one.
///
/// `memory.current` includes the page cache. Its inactive part goes as soon as the limit is reached, so it counts as
/// available, as it does in MemAvailable: otherwise whoever has read large files would get nothing.
fn cgroup_memory(cgroup: &Path) -> Option<(u64, u64)> {
    let read = |file: &str| fs::read_to_string(cgroup.join(file)).ok();
    let bytes = |file: &str| read(file)?.trim().parse::<u64>().ok();
    // Without a limit the file says `max`, which is no number.
    let (limit_bytes, current_bytes) = (bytes("memory.max")?, bytes("memory.current")?);
    let inactive_bytes = read("memory.stat")
        .and_then(|stat| stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()));
    let used_bytes = current_bytes.saturating_sub(inactive_bytes.unwrap_or(0));
    Some((limit_bytes, limit_bytes.saturating_sub(used_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(machine_kib: u64, node_1_kib: u64) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let node = root.path().join("sys/devices/system/node/node1");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir(root.path().join("proc")).unwrap();
        let machine = format!("MemTotal: 64000 kB\nMemFree: 0 kB\nMemAvailable: {machine_kib} kB\n");
        fs::write(root.path().join("proc/meminfo"), machine).unwrap();
        let node_1 = format!("Node 1 MemTotal: 32000 kB\nNode 1 MemFree: {node_1_kib} kB\n");
        fs::write(node.join("meminfo"), node_1).unwrap();
        root
    }

    #[test]
    fn a_node_keeps_a_spare() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        // A thirty-second of 32000 kB stays free: 4000 of the 5000 kB can be had.
        let check = |kib: usize| check(root.path(), &machine, Some(NodeId(1)), kib << 10);
        check(4000).unwrap();
        let error = check(4001).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
        assert!(error.to_string().contains("node 1 has 5120000 bytes available"), "{error}");
        assert!(matches!(check(usize::MAX >> 10), Err(MemoryError::NoRoom { .. })));
    }

    #[test]
    fn the_machine_counts_too() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(3000, 30000);
        check(root.path(), &machine, Some(NodeId(1)), 1000 << 10).unwrap();
        let error = check(root.path(), &machine, Some(NodeId(1)), 1001 << 10).unwrap_err();
        assert!(error.to_string().contains("this machine"), "{error}");
        assert!(check(root.path(), &machine, None, 1001 << 10).is_err());
    }

    #[test]
    fn cgroups_around_this_process_count_too() {
        let root = tree(64000, 30000);
        let machine = Machine::two_tiers().unwrap();
        let check = |kib: usize| check(root.path(), &machine, None, kib << 10);
        let cgroup = |path: &str, max: &str, current_kib: u64| {
            let directory = root.path().join(CGROUPS).join(path);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("memory.max"), format!("{max}\n")).unwrap();
            fs::write(directory.join("memory.current"), format!("{}\n", current_kib << 10)).unwrap();
        };
        let own = |line: &str| fs::write(root.path().join("proc/self/cgroup"), line).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        // A thirty-second of 16000 KiB stays free: 500.
        cgroup("slice", &(16000 << 10).to_string(), 10000);
        cgroup("slice/ours", "max", 9000);
        check(30000).unwrap();

        own("4:memory:/elsewhere\n0::/slice/ours\n");
        check(5500).unwrap();
        let error = check(5501).unwrap_err();
        assert!(error.to_string().contains("cgroup /slice has 6144000 bytes"), "{error}");

        let stat = format!("anon 5\ninactive_file {}\nactive_file 7\n", 1000 << 10);
        fs::write(root.path().join(CGROUPS).join("slice/memory.stat"), stat).unwrap();
        check(6500).unwrap();
        assert!(check(6501).is_err(), "the inactive page cache is to be had, and no more than that");

        cgroup("slice/ours", &(3200 << 10).to_string(), 3200);
        assert!(check(1).unwrap_err().to_string().contains("/slice/ours"));

        for unlimited in ["0::/\n", "0::/../slice\n", "0::/gone\n", "4:memory:/slice\n", ""] {
            own(unlimited);
            check(30000).unwrap();
        }
        // Inside a namespace the own cgroup is the root that can be seen.
        own("0::/\n");
        cgroup("", &(3200 << 10).to_string(), 100);
        check(3000).unwrap();
        assert!(check(3001).is_err());
    }

    #[test]
    fn a_node_that_vanished_is_an_error() {
        let machine = Machine::two_tiers().unwrap();
        let root = tree(64000, 5000);
        let error = check(root.path(), &machine, Some(NodeId(7)), 4096).unwrap_err();
        assert!(error.to_string().contains("node7/meminfo"), "{error}");
    }
}
