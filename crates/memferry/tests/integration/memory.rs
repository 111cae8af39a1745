//! Mappings and pools: bytes are one's own, budgets hold, what is unused goes back.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use memferry::internals::{interleave_weights, nodes_of_pages};
use memferry::memory::{
    Binding, Block, HugePages, Mapping, MappingOptions, MemoryError, Placement, Pool, PoolMemory,
};
use memferry::topology::{Machine, NodeId, NodeSet};
use memferry_testing::{Needs, skip};
use proptest::prelude::*;

use crate::refusing::refusing;
use crate::smaps::anon_huge_bytes;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// What an idle pool may keep.
const IDLE: usize = 16 * MIB;

fn this_machine() -> Arc<Machine> {
    Arc::new(Machine::discover().unwrap())
}

/// A node of this machine that has memory.
fn a_node(machine: &Machine) -> NodeId {
    machine.nodes().iter().find(|node| node.memory_bytes > Some(64 << 20)).unwrap().id
}

fn a_pool(budget_bytes: usize) -> Pool {
    Pool::new(Arc::new(Machine::two_tiers().unwrap()), NodeId(1), budget_bytes).unwrap()
}

/// Where pages are; `None`, said aloud, where the kernel or a container does not answer that.
fn look(bytes: &[u8]) -> Option<Vec<Option<NodeId>>> {
    match nodes_of_pages(bytes) {
        Err(MemoryError::Refused { source, .. })
            if [Some(libc::ENOSYS), Some(libc::EPERM)].contains(&source.raw_os_error()) =>
        {
            skip(Needs::Kernel("move_pages"), source);
            None
        }
        answer => Some(answer.unwrap()),
    }
}

/// All bindings that this kernel knows, with one node each.
fn bindings(machine: &Machine, node: NodeId) -> Vec<Binding> {
    let many = [Binding::PreferMany, Binding::Interleave, Binding::WeightedInterleave];
    let mut bindings = vec![Binding::Any, Binding::Prefer(node), Binding::Bind(node)];
    bindings.extend(many.map(|many| many(node.into())));
    bindings.retain(|binding| match Mapping::new(machine, PAGE, binding.clone()) {
        Err(error @ MemoryError::Unsupported { .. }) => {
            skip(Needs::Kernel("memory policies"), error);
            false
        }
        mapping => mapping.is_ok_and(|mapping| mapping.binding() == binding),
    });
    assert!(bindings.len() >= 3, "{bindings:?}");
    bindings
}

#[test]
fn mappings_are_zeroed_aligned_and_writable() {
    let machine = this_machine();
    let bindings = bindings(&machine, a_node(&machine));
    for size in [0, 1, 63, 64, 65, 4095, 4096, 4097, MIB - 1, MIB + 1, 2 * MIB, 2 * MIB + 1, 5 * MIB] {
        for binding in &bindings {
            let mut mapping = Mapping::new(&machine, size, binding.clone()).unwrap();
            assert_eq!(mapping.len(), size);
            assert_eq!(mapping.binding(), binding);
            assert!(mapping.iter().all(|&byte| byte == 0), "{size} {binding:?}");
            if size > 0 {
                assert_eq!(mapping.as_ptr().addr() % if size >= 2 * MIB { 2 * MIB } else { PAGE }, 0);
            }
            mapping.fill(7);
            assert!(mapping.iter().all(|&byte| byte == 7));
        }
    }
}

/// Nothing has touched the bytes, and yet every page is there, and where it was asked for.
#[test]
fn mappings_are_populated_on_their_node() {
    let machine = this_machine();
    let node = a_node(&machine);
    let mapping = Mapping::new(&machine, 3 * MIB, Binding::Bind(node)).unwrap();
    let Some(nodes) = look(&mapping) else { return };
    assert_eq!(nodes, vec![Some(node); 3 * MIB / PAGE]);
}

#[test]
fn pages_are_counted_by_what_is_touched() {
    let mapping = Mapping::new(&this_machine(), 3 * PAGE, Binding::Any).unwrap();
    for (range, pages) in [(0..0, 0), (5..6, 1), (0..PAGE, 1), (PAGE - 1..PAGE + 1, 2), (0..3 * PAGE, 3)] {
        let Some(nodes) = look(&mapping[range.clone()]) else { return };
        assert_eq!(nodes.len(), pages, "{range:?}");
    }
}

