//! A quick run on the machine that runs the tests. The numbers are used, not judged.

use std::collections::BTreeSet;

use memferry::memory::HugePages;

use super::loaded::{Load, measure};
use super::*;
use crate::harness::Row;

fn options() -> MemoryOptions {
    MemoryOptions {
        nodes: None,
        threads: None,
        size_bytes: None,
        pages: vec![Pages::Small],
        effort: Effort::Quick,
        seed: 1,
    }
}

fn run(machine: &Machine, options: MemoryOptions, peers: Result<&Peers, &NoPeers>) -> MeasuredMemory {
    let bench = MemoryBench::new(machine, options).unwrap();
    let mut steps = 0;
    let measured = bench.run(peers, &mut || steps += 1).unwrap();
    assert_eq!(steps, bench.steps_count());
    measured
}

#[test]
fn all_matrices_and_curves() {
    let machine = Machine::discover().unwrap();
    let peers = Peers::compile("cc").unwrap();
    let options = MemoryOptions { pages: Pages::ALL.to_vec(), ..options() };
    let MeasuredMemory { rows, notes, region_bytes, chain_bytes, .. } = run(&machine, options, Ok(&peers));
    assert_eq!((region_bytes, chain_bytes), (REGION_BYTES_MIN, REGION_BYTES_MIN));
    let names: BTreeSet<&str> = rows.iter().map(|row| &row.row.name[..]).collect();
    assert_eq!(names.len(), rows.len(), "{names:?}");
    for row in &rows {
        assert!(row.row.value > 0.0 && row.row.value.is_finite(), "{row:?}");
    }
    let compared: Vec<&MemoryRow> = rows.iter().filter(|row| row.figure == Figure::Compared).collect();
    let compared_names: Vec<&str> = compared.iter().map(|row| &row.row.name[..]).collect();
    assert_eq!(
        compared_names,
        ["idle_latency", "read_bandwidth", "write_bandwidth", "stream_copy", "mix_bandwidth"]
    );
    for row in &compared {
        let peer = row.row.peer.as_ref().unwrap();
        assert!(peer.name.ends_with(" in C") && peer.ratio.is_some_and(|ratio| ratio > 0.0), "{row:?}");
        assert_eq!(row.row.samples, 3);
    }
    // What is missing is named.
    let domains = machine.domains().into_iter().filter(|domain| !domain.cpus.is_empty());
    let cpus: Vec<usize> = domains.map(|domain| domain.cpus.len()).collect();
    let memories = machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed).count();
    let of = |pages: Pages, figure: Figure| {
        rows.iter().filter(|row| row.place.pages == pages && row.figure == figure).count()
    };
    for pages in Pages::ALL {
        if pages == Pages::Huge && notes.iter().any(|note| note.contains("huge pages")) {
            continue;
        }
        assert_eq!(of(pages, Figure::Latency), cpus.len() * memories, "{pages}");
        assert_eq!(of(pages, Figure::Bandwidth), Traffic::ALL.len() * cpus.len() * memories, "{pages}");
        if cpus.iter().all(|&cpus| cpus > 1) {
            let points = loaded::DELAYS.len() * loaded::TRAFFICS.len();
            assert_eq!(of(pages, Figure::LoadedLatency), points * memories, "{pages}");
        }
    }
    for row in rows.iter().filter(|row| row.figure == Figure::LoadedLatency) {
        assert!(row.delay.is_some() && row.load_mb_per_s.is_some() && row.traffic.is_some(), "{row:?}");
    }
}

