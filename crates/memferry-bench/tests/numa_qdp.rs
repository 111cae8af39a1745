//! The papers' query on a machine with several nodes: each variant reads and copies where it says.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use memferry_bench::harness::Provenance;
use memferry_bench::papers::qdp::{Axes, Nodes, Qdp, Query, QueryRuns, Synchronization, Variant, decide};
use memferry_bench::papers::{Metric, Skipped};
use numa_support::{MIB, PAGE, assert_no_strays, on_several_nodes};

/// Small: the CPUs of the guest are emulated.
fn queries(qdp: &Qdp, variants: &[Variant]) -> Vec<Query> {
    let nodes = Nodes::of(qdp.machine(), None).unwrap();
    let axes = Axes::on(qdp.machine(), nodes, false, true);
    Axes {
        variants: variants.to_vec(),
        columns_bytes: vec![2 * MIB as u64],
        chunks_bytes: vec![256 << 10],
        syncs: vec![Synchronization::Barrier],
        ..axes
    }
    .queries()
}

/// Every run checks its answer, and asks the kernel where copies are; a barrier has all of them there.
#[test]
fn copies_of_the_query_lie_on_the_near_node() {
    on_several_nodes(|machine, _| {
        let qdp = Qdp::on_machine((**machine).clone()).unwrap();
        let nodes = Nodes::of(machine, None).unwrap();
        let near = nodes.near.unwrap_or(nodes.home);
        for query in queries(&qdp, &[Variant::Prefetching, Variant::Distributed]) {
            let taken = qdp.run(&query, QueryRuns { warm_ups: 0, runs: 2 }).unwrap();
            let hits = taken.iter().find(|taken| taken.metric == Metric::HIT_RATE).unwrap();
            assert_eq!(hits.values, [1.0; 2], "{query:?}");
            let place = format!("all {} pages of copies lie on node {near}", 2 * MIB / PAGE);
            assert!(hits.note.as_ref().is_some_and(|note| note.contains(&place)), "{hits:?}");
        }
        assert_no_strays(machine);
    });
}

/// The times of a guest say nothing; the parts of the gain add up, or the missing node is named.
#[test]
fn the_gain_has_two_parts() {
    on_several_nodes(|machine, _| {
        let qdp = Qdp::on_machine((**machine).clone()).unwrap();
        let nodes = Nodes::of(machine, None).unwrap();
        let query = queries(&qdp, &[Variant::Baseline]).remove(0);
        let effort = QueryRuns { warm_ups: 0, runs: 2 };
        match (
            decide(&qdp, &query, effort, Provenance::Measured),
            nodes.near.is_some() && nodes.other.is_some(),
        ) {
            (Ok(verdict), true) => {
                println!("{verdict}");
                let product = verdict.places.value * verdict.copies.value;
                assert!((product / verdict.gain.value - 1.0).abs() < 1e-9, "{verdict}");
            }
            (Err(Skipped::Cannot(why)), false) => println!("{why}"),
            (other, _) => panic!("{other:?}"),
        }
    });
}

#[test]
fn every_variant_finds_its_nodes() {
    on_several_nodes(|machine, _| {
        let qdp = Qdp::on_machine((**machine).clone()).unwrap();
        let nodes = Nodes::of(machine, None).unwrap();
        for query in queries(&qdp, &Variant::ALL) {
            let needed = match query.variant {
                Variant::UpperLimit => nodes.near,
                Variant::Distributed | Variant::DistributedAlone => nodes.other,
                // What is known of a machine decides whether there is advice, and a cache in hardware.
                Variant::Advised | Variant::AdvisedDistributed => continue,
                Variant::CacheMode | Variant::CacheModeCold => continue,
                _ => Some(nodes.home),
            };
            match (qdp.run(&query, QueryRuns { warm_ups: 0, runs: 1 }), needed) {
                (Ok(taken), Some(_)) => assert!(!taken.is_empty()),
                (Err(Skipped::Cannot(why)), None) => println!("{}: {why}", query.variant),
                (other, _) => panic!("{query:?}: {other:?}"),
            }
        }
    });
}
