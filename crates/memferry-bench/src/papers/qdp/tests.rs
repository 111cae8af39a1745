use memferry::internals::{Measured, Parameter};
use memferry::mover::{DsaEngine, DsaOptions};
use memferry::topology::NodeId;

use super::*;
use crate::harness::Provenance;
use crate::model::scenario;

const XEON_MAX: &str = "xeon-max-9468-2s-flat";

fn xeon_max() -> Machine {
    Machine::from_profile(XEON_MAX).unwrap()
}

fn axes(qdp: &Qdp, is_model: bool) -> Axes {
    Axes::on(qdp.machine(), Nodes::of(qdp.machine(), None).unwrap(), is_model, true)
}

fn query(qdp: &Qdp, is_model: bool, variant: Variant) -> Query {
    let queries = axes(qdp, is_model).queries();
    queries.into_iter().find(|query| query.variant == variant).unwrap()
}

fn value(taken: &[Measurement], metric: Metric) -> Option<f64> {
    let values = &taken.iter().find(|taken| taken.metric == metric)?.values;
    Some(values[values.len() / 2])
}

/// The benchmark and `memferry sim table-6.2` compute the same.
#[test]
fn the_thesis_query_is_that_of_the_scenario() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let variants = [Variant::Baseline, Variant::UpperLimit, Variant::Prefetching, Variant::Distributed];
    let ours =
        variants.map(|variant| modelled::pipeline(qdp.machine(), &query(&qdp, true, variant)).unwrap());
    let theirs = scenario("table-6.2").unwrap().pipelines().unwrap();
    assert_eq!(ours.to_vec(), theirs.into_iter().map(|(_, pipeline)| pipeline).collect::<Vec<_>>());
}

#[test]
fn table_6_2_in_the_model() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let of = |variant| {
        let query = query(&qdp, true, variant);
        (query.clone(), qdp.run(&query, QueryRuns::FULL).unwrap())
    };
    let total = |variant| value(&of(variant).1, Metric::TOTAL).unwrap();
    let [baseline, limit, prefetching, distributed] =
        [Variant::Baseline, Variant::UpperLimit, Variant::Prefetching, Variant::Distributed].map(total);
    assert!(limit < distributed && distributed < baseline && baseline < prefetching);
    for variant in [Variant::Baseline, Variant::UpperLimit, Variant::Prefetching, Variant::Distributed] {
        let (query, taken) = of(variant);
        let printed = published(&query, Metric::TOTAL).unwrap();
        let ratio = value(&taken, Metric::TOTAL).unwrap() / printed.value;
        assert!((0.93..1.01).contains(&ratio), "{variant:?}: {ratio} of {}", printed.name);
    }
    let (query, taken) = of(Variant::Distributed);
    assert!((value(&taken, Metric::HIT_RATE).unwrap() - 0.932).abs() < 0.005);
    assert_eq!(published(&query, Metric::HIT_RATE).unwrap().value, 0.932);
    assert_eq!(published(&query, Metric::SPEED_UP).unwrap().value, 1.23);
    assert_eq!(published(&Query { scan_threads: 32, ..query }, Metric::TOTAL), None);
    // Advice makes no query slower.
    assert!(total(Variant::Advised) <= baseline * 1.001);
    assert!(total(Variant::AdvisedDistributed) < total(Variant::DistributedAlone) * 0.92);
    // Copies of the whole column pay, for every group.
    let (_, advised) = of(Variant::AdvisedDistributed);
    assert!(value(&advised, Metric::HIT_RATE).unwrap() > 0.9, "{advised:?}");
    let (_, alone) = of(Variant::Baseline);
    assert_eq!((value(&alone, Metric::HIT_RATE), value(&alone, Metric::SCAN_B)), (None, None));
}