#[test]
fn without_a_compiler_rows_have_a_reason_in_place_of_a_peer() {
    let machine = Machine::discover().unwrap();
    let why = Peers::compile("no-such-compiler").unwrap_err();
    let size_bytes = Some(REGION_BYTES_MIN + 1);
    let options = MemoryOptions { threads: Some(1), size_bytes, ..options() };
    let MeasuredMemory { rows, notes, region_bytes, .. } = run(&machine, options, Err(&why));
    assert_eq!(region_bytes, 2 * REGION_BYTES_MIN, "rounded up");
    let compared: Vec<&Row> =
        rows.iter().filter(|it| it.figure == Figure::Compared).map(|it| &it.row).collect();
    assert_eq!(compared.len(), COMPARED_COUNT);
    for row in compared {
        let peer = row.peer.as_ref().unwrap();
        assert_eq!((peer.value, peer.ratio), (None, None));
        assert!(peer.name.contains(", without a number: no-such-compiler cannot be run"), "{}", peer.name);
    }
    // One thread cannot load the memory for itself.
    assert!(rows.iter().all(|row| row.threads == 1 && row.figure != Figure::LoadedLatency));
    for words in ["without loops in C: no-such-compiler", "no latency under load"] {
        assert!(notes.iter().any(|note| note.starts_with(words)), "{notes:?}");
    }
}

#[test]
fn nodes_and_threads_must_be_there() {
    let machine = Machine::discover().unwrap();
    let error = |options| MemoryBench::new(&machine, options).unwrap_err().to_string();
    let unknown = error(MemoryOptions { nodes: Some(vec![NodeId(0), NodeId(999)]), ..options() });
    assert!(unknown.contains("999"), "{unknown}");
    let threads = error(MemoryOptions { threads: Some(100_000), ..options() });
    assert!(threads.contains("100000 threads are more than"), "{threads}");
    let none = error(MemoryOptions { nodes: Some(Vec::new()), ..options() });
    assert!(none.contains("memory"), "{none}");
    let size = error(MemoryOptions { size_bytes: Some(REGION_BYTES_MAX + 1), ..options() });
    assert!(size.contains("128 GiB"), "{size}");
}

/// Two nodes, of which the first has the CPUs.
#[test]
fn the_domain_with_memory_of_its_own_comes_first() {
    let machine = Machine::two_tiers().unwrap();
    let bench = MemoryBench::new(&machine, options()).unwrap();
    assert_eq!((bench.home.cpu_node, &bench.memories[..]), (NodeId(0), &[NodeId(0), NodeId(1)][..]));
    assert_eq!(bench.steps_count(), COMPARED_COUNT + 2 * (1 + 2));
    // Memory alone cannot be read.
    let error = MemoryBench::new(&machine, MemoryOptions { nodes: Some(vec![NodeId(1)]), ..options() });
    assert!(matches!(error, Err(MemoryBenchError::NoCpus)), "{error:?}");
}

#[test]
fn many_cells_get_fewer_rounds() {
    let cell = |cells_count| Rounds::of(Effort::Full, cells_count).cell;
    assert_eq!([1, 4, 8, 1000].map(cell), [21, 21, 10, 3]);
}

/// A pause reduces the load. Other programs may take the CPU of the loading thread, so this is tried several times.
#[test]
fn pauses_reduce_the_load() {
    let machine = Machine::discover().unwrap();
    let domains = machine.domains();
    let Some(domain) = domains.iter().find(|domain| domain.cpus.len() > 1) else {
        return memferry_testing::skip(
            memferry_testing::Needs::Cpus(2),
            "the reader and the load need a CPU each",
        );
    };
    let memory = machine.nodes().iter().find(|node| node.has_memory() && node.is_allowed).unwrap().id;
    let size_bytes = REGION_BYTES_MIN;
    let chain = Chain::new(&machine, memory, size_bytes, HugePages::AsSystem, 1).unwrap();
    let mut arenas = Arena::several(&machine, memory, 1, size_bytes, HugePages::AsSystem).unwrap();
    let cpus = &domain.cpus[..2];
    for traffic in Traffic::ALL {
        let mut line = 0;
        let mut load = |delay| {
            let load = Load { traffic, delay };
            let loaded = measure(cpus, &mut arenas, (&chain, &mut line), load, (20, 100_000)).unwrap();
            assert_eq!(loaded.latencies_ns.len(), 20);
            loaded.load_bytes_per_s
        };
        let is_reduced = (0..20).any(|_| {
            let (full, paused) = (load(0), load(20_000));
            full > 0.0 && paused < full / 2.0
        });
        assert!(is_reduced, "{traffic:?}");
        assert_ne!(line, 0, "the next reader goes on");
    }
}