#[test]
fn bad_requests_are_answered_in_words() {
    let machine = this_machine();
    let error = Mapping::new(&machine, PAGE, Binding::Bind(NodeId(999))).unwrap_err();
    assert!(error.to_string().contains("has no node 999"), "{error}");
    let error = Mapping::new(&machine, usize::MAX, Binding::Any).unwrap_err();
    assert!(matches!(error, MemoryError::Refused { call: "mmap", .. }), "{error:?}");
    // More than any machine has; if the addresses can be had at all, there is no room.
    for binding in [Binding::Any, Binding::Bind(a_node(&machine))] {
        let error = Mapping::new(&machine, 1 << 46, binding).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. } | MemoryError::Refused { .. }), "{error:?}");
    }
}

#[test]
fn sets_of_nodes_are_checked() {
    let machine = this_machine();
    let node = a_node(&machine);
    for many in [Binding::PreferMany, Binding::Interleave, Binding::WeightedInterleave] {
        // Also where there is nothing to map.
        for size in [0, PAGE] {
            let error = Mapping::new(&machine, size, many(NodeSet::default())).unwrap_err();
            let MemoryError::NoNodes { allowed } = &error else { panic!("{error:?}") };
            assert!(allowed.contains(node) && error.to_string().contains("names no node"), "{error}");
            let error = Mapping::new(&machine, size, many([node, NodeId(999)].into())).unwrap_err();
            assert!(error.to_string().contains("has no node 999"), "{error}");
        }
    }
    assert_eq!(Binding::Interleave([node].into()).nodes(), node.into());
    assert_eq!((Binding::Any.node(), Binding::Bind(node).node()), (None, Some(node)));
}

#[test]
fn pages_may_come_later() {
    let machine = this_machine();
    let node = a_node(&machine);
    for binding in bindings(&machine, node) {
        for size in [0, PAGE, 5 * PAGE + 1, 2 * MIB, 70 * MIB + PAGE] {
            let options =
                MappingOptions { binding: binding.clone(), populate: false, huge_pages: HugePages::Never };
            let mut mapping = Mapping::with(&machine, size, options).unwrap();
            let Some(nodes) = look(&mapping) else { return };
            assert!(nodes.iter().all(Option::is_none), "{size}");
            if size == 0 {
                mapping.populate(&machine).unwrap();
                continue;
            }
            (mapping[0], mapping[size - 1]) = (1, 2);
            let pages_count = size.div_ceil(PAGE);
            let placement = Placement::of(&mapping).unwrap();
            assert_eq!(placement.absent(), pages_count.saturating_sub(2), "{size} {placement}");
            mapping.populate(&machine).unwrap();
            let placement = Placement::of(&mapping).unwrap();
            assert_eq!((placement.absent(), placement.pages_count()), (0, pages_count), "{placement}");
            assert_eq!(mapping[size - 1], 2);
            assert!(mapping[1..size - 1].iter().all(|&byte| byte == 0));
        }
    }
}

/// A mapping that is not populated may be larger than the machine: it is a range of addresses.
#[test]
fn what_does_not_fit_is_refused_when_it_shall_come() {
    let machine = this_machine();
    let machine_bytes: u64 = machine.nodes().iter().filter_map(|node| node.memory_bytes).sum();
    let options = MappingOptions { populate: false, ..Binding::Bind(a_node(&machine)).into() };
    let mut mapping = match Mapping::with(&machine, 2 * machine_bytes as usize, options) {
        Err(error) => return skip(Needs::Memory, format!("no addresses for that: {error}")),
        Ok(mapping) => mapping,
    };
    mapping[5] = 5;
    let error = mapping.populate(&machine).unwrap_err();
    assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
    assert_eq!(mapping[5], 5);
}

