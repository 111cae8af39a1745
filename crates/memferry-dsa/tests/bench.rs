//! The benchmark's code, run so small that it measures nothing and cannot rot.

#[path = "../benches/core/mod.rs"]
mod core;

#[test]
fn the_benchmark_runs() {
    let emulator = core::device();
    let portal = &*emulator.portal(0);
    assert!(core::singles(portal, 4, 10) > 0.0);
    assert!(core::batches(portal, 8, true, 3) > 0.0);
    assert!(core::batches(portal, 8, false, 3) > 0.0);
    assert!(!core::round_trip(portal, 3).is_zero());
    for transfer in [core::Transfer::Copy, core::Transfer::Fill, core::Transfer::Compare, core::Transfer::Crc]
    {
        assert!(core::transfers(portal, transfer, 5000, 2) > 0.0);
    }
    assert_eq!(emulator.counters().ended_count(), 10 + 2 * 3 * 9 + 3 + 4 * 2);
}
