//! What tests on several nodes need: the machine to themselves, full nodes, settings that are put back. `cargo xtask
//! numa` runs such tests in a guest that has the nodes; elsewhere they say that they are skipped.
#![allow(dead_code)]

pub(crate) mod smaps;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use memferry::internals::{Measured, Parameter};
use memferry::memory::{Binding, HugePages, Mapping, MappingOptions, MemoryError};
use memferry::topology::{Machine, NodeId};
use memferry_testing::{Needs, skip};

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;
/// Nodes are filled up to find out what happens then. Larger ones take long, and others may need their
/// memory.
const FILL_BYTES_MAX: u64 = 2 << 30;

/// Tests of one binary run in parallel and share the memory of the machine, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a test that needs several nodes with memory, and sees to it that the OOM killer stays out of it.
pub(crate) fn on_several_nodes(test: impl FnOnce(&Arc<Machine>, &[NodeId])) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((machine, nodes)) = several_nodes() else { return };
    let _lists = short_cpu_lists();
    let before = oom_kills();
    test(&machine, &nodes);
    assert_eq!(oom_kills(), before, "the OOM killer was called");
}

/// Since Linux 6.7 each CPU keeps free pages in lists of its own, up to an eighth of a node, and gives them back within
/// seconds: until then a test would not find again what it has just freed. `None` where that cannot be set, or is set
/// for good, as in the guest.
fn short_cpu_lists() -> Option<Setting> {
    let fraction = "/proc/sys/vm/percpu_pagelist_high_fraction";
    if fs::read_to_string(fraction).is_ok_and(|set| set.trim() == i32::MAX.to_string()) {
        return None;
    }
    let lists = Setting::change(fraction, i32::MAX)?;
    // What is in them goes back when the kernel next refreshes its statistics (vm.stat_interval).
    for _ in 0..30 {
        if zone_pages(|_| true, &["count:"]) * PAGE < 4 * MIB {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    Some(lists)
}

/// The machine with figures, as a calibration tells them: those of the thesis's machine for a guest with its nodes, a core
/// standing for the twelve of a node; how fast that copies is made up.
pub(crate) fn with_figures(machine: &Machine) -> Machine {
    let published = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let rate = |name: &str, value: f64| Parameter::assumed(name, value, "made up for a test");
    let of_node = |name: &str, cores: f64| rate(name, published.parameter(name).unwrap() * cores);
    let parameters = vec![
        of_node("dram_mb_per_s", 1.0),
        of_node("hbm_mb_per_s", 1.0),
        of_node("core_mb_per_s", 12.0),
        rate("core_copy_mb_per_s", 10e3),
    ];
    let reference = ("made up".to_owned(), "for a test".to_owned());
    machine.clone().with_measured(Measured { reference, parameters, ..Measured::default() }).unwrap()
}

/// This machine and its nodes with memory that may be used; `None`, said aloud, if there are fewer than two.
pub(crate) fn several_nodes() -> Option<(Arc<Machine>, Vec<NodeId>)> {
    let machine = Arc::new(Machine::discover().unwrap());
    let usable = machine.nodes().iter().filter(|node| machine.free_bytes(node.id).is_ok_and(|free| free > 0));
    let nodes: Vec<_> = usable.map(|node| node.id).collect();
    if nodes.len() < 2 {
        let why = "this machine has fewer than two nodes with memory; `cargo xtask numa` has more";
        skip(Needs::Nodes, why);
        return None;
    }
    Some((machine, nodes))
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

/// How often the OOM killer struck, anywhere.
pub(crate) fn oom_kills() -> u64 {
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap();
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

/// The node with the least memory, and one that is not it; `None`, said aloud, if even that is too large to
/// be filled.
pub(crate) fn a_node_to_fill(machine: &Machine, nodes: &[NodeId]) -> Option<(NodeId, NodeId)> {
    let size_bytes = |&node: &NodeId| machine.node(node).unwrap().memory_bytes.unwrap();
    let smallest = nodes.iter().copied().min_by_key(size_bytes).unwrap();
    let largest = nodes.iter().copied().filter(|&node| node != smallest).max_by_key(size_bytes).unwrap();
    if size_bytes(&smallest) > FILL_BYTES_MAX && std::env::var_os("MEMFERRY_FILL_NODES").is_none() {
        let why =
            format!("filling node {smallest} takes memory from others; MEMFERRY_FILL_NODES=1 allows it");
        skip(Needs::Consent, why);
        return None;
    }
    Some((smallest, largest))
}

/// A node whose free memory is reserved as huge pages; `None`, said aloud, if there is none. `cargo xtask numa --all-machines`
/// boots a guest with such a node.
pub(crate) fn a_node_that_is_already_full(machine: &Machine) -> Option<NodeId> {
    let is_full = |node: NodeId| {
        let file = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
        let reserved = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<usize>().ok());
        reserved.is_some_and(|pages| pages > 0)
            && machine.free_bytes(node).is_ok_and(|free_bytes| free_bytes < 8 * MIB as u64)
    };
    let full = machine.nodes().iter().map(|node| node.id).find(|&node| is_full(node));
    if full.is_none() {
        skip(Needs::Nodes, "no node is full; `cargo xtask numa --machine made-up-cxl-node --full 2` has one");
    }
    full
}

/// Binds memory to a node until there is no room left, and how that was said.
pub(crate) fn fill(machine: &Machine, node: NodeId) -> (Vec<Mapping>, MemoryError) {
    let mut mappings = Vec::new();
    let mut last_error = None;
    for size in [16 * MIB, 2 * MIB, 64 * PAGE] {
        loop {
            match Mapping::new(machine, size, Binding::Bind(node)) {
                Ok(mapping) => mappings.push(mapping),
                Err(error) => {
                    assert!(is_full(&error), "{error:?}");
                    last_error = Some(error);
                    break;
                }
            }
        }
    }
    (mappings, last_error.unwrap())
}

/// As [`fill`], and looks again until there is none for a while: memory may still be on its way back from what ended
/// before. While a huge page is free it looks for five seconds: on a busy machine memory comes back late.
pub(crate) fn fill_for_good(machine: &Machine, node: NodeId) -> Vec<Mapping> {
    let mut hog = Vec::new();
    let mut rounds_in_vain = 0;
    let deadline = Instant::now() + Duration::from_secs(5);
    let has_huge = || machine.free_bytes(node).unwrap() >= 2 * MIB as u64;
    while rounds_in_vain < 5 || (has_huge() && Instant::now() < deadline) {
        let (more, _) = fill(machine, node);
        rounds_in_vain = if more.is_empty() { rounds_in_vain + 1 } else { 0 };
        hog.extend(more);
        thread::sleep(Duration::from_millis(20));
    }
    hog
}

/// Automatic NUMA balancing, until dropped.
pub(crate) struct Balancing {
    _settings: Vec<Setting>,
    /// In this time the kernel looks more than once at the pages of threads that run, and moves some.
    pub(crate) settles_in: Duration,
}

/// Balancing that looks soon and often; `None`, said aloud, where it cannot be switched on.
pub(crate) fn numa_balancing() -> Option<Balancing> {
    let mut settings = vec![Setting::change("/proc/sys/kernel/numa_balancing", 1)?];
    // The kernel's own delay is a second; it stays where debugfs is not mounted.
    let mut settles_in = Duration::from_secs(3);
    let tunables = Path::new("/sys/kernel/debug/sched/numa_balancing");
    if tunables.exists() {
        settles_in = Duration::from_secs(1);
        for name in ["scan_delay_ms", "scan_period_min_ms", "scan_period_max_ms"] {
            settings.push(Setting::change(tunables.join(name), 100)?);
        }
    }
    Some(Balancing { _settings: settings, settles_in })
}

/// Whether it says that a node has no room.
pub(crate) fn is_full(error: &MemoryError) -> bool {
    matches!(error, MemoryError::NoRoom { .. } | MemoryError::Misplaced { .. })
}

/// Exact where small pages are asked for.
pub(crate) fn small_pages(binding: Binding) -> MappingOptions {
    MappingOptions { huge_pages: HugePages::Never, ..binding.into() }
}

/// Free memory of a node, with the lists of free pages that each CPU keeps: since Linux 6.7 an eighth of a
/// node may be in them, which MemFree leaves out.
pub(crate) fn node_free(node: NodeId) -> usize {
    zone_pages(|id| id == node, &["pages free", "count:"]) * PAGE
}

/// The sum of some figures of the zones of some nodes.
fn zone_pages(is_meant: impl Fn(NodeId) -> bool, figures: &[&str]) -> usize {
    let zones = fs::read_to_string("/proc/zoneinfo").unwrap();
    let mut pages_count = 0;
    let mut is_inside = false;
    for line in zones.lines() {
        if let Some(zone) = line.strip_prefix("Node ") {
            is_inside = zone.split(',').next().is_some_and(|id| is_meant(NodeId(id.parse().unwrap())));
        }
        let number = |name: &&str| line.trim().strip_prefix(*name)?.trim().parse::<usize>().ok();
        if is_inside && let Some(pages) = figures.iter().find_map(number) {
            pages_count += pages;
        }
    }
    pages_count
}

/// Free memory of a node is as it was, but for what the kernel itself took meanwhile (page tables, buffers).
#[track_caller]
pub(crate) fn assert_free_again(node: NodeId, before: usize) {
    let now = node_free(node);
    assert!(now.abs_diff(before) <= 6 * MIB, "node {node} had {before} bytes free, now {now}");
}

/// Bytes that tell every place from every other nearby.
/// Rows of 256 bytes, one after the other: emulated CPUs copy and compare faster than they compute.
fn pattern_row(number: usize) -> &'static [u8; 256] {
    static ROWS: LazyLock<Vec<[u8; 256]>> =
        LazyLock::new(|| (0..=255).map(|row: u8| std::array::from_fn(|index| index as u8 ^ row)).collect());
    &ROWS[(number ^ number >> 8) % 256]
}

/// No two pages that are next to each other have the same bytes.
pub(crate) fn write_pattern(bytes: &mut [u8]) {
    let rows = bytes.chunks_mut(256).enumerate();
    rows.for_each(|(number, row)| row.copy_from_slice(&pattern_row(number)[..row.len()]));
}

#[track_caller]
pub(crate) fn assert_pattern(bytes: &[u8]) {
    let mut rows = bytes.chunks(256).enumerate();
    let wrong = rows.find(|&(number, row)| row != &pattern_row(number)[..row.len()]);
    assert_eq!(wrong.map(|(number, _)| number * 256), None, "where the wrong row begins");
}

/// A file of the kernel's that holds another value until this is dropped.
pub(crate) struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// `None`, said aloud, without the privilege or the file.
    pub(crate) fn change(path: impl AsRef<Path>, value: impl Display) -> Option<Setting> {
        let path = path.as_ref().to_owned();
        let change = || -> io::Result<String> {
            let before = fs::read_to_string(&path)?;
            fs::write(&path, value.to_string())?;
            // Of several choices the one in brackets.
            let chosen = before.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            Ok(chosen.map_or(before.trim(), |(chosen, _)| chosen).to_owned())
        };
        match change() {
            Ok(before) => Some(Setting { path, before }),
            Err(error) => {
                skip(Needs::Kernel("settings"), format!("{} cannot be set: {error}", path.display()));
                None
            }
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(&self.path, &self.before).expect("what could be changed can be changed back");
    }
}
