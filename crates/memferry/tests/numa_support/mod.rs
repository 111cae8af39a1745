//! What the tests that need several NUMA nodes share. `cargo xtask numa` runs them in a guest that has them; elsewhere
//! they say that they are skipped.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use memferry::memory::{Binding, Mapping};
use memferry::topology::{Machine, NodeId};

const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";

/// Tests that fill nodes or change settings of the kernel take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This machine, if at least two of its nodes have memory.
pub(crate) fn several_nodes() -> Option<Arc<Machine>> {
    let machine = Machine::discover().expect("a machine with several nodes or one can be read");
    let with_memory = machine.nodes().iter().filter(|node| node.memory_bytes > Some(0)).count();
    if with_memory < 2 {
        println!("skipped: only one node has memory here; `cargo xtask numa` has a guest with more");
        return None;
    }
    Some(Arc::new(machine))
}

/// Each node with CPUs and memory, and where copies of its data go: the nearest faster node, or, where all memory is
/// alike, the next node with memory.
pub(crate) fn pairs(machine: &Machine) -> Vec<(NodeId, NodeId)> {
    let with_memory: Vec<_> = machine.nodes().iter().filter(|node| node.memory_bytes > Some(0)).collect();
    let near = |home: NodeId| match machine.nearest_faster(home) {
        Some(near) => near.id,
        None => {
            let after = with_memory.iter().find(|node| node.id > home);
            after.or(with_memory.first()).expect("there are two").id
        }
    };
    let homes = with_memory.iter().filter(|node| !node.cpus.is_empty());
    homes.map(|home| (home.id, near(home.id))).collect()
}

/// Where the kernel says that the pages of this process' mappings with the policy "prefer `node`" are.
///
/// Source: `Documentation/filesystems/proc.rst` in Linux, numa_maps.
pub(crate) fn pages_preferring(node: NodeId) -> BTreeMap<NodeId, usize> {
    let maps = fs::read_to_string("/proc/self/numa_maps").expect("the kernel has NUMA");
    let policy = format!("prefer:{node}");
    let mut pages = BTreeMap::new();
    for line in maps.lines().filter(|line| line.split(' ').nth(1) == Some(&policy)) {
        let huge = line.split(' ').find_map(|field| field.strip_prefix("kernelpagesize_kB="));
        let page_kib: usize = huge.map_or(4, |kib| kib.parse().expect("a number"));
        for field in line.split(' ') {
            if let Some((node, count)) = field.strip_prefix('N').and_then(|field| field.split_once('='))
                && let (Ok(node), Ok(count)) = (node.parse(), count.parse::<usize>())
            {
                *pages.entry(NodeId(node)).or_default() += count * page_kib / 4;
            }
        }
    }
    pages
}

/// All pages of mappings that prefer some node are on that node.
#[track_caller]
pub(crate) fn assert_no_strays(machine: &Machine) {
    for node in machine.nodes() {
        let strays: Vec<_> = pages_preferring(node.id).into_iter().filter(|&(at, _)| at != node.id).collect();
        assert!(strays.is_empty(), "pages for node {} are elsewhere (node, pages): {strays:?}", node.id);
    }
}

/// Free memory of a node, now.
pub(crate) fn free_bytes(node: NodeId) -> u64 {
    let text =
        fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).expect("it is online");
    let line = text.lines().find(|line| line.contains("MemFree:")).expect("every node's file has it");
    let kib = line.split_whitespace().rev().nth(1).expect("a number and kB");
    kib.parse::<u64>().expect("a number") << 10
}

/// All that can be had of a node, until dropped. Memory may still be on its way back from what ended before, so this
/// looks again until there is none for a while.
pub(crate) fn fill(machine: &Machine, node: NodeId) -> Vec<Mapping> {
    let mut hog = Vec::new();
    let mut rounds_in_vain = 0;
    while rounds_in_vain < 5 {
        let before = hog.len();
        let mut piece = 16 << 20;
        while piece >= 64 << 10 {
            match Mapping::new(machine, piece, Binding::Bind(node)) {
                Ok(mapping) => hog.push(mapping),
                Err(_) => piece /= 2,
            }
        }
        rounds_in_vain = if hog.len() == before { rounds_in_vain + 1 } else { 0 };
        thread::sleep(Duration::from_millis(20));
    }
    hog
}

/// Automatic NUMA balancing, on until this is dropped.
pub(crate) struct NumaBalancing {
    before: String,
}

impl NumaBalancing {
    /// `None`, with a word about it, where it cannot be switched on.
    pub(crate) fn on() -> Option<NumaBalancing> {
        let before = fs::read_to_string(NUMA_BALANCING);
        match before.and_then(|before| fs::write(NUMA_BALANCING, "1").map(|()| before)) {
            Ok(before) => Some(NumaBalancing { before }),
            Err(error) => {
                println!("skipped: {NUMA_BALANCING}: {error}");
                None
            }
        }
    }
}

impl Drop for NumaBalancing {
    fn drop(&mut self) {
        let _ = fs::write(NUMA_BALANCING, &self.before);
    }
}