/// After mlockall(MCL_FUTURE) the kernel brought all pages of a mapping as it was made, before anybody had asked
/// whether there is room, and those of a pool could not be given back.
#[test]
fn after_mlockall_pages_come_when_asked_for() {
    const CHILD: &str = "MEMFERRY_TEST_MLOCKALL";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::after_mlockall_pages_come_when_asked_for", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success() && text[0].contains("1 passed"), "{}{}", text[0], text[1]);
        return print!("{}", text[0]);
    }
    let machine = this_machine();
    let node = a_node(&machine);
    // SAFETY: no preconditions.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
        return skip(Needs::Root, format!("mlockall: {}", std::io::Error::last_os_error()));
    }
    let options = MappingOptions { populate: false, ..Binding::Bind(node).into() };
    let mut mapping = match Mapping::with(&machine, 3 * MIB, options) {
        Err(error @ MemoryError::Refused { .. }) => return skip(Needs::Memory, error),
        mapping => mapping.unwrap(),
    };
    let Ok(placement) = Placement::of(&mapping) else {
        return skip(Needs::Kernel("move_pages"), "it does not tell where pages are");
    };
    assert_eq!(placement.absent(), 3 * MIB / PAGE, "{placement}");
    mapping.populate(&machine).unwrap();
    assert_eq!(Placement::of(&mapping).unwrap().on(node), 3 * MIB / PAGE);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix(" kB"));
    assert!(locked.unwrap().parse::<usize>().unwrap() >= 3 * 1024, "what was to be locked is locked");

    let pool = Pool::new(machine, node, 2 * MIB).unwrap();
    assert_eq!(Placement::of(pool.allocate(MIB).unwrap().as_slice()).unwrap().on(node), MIB / PAGE);
    assert!([0, 2 * MIB].contains(&pool.trim()), "all of it, or before Linux 5.18 nothing");
}

