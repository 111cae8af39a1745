//! What only several nodes can show: pages lie where they were asked for, full nodes answer in words, nobody
//! is killed.
//!
//! Written for any layout. On a machine with one node every test says that it was skipped.

mod numa_support;
#[path = "numa_support/process.rs"]
mod process;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memferry::internals::{interleave_weights, nodes_of_pages};
use memferry::memory::{Binding, Mapping, MappingOptions, MemoryError, Placement, Pool};
use memferry::topology::{Machine, NodeId, NodeSet};
use memferry_dsa::internals::affinity::confine;
use memferry_testing::{Needs, skip};
use numa_support::smaps::anon_huge_bytes;
use numa_support::*;
use process::{Cgroup, bind_thread_strictly, inside};

const HUGE: usize = 2 * MIB;

/// All pages of `bytes` are on `node`.
#[track_caller]
fn assert_on(bytes: &[u8], node: NodeId) {
    let mut placement = Placement::of(bytes).unwrap();
    // The kernel may be compacting the node.
    for _ in 0..100 {
        if placement.absent() == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
        placement = Placement::of(bytes).unwrap();
    }
    assert_eq!(placement.on(node), bytes.len().div_ceil(PAGE), "not all on node {node}: {placement}");
}

fn fits(machine: &Machine, node: NodeId, size_bytes: usize) -> bool {
    machine.free_bytes(node).unwrap() >= size_bytes as u64
}

#[test]
fn bound_pages_lie_on_their_node() {
    on_several_nodes(|machine, nodes| {
        for &node in nodes {
            for size in [1, PAGE + 1, HUGE - PAGE, 3 * HUGE + 5 * PAGE] {
                if !fits(machine, node, size) {
                    skip(Needs::Memory, format!("node {node} has no {size} bytes"));
                    continue;
                }
                for options in [Binding::Bind(node).into(), small_pages(Binding::Bind(node))] {
                    assert_on(&Mapping::with(machine, size, options).unwrap(), node);
                }
                let later = MappingOptions { populate: false, ..Binding::Bind(node).into() };
                let mut mapping = Mapping::with(machine, size, later).unwrap();
                mapping[size - 1] = 3;
                assert_on(&mapping[size - 1..], node);
                mapping.populate(machine).unwrap();
                assert_on(&mapping, node);
                assert_eq!(mapping[size - 1], 3);
            }
        }
    });
}

#[test]
fn a_full_node_is_an_answer() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        let before = node_free(node);
        let (filling, error) = fill(machine, node);
        assert!(error.to_string().contains(&format!("node {node}")), "{error}");
        filling.iter().for_each(|mapping| assert_on(mapping, node));
        // Nothing of a refused request stays, here or elsewhere.
        let (here, there) = (node_free(node), node_free(other));
        for size in [8 * MIB, 40 * MIB] {
            let error = Mapping::new(machine, size, Binding::Bind(node)).unwrap_err();
            assert!(is_full(&error), "{error:?}");
        }
        assert_free_again(node, here);
        assert_free_again(other, there);
        assert_on(&Mapping::new(machine, 8 * MIB, Binding::Bind(other)).unwrap(), other);
        Mapping::new(machine, 8 * MIB, Binding::Any).unwrap();
        // Less than the share of one node.
        let both = NodeSet::from([node, other]);
        let error = Mapping::with(machine, 40 * MIB, small_pages(Binding::Interleave(both))).unwrap_err();
        assert!(
            matches!(&error, MemoryError::NoRoom { place, .. } if *place == format!("node {node}")),
            "{error}"
        );
        drop(filling);
        assert_free_again(node, before);
        assert_on(&Mapping::new(machine, 8 * MIB, Binding::Bind(node)).unwrap(), node);
    });
}

/// As above, on a node whose memory was taken before this process began.
#[test]
fn a_node_that_is_already_full_is_an_answer() {
    on_several_nodes(|machine, nodes| {
        let Some(full) = a_node_that_is_already_full(machine) else { return };
        let other = nodes.iter().copied().find(|&node| node != full).unwrap();
        assert!(machine.free_bytes(full).unwrap() < 8 * MIB as u64);
        let error = Mapping::new(machine, 8 * MIB, Binding::Bind(full)).unwrap_err();
        assert!(is_full(&error) && error.to_string().contains(&format!("node {full}")), "{error}");
        let mut mapping = Mapping::new(machine, 8 * MIB, Binding::Prefer(full)).unwrap();
        write_pattern(&mut mapping);
        assert!(Placement::of(&mapping).unwrap().elsewhere(full) > 0);
        assert_pattern(&mapping);
        assert_on(&Mapping::new(machine, 8 * MIB, Binding::Bind(other)).unwrap(), other);
    });
}

