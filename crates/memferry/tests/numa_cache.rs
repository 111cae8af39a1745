//! Copies lie on the node that the policy names, for every node: the kernel is asked, page by page.

mod numa_support;

use std::fs;
use std::sync::Arc;
use std::thread;

use memferry::cache::{Access, Cache, CacheMut, Entry, Location, Region, Request, Why};
use memferry::internals::nodes_of_pages;
use memferry::memory::{Binding, Mapping};
use memferry::mover::{CopyOptions, DsaEngine, DsaOptions, Mover};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity::confine;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_testing::{Needs, skip};
use numa_support::{
    MIB, assert_no_strays, fill_for_good, node_free, numa_balancing, on_several_nodes, pairs,
};

/// Bytes that tell where they belong.
fn pattern(seed: u8, bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index % 251) as u8 ^ seed;
    }
}

/// `size_bytes` on `home`, in their place.
fn source(machine: &Machine, home: NodeId, seed: u8, size_bytes: usize) -> Mapping {
    let mut mapping = Mapping::new(machine, size_bytes, Binding::Bind(home)).unwrap();
    pattern(seed, &mut mapping);
    mapping
}

/// Budgets on all targets of `pairs`; the mover has workers on every node with CPUs.
fn cache(
    machine: &Arc<Machine>,
    budget_bytes: usize,
    placement: impl Fn(&Machine, &Request<'_>) -> Option<NodeId> + Send + Sync + 'static,
) -> Cache {
    let mover = Mover::builder(machine.clone()).build().unwrap();
    let mut cache = Cache::builder(mover).placement(placement);
    for (_, near) in pairs(machine) {
        cache = cache.budget(near, budget_bytes);
    }
    cache.build().unwrap()
}

/// Each home's data to the node of its pair.
fn paired(machine: &Arc<Machine>) -> impl Fn(&Machine, &Request<'_>) -> Option<NodeId> + Send + Sync + use<> {
    let pairs = pairs(machine);
    move |_: &Machine, request: &Request<'_>| {
        pairs.iter().find(|(home, _)| Some(*home) == request.source_node).map(|&(_, near)| near)
    }
}

fn register(cache: &Cache, machine: &Machine, home: NodeId, seed: u8, size_bytes: usize) -> Region {
    cache.register_on(source(machine, home, seed, size_bytes), Some(home))
}

#[track_caller]
fn assert_on(bytes: &[u8], node: NodeId) {
    let nodes = nodes_of_pages(bytes).unwrap();
    assert!(!nodes.is_empty());
    let elsewhere = nodes.iter().filter(|&&at| at != Some(node)).count();
    assert_eq!(elsewhere, 0, "of {} pages that belong on node {node}; they are on {nodes:?}", nodes.len());
}

/// Waits, and checks where the copy is and what it says.
#[track_caller]
fn assert_near(entry: &Entry, node: NodeId, seed: u8) {
    assert_eq!(entry.wait(), Location::Near(node));
    assert_on(entry.as_slice(), node);
    let mut expected = vec![0; entry.len()];
    pattern(seed, &mut expected);
    assert!(entry.as_slice() == expected, "the copy on node {node} is not what was copied");
}

#[test]
fn copies_lie_on_the_node_of_the_policy() {
    on_several_nodes(|machine, _| {
        let cache = cache(machine, 8 * MIB, paired(machine));
        for (seed, (home, near)) in (1..).zip(pairs(machine)) {
            let source = source(machine, home, seed, 3 * MIB + 5);
            assert_on(&source, home);
            let region = cache.register_on(source, Some(home));
            let entry = cache.access(&region, 0..3 * MIB + 5, Access::default()).unwrap();
            assert_near(&entry, near, seed);
        }
        assert_no_strays(machine);
    });
}

/// The policy that comes with the library, where it has something to choose.
#[test]
fn the_nearest_faster_node_is_the_one_beside() {
    on_several_nodes(|machine, _| {
        let homes: Vec<_> = pairs(machine).into_iter().map(|(home, _)| home).collect();
        let cache = cache(machine, 4 * MIB, |machine, request| request.nearest_faster(machine));
        for (seed, home) in (1..).zip(homes) {
            let region = register(&cache, machine, home, seed, MIB);
            let entry = cache.access(&region, 0..MIB, Access::default()).unwrap();
            match machine.nearest_faster(home) {
                Some(near) => {
                    assert_near(&entry, near.id, seed);
                    assert_eq!(near.cpu_node, home, "the memory that belongs to the reader's own CPUs");
                }
                None => {
                    assert_eq!(
                        entry.wait(),
                        Location::Source(Why::NotPlaced),
                        "node {home} has no faster one"
                    )
                }
            }
        }
    });
}