/// A pool was told that its pages had gone back, and counted them no more.
#[test]
fn what_cannot_be_given_back_is_told() {
    let pool = a_pool(8 * MIB);
    let populate = (libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE as u32, libc::ENOMEM);
    let discard = |advice| (libc::SYS_madvise, 2, advice as u32, libc::EPERM);
    let Some(error) = refusing(&[populate], || pool.allocate(MIB).map(drop).unwrap_err()) else { return };
    assert!(matches!(error, MemoryError::Refused { call: "madvise", .. }), "{error:?}");
    assert_eq!(pool.mapped_bytes(), 0);
    let refusals = [populate, discard(libc::MADV_DONTNEED), discard(libc::MADV_DONTNEED_LOCKED)];
    for _ in 0..2 {
        let error = refusing(&refusals, || pool.allocate(MIB).map(drop).unwrap_err()).unwrap();
        let MemoryError::NotGivenBack { error: why, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(**why, MemoryError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("stay allocated"), "{error}");
        assert_eq!((pool.used_bytes(), pool.mapped_bytes()), (0, 2 * MIB));
    }
    pool.allocate(3 * MIB).unwrap();
    assert_eq!((pool.mapped_bytes(), pool.trim(), pool.mapped_bytes()), (4 * MIB, 4 * MIB, 0));
}

/// With one node all errors of mbind were taken for "there is only one place".
#[test]
fn policies_that_the_kernel_lacks_are_named() {
    let machine = this_machine();
    let node = a_node(&machine);
    let map = |mode, answer, binding: Binding| {
        refusing(&[(libc::SYS_mbind, 2, mode, answer)], || Mapping::new(&machine, PAGE, binding).map(drop))
    };
    let Some(outcome) = map(5, libc::EINVAL, Binding::PreferMany(node.into())) else { return };
    assert!(matches!(outcome, Err(MemoryError::Unsupported { since: "5.15", .. })), "{outcome:?}");
    let outcome = map(6, libc::EINVAL, Binding::WeightedInterleave(node.into())).unwrap();
    assert!(matches!(outcome, Err(MemoryError::Unsupported { since: "6.9", .. })), "{outcome:?}");
    let outcome = map(1, libc::ENOMEM, Binding::Prefer(node)).unwrap();
    assert!(matches!(outcome, Err(MemoryError::Refused { call: "mbind", .. })), "{outcome:?}");
    // A kernel without NUMA, or a container.
    for answer in [libc::ENOSYS, libc::EPERM] {
        let outcome = map(1, answer, Binding::Prefer(node)).unwrap();
        assert_eq!(outcome.is_ok(), machine.node_count() == 1, "{outcome:?}");
    }
}

/// All addresses of a mapping were asked for at once.
#[test]
fn addresses_without_pages_cost_little() {
    let machine = this_machine();
    let node = a_node(&machine);
    let options = MappingOptions { populate: false, ..Binding::Bind(node).into() };
    let mut mapping = match Mapping::with(&machine, 1 << 40, options) {
        Err(error) => return skip(Needs::Memory, format!("no addresses for that: {error}")),
        Ok(mapping) => mapping,
    };
    (mapping[5], mapping[1 << 39]) = (5, 6);
    let pages_count = if anon_huge_bytes(&mapping) > 0 { 2 * 2 * MIB / PAGE } else { 2 };
    let Some(_) = look(&mapping[..1]) else { return };
    if kernel_release() < (6, 7) {
        return skip(Needs::Kernel("PAGEMAP_SCAN"), "before Linux 6.7 each address costs");
    }
    let started = std::time::Instant::now();
    let moved = mapping.rebind(&machine, Binding::Prefer(node)).unwrap();
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    assert_eq!((moved.pages_count, moved.pages_moved_count), (pages_count, 0));
    assert_eq!((mapping[5], mapping[1 << 39]), (5, 6));
}

fn kernel_release() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Before Linux 6.7 each page is looked at.
#[test]
fn pages_are_found_without_a_scan() {
    // `PAGEMAP_SCAN`.
    let refusal = (libc::SYS_ioctl, 1, 0xc060_6610, libc::ENOTTY);
    let outcome = refusing(&[refusal], || {
        content_survives(HugePages::Advised);
        content_survives(HugePages::Never);
    });
    if outcome.is_some() {
        content_survives(HugePages::Advised);
    }
}

fn content_survives(huge_pages: HugePages) {
    let machine = this_machine();
    let node = a_node(&machine);
    let options = MappingOptions { binding: Binding::Prefer(node), populate: false, huge_pages };
    let mut mapping = Mapping::with(&machine, 7 * MIB, options).unwrap();
    mapping[..3 * MIB].fill(7);
    let there = Placement::of(&mapping).map_or(0, |placement| placement.pages_count() - placement.absent());
    let moved = mapping.rebind(&machine, Binding::Interleave(node.into())).unwrap();
    assert_eq!((moved.pages_count, moved.pages_moved_count), (there, 0));
    mapping.populate(&machine).unwrap();
    assert!(Placement::of(&mapping).is_ok_and(|placement| placement.absent() == 0) || there == 0);
    assert!(
        mapping[..3 * MIB].iter().all(|&byte| byte == 7) && mapping[3 * MIB..].iter().all(|&byte| byte == 0)
    );
}

#[test]
fn small_pages_are_small() {
    let machine = this_machine();
    for (huge_pages, expected) in
        [(HugePages::Never, Some(false)), (HugePages::Advised, Some(true)), (HugePages::AsSystem, None)]
    {
        let mapping =
            Mapping::with(&machine, 8 * MIB, MappingOptions { huge_pages, ..MappingOptions::default() })
                .unwrap();
        let huge_bytes = anon_huge_bytes(&mapping);
        let modes =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        match expected {
            Some(true) if modes.is_empty() || modes.contains("[never]") => {
                skip(Needs::HugePages, format!("transparent huge pages are off: {modes:?}"));
            }
            // Memory may be too fragmented for some, and is not for all.
            Some(true) => assert!(huge_bytes > 0, "{modes}"),
            Some(false) => assert_eq!(huge_bytes, 0),
            None => {}
        }
    }
}

#[test]
fn rebinding_to_the_same_node_moves_nothing() {
    let machine = this_machine();
    let node = a_node(&machine);
    if look(&[0]).is_none() {
        return;
    }
    let mut mapping = Mapping::new(&machine, 3 * MIB, Binding::Bind(node)).unwrap();
    mapping.fill(6);
    for binding in bindings(&machine, node) {
        let moved = mapping.rebind(&machine, binding.clone()).unwrap();
        assert_eq!((moved.pages_count, moved.pages_moved_count), (3 * MIB / PAGE, 0), "{binding:?}");
        assert_eq!((moved.pages_elsewhere_count, mapping.binding()), (0, &binding));
    }
    let before = mapping.binding().clone();
    assert!(mapping.rebind(&machine, Binding::Bind(NodeId(999))).is_err());
    assert!(mapping.rebind(&machine, Binding::Interleave(NodeSet::default())).is_err());
    assert_eq!(*mapping.binding(), before);
    assert!(mapping.iter().all(|&byte| byte == 6));
    // The old policy would have stayed, and the mapping said otherwise.
    let other = Machine::two_tiers().unwrap();
    for error in [
        mapping.rebind(&other, Binding::Bind(NodeId(1))).unwrap_err(),
        mapping.populate(&other).unwrap_err(),
        Mapping::new(&other, 1, Binding::Any).unwrap().rebind(&machine, Binding::Any).unwrap_err(),
    ] {
        assert!(matches!(error, MemoryError::OtherMachine { .. }), "{error}");
    }
    assert_eq!(*mapping.binding(), before);
    Mapping::new(&machine, 0, Binding::Any).unwrap().rebind(&machine, Binding::Bind(node)).unwrap();
}

#[test]
fn placements_are_counted_pages() {
    let mapping = Mapping::new(&this_machine(), 3 * PAGE, Binding::Any).unwrap();
    for range in [0..0, 5..6, PAGE - 1..PAGE + 1, 0..3 * PAGE] {
        let Some(nodes) = look(&mapping[range.clone()]) else { return };
        assert_eq!(Placement::of(&mapping[range]).unwrap(), nodes.into_iter().collect::<Placement>());
    }
}

#[test]
fn the_fastest_memory_with_room_is_found() {
    const GIB: usize = 1 << 30;
    let machine = this_machine();
    let node = a_node(&machine);
    let free = machine.free_bytes(node).unwrap();
    assert!(free > 0 && free < machine.node(node).unwrap().memory_bytes.unwrap(), "{free}");
    let found = machine.fastest_with_room(node, 1).unwrap();
    assert!(found.memory_bytes > Some(0));
    let error = machine.fastest_with_room(node, usize::MAX).unwrap_err();
    let MemoryError::NoneWithRoom { free_bytes, .. } = &error else { panic!("{error:?}") };
    assert!(free_bytes.iter().any(|&(id, _)| id == node), "{error}");
    assert!(error.to_string().contains(&format!("node {node}: ")), "{error}");
    assert!(machine.fastest_with_room(NodeId(999), 1).unwrap_err().to_string().contains("no node 999"));

    // Its HBM has 4 GiB. From each node the CPUs are those of node 0.
    let machine = Machine::two_tiers().unwrap();
    for cpus in [0, 1].map(NodeId) {
        assert_eq!(machine.fastest_with_room(cpus, MIB).unwrap().id, NodeId(1));
        match machine.fastest_with_room(cpus, 4 * GIB + 1) {
            Ok(node) => assert_eq!(node.id, NodeId(0)),
            // This machine, where the bytes would lie, has less than that itself.
            Err(error) => assert!(matches!(error, MemoryError::NoneWithRoom { .. }), "{error}"),
        }
    }
}

/// What is said to be free can be had.
#[test]
fn free_bytes_can_be_mapped() {
    let machine = this_machine();
    let node = a_node(&machine);
    // Not all of it: others are at this machine too.
    let size_bytes = (machine.free_bytes(node).unwrap() as usize / 2).min(256 * MIB);
    Mapping::new(&machine, size_bytes, Binding::Bind(node)).unwrap();
}

#[test]
fn weights_are_positive() {
    let machine = this_machine();
    match interleave_weights(&machine) {
        Err(error @ MemoryError::Unsupported { .. }) => skip(Needs::Kernel("weighted interleave"), error),
        weights => {
            let weights = weights.unwrap();
            assert!(weights[&a_node(&machine)] > 0);
            assert!(weights.iter().all(|(_, &weight)| (1..256).contains(&weight)), "{weights:?}");
        }
    }
}

#[test]
fn on_a_profile_nodes_are_checked_and_memory_is_unbound() {
    let machine = Machine::two_tiers().unwrap();
    let mapping = Mapping::new(&machine, PAGE, Binding::Bind(NodeId(1))).unwrap();
    assert!(look(&mapping).is_none_or(|nodes| nodes[0].is_some()));
    assert!(Mapping::new(&machine, PAGE, Binding::Prefer(NodeId(2))).is_err());
    let error = Pool::new(Arc::new(machine), NodeId(1), 5 << 30).unwrap_err();
    assert!(error.to_string().contains("more than the 4294967296 bytes of node 1"), "{error}");
}

#[test]
fn blocks_count_in_whole_pages() {
    let pool = a_pool(8 * MIB + 5);
    assert_eq!((pool.budget_bytes(), pool.used_bytes(), pool.mapped_bytes()), (8 * MIB, 0, 0));
    let empty = pool.allocate(0).unwrap();
    assert!(empty.is_empty() && empty.as_slice().is_empty());
    assert_eq!((pool.used_bytes(), pool.mapped_bytes()), (0, 0));
    let mut block = pool.allocate(PAGE + 1).unwrap();
    assert_eq!((block.len(), block.rounded_bytes(), block.node()), (PAGE + 1, 2 * PAGE, NodeId(1)));
    assert_eq!(block.as_ptr().addr() % PAGE, 0);
    block.as_mut_slice().fill(1);
    assert_eq!((pool.used_bytes(), pool.mapped_bytes()), (2 * PAGE, 2 * MIB));
    drop((empty, block));
    let stats = pool.stats();
    assert_eq!((stats.used_bytes, stats.used_bytes_max), (0, 2 * PAGE));
    assert_eq!((stats.blocks_count, stats.allocated_count, stats.refused_count), (0, 2, 0));
}

#[test]
fn the_kernel_counts_the_pages_of_a_pool() {
    let pool = a_pool(8 * MIB);
    pool.keep_idle(0);
    match pool.resident_bytes() {
        Err(error @ MemoryError::Refused { .. }) => {
            return skip(Needs::Kernel("PAGEMAP_SCAN"), error);
        }
        resident => assert_eq!(resident.unwrap(), 0),
    }
    let mut block = pool.allocate(3 * MIB).unwrap();
    block.as_mut_slice().fill(1);
    let other = pool.allocate(3 * MIB).unwrap();
    // Chunks are committed as a whole.
    assert_eq!((pool.resident_bytes().unwrap(), pool.mapped_bytes()), (6 * MIB, 6 * MIB));
    drop(block);
    assert!((3 * MIB..=4 * MIB).contains(&pool.resident_bytes().unwrap()));
    drop(other);
    assert_eq!(pool.resident_bytes().unwrap(), 0);
}

#[test]
fn blocks_are_populated_before_they_are_handed_out() {
    let machine = this_machine();
    let node = a_node(&machine);
    let pool = Pool::new(machine, node, 8 * MIB).unwrap();
    let blocks: Vec<Block> = [PAGE, 3 * MIB, MIB].iter().map(|&size| pool.allocate(size).unwrap()).collect();
    for block in blocks {
        let Some(nodes) = look(block.as_slice()) else { return };
        assert!(nodes.iter().all(|&at| at == Some(node)), "{nodes:?}");
    }
}

#[test]
fn full_and_too_large_are_different_answers() {
    let pool = a_pool(4 * MIB);
    let first = pool.allocate(3 * MIB).unwrap();
    let error = pool.allocate(2 * MIB).unwrap_err();
    assert!(matches!(error, MemoryError::Full { used_bytes, .. } if used_bytes == 3 * MIB), "{error:?}");
    for size in [4 * MIB + 1, usize::MAX] {
        assert!(matches!(pool.allocate(size), Err(MemoryError::TooLarge { .. })), "{size}");
    }
    drop(first);
    assert_eq!(pool.allocate(4 * MIB).unwrap().len(), 4 * MIB);
    assert_eq!(pool.stats().refused_count, 3);
    assert!(matches!(a_pool(0).allocate(1), Err(MemoryError::TooLarge { .. })));
}

/// However the pool was cut up, once all blocks are back the whole budget is one piece.
#[test]
fn freed_neighbours_join() {
    let pool = a_pool(8 * MIB);
    let mut blocks: Vec<_> = (0..8 * MIB / PAGE).map(|_| pool.allocate(PAGE).unwrap()).collect();
    assert!(pool.allocate(1).is_err());
    for step in [2, 3, 1] {
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % step != 0
        });
    }
    drop(blocks);
    pool.allocate(8 * MIB).unwrap();
}