/// What `free_bytes` says can be had, and no more.
#[test]
fn free_bytes_are_free() {
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = a_node_to_fill(machine, nodes) else { return };
        let size_bytes = machine.free_bytes(node).unwrap() as usize / PAGE * PAGE;
        // What this takes itself (page tables, arrays of pages) may come from the same node. And for a moment
        // after memory got fragmented the kernel keeps more to itself (vm.watermark_boost_factor).
        let mut attempts = (0..50).map(|attempt| {
            thread::sleep(Duration::from_millis(20 * attempt));
            Mapping::new(machine, size_bytes - MIB, Binding::Bind(node))
        });
        let mapping = attempts.find_map(Result::ok).expect("it is free");
        assert_on(&mapping, node);
        assert!(machine.free_bytes(node).unwrap() < 8 * MIB as u64);
    });
}

#[test]
fn preferred_pages_go_elsewhere_from_a_full_node() {
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = a_node_to_fill(machine, nodes) else { return };
        assert_on(&Mapping::new(machine, 8 * MIB, Binding::Prefer(node)).unwrap(), node);
        let (_filling, _) = fill(machine, node);
        // More than what is left of the node.
        let size_bytes = machine.node(node).unwrap().memory_bytes.unwrap() as usize / 8;
        for binding in [Binding::Prefer(node), Binding::PreferMany(node.into())] {
            let mut mapping = Mapping::new(machine, size_bytes, binding).unwrap();
            write_pattern(&mut mapping);
            let placement = Placement::of(&mapping).unwrap();
            assert_eq!(placement.absent(), 0);
            assert!(placement.elsewhere(node) > 0, "{placement}");
            assert_pattern(&mapping);
        }
    });
}

#[test]
fn many_are_preferred_while_they_have_room() {
    on_several_nodes(|machine, nodes| {
        for set in [&nodes[nodes.len() - 2..], &nodes[..1], &[nodes[0], nodes[nodes.len() - 1]]] {
            let set: NodeSet = set.iter().copied().collect();
            for size in [5 * PAGE, 9 * MIB] {
                let mapping = Mapping::new(machine, size, Binding::PreferMany(set.clone())).unwrap();
                let placement = Placement::of(&mapping).unwrap();
                assert!(
                    placement.iter().all(|(node, _)| node.is_some_and(|node| set.contains(node))),
                    "{placement}"
                );
            }
        }
    });
}

/// Each page is on the node that the kernel's pattern has for it. With huge pages, small ones are those of the tail.
#[track_caller]
fn assert_interleaved(bytes: &[u8], turns: &[(NodeId, u32)], is_huge: bool) {
    let round: Vec<_> =
        turns.iter().flat_map(|&(node, units)| std::iter::repeat_n(node, units as usize)).collect();
    let start = bytes.as_ptr().addr();
    for (page, node) in nodes_of_pages(bytes).unwrap().into_iter().enumerate() {
        let address = start + page * PAGE;
        let is_tail = address / HUGE == (start + bytes.len()) / HUGE;
        let unit_bytes = if is_huge && !is_tail { HUGE } else { PAGE };
        assert_eq!(node, Some(round[address / unit_bytes % round.len()]), "page {page}");
    }
}

#[test]
fn interleaved_pages_take_turns() {
    on_several_nodes(|machine, nodes| {
        for count in [1, 2, 3, nodes.len()] {
            let set: NodeSet = nodes.iter().rev().take(count).copied().collect();
            let turns: Vec<_> = set.iter().map(|node| (node, 1)).collect();
            let mapping =
                Mapping::with(machine, 6 * MIB + 7 * PAGE, small_pages(Binding::Interleave(set.clone())))
                    .unwrap();
            assert_interleaved(&mapping, &turns, false);
            let counts: Vec<_> = Placement::of(&mapping).unwrap().iter().map(|(_, pages)| pages).collect();
            assert_eq!(counts.len(), set.len());
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
            // With huge pages each takes a turn as a whole, if there are enough.
            let mapping = Mapping::new(machine, 3 * HUGE + 5 * PAGE, Binding::Interleave(set)).unwrap();
            if anon_huge_bytes(&mapping) >= 3 * HUGE {
                assert_interleaved(&mapping, &turns, true);
            } else {
                skip(Needs::HugePages, "none for all of the mapping");
            }
        }
    });
}