/// The next version of what has a home lies there, whoever carried it; and so do the copies of it that a policy wants.
#[test]
fn what_is_written_back_lies_at_home() {
    on_several_nodes(|machine, _| {
        let cache = cache(machine, 8 * MIB, paired(machine));
        for (seed, (home, near)) in (1..).zip(pairs(machine)) {
            let data = CacheMut::new(&cache, source(machine, home, seed, MIB + 5), Some(home), 0);
            let mut draft = data.draft(near).unwrap();
            assert_on(&draft, near);
            pattern(seed + 100, &mut draft);
            assert_eq!(draft.write_back().unwrap(), 1);
            assert_on(&data.read(), home);
            let entry = data.access(0..MIB + 5, Access::default()).unwrap();
            assert_near(&entry, near, seed + 100);
        }
        assert_no_strays(machine);
    });
}

/// The whole way of an emulated device, with faults: descriptors name addresses, the nodes stay what they were.
#[test]
fn a_device_writes_where_the_pool_has_its_pages() {
    on_several_nodes(|machine, _| {
        let (home, near) = pairs(machine)[0];
        let emulator =
            Emulator::start(&DeviceConfig::one_shared_queue().on_node(home.0), FaultPlan::from_seed(5))
                .unwrap();
        let engine = DsaEngine::new(vec![emulator.portal(0)], DsaOptions::default()).unwrap();
        let mover = Mover::builder(machine.clone()).engine(Arc::new(engine)).build().unwrap();
        let cache = Cache::builder(mover).budget(near, 8 * MIB).build().unwrap();
        let region = register(&cache, machine, home, 9, 2 * MIB);
        let entries: Vec<_> = (0..32)
            .map(|index| index * 64 * 1024..(index + 1) * 64 * 1024)
            .map(|range| cache.access(&region, range, Access::default()).unwrap())
            .collect();
        for entry in &entries {
            assert_eq!(entry.wait(), Location::Near(near));
            assert_on(entry.as_slice(), near);
            assert!(entry.as_slice() == &region.as_slice()[entry.range()]);
        }
    });
}

/// A budget is kept, what leaves leaves on the node that needed room, and its memory is the node's again.
#[test]
fn eviction_frees_pages_on_the_right_node() {
    on_several_nodes(|machine, _| {
        // More than the pools keep for the next block: see IDLE_BYTES_MAX in memory/pool.rs.
        const BUDGET: usize = 40 * MIB;
        let [(home, near), (other_home, other_near), ..] = pairs(machine)[..] else {
            return skip(Needs::Nodes, "it takes two nodes with CPUs and memory");
        };
        let cache = cache(machine, BUDGET, paired(machine));
        let other = register(&cache, machine, other_home, 3, MIB);
        let kept = cache.access(&other, 0..MIB, Access::default()).unwrap();
        assert_near(&kept, other_near, 3);
        let other_used = usage(&cache, other_near).used_bytes;

        let before = node_free(near);
        let region = register(&cache, machine, home, 1, 2 * BUDGET);
        for start in (0..2 * BUDGET).step_by(MIB) {
            let entry = cache.access(&region, start..start + MIB, Access::default()).unwrap();
            assert_eq!(entry.wait(), Location::Near(near));
            assert_on(entry.as_slice(), near);
            let usage = usage(&cache, near);
            assert!(usage.used_bytes <= BUDGET && usage.peak_bytes <= BUDGET, "{usage:?}");
        }
        assert_eq!(cache.stats().evictions, (BUDGET / MIB) as u64);
        let full = node_free(near);
        assert!(full + BUDGET < before + 4 * MIB, "node {near}: {before} free before, {full} after");
        assert_eq!(usage(&cache, other_near).used_bytes, other_used, "pressure on one node touches no other");
        assert_near(&kept, other_near, 3);

        cache.flush();
        let flushed = node_free(near);
        assert!(flushed > full + 20 * MIB, "node {near}: {full} free before the flush, {flushed} after");
        drop((cache, region, other, kept));
        let gone = node_free(near);
        assert!(gone + 4 * MIB > before, "node {near}: {before} free at first, {gone} at last");
    });
}

/// Somebody else took all memory of a near node: its accesses read the source, are counted, and nobody else notices.
#[test]
fn a_full_node_answers_with_the_source() {
    on_several_nodes(|machine, _| {
        let [(home, near), (other_home, other_near), ..] = pairs(machine)[..] else {
            return skip(Needs::Nodes, "it takes two nodes with CPUs and memory");
        };
        let cache = cache(machine, 32 * MIB, paired(machine));
        let (region, other) =
            (register(&cache, machine, home, 1, 16 * MIB), register(&cache, machine, other_home, 2, 4 * MIB));
        let mut hog = fill_for_good(machine, near);
        let (mut copies, mut refused) = (Vec::new(), Vec::new());
        let counted = cache.stats().no_room;
        for start in (0..16 * MIB).step_by(MIB) {
            let entry = cache.access(&region, start..start + MIB, Access::default()).unwrap();
            if entry.wait() == Location::Near(near) {
                // The kernel gives pages back seconds later that each CPU had kept for itself: they have to be filled
                // as well.
                copies.push(entry);
                hog.extend(fill_for_good(machine, near));
                continue;
            }
            assert_eq!(entry.wait(), Location::Source(Why::NoRoom));
            assert_on(entry.as_slice(), home);
            assert!(entry.as_slice() == &region.as_slice()[entry.range()]);
            let start = refused.len() * MIB;
            let entry_of_other = cache.access(&other, start..start + MIB, Access::default()).unwrap();
            assert_eq!(
                entry_of_other.wait(),
                Location::Near(other_near),
                "node {near} is full, not node {other_near}"
            );
            assert_on(entry_of_other.as_slice(), other_near);
            refused.push(entry.range());
            if refused.len() == 4 {
                break;
            }
        }
        assert_eq!(refused.len(), 4, "node {near} had room for {} MiB again and again", copies.len());
        assert_eq!(cache.stats().no_room, counted + 4);
        drop(hog);
        let entry = cache.access(&region, refused[0].clone(), Access::default()).unwrap();
        assert_eq!(entry.wait(), Location::Near(near));
        assert_on(entry.as_slice(), near);
        assert!(entry.as_slice() == &region.as_slice()[entry.range()]);
    });
}