#[test]
fn idle_memory_goes_back() {
    let machine = this_machine();
    let node = a_node(&machine);
    let pool = Pool::new(machine, node, 40 * MIB).unwrap();
    let mut first = pool.allocate(30 * MIB).unwrap();
    first.as_mut_slice().fill(9);
    let start = first.as_ptr().addr();
    let second = pool.allocate(MIB).unwrap();
    drop(first);
    assert_eq!(pool.mapped_bytes(), IDLE + 2 * MIB);
    assert_eq!(pool.trim(), IDLE);
    assert_eq!(pool.mapped_bytes(), 2 * MIB);
    drop(second);
    // What was given back is really gone: the same addresses read as zero.
    let again = pool.allocate(30 * MIB).unwrap();
    assert_eq!(again.as_ptr().addr(), start);
    assert!(again.as_slice().iter().all(|&byte| byte == 0));
}

/// A pool whose blocks come and go keeps its memory instead of asking the kernel each time.
#[test]
fn idle_memory_is_used_again() {
    let pool = a_pool(64 * MIB);
    pool.allocate(8 * MIB).unwrap().as_mut_slice().fill(5);
    for _ in 0..10 {
        let block = pool.allocate(8 * MIB).unwrap();
        assert!(block.as_slice().iter().all(|&byte| byte == 5));
    }
    assert_eq!(pool.mapped_bytes(), 8 * MIB);
    assert_eq!(pool.trim(), 8 * MIB);
}