#[test]
fn cache_mode_is_slow_first_and_fast_again() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let run = |variant| qdp.run(&query(&qdp, true, variant), QueryRuns::FULL).unwrap();
    let total = |variant| value(&run(variant), Metric::TOTAL).unwrap();
    let cold = total(Variant::CacheModeCold) / total(Variant::Baseline);
    assert!((cold - 1.0).abs() < 1e-3, "a cache without hits is as fast as what is behind it: {cold}");
    // Column a is cached as well, which no other variant copies.
    let warm = run(Variant::CacheMode);
    assert!(value(&warm, Metric::TOTAL).unwrap() < total(Variant::UpperLimit));
    // Two columns of 4 GiB in 16 GiB.
    assert!((value(&warm, Metric::HIT_RATE).unwrap() - (-0.5_f64).exp()).abs() < 1e-9);
    assert!(warm.iter().all(|taken| taken.note.as_ref().is_some_and(|note| note.contains("assumed"))));
}

#[test]
fn a_barrier_waits_for_copies_in_the_model_too() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let query = Query { sync: Synchronization::Barrier, ..query(&qdp, true, Variant::Prefetching) };
    let taken = qdp.run(&query, QueryRuns::FULL).unwrap();
    assert_eq!(value(&taken, Metric::HIT_RATE), Some(1.0));
    assert!(value(&taken, Metric::SCAN_B) > value(&taken, Metric::SCAN_A));
    assert_eq!(published(&query, Metric::TOTAL), None);
}

/// The whole measured gain of 1.23 is that of the columns' places in the model, which sees a further gain of copies.
#[test]
fn the_model_attributes_the_gain_to_the_places() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let query = query(&qdp, true, Variant::Baseline);
    let verdict = decide(&qdp, &query, QueryRuns { warm_ups: 0, runs: 1 }, Provenance::Modelled).unwrap();
    assert!((verdict.places.value / 1.23 - 1.0).abs() < 0.01, "{verdict}");
    assert_eq!(verdict.cause, Cause::Both, "{verdict}");
    assert!((verdict.gain.value / verdict.places.value / verdict.copies.value - 1.0).abs() < 1e-9);
    let nodes = Nodes { near: None, ..query.nodes };
    let without = decide(&qdp, &Query { nodes, ..query }, QueryRuns::QUICK, Provenance::Modelled);
    assert!(matches!(without, Err(Skipped::Cannot(why)) if why.contains("no faster memory")));
}

/// On any machine. Every run checks its answer.
#[test]
fn every_variant_here_has_figures_or_a_reason() {
    let qdp = Qdp::on_machine(Machine::discover().unwrap()).unwrap();
    for query in axes(&qdp, false).queries() {
        match qdp.run(&query, QueryRuns::QUICK) {
            Ok(taken) => {
                assert!(taken.iter().all(|taken| taken.values.len() == 2), "{taken:?}");
                assert!(value(&taken, Metric::TOTAL) > Some(0.0), "{taken:?}");
                let is_fetching = query.variant.is_prefetching();
                assert_eq!(value(&taken, Metric::HIT_RATE).is_some(), is_fetching, "{query:?}");
            }
            Err(Skipped::Cannot(why)) => {
                assert!(query.variant != Variant::Baseline && why.contains(' '), "{why}")
            }
            Err(Skipped::Failed(error)) => panic!("{query:?}: {error}"),
        }
    }
}

