//! The benchmarks of the mover, small: every line runs.

use memferry::mover::CopyMethods;
use memferry::mover::measure::{Size, copies, last_level_cache_bytes, small_copies, two_workers};

#[test]
fn every_row_is_measured() {
    let copies = copies(Size::QUICK);
    let names: Vec<&str> = copies.rows.iter().map(|row| &row.name[..]).collect();
    // The others are larger than the buffers.
    assert_eq!(names, ["copy_hot_4KiB", "copy_hot_64KiB", "copy_hot_1MiB", "copy_cold_1MiB"]);
    let workers = two_workers(Size::QUICK, CopyMethods::default()).expect("threads");
    assert_eq!(workers.name, "copy_2_workers");
    for row in copies.rows.iter().chain([&workers]) {
        assert_eq!((row.ours.len(), row.peer.len()), (3, 3), "{row:?}");
        assert!(row.ours.iter().chain(&row.peer).all(|&ns| ns > 0.0), "{row:?}");
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