#[test]
fn weights_are_followed() {
    on_several_nodes(|machine, nodes| {
        let (a, b) = (nodes[0], nodes[nodes.len() - 1]);
        let Some(_weights) = weights(&[(a, 3), (b, 1)]) else { return };
        let read = interleave_weights(machine).unwrap();
        assert_eq!((read[&a], read[&b]), (3, 1));
        let binding = Binding::WeightedInterleave([a, b].into());
        let mut mapping = Mapping::with(machine, 4000 * PAGE, small_pages(binding)).unwrap();
        let turns = [(a, 3), (b, 1)];
        assert_interleaved(&mapping, &turns, false);
        let placement = Placement::of(&mapping).unwrap();
        assert_eq!((placement.on(a), placement.on(b)), (3000, 1000));
        // The same for pages that are there already.
        write_pattern(&mut mapping);
        mapping.rebind(machine, Binding::Bind(a)).unwrap();
        let moved = mapping.rebind(machine, Binding::WeightedInterleave([a, b].into())).unwrap();
        assert_eq!((moved.pages_moved_count, moved.pages_elsewhere_count), (1000, 0));
        assert_interleaved(&mapping, &turns, false);
        assert_pattern(&mapping);
    });
}

/// What the kernel has just dealt out is right where it is: huge pages in turns of their own, the small ones of tails
/// and of what could not be huge in theirs. Taken for huge because the mapping was large, they were all moved.
#[test]
fn interleaved_pages_stay_where_they_came() {
    on_several_nodes(|machine, nodes| {
        let no_move = |set: &NodeSet, size_bytes: usize, populate: bool| {
            let options = MappingOptions { populate, ..Binding::Interleave(set.clone()).into() };
            let mut mapping = Mapping::with(machine, size_bytes, options).unwrap();
            // One small page where a huge one would be next: the rest of its 2 MiB are small, too.
            mapping[size_bytes - 1] = 1;
            let before = Placement::of(&mapping).unwrap();
            let moved = mapping.rebind(machine, Binding::Interleave(set.clone())).unwrap();
            assert_eq!(
                (moved.pages_moved_count, moved.pages_elsewhere_count),
                (0, 0),
                "{size_bytes} {before}"
            );
            assert_eq!(moved.pages_count, before.pages_count() - before.absent());
            mapping.populate(machine).unwrap();
            let moved = mapping.rebind(machine, Binding::Interleave(set.clone())).unwrap();
            assert_eq!((moved.pages_moved_count, moved.pages_elsewhere_count), (0, 0), "{size_bytes}");
            assert_eq!(moved.pages_count, size_bytes.div_ceil(PAGE));
        };
        let all = |note: &str| {
            println!("{note}");
            for count in [2, 3, nodes.len()] {
                let set: NodeSet = nodes.iter().rev().take(count).copied().collect();
                for size_bytes in [5 * PAGE, HUGE - PAGE, HUGE, HUGE + 3 * PAGE, 5 * HUGE + 5 * PAGE + 1] {
                    no_move(&set, size_bytes, true);
                    no_move(&set, size_bytes, false);
                }
            }
        };
        all("as the system is set up");
        if let Some(_never) = Setting::change("/sys/kernel/mm/transparent_hugepage/enabled", "never") {
            all("without huge pages");
        }
    });
}

/// A node's share of a tail was 2 MiB, however short the tail, and there was "no room" for it.
#[test]
fn a_tail_needs_no_more_than_it_takes() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        // Room for a tail, and for no huge page.
        let tail = Mapping::with(machine, 64 * PAGE, small_pages(Binding::Bind(node))).unwrap();
        let _filling = fill_for_good(machine, node);
        let free_bytes = machine.free_bytes(node).unwrap();
        assert!(free_bytes < HUGE as u64, "node {node} has {free_bytes} bytes that cannot be bound");
        drop(tail);
        let room = machine.free_bytes(node).unwrap() as usize;
        let set = NodeSet::from([node, other]);
        for first in 0..4 {
            // Its one huge page has to be the other's: which turn it is depends on the address.
            let addresses = MappingOptions { populate: false, ..Binding::Any.into() };
            let before: Vec<_> =
                (0..first).map(|_| Mapping::with(machine, HUGE, addresses.clone()).unwrap()).collect();
            let options = MappingOptions { populate: false, ..Binding::Interleave(set.clone()).into() };
            let mut mapping = Mapping::with(machine, HUGE + PAGE, options).unwrap();
            let is_other = set.iter().nth(mapping.as_ptr().addr() / HUGE % 2) == Some(other);
            if is_other && (16 * PAGE + 1..HUGE).contains(&room) {
                mapping.populate(machine).unwrap();
                return assert_eq!(Placement::of(&mapping).unwrap().absent(), 0);
            }
            drop(before);
        }
        skip(Needs::Memory, "no such address, no room at all, or room for a huge page");
    });
}