/// Advice needs rates: a kernel does not report them, a calibration does. It considers the engines of this machine, not
/// the devices of a description.
#[test]
fn advice_here_is_about_this_machine_and_its_engines() {
    let advised = |qdp: &Qdp, variant| match qdp.run(&query(qdp, false, variant), QueryRuns::QUICK) {
        Ok(taken) => taken[0].note.clone().unwrap(),
        Err(Skipped::Cannot(why)) => why,
        Err(error) => panic!("{error}"),
    };
    let here = || Machine::discover().unwrap();
    let told = advised(&Qdp::on_machine(here()).unwrap(), Variant::Advised);
    assert!(told.contains("there is no advice") && told.contains("not known"), "{told}");
    let rate = |name: &str| Parameter::assumed(name, 10_000.0, "a test");
    let parameters = ["dram_mb_per_s", "hbm_mb_per_s", "core_mb_per_s"].map(rate).to_vec();
    let reference = ("a test".to_owned(), "of this file".to_owned());
    let measured = Measured { reference, parameters, ..Measured::default() };
    let told = advised(&Qdp::on_machine(here().with_measured(measured).unwrap()).unwrap(), Variant::Advised);
    assert!(told.contains("advice: "), "{told}");

    let told = |devices: &[u32]| {
        let devices: Vec<_> = devices.iter().map(|&node| Some(NodeId(node))).collect();
        let machine = xeon_max().with_devices_on(&devices);
        advised(&Qdp::on_emulated(machine).unwrap(), Variant::AdvisedDistributed)
    };
    let (one, two) = (told(&[1]), told(&[0, 1]));
    assert!(one.contains("by one device") && two.contains("by all devices in turn"), "{one}\n{two}");
    // The profile has eight devices, this machine has none.
    if DsaEngine::discover(&DsaOptions::default()).is_err() {
        let told = advised(&Qdp::on_machine(xeon_max()).unwrap(), Variant::AdvisedDistributed);
        assert!(told.contains("by the CPU"), "{told}");
    }
}

/// With a barrier all of b is near before it is read; the numbers of groups, threads and chunks need not divide each
/// other.
#[test]
fn with_a_barrier_every_chunk_is_a_hit() {
    let qdp = Qdp::on_machine(Machine::discover().unwrap()).unwrap();
    let query = Query {
        column_bytes: 61 * PAGE_BYTES,
        chunk_bytes: 3 * PAGE_BYTES,
        groups: 3,
        scan_threads: 9,
        prefetch_threads: 6,
        aggregate_threads: 6,
        sync: Synchronization::Barrier,
        ..query(&qdp, false, Variant::Prefetching)
    };
    let taken = qdp.run(&query, QueryRuns { warm_ups: 0, runs: 3 }).unwrap();
    let hits = taken.iter().find(|taken| taken.metric == Metric::HIT_RATE).unwrap();
    assert_eq!(hits.values, [1.0; 3]);
}

/// Eight devices, sixteen nodes, one memory.
#[test]
fn emulated_devices_copy() {
    let qdp = Qdp::on_emulated(xeon_max()).unwrap();
    for variant in [Variant::Prefetching, Variant::Distributed] {
        let query = Query { sync: Synchronization::Barrier, ..query(&qdp, false, variant) };
        let taken = qdp.run(&query, QueryRuns { warm_ups: 0, runs: 1 }).unwrap();
        assert_eq!(value(&taken, Metric::HIT_RATE), Some(1.0));
        let note = taken[0].note.as_deref().unwrap();
        assert!(note.contains("emulated devices") && note.contains(XEON_MAX), "{note}");
    }
    let taken =
        qdp.run(&query(&qdp, false, Variant::UpperLimit), QueryRuns { warm_ups: 0, runs: 1 }).unwrap();
    assert!(taken[0].note.as_deref().unwrap().contains("no device takes part"));
    // The model decides about the copies, as for the modelled machine: none beside a scan of the same node.
    let taken = qdp.run(&query(&qdp, false, Variant::Advised), QueryRuns { warm_ups: 0, runs: 1 }).unwrap();
    assert!(taken[0].note.as_deref().unwrap().contains("advice: "), "{taken:?}");
}

#[test]
fn a_machine_without_devices_has_none_to_emulate() {
    let without = Machine::from_profile("skylake-8180-snc-off").unwrap();
    let error = Qdp::on_emulated(without).unwrap_err();
    assert!(matches!(&error, Skipped::Cannot(why) if why.contains("has no DSA")), "{error}");
}