#[test]
fn a_pool_keeps_as_much_as_it_is_told() {
    let pool = a_pool(64 * MIB);
    for (kept, expected) in [(40 * MIB, 30 * MIB), (4 * MIB, 4 * MIB), (0, 0)] {
        pool.keep_idle(kept);
        drop(pool.allocate(30 * MIB).unwrap());
        assert_eq!(pool.mapped_bytes(), expected, "{kept} may be kept");
    }
}

#[test]
fn blocks_outlive_their_pool() {
    let pool = a_pool(MIB);
    let mut block = pool.allocate(MIB).unwrap();
    drop(pool);
    block.as_mut_slice().fill(3);
    assert_eq!(block.as_slice()[MIB - 1], 3);
}

/// When the machine has less than the budget promises, the pool says so and stays usable.
#[test]
fn a_machine_without_room_leaves_the_pool_as_it_was() {
    let mut machine_bytes = 0;
    for line in std::fs::read_to_string("/proc/meminfo").unwrap().lines() {
        if let Some(value) = line.strip_prefix("MemTotal:") {
            machine_bytes = value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        }
    }
    // Nothing in it is allowed to be more than a node has, so the profile must not know how much that is.
    let machine = Arc::new(Machine::from_profile("spr-56c").unwrap());
    let pool = Pool::new(machine, NodeId(0), 2 * machine_bytes).unwrap();
    let small = pool.allocate(MIB).unwrap();
    let error = pool.allocate(machine_bytes).unwrap_err();
    assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
    assert_eq!((pool.used_bytes(), pool.mapped_bytes()), (MIB, 2 * MIB));
    drop(small);
    assert_eq!(pool.used_bytes(), 0);
    pool.allocate(4 * MIB).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Blocks never overlap, keep their bytes, and the figures add up after every step.
    #[test]
    fn blocks_are_disjoint(
        budget_pages in 0usize..1500,
        steps in prop::collection::vec((0u8..3, 0usize..2_000_000), 1..60),
    ) {
        let pool = a_pool(budget_pages * PAGE);
        let mut blocks: Vec<(Block, u8)> = Vec::new();
        for (tag, (what, n)) in steps.into_iter().enumerate() {
            if what < 2 {
                if let Ok(mut block) = pool.allocate(n) {
                    block.as_mut_slice().fill(tag as u8);
                    blocks.push((block, tag as u8));
                }
            } else if !blocks.is_empty() {
                let (block, tag) = blocks.swap_remove(n % blocks.len());
                prop_assert!(block.as_slice().iter().all(|&byte| byte == tag));
            }
            let stats = pool.stats();
            let used: usize = blocks.iter().map(|(block, _)| block.len().next_multiple_of(PAGE)).sum();
            prop_assert_eq!(stats.used_bytes, used);
            prop_assert_eq!(stats.blocks_count, blocks.len() as u64);
            prop_assert!(stats.used_bytes <= stats.mapped_bytes && stats.mapped_bytes <= stats.budget_bytes);
        }
        for (block, tag) in &blocks {
            prop_assert!(block.as_slice().iter().all(|byte| byte == tag));
        }
        drop(blocks);
        prop_assert_eq!(pool.used_bytes(), 0);
        prop_assert!(pool.mapped_bytes() <= IDLE);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is done to where its pages lie, a mapping holds the bytes that were written to it.
    #[test]
    fn content_is_not_placement(
        size in 1usize..600_000,
        huge in any::<bool>(),
        populate in any::<bool>(),
        steps in prop::collection::vec((0usize..9, any::<usize>(), any::<u8>()), 1..12),
    ) {
        let machine = this_machine();
        let bindings = bindings(&machine, a_node(&machine));
        // With 2 MiB on top, huge pages are asked for.
        let size = if huge { size + 2 * MIB } else { size };
        let options = MappingOptions { populate, ..MappingOptions::default() };
        let mut mapping = Mapping::with(&machine, size, options).unwrap();
        let mut model = vec![0u8; size];
        for (what, n, tag) in steps {
            match what {
                0 => mapping.populate(&machine).unwrap(),
                1 | 2 => {
                    let binding = bindings[n % bindings.len()].clone();
                    mapping.rebind(&machine, binding.clone()).unwrap();
                    prop_assert_eq!(mapping.binding(), &binding);
                }
                _ => {
                    let start = n % size;
                    let end = size.min(start + 5000);
                    mapping[start..end].fill(tag);
                    model[start..end].fill(tag);
                }
            }
        }
        prop_assert!(mapping[..] == model[..]);
    }
}

/// Threads that allocate, write, check and free on one small pool, while another watches the budget.
#[test]
fn threads_share_a_pool() {
    let seed = RandomState::new().build_hasher().finish();
    println!("seed {seed}");
    const BUDGET: usize = 24 * MIB + PAGE;
    let pool = a_pool(BUDGET);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let stats = pool.stats();
                assert!(stats.mapped_bytes <= BUDGET && stats.used_bytes <= BUDGET, "{stats:?}");
                thread::yield_now();
            }
        });
        let workers: Vec<_> = (1..=4u64)
            .map(|worker| {
                let pool = pool.clone();
                scope.spawn(move || work(&pool, seed.wrapping_mul(2 * worker + 1) | 1, worker as u8))
            })
            .collect();
        let refused: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        assert_eq!(pool.stats().refused_count, refused);
    });
    let stats = pool.stats();
    assert_eq!((stats.used_bytes, stats.blocks_count), (0, 0));
    assert!(stats.mapped_bytes <= IDLE);
    pool.allocate(BUDGET).unwrap();
}