fn weights(weights: &[(NodeId, u32)]) -> Option<Vec<Setting>> {
    let directory = "/sys/kernel/mm/mempolicy/weighted_interleave";
    weights.iter().map(|(node, weight)| Setting::change(format!("{directory}/node{node}"), weight)).collect()
}

#[test]
fn rebinding_moves_pages_and_keeps_content() {
    on_several_nodes(|machine, nodes| {
        let (a, b) = (nodes[0], nodes[nodes.len() - 1]);
        for size in [1, 3 * PAGE, 5 * HUGE + 3 * PAGE] {
            for options in [Binding::Bind(a).into(), small_pages(Binding::Bind(a))] {
                let mut mapping = Mapping::with(machine, size, options).unwrap();
                write_pattern(&mut mapping);
                let pages_count = size.div_ceil(PAGE);
                for to in [b, a, b] {
                    let moved = mapping.rebind(machine, Binding::Bind(to)).unwrap();
                    assert_eq!((moved.pages_count, moved.pages_moved_count), (pages_count, pages_count));
                    assert_on(&mapping, to);
                    assert_pattern(&mapping);
                }
                let huge_bytes = if size < HUGE { 0 } else { anon_huge_bytes(&mapping) };
                let moved = mapping.rebind(machine, Binding::Interleave([a, b].into())).unwrap();
                assert_eq!(moved.pages_elsewhere_count, 0);
                let turns = [(a, 1), (b, 1)];
                if huge_bytes == 0 || huge_bytes >= size / HUGE * HUGE {
                    assert_interleaved(&mapping, &turns, huge_bytes > 0);
                } else {
                    skip(Needs::HugePages, "huge and small pages are mixed");
                }
                assert_pattern(&mapping);
                let before = Placement::of(&mapping).unwrap();
                assert_eq!(mapping.rebind(machine, Binding::Any).unwrap().pages_moved_count, 0);
                assert_eq!(Placement::of(&mapping).unwrap(), before);
                mapping.rebind(machine, Binding::PreferMany(a.into())).unwrap();
                assert_on(&mapping, a);
                mapping.rebind(machine, Binding::Prefer(b)).unwrap();
                assert_on(&mapping, b);
                assert_pattern(&mapping);
            }
        }
    });
}

/// The policy changes along with the pages: those that come later follow it.
#[test]
fn rebinding_counts_for_pages_to_come() {
    on_several_nodes(|machine, nodes| {
        let (a, b) = (nodes[0], nodes[nodes.len() - 1]);
        let options = MappingOptions { populate: false, ..small_pages(Binding::Bind(a)) };
        let mut mapping = Mapping::with(machine, 100 * PAGE, options).unwrap();
        mapping[0] = 1;
        let moved = mapping.rebind(machine, Binding::Bind(b)).unwrap();
        assert_eq!((moved.pages_count, moved.pages_moved_count), (1, 1));
        mapping[50 * PAGE] = 2;
        let nodes = nodes_of_pages(&mapping).unwrap();
        assert_eq!((nodes[0], nodes[50], nodes[99]), (Some(b), Some(b), None));
        mapping.populate(machine).unwrap();
        assert_on(&mapping, b);
        assert_eq!((mapping[0], mapping[50 * PAGE]), (1, 2));
    });
}

#[test]
fn rebinding_to_a_full_node_leaves_all_as_it_was() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        let mut mapping = Mapping::new(machine, 20 * MIB, Binding::Bind(other)).unwrap();
        write_pattern(&mut mapping);
        let (filling, _) = fill(machine, node);
        for binding in [Binding::Bind(node), Binding::Interleave([node, other].into())] {
            let error = mapping.rebind(machine, binding).unwrap_err();
            assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
            assert_eq!(*mapping.binding(), Binding::Bind(other));
            assert_on(&mapping, other);
        }
        // What is only preferred goes as far as it gets.
        let moved = mapping.rebind(machine, Binding::Prefer(node)).unwrap();
        let placement = Placement::of(&mapping).unwrap();
        assert_eq!(moved.pages_elsewhere_count, placement.elsewhere(node));
        assert!(moved.pages_elsewhere_count > 0, "{moved:?}");
        assert_pattern(&mapping);
        drop(filling);
        mapping.rebind(machine, Binding::Bind(node)).unwrap();
        assert_on(&mapping, node);
        assert_pattern(&mapping);
    });
}