#[test]
fn what_contradicts_itself_is_said() {
    let qdp = Qdp::on_machine(Machine::discover().unwrap()).unwrap();
    let good = Query {
        groups: 1,
        scan_threads: 2,
        prefetch_threads: 1,
        aggregate_threads: 1,
        ..query(&qdp, false, Variant::Prefetching)
    };
    let missing = NodeId(4000);
    for (query, word) in [
        (Query { column_bytes: 0, ..good.clone() }, "column is a multiple"),
        (Query { column_bytes: 4097, ..good.clone() }, "column is a multiple"),
        (Query { chunk_bytes: 512, ..good.clone() }, "chunk is a multiple"),
        (Query { groups: 0, ..good.clone() }, "divided evenly"),
        (Query { groups: 2, ..good.clone() }, "divided evenly"),
        (Query { prefetch_threads: 2, ..good.clone() }, "leave others for column a"),
        (Query { scan_threads: usize::MAX, ..good.clone() }, "1024 threads"),
        (
            Query {
                groups: 1024,
                scan_threads: 2048,
                prefetch_threads: 1024,
                aggregate_threads: 1024,
                ..good.clone()
            },
            "1024 threads",
        ),
        (
            Query {
                chunk_bytes: 1 << 40,
                groups: 2,
                scan_threads: 4,
                prefetch_threads: 2,
                aggregate_threads: 2,
                ..good.clone()
            },
            "fewer chunks",
        ),
        (Query { column_bytes: 1 << 50, ..good.clone() }, "MiB are free"),
        (Query { nodes: Nodes { near: Some(missing), ..good.nodes }, ..good.clone() }, "4000"),
        (
            Query { variant: Variant::UpperLimit, nodes: Nodes { near: None, ..good.nodes }, ..good.clone() },
            "no faster memory",
        ),
        (
            Query {
                variant: Variant::Distributed,
                nodes: Nodes { other: None, ..good.nodes },
                ..good.clone()
            },
            "no other memory",
        ),
    ] {
        match qdp.run(&query, QueryRuns::QUICK) {
            Err(Skipped::Cannot(why)) => assert!(why.contains(word), "{word:?} is not in {why:?}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    assert!(qdp.machine().free_bytes(good.nodes.home).unwrap() > 0);
    // A machine without rates.
    let qdp = Qdp::on_model(Machine::two_tiers().unwrap()).unwrap();
    for variant in [Variant::Baseline, Variant::Advised, Variant::CacheMode] {
        let error = qdp.run(&query(&qdp, true, variant), QueryRuns::QUICK).unwrap_err();
        assert!(matches!(&error, Skipped::Cannot(why) if why.contains("not known")), "{error}");
    }
}

#[test]
fn names_tell_rows_apart() {
    let qdp = Qdp::on_model(xeon_max()).unwrap();
    let axes = Axes {
        groups: vec![4, 8],
        chunks_bytes: vec![2 << 20, 8 << 20],
        syncs: vec![Synchronization::Relaxed, Synchronization::Barrier],
        ..axes(&qdp, true)
    };
    let queries = axes.queries();
    assert_eq!(queries.len(), 9 * 8);
    assert!(queries[..9].iter().all(|query| query.groups == 4 && query.sync == Synchronization::Relaxed));
    let mut names: Vec<String> = queries.iter().map(|query| axes.row_name(query, Metric::HIT_RATE)).collect();
    assert_eq!(names[2], "qdp_hit_rate_prefetching_groups4_chunk2MiB_relaxed");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 9 * 8);
    let nodes = Nodes::of(qdp.machine(), None).unwrap();
    assert_eq!((nodes.home, nodes.near, nodes.other), (NodeId(0), Some(NodeId(8)), Some(NodeId(1))));
    let far = Nodes::of(qdp.machine(), Some(NodeId(5))).unwrap();
    assert_eq!((far.home, far.near), (NodeId(5), Some(NodeId(13))));
    assert!(Nodes::of(qdp.machine(), Some(NodeId(8))).is_err(), "it has no CPUs");
}