/// What the kernel lets a worker run on, and where it last ran.
#[test]
fn workers_run_on_their_nodes_cpus() {
    on_several_nodes(|machine, nodes| {
        let mover = Mover::builder(machine.clone()).cpu_workers(2).build().unwrap();
        // A copy goes to the workers next to its source, if it is too large to be done on the spot.
        for &node in nodes {
            for _ in 0..8 {
                let options = CopyOptions { source_node: Some(node), ..CopyOptions::default() };
                mover.copy(vec![1u8; 64 << 10], vec![0u8; 64 << 10], options).wait().unwrap();
            }
        }
        for home in machine.nodes().iter().filter(|node| !node.cpus.is_empty()) {
            let name = format!("memferry-cpu{}.", home.id);
            let workers = threads_called(&name);
            assert_eq!(workers.len(), 2, "threads called {name}*");
            for worker in workers {
                assert_eq!(worker.allowed_cpus, home.cpus, "of {name}");
                let cpu = worker.last_cpu;
                assert!(home.cpus.contains(&cpu), "{name} ran on CPU {cpu}, not on {:?}", home.cpus);
            }
        }
    });
}

/// The kernel makes pages non-present to see who touches them, and moves those that nobody bound.
#[test]
fn automatic_numa_balancing_moves_nothing_of_ours() {
    on_several_nodes(|machine, _| {
        let Some(balancing) = numa_balancing() else { return };
        let cache = cache(machine, 4 * MIB, paired(machine));
        let pairs = pairs(machine);
        let regions: Vec<_> =
            (1..).zip(&pairs).map(|(seed, &(home, _))| register(&cache, machine, home, seed, MIB)).collect();
        let expected: Vec<Vec<u8>> = (1..)
            .zip(&pairs)
            .map(|(seed, _)| {
                let mut bytes = vec![0; MIB];
                pattern(seed, &mut bytes);
                bytes
            })
            .collect();
        // Readers on every node touch everything, again and again, until the kernel has looked more than once.
        thread::scope(|scope| {
            for &(reader, _) in &pairs {
                let (cache, regions, pairs, expected) = (&cache, &regions, &pairs, &expected);
                let (machine, pause) = (machine, balancing.settles_in / 4);
                scope.spawn(move || {
                    confine(&machine.node(reader).unwrap().cpus[..1]).unwrap();
                    for _ in 0..4 {
                        for ((region, &(_, near)), expected) in regions.iter().zip(pairs).zip(expected) {
                            for range in [0..MIB / 2, MIB / 2..MIB] {
                                let entry = cache.access(region, range.clone(), Access::default()).unwrap();
                                assert_eq!(entry.wait(), Location::Near(near));
                                assert!(entry.as_slice() == &expected[range]);
                            }
                        }
                        thread::sleep(pause);
                    }
                });
            }
        });
        for (region, (home, near)) in regions.iter().zip(pairs) {
            assert_on(region.as_slice(), home);
            let entry = cache.access(region, 0..MIB / 2, Access::default()).unwrap();
            assert_on(entry.as_slice(), near);
        }
    });
}

fn usage(cache: &Cache, node: NodeId) -> memferry::cache::NodeUsage {
    let stats = cache.stats();
    *stats.nodes.iter().find(|usage| usage.node == node).expect("it has a budget")
}

struct ThreadSeen {
    allowed_cpus: Vec<u32>,
    last_cpu: u32,
}

/// This process' threads whose name begins so; the kernel cuts names to 15 bytes, which is enough up to node 99.
fn threads_called(name: &str) -> Vec<ThreadSeen> {
    let mut seen = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
        if !read("comm").starts_with(name) {
            continue;
        }
        let status = read("status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let allowed_cpus = allowed.split(',').flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse::<u32>().unwrap()..=last.parse::<u32>().unwrap()
        });
        // proc(5), /proc/pid/stat: field 39 is the CPU; the name in parentheses may hold spaces.
        let stat = read("stat");
        let last_cpu = stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap().parse().unwrap();
        seen.push(ThreadSeen { allowed_cpus: allowed_cpus.collect(), last_cpu });
    }
    seen
}