/// Between the check of free memory and the last page a node can fill up. Here the kernel itself takes what
/// is left as soon as the node has begun to fill.
#[test]
fn a_node_that_fills_up_meanwhile_is_an_answer() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        let machine_bytes: u64 = machine.nodes().iter().filter_map(|node| node.memory_bytes).sum();
        if machine_bytes > 16 << 30 {
            return skip(Needs::Consent, "on a machine of this size others would feel it");
        }
        // All but so much is taken before, because moving takes the emulated CPUs of a guest long.
        const LEFT: usize = 64 * MIB;
        let room = machine.free_bytes(node).unwrap() as usize;
        let _taken = Mapping::new(machine, room.saturating_sub(LEFT), Binding::Bind(node)).unwrap();
        // The lists of free pages that each CPU keeps come and go.
        let size_bytes = (machine.free_bytes(node).unwrap() as usize - 16 * MIB) / PAGE * PAGE;
        let before = node_free(node);
        // The watcher may come too late for an attempt, so there are several.
        let fill_meanwhile = |attempt: &mut dyn FnMut() -> Result<(), MemoryError>| -> Option<MemoryError> {
            for _ in 0..5 {
                let done = Done(AtomicBool::new(false));
                let outcome = thread::scope(|scope| {
                    scope.spawn(|| {
                        while node_free(node) + 6 * MIB > before && !done.is_set() {
                            std::hint::spin_loop();
                        }
                        let _setting =
                            Setting::change("/proc/sys/vm/min_free_kbytes", machine_bytes / 4 / 1024);
                        while !done.is_set() {
                            thread::sleep(Duration::from_millis(1));
                        }
                    });
                    // Also when it panics: the scope waits for the watcher.
                    let _end = SetOnDrop(&done);
                    attempt()
                });
                match outcome {
                    Err(error) => {
                        println!("{error}");
                        return Some(error);
                    }
                    Ok(()) => println!("the node did not fill up in time"),
                }
            }
            skip(Needs::Root, "the node does not fill up without the privilege, or it filled up too late");
            None
        };

        let mut mapping = Mapping::with(machine, size_bytes, small_pages(Binding::Bind(other))).unwrap();
        write_pattern(&mut mapping);
        let error = fill_meanwhile(&mut || {
            mapping.rebind(machine, Binding::Bind(node))?;
            mapping.rebind(machine, Binding::Bind(other)).map(drop)
        });
        if let Some(error) = error {
            let MemoryError::NotMoved { pages_elsewhere_count, pages_count, placement, .. } = &error else {
                panic!("{error:?}")
            };
            assert!(pages_elsewhere_count < pages_count, "{error}");
            assert_eq!(placement.pages_count(), *pages_count, "{error}");
            // What the kernel keeps for itself it keeps on every node, so that not all may find their way back.
            if placement.on(other) < *pages_count {
                mapping.rebind(machine, Binding::Bind(other)).unwrap();
            }
        }
        assert_eq!(*mapping.binding(), Binding::Bind(other));
        assert_on(&mapping, other);
        assert_pattern(&mapping);
        drop(mapping);
        assert_free_again(node, before);

        let error = fill_meanwhile(&mut || {
            Mapping::with(machine, size_bytes, small_pages(Binding::Bind(node))).map(drop)
        });
        assert!(error.is_none_or(|error| is_full(&error)));
        assert_free_again(node, before);

        let pool = Pool::new(machine.clone(), node, size_bytes).unwrap();
        fill_meanwhile(&mut || match pool.allocate(size_bytes) {
            Ok(block) => {
                drop(block);
                pool.trim();
                Ok(())
            }
            Err(error) if is_full(&error) => Err(error),
            Err(error) => panic!("{error:?}"),
        });
        assert_eq!((pool.used_bytes(), pool.mapped_bytes()), (0, 0));
        assert_free_again(node, before);
        assert_on(pool.allocate(size_bytes).unwrap().as_slice(), node);
        pool.trim();

        let error = fill_meanwhile(&mut || {
            let later = MappingOptions { populate: false, ..small_pages(Binding::Bind(node)) };
            let mut mapping = Mapping::with(machine, size_bytes, later).unwrap();
            mapping[7] = 7;
            let outcome = mapping.populate(machine);
            assert_eq!(mapping[7], 7);
            outcome
        });
        assert!(error.is_none_or(|error| is_full(&error) || matches!(error, MemoryError::NotMoved { .. })));
        assert_free_again(node, before);
    });
}

struct Done(AtomicBool);

