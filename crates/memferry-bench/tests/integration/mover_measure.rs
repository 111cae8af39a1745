//! The benchmarks of the mover, small: every line runs.

use memferry::mover::CopyMethods;
use memferry_bench::harness::Pairs;
use memferry_bench::mover::{
    Size, copies, last_level_cache_bytes, ordered_measured, ordered_modelled, small_copies, two_workers,
};

#[test]
fn every_row_is_measured() {
    let copies = copies(Size::QUICK);
    let names: Vec<&str> = copies.rows.iter().map(|row| &row.name[..]).collect();
    // The others are larger than the buffers.
    assert_eq!(names, ["copy_hot_4KiB", "copy_hot_64KiB", "copy_hot_1MiB", "copy_cold_1MiB"]);
    let workers = two_workers(Size::QUICK, CopyMethods::default()).expect("threads");
    assert_eq!(workers.name, "copy_2_workers");
    let ordered = ordered_measured(Size::QUICK).expect("threads");
    for row in copies.rows.iter().chain([&workers, &ordered]) {
        let Pairs { ours, peer } = &row.pairs;
        assert_eq!((ours.len(), peer.len()), (3, 3), "{row:?}");
        assert!(ours.iter().chain(peer).all(|&ns| ns > 0.0), "{row:?}");
    }
    assert_eq!(copies.call_ns.len(), 3);
    assert_eq!(small_copies(Size::QUICK).expect("threads").len(), 3);
}

/// Cold is what lies more than the last-level cache apart, four times over.
#[test]
fn the_buffers_of_a_record_do_not_fit_into_the_caches() {
    assert!(Size::full().buffer_bytes > 4 * last_level_cache_bytes());
    assert!(Size::full().buffer_bytes >= 256 << 20, "the largest copy");
}

/// Virtual time has no noise: the pipeline hides the copies of a core, and not its submissions.
#[test]
fn a_device_takes_the_copies_off_the_core() {
    let [alone, forwarding] = ordered_modelled().expect("packets arrive in order");
    assert_eq!((&*alone.name, &*forwarding.name), ("ordered_512B", "ordered_512B_forwarding"));
    assert!(alone.pairs.ratio() >= 1.3, "{alone:?}");
    // At most what is left if copies cost nothing: 30 % of the time of the core.
    assert!((1.0..1.0 / 0.7).contains(&forwarding.pairs.ratio()), "{forwarding:?}");
    // 100 ns for each descriptor, and an eighth of a submission: less is not possible, more is waiting.
    assert!((105.0..125.0).contains(&alone.pairs.ours[0]), "{alone:?}");
    assert_eq!(ordered_modelled().expect("as before")[0].pairs, alone.pairs, "the same each time");
}
