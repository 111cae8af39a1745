//! Benchmarks on a machine with several nodes: memory is on the nodes of the point, or on that of its core, and matrices of
//! memories are complete.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::time::Duration;

use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};
use memferry_bench::cache::{Soak, soak};
use memferry_bench::harness::Effort;
use memferry_bench::memory::{Figure, MemoryBench, MemoryOptions, Pages, Peers};
use memferry_bench::papers::{Axes, Backend, Metric, OnMachine, Point, RunLength, Way};
use memferry_dsa::system::SystemState;
use numa_support::{assert_no_strays, on_several_nodes, pairs};

fn point() -> Point {
    Axes { ways: vec![Way::Core], sizes_bytes: vec![64 << 10], ..Axes::default() }.points().remove(0)
}

/// The place of a run, as the kernel reports it.
fn place(machine: &Machine, point: &Point) -> String {
    let backend = OnMachine::new(machine.clone(), SystemState::discover().unwrap(), false);
    let taken = backend.run(point, &[Metric::THROUGHPUT], RunLength::QUICK).unwrap();
    taken[0].note.clone().unwrap_or_default()
}

#[test]
fn memory_is_with_the_core_that_copies() {
    on_several_nodes(|machine, nodes| {
        let with_cpus: Vec<NodeId> = machine
            .nodes()
            .iter()
            .filter(|node| !node.allowed_cpus.is_empty() && nodes.contains(&node.id))
            .map(|node| node.id)
            .collect();
        let first = with_cpus[0];
        let own =
            |node| format!("source on node {node}, target on node {node}, threads on CPUs of node {node}");
        assert!(place(machine, &point()).contains(&own(first)), "{}", place(machine, &point()));
        for &node in &with_cpus {
            let here = Point { source: Some(node), target: Some(node), ..point() };
            assert!(place(machine, &here).contains(&own(node)), "{}", place(machine, &here));
        }
        assert_no_strays(machine);
    });
}

#[test]
fn memory_is_where_the_point_says() {
    on_several_nodes(|machine, nodes| {
        let (&source, &target) = (nodes.first().unwrap(), nodes.last().unwrap());
        for route in [None, Some(Route::Single)] {
            let point = Point { source: Some(source), target: Some(target), route, ..point() };
            let cpus = machine.node(source).unwrap().cpu_node;
            let expected =
                format!("source on node {source}, target on node {target}, threads on CPUs of node {cpus}");
            assert!(place(machine, &point).contains(&expected), "{}", place(machine, &point));
        }
        assert_no_strays(machine);
    });
}

#[test]
fn matrices_have_a_cell_for_each_pair() {
    on_several_nodes(|machine, nodes| {
        let has_cpus = |node: &NodeId| !machine.node(*node).unwrap().allowed_cpus.is_empty();
        let first = *nodes.iter().find(|node| has_cpus(node)).unwrap();
        let wanted = vec![first, *nodes.iter().rfind(|node| **node != first).unwrap()];
        let cpus: Vec<NodeId> = wanted.iter().copied().filter(has_cpus).collect();
        let options = MemoryOptions {
            nodes: Some(wanted.clone()),
            threads: None,
            size_bytes: None,
            pages: vec![Pages::Small],
            effort: Effort::Quick,
            seed: 1,
        };
        // The guest has no compiler.
        let why = Peers::compile("no-such-compiler").unwrap_err();
        let bench = MemoryBench::new(machine, options).unwrap();
        let measured = bench.run(Err(&why), &mut || ()).unwrap();
        let of = |figure: Figure| measured.rows.iter().filter(move |row| row.figure == figure);
        let mut pairs: Vec<_> = of(Figure::Latency).map(|row| (row.place.cpus, row.place.memory)).collect();
        pairs.sort();
        let mut expected: Vec<_> =
            cpus.iter().flat_map(|&cpus| wanted.iter().map(move |&memory| (cpus, memory))).collect();
        expected.sort();
        assert_eq!(pairs, expected);
        assert_eq!(of(Figure::Bandwidth).count(), 4 * expected.len());
        let home = of(Figure::Compared).next().unwrap().place;
        assert_eq!((home.cpus, home.memory), (first, first));
        drop(measured);
        assert_no_strays(machine);
    });
}

/// Everything at once, with the memory of two nodes that are there.
#[test]
fn a_soak_on_two_nodes_finds_nothing() {
    on_several_nodes(|machine, _| {
        let (home, near) = pairs(machine)[0];
        let options = Soak { duration: Duration::from_secs(2), seed: 11, threads_count: 4 };
        let report = soak(machine.clone(), [home, near], options).unwrap();
        assert!(report.stats.evictions > 0 && report.stats.hits_ready > 0, "too tame: {report:?}");
    });
}