impl Done {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct SetOnDrop<'a>(&'a Done);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn huge_pages_are_there_if_advised() {
    on_several_nodes(|machine, nodes| {
        let modes =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if modes.is_empty() || modes.contains("[never]") {
            return skip(Needs::HugePages, format!("transparent huge pages are off: {modes:?}"));
        }
        for &node in nodes {
            let mapping = Mapping::new(machine, 4 * HUGE, Binding::Bind(node)).unwrap();
            assert!(anon_huge_bytes(&mapping) > 0, "node {node}");
            let mapping = Mapping::with(machine, 4 * HUGE, small_pages(Binding::Bind(node))).unwrap();
            assert_eq!(anon_huge_bytes(&mapping), 0, "node {node}");
        }
    });
}

#[test]
fn blocks_lie_on_the_node_of_their_pool() {
    on_several_nodes(|machine, nodes| {
        for node in [nodes[0], nodes[nodes.len() - 1]] {
            let before = node_free(node);
            let pool = Pool::new(machine.clone(), node, 60 * MIB).unwrap();
            for round in 0..4 {
                let sizes = [PAGE, 3 * MIB, HUGE, 5 * PAGE + 1, 39 * MIB];
                let mut blocks: Vec<_> = sizes.iter().map(|&size| pool.allocate(size).unwrap()).collect();
                for block in &mut blocks {
                    write_pattern(block.as_mut_slice());
                    assert_on(block.as_slice(), node);
                }
                blocks.swap_remove(round);
                blocks.push(pool.allocate(2 * MIB + PAGE).unwrap());
                blocks.iter().for_each(|block| assert_on(block.as_slice(), node));
                drop(blocks);
                if round % 2 == 1 {
                    assert!(pool.trim() > 0);
                    assert_eq!(pool.mapped_bytes(), 0);
                    assert_free_again(node, before);
                }
            }
            let block = pool.allocate(40 * MIB).unwrap();
            drop(pool);
            assert!(before - node_free(node) >= 28 * MIB);
            drop(block);
            assert_free_again(node, before);
        }
    });
}

#[test]
fn a_full_node_disturbs_only_its_pool() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        let [full, free] = [node, other].map(|node| Pool::new(machine.clone(), node, 40 * MIB).unwrap());
        let held = full.allocate(4 * MIB).unwrap();
        let (filling, _) = fill(machine, node);
        let done = Done(AtomicBool::new(false));
        thread::scope(|scope| {
            let neighbour = scope.spawn(|| {
                let mut rounds = 0;
                while !done.is_set() || rounds == 0 {
                    let blocks = [MIB, 7 * MIB, PAGE].map(|size| free.allocate(size).unwrap());
                    blocks.iter().for_each(|block| assert_on(block.as_slice(), other));
                    drop(blocks);
                    free.trim();
                    rounds += 1;
                }
            });
            let end = SetOnDrop(&done);
            for _ in 0..10 {
                let error = full.allocate(30 * MIB).unwrap_err();
                assert!(is_full(&error), "{error:?}");
                assert_eq!((full.used_bytes(), full.mapped_bytes()), (4 * MIB, 4 * MIB));
            }
            drop(end);
            neighbour.join().unwrap();
        });
        assert_on(held.as_slice(), node);
        assert_eq!(free.stats().refused_count, 0);
        drop(filling);
        assert_on(full.allocate(30 * MIB).unwrap().as_slice(), node);
    });
}

/// Threads that all want the last memory of a node: each gets all that it asked for or nothing.
#[test]
fn many_threads_want_one_node() {
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = a_node_to_fill(machine, nodes) else { return };
        let size_bytes = machine.free_bytes(node).unwrap() as usize / 5 / PAGE * PAGE * 2;
        let had = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut had = 0;
                        for _ in 0..4 {
                            match Mapping::new(machine, size_bytes, Binding::Bind(node)) {
                                Ok(mapping) => assert_on(&mapping, node),
                                Err(error) => {
                                    assert!(is_full(&error), "{error:?}");
                                    continue;
                                }
                            }
                            had += 1;
                        }
                        had
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        println!("{had} of 16 had {size_bytes} bytes of node {node}");
        assert!(had > 0);
    });
}