/// How many requests were refused.
fn work(pool: &Pool, mut seed: u64, tag: u8) -> u64 {
    // xorshift64*, Vigna 2016.
    let mut random = move |n: usize| {
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        (seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    };
    let mut refused = 0;
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..600 {
        if random(2) == 0 || blocks.is_empty() {
            let size = if random(4) == 0 { random(9 * MIB) } else { random(40 * PAGE) };
            match pool.allocate(size) {
                Ok(mut block) => {
                    for byte in block.as_mut_slice().iter_mut().step_by(64) {
                        *byte = tag;
                    }
                    blocks.push(block);
                }
                Err(MemoryError::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        } else {
            let block = blocks.swap_remove(random(blocks.len()));
            assert!(block.as_slice().iter().step_by(64).all(|&byte| byte == tag));
        }
    }
    refused
}

/// A supplier with one slab, which is never aligned to pages.
#[derive(Default)]
struct Slab {
    freed_bytes: AtomicUsize,
    is_empty: bool,
}

const SKEW: usize = 64;

// SAFETY: `allocate` leaks a new vector.
unsafe impl PoolMemory for Slab {
    fn allocate(&self, node: NodeId, size_bytes: usize) -> Option<NonNull<u8>> {
        assert_eq!(node, NodeId(1));
        let skewed = Vec::leak(vec![0xA5_u8; size_bytes + SKEW]);
        (!self.is_empty).then(|| NonNull::from(&mut skewed[SKEW]))
    }

    unsafe fn free(&self, start: NonNull<u8>, size_bytes: usize) {
        assert_ne!(start.as_ptr().addr() % PAGE, 0);
        self.freed_bytes.fetch_add(size_bytes, Ordering::Relaxed);
    }
}

#[test]
fn pools_divide_supplied_memory_and_return_it_after_the_last_block() {
    let machine = Arc::new(Machine::two_tiers().unwrap());
    let slab = Arc::new(Slab::default());
    let pool = Pool::with_memory(machine.clone(), NodeId(1), 2 * PAGE, slab.clone()).unwrap();
    let mut blocks = [pool.allocate(PAGE).unwrap(), pool.allocate(1).unwrap()];
    assert!(matches!(pool.allocate(1), Err(MemoryError::Full { .. })));
    assert!(blocks.iter().all(|block| block.as_ptr().addr() % PAGE == 0 && block.as_slice()[0] == 0));
    blocks[0].as_mut_slice().fill(7);
    assert_eq!(blocks[1].as_slice(), [0]);
    drop(pool);
    assert_eq!(slab.freed_bytes.load(Ordering::Relaxed), 0);
    drop(blocks);
    assert_eq!(slab.freed_bytes.load(Ordering::Relaxed), 3 * PAGE);

    let none = Arc::new(Slab { is_empty: true, ..Slab::default() });
    let error = Pool::with_memory(machine, NodeId(1), 2 * PAGE, none).unwrap_err().to_string();
    assert!(error.contains("supplier of the pool") && error.contains("supply more memory"), "{error}");
}
