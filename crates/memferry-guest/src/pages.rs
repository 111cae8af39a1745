//! The node of each page of processes, as the kernel counts them.
//!
//! Source: Linux `Documentation/filesystems/proc.rst`, numa_maps.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// Bytes by number of node.
pub type NodeBytes = BTreeMap<u32, u64>;

/// Where the memory of a program lay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pages {
    /// Number of samples.
    pub samples: u32,
    /// The most that a sample found on each node, in all processes of the guest, and not less than at exit. A page that
    /// several processes map counts once for each.
    pub most: NodeBytes,
    /// The first process of the program, when its main thread ended; `None` if the kernel did not say.
    pub at_exit: Option<NodeBytes>,
}

impl Pages {
    /// Adds a sample.
    pub(crate) fn add(&mut self, sample: &NodeBytes) {
        self.samples += 1;
        self.raise(sample);
    }

    /// Sets what the program has at its end; nothing if the kernel did not say.
    pub(crate) fn end(&mut self, bytes: NodeBytes) {
        if !bytes.is_empty() {
            self.raise(&bytes);
            self.at_exit = Some(bytes);
        }
    }

    fn raise(&mut self, sample: &NodeBytes) {
        for (&node, &bytes) in sample {
            let most = self.most.entry(node).or_default();
            *most = bytes.max(*most);
        }
    }
}

/// Adds the bytes of the pages in a file `/proc/PID/numa_maps`.
///
/// Lines are `ADDRESS POLICY ... N0=3 N8=1 kernelpagesize_kB=4`. The counts are in pages of that size.
pub(crate) fn add_maps(maps: &str, bytes: &mut NodeBytes) {
    for line in maps.lines() {
        let size = line.split(' ').find_map(|field| field.strip_prefix("kernelpagesize_kB="));
        let page_kib: u64 = size.and_then(|kib| kib.trim().parse().ok()).unwrap_or(4);
        for field in line.split(' ') {
            let count = field.strip_prefix('N').and_then(|field| field.split_once('='));
            if let Some((Ok(node), Ok(count))) = count.map(|(n, c)| (n.parse::<u32>(), c.parse::<u64>())) {
                *bytes.entry(node).or_default() += count * page_kib * 1024;
            }
        }
    }
}

/// The pages of one process; empty if it has ended.
pub(crate) fn of_process(id: u32) -> NodeBytes {
    let mut bytes = NodeBytes::new();
    add_maps(&fs::read_to_string(format!("/proc/{id}/numa_maps")).unwrap_or_default(), &mut bytes);
    bytes
}

/// The pages of all processes except `excluded`. Threads of the kernel have none.
pub(crate) fn of_all_processes_except(excluded: u32) -> NodeBytes {
    let mut bytes = NodeBytes::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if let Some(id) = id.filter(|&id| id != excluded) {
            let maps = fs::read_to_string(format!("/proc/{id}/numa_maps")).unwrap_or_default();
            add_maps(&maps, &mut bytes);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_the_size_of_their_mapping() {
        let mut bytes = NodeBytes::new();
        add_maps(
            "55d0 default file=/bin/cat mapped=6 N0=4 N8=2 kernelpagesize_kB=4\n\
             7f00 prefer:8 anon=1 dirty=1 N8=1 kernelpagesize_kB=2048\n\
             7f10 bind:0=static default\n\
             7ffd default stack anon=3 dirty=3 active=1 N0=3 kernelpagesize_kB=4\n",
            &mut bytes,
        );
        assert_eq!(bytes, NodeBytes::from([(0, 7 * 4096), (8, 2 * 4096 + (2 << 20))]));
    }

    #[test]
    fn the_most_is_kept_for_each_node() {
        let mut pages = Pages::default();
        pages.add(&NodeBytes::from([(0, 10), (1, 5)]));
        pages.add(&NodeBytes::from([(0, 3), (2, 7)]));
        assert_eq!((pages.samples, &pages.most), (2, &NodeBytes::from([(0, 10), (1, 5), (2, 7)])));
        pages.end(NodeBytes::new());
        assert_eq!(pages.at_exit, None);
        pages.end(NodeBytes::from([(1, 6)]));
        assert_eq!((pages.samples, pages.most), (2, NodeBytes::from([(0, 10), (1, 6), (2, 7)])));
        assert_eq!(pages.at_exit, Some(NodeBytes::from([(1, 6)])));
    }

    #[test]
    fn this_process_has_pages() {
        // A kernel without NUMA has no such file.
        if std::path::Path::new("/proc/self/numa_maps").exists() {
            let this = std::process::id();
            let own: u64 = of_process(this).values().sum();
            assert!(own > 1 << 20, "{own}");
            let all: u64 = of_all_processes_except(0).values().sum();
            assert!(all > 1 << 20, "{all}");
        }
        assert!(of_process(u32::MAX).is_empty());
    }
}