#[test]
fn the_fastest_memory_is_left_when_it_is_full() {
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = a_node_to_fill(machine, nodes) else { return };
        let cpus = machine.node(node).unwrap().cpu_node;
        let size_bytes = 10 * MIB;
        let first = machine.fastest_with_room(cpus, size_bytes).unwrap().id;
        assert_eq!(first, machine.memories_near(cpus)[0].id);
        if machine.node(first).unwrap().memory_bytes > machine.node(node).unwrap().memory_bytes {
            return skip(Needs::Consent, format!("node {first}, the fastest, is too large to be filled"));
        }
        let (_filling, _) = fill(machine, first);
        let second = machine.fastest_with_room(cpus, size_bytes).unwrap().id;
        assert_ne!(second, first);
        assert_on(&Mapping::new(machine, size_bytes, Binding::Bind(second)).unwrap(), second);
        let error = machine.fastest_with_room(cpus, 1 << 50).unwrap_err();
        assert!(error.to_string().contains(&format!("node {first}: ")), "{error}");
    });
}

/// A thread under `numactl --membind` whose node is full would be killed, whatever the rest of the machine
/// has.
#[test]
fn a_strictly_bound_thread_is_told() {
    on_several_nodes(|machine, nodes| {
        let Some((node, other)) = a_node_to_fill(machine, nodes) else { return };
        let size_bytes = machine.node(node).unwrap().memory_bytes.unwrap() as usize + MIB;
        Mapping::new(machine, size_bytes, Binding::Any).unwrap();
        thread::scope(|scope| {
            let bound = scope.spawn(|| {
                bind_thread_strictly(node);
                let error = Mapping::new(machine, size_bytes, Binding::Any).unwrap_err();
                assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
                assert!(error.to_string().contains(&format!("nodes {node}")), "{error}");
                assert_on(&Mapping::new(machine, 4 * MIB, Binding::Any).unwrap(), node);
                // Memory with a binding of its own goes by that.
                assert_on(&Mapping::new(machine, 4 * MIB, Binding::Bind(other)).unwrap(), other);
                // A preference would fill up the node of this thread, whose page tables come from nowhere
                // else.
                for binding in [Binding::Prefer(node), Binding::PreferMany([node, other].into())] {
                    let error = Mapping::new(machine, size_bytes, binding).unwrap_err();
                    assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
                }
                let has_room = fits(machine, other, size_bytes + 16 * MIB);
                let preferred = Mapping::new(machine, size_bytes, Binding::Prefer(other)).unwrap();
                let placement = Placement::of(&preferred).unwrap();
                assert!(placement.absent() == 0 && placement.on(other) > 0, "{placement}");
                assert!(!has_room || placement.elsewhere(other) == 0, "{placement}");
                drop(preferred);
                let filling = fill_for_good(machine, node);
                // There may or may not be room for its page tables, but nobody is killed.
                match Mapping::new(machine, 4 * size_bytes, Binding::Bind(other)) {
                    Ok(mapping) => assert_on(&mapping, other),
                    Err(error) => assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}"),
                }
                drop(filling);
                assert_on(&Mapping::new(machine, 4 * MIB, Binding::Bind(other)).unwrap(), other);
            });
            bound.join().unwrap();
        });
    });
}

#[test]
fn nodes_outside_of_the_cpuset_are_named() {
    if inside() {
        return in_a_cpuset();
    }
    on_several_nodes(|machine, nodes| {
        let Some((node, _)) = a_node_to_fill(machine, nodes) else { return };
        let mems = node.to_string();
        let Some(cgroup) = Cgroup::new(&[("cpuset.mems", &mems), ("cpuset.cpus", "0")]) else { return };
        cgroup.run("nodes_outside_of_the_cpuset_are_named");
    });
}

