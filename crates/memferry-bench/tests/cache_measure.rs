//! The benchmarks of the cache, small: every line runs, and what they count is right.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use memferry::topology::{Machine, NodeId};
use memferry_bench::cache::{
    FirstAccess, HitPeer, Ours, Size, Soak, churn, evictions, first_access, hits, hits_allocations, soak,
};
use memferry_bench::harness::{CountingAllocator, Pairs, allocations_count, median};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn the_counter_counts_allocations_of_this_thread() {
    let before = allocations_count();
    let mut one = black_box(Vec::<u8>::with_capacity(1));
    assert_eq!(allocations_count() - before, 1);
    one.reserve_exact(100);
    drop(black_box(one));
    drop(black_box(vec![0_u8; 100]));
    assert_eq!(allocations_count() - before, 3);
    std::thread::spawn(|| drop(black_box(Box::new(1)))).join().unwrap();
    let after_spawn = allocations_count();
    black_box(1 + 1);
    assert_eq!(allocations_count(), after_spawn);
}

#[test]
fn a_hit_allocates_nothing() {
    assert_eq!(hits_allocations(Size::QUICK, allocations_count).unwrap(), 0.0);
}

#[test]
fn every_row_is_measured() {
    /// Ours again, under the name of a peer.
    struct Twin(Ours);
    impl HitPeer for Twin {
        fn name(&self) -> &str {
            "moka"
        }
        fn hits(&self, keys: &[u32]) {
            self.0.hits(keys);
        }
    }
    let twin = Twin(Ours::new(Size::QUICK.keys_count, Size::QUICK.block_bytes).unwrap());
    let mut rows = hits(Size::QUICK, 1, &[&twin]).unwrap();
    rows.extend(churn("churn", Size::QUICK, 1).unwrap());
    rows.push(evictions(Size::QUICK).unwrap());
    let names: Vec<&str> = rows.iter().map(|row| &row.name[..]).collect();
    let expected = [
        "hit_1_thread",
        "hit_2_threads_vs_thesis",
        "hit_2_threads_vs_moka",
        "hit_hot_key_vs_thesis",
        "churn_vs_thesis",
        "churn_copies_vs_thesis",
        "evict_after_4000_threads_us",
    ];
    assert_eq!(names, expected);
    for row in rows {
        let Pairs { ours, peer } = &row.pairs;
        assert_eq!((ours.len(), peer.len()), (3, 3), "{row:?}");
        assert!(ours.iter().chain(peer).all(|&ns| ns > 0.0) && row.pairs.ratio() > 0.0, "{row:?}");
    }
    for pause in [Duration::ZERO, Duration::from_millis(1)] {
        let times = first_access(4096, 3, pause).unwrap();
        assert_eq!((times.poll_us.len(), times.block_us.len(), times.copy_us.len()), (3, 3, 6));
        assert!(median(&times.copy_us) > 0.0);
    }
    assert_eq!(FirstAccess::p99(&[3.0, 1.0, 2.0]), 3.0);
}

#[test]
fn a_short_soak_finds_nothing() {
    let seed =
        std::env::var("MEMFERRY_SEED").map_or(7, |seed| seed.parse().expect("MEMFERRY_SEED is a number"));
    let seconds = std::env::var("MEMFERRY_SOAK_SECONDS").map_or(2.0, |text| text.parse().expect("seconds"));
    let options = Soak { duration: Duration::from_secs_f64(seconds), seed, threads_count: 4 };
    let machine = Arc::new(Machine::two_tiers().unwrap());
    let report = soak(machine, [NodeId(0), NodeId(1)], options).unwrap();
    println!("{report:#?}");
    let stats = &report.stats;
    for (count, what) in [
        (report.panics_count, "panics"),
        (report.forgotten_count, "forgotten entries"),
        (report.versions_count, "versions"),
        (report.rewrites_count, "changes at home"),
        (report.checked_bytes, "bytes"),
        (stats.hits_ready, "hits"),
        (stats.hits_in_flight, "hits in flight"),
        (stats.evictions, "evictions"),
        (stats.no_room, "refusals for want of room"),
        (stats.failed, "failed copies"),
    ] {
        assert!(count > 0, "too tame: no {what}: {report:?}");
    }
}