/// With one node allowed.
fn in_a_cpuset() {
    let machine = std::sync::Arc::new(Machine::discover().unwrap());
    let usable = |node: &&memferry::topology::Node| machine.free_bytes(node.id).is_ok();
    let allowed = machine.nodes().iter().find(usable).unwrap().id;
    assert_on(&Mapping::new(&machine, 4 * MIB, Binding::Bind(allowed)).unwrap(), allowed);
    let mut mapping = Mapping::new(&machine, MIB, Binding::Any).unwrap();
    for other in machine.nodes().iter().filter(|node| node.id != allowed && node.memory_bytes > Some(0)) {
        let other = other.id;
        let mut errors = vec![
            mapping.rebind(&machine, Binding::Bind(other)).unwrap_err(),
            Pool::new(machine.clone(), other, MIB).unwrap_err(),
            machine.free_bytes(other).unwrap_err(),
        ];
        let both = NodeSet::from([allowed, other]);
        for binding in [
            Binding::Bind(other),
            Binding::Prefer(other),
            Binding::PreferMany(both.clone()),
            Binding::Interleave(both.clone()),
            Binding::WeightedInterleave(both),
        ] {
            errors.push(Mapping::new(&machine, PAGE, binding).unwrap_err());
        }
        for error in errors {
            let MemoryError::NotAllowed { node, allowed: choice } = &error else { panic!("{error:?}") };
            assert_eq!((*node, choice), (other, &NodeSet::from(allowed)), "{error}");
        }
    }
    // More than the cpuset has, and less than the machine: the OOM killer would come.
    let size_bytes = machine.node(allowed).unwrap().memory_bytes.unwrap() as usize + MIB;
    for binding in [Binding::Any, Binding::Prefer(allowed), Binding::Interleave(allowed.into())] {
        let error = Mapping::new(&machine, size_bytes, binding).unwrap_err();
        assert!(matches!(error, MemoryError::NoRoom { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("nodes {allowed}")), "{error}");
    }
    assert_eq!(machine.fastest_with_room(machine.nodes()[0].id, MIB).unwrap().id, allowed);
}

#[test]
fn the_limit_of_a_cgroup_counts() {
    if inside() {
        let machine = Machine::discover().unwrap();
        let error = Mapping::new(&machine, 80 * MIB, Binding::Any).unwrap_err();
        assert!(error.to_string().contains("cgroup /memferry-test"), "{error}");
        let node = machine.nodes()[0].id;
        assert!(machine.free_bytes(node).unwrap() < 64 * MIB as u64);
        let (filling, error) = fill(&machine, node);
        assert!(matches!(error, MemoryError::NoRoom { .. }) && !filling.is_empty(), "{error}");
        return;
    }
    on_several_nodes(|_, _| {
        // Past the second a process is not killed, but put to sleep for so long that it seems to hang.
        for limit in ["memory.max", "memory.high"] {
            let Some(cgroup) = Cgroup::new(&[(limit, "64M")]) else { return };
            cgroup.run("the_limit_of_a_cgroup_counts");
        }
    });
}

/// Balancing moves pages to the threads that use them. Memory with a binding is not its business.
#[test]
fn balancing_leaves_bound_pages_alone() {
    on_several_nodes(|machine, nodes| {
        let Some(balancing) = numa_balancing() else { return };
        let (a, b) = (nodes[0], nodes[nodes.len() - 1]);
        let cpus: Vec<_> =
            machine.nodes().iter().filter(|node| node.id != a).filter_map(|node| node.cpus.first()).collect();
        if cpus.is_empty() {
            return skip(Needs::Nodes, "no CPUs on other nodes");
        }
        let filled = |binding: Binding| {
            let mut mapping = Mapping::with(machine, 8 * MIB, small_pages(binding)).unwrap();
            write_pattern(&mut mapping);
            mapping
        };
        let bound = [filled(Binding::Bind(a)), filled(Binding::Bind(b))];
        let mut free = filled(Binding::Bind(a));
        free.rebind(machine, Binding::Any).unwrap();
        let pool = Pool::new(machine.clone(), a, 4 * MIB).unwrap();
        let block = pool.allocate(4 * MIB).unwrap();

        let is_over = AtomicBool::new(false);
        let is_moved = || Placement::of(&free).is_ok_and(|pages| pages.elsewhere(a) > 0);
        thread::scope(|scope| {
            for &cpu in cpus.iter().take(4).copied() {
                let (bound, free, block, is_over) = (&bound, &free, &block, &is_over);
                scope.spawn(move || {
                    confine(&[cpu]).unwrap();
                    let touch = |bytes: &[u8]| {
                        let sum = bytes.iter().step_by(PAGE).fold(0u64, |sum, &byte| sum + u64::from(byte));
                        std::hint::black_box(sum);
                    };
                    while !is_over.load(Ordering::Relaxed) {
                        bound.iter().for_each(|mapping| touch(mapping));
                        touch(free);
                        touch(block.as_slice());
                    }
                });
            }
            // Pages without a binding say when the kernel is at it; then it gets the time to look everywhere.
            let until = Instant::now() + 2 * balancing.settles_in;
            while !is_moved() && Instant::now() < until {
                thread::sleep(balancing.settles_in / 10);
            }
            thread::sleep(balancing.settles_in / 5);
            is_over.store(true, Ordering::Relaxed);
        });
        assert_on(&bound[0], a);
        assert_on(&bound[1], b);
        assert_on(block.as_slice(), a);
        bound.iter().for_each(|mapping| assert_pattern(mapping));
        let unbound: Placement = Placement::of(&free).unwrap();
        println!("without a binding, from node {a}: {unbound}");
        assert_pattern(&free);
    });
}
