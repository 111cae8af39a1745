//! Decisions against a simulated scan: a storage and cores of other speeds than those that were predicted.

use super::*;
use crate::topology::{ReadRate, Storage};

const MIB: u64 = 1 << 20;

/// A storage with `latency_s` for each read, up to `mb_per_s` for all of them.
fn storage(latency_s: f64, mb_per_s: f64) -> ReadRates {
    let mut rates = vec![];
    for size_bytes in [4096, 64 << 10, 512 << 10] {
        for depth in [1, 2, 4, 8, 16, 32, 64] {
            let alone_s = latency_s + size_bytes as f64 / (mb_per_s * 1e6);
            let rate = (f64::from(depth) * size_bytes as f64 / alone_s / 1e6).min(mb_per_s);
            rates.push(ReadRate { size_bytes, depth, mb_per_s: rate });
        }
    }
    ReadRates::from(&Storage::new("/".into(), latency_s * 1e9, rates, "a test".to_owned()).unwrap())
}

fn scan(work_ns_per_byte: f64) -> FileScan {
    FileScan {
        groups_count: 100,
        group_bytes: 2 * MIB,
        read_bytes: 512 << 10,
        partitions_count: 2,
        work_s_per_byte: work_ns_per_byte / 1e9,
        window_bytes_max: 64 * MIB,
    }
}

/// A number between -1 and 1. SplitMix64's output function; `seed` is a counter.
fn noise(seed: u64) -> f64 {
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// Runs a scan on a machine that differs from the predicted one: returns the time of a partition.
fn run(forecast: &mut Forecast, truth: &FileScan, storage: &ReadRates, jitter: f64, seed: u64) -> f64 {
    let mut time_s = 0.0;
    for group in 0..truth.groups_count {
        for partition in 0..u64::from(truth.partitions_count) {
            let window = forecast.advice().window_bytes;
            let ahead = (window / truth.group_bytes).max(1);
            let factor = 1.0 + jitter * noise(seed * 1_000_000 + group * 1000 + partition);
            let read_s = truth.group_s(storage, ahead) * factor;
            let worked_s = truth.group_bytes as f64 * truth.work_s_per_byte;
            let waited_s = if window == 0 { read_s } else { (read_s - worked_s).max(0.0) };
            time_s += (waited_s + worked_s) / f64::from(truth.partitions_count);
            let bytes = truth.group_bytes;
            forecast.observe(Observed { groups_count: 1, bytes, read_bytes: bytes, waited_s, worked_s });
        }
    }
    time_s
}

#[test]
fn a_slow_decoder_needs_a_short_window_and_a_distant_storage_a_long_one() {
    let near = scan(50.0).advise(&storage(100e-6, 1000.0));
    assert_eq!((near.decodes_early, near.groups_ahead), (false, 1));
    assert_eq!(near.window_bytes, 4 * MIB, "two row groups of 100 ms each: {near:?}");
    // Two partitions, 1 GB/s: 20 ms for each 10 MB. Reads of 30 ms need 60 in flight for this rate.
    let far = scan(1.0).advise(&storage(30e-3, 1000.0));
    assert!(far.storage_s > 1.9 * far.work_s, "cores wait: {far:?}");
    assert!(far.groups_ahead >= 6 && far.window_bytes >= 24 * MIB, "{far:?}");
    assert!(far.predicted_s < 0.3 * far.on_demand_s, "{far:?}");
    let bounded = FileScan { window_bytes_max: 3 * MIB, ..scan(1.0) }.advise(&storage(30e-3, 1000.0));
    assert_eq!(bounded.window_bytes, 3 * MIB);
    assert!(bounded.predicted_s > far.predicted_s);
    let off = FileScan { window_bytes_max: 0, ..scan(1.0) }.advise(&storage(30e-3, 1000.0));
    assert_eq!((off.window_bytes, off.predicted_s), (0, off.on_demand_s));
}

#[test]
fn predictions_are_the_times_of_the_slower_half() {
    // 400 MiB of two partitions at 1 GB/s, and 2 MiB * 100 * 1 ns of work.
    let advice = scan(1.0).advise(&storage(1e-6, 1000.0));
    let storage_s = (400 * MIB) as f64 / 1e9;
    assert!((advice.storage_s / storage_s - 1.0).abs() < 0.01, "{advice:?}");
    assert!((advice.predicted_s / storage_s - 1.0).abs() < 0.02, "{advice:?}");
    let advice = scan(10.0).advise(&storage(1e-6, 1000.0));
    assert!((advice.work_s - 2.097_152).abs() < 1e-6 && advice.predicted_s >= advice.work_s, "{advice:?}");
    assert!(advice.predicted_s < 1.01 * advice.work_s, "{advice:?}");
    assert!(advice.on_demand_s > advice.work_s + 0.95 * advice.storage_s, "{advice:?}");
}

#[test]
fn no_scan_is_too_odd() {
    let odd = [
        FileScan { groups_count: 0, ..scan(1.0) },
        FileScan { groups_count: 1, group_bytes: u64::MAX, ..scan(1.0) },
        FileScan { group_bytes: 0, read_bytes: 0, partitions_count: 0, ..scan(0.0) },
        FileScan { window_bytes_max: u64::MAX, ..scan(0.0) },
    ];
    for scan in odd {
        let advice = scan.advise(&storage(1e-4, 1000.0));
        assert!(advice.predicted_s >= 0.0 && advice.predicted_s.is_finite(), "{scan:?}: {advice:?}");
        let mut forecast = Forecast::new(scan, storage(1e-4, 1000.0));
        forecast.observe(Observed::default());
        forecast.observe(Observed { groups_count: 9, bytes: 1, read_bytes: 1, waited_s: 0.0, worked_s: 0.0 });
        assert!(forecast.advice().predicted_s.is_finite(), "{forecast:?}");
    }
}

#[test]
fn a_scan_as_predicted_decides_once() {
    for seed in 0..20 {
        for work_ns in [0.5, 2.0, 20.0] {
            let rates = storage(1e-3, 1000.0);
            let mut forecast = Forecast::new(scan(work_ns), rates.clone());
            run(&mut forecast, &scan(work_ns), &rates, 0.2, seed);
            assert_eq!(forecast.decisions_count(), 1, "{work_ns} ns, seed {seed}: {forecast:?}");
        }
    }
}

/// Whatever is wrong by a factor of 4, the scan knows its time in the end, and it has not taken much longer than with the
/// right window from the start.
#[test]
fn a_scan_that_differs_decides_again_until_it_is_right() {
    for seed in 0..20 {
        for (slower, work) in [(4.0, 1.0), (0.25, 1.0), (1.0, 4.0), (1.0, 0.25), (4.0, 4.0), (0.25, 0.25)] {
            for work_ns in [1.0, 4.0, 20.0] {
                let expected = storage(5e-3, 1000.0);
                let (truth, actual) = (scan(work_ns * work), expected.slowed(slower));
                let mut forecast = Forecast::new(scan(work_ns), expected);
                let differs = {
                    let (one, other) = (forecast.advice(), truth.advise(&actual));
                    let ratio = other.storage_s.max(other.work_s) / one.storage_s.max(one.work_s);
                    (ratio - 1.0).abs() > DIFFERENCE_MAX * 1.5
                };
                let time_s = run(&mut forecast, &truth, &actual, 0.1, seed);
                let case = format!("storage x{slower}, work x{work} of {work_ns} ns, seed {seed}");
                assert!(forecast.decisions_count() <= DECISIONS_MAX, "{case}");
                assert!(!differs || forecast.decisions_count() > 1, "{case}: {forecast:?}");
                let right = truth.advise(&actual);
                let known_s = forecast.advice().storage_s.max(forecast.advice().work_s);
                let ratio = known_s / right.storage_s.max(right.work_s);
                assert!((0.6..1.5).contains(&ratio), "{case}: {ratio} {forecast:?} {right:?}");
                assert!(time_s < 1.3 * right.predicted_s, "{case}: {time_s} instead of {right:?}");
            }
        }
    }
}

#[test]
fn decisions_are_bounded_on_a_machine_that_changes() {
    let mut forecast = Forecast::new(scan(1.0), storage(1e-3, 1000.0));
    let mut again_count = 0;
    for step in 0..1000 {
        let worked_s = if step % 100 < 50 { 1.0 } else { 1e-3 };
        let seen = Observed { groups_count: 1, bytes: 2 * MIB, read_bytes: 2 * MIB, waited_s: 0.0, worked_s };
        again_count += u32::from(forecast.observe(seen));
    }
    assert_eq!((forecast.decisions_count(), again_count), (DECISIONS_MAX, DECISIONS_MAX - 1));
}

#[test]
fn a_longer_latency_makes_the_window_longer() {
    let mut forecast = Forecast::new(scan(1.0), storage(1e-3, 2000.0));
    let before = forecast.advice().window_bytes;
    // Waits for 40 ms for each row group.
    for _ in 0..4 {
        forecast.observe(Observed {
            groups_count: 1,
            bytes: 2 * MIB,
            read_bytes: 2 * MIB,
            waited_s: 0.04,
            worked_s: 0.002,
        });
    }
    assert_eq!(forecast.decisions_count(), 2);
    let after = forecast.advice();
    assert!(after.decodes_early && after.window_bytes > before, "{before} {after:?}");
}

#[test]
fn bytes_in_memory_take_no_time_of_the_storage() {
    let mut forecast = Forecast::new(scan(1.0), storage(1e-3, 100.0));
    assert!(forecast.advice().decodes_early);
    let before = forecast.rates.clone();
    let bytes = 2 * MIB;
    let worked_s = bytes as f64 * 1e-9;
    for _ in 0..100 {
        forecast.observe(Observed { groups_count: 1, bytes, read_bytes: 0, waited_s: 0.0, worked_s });
    }
    assert_eq!((forecast.decisions_count(), &forecast.rates), (1, &before));
    assert_eq!(forecast.predicted_first_s(bytes, 0), worked_s);
    assert!(forecast.predicted_first_s(bytes, bytes) > 10.0 * worked_s);
    // Work that differs is no reason to think otherwise of the storage.
    for _ in 0..100 {
        forecast.observe(Observed { groups_count: 1, bytes, read_bytes: 0, waited_s: 0.0, worked_s: 0.5 });
    }
    assert!(forecast.decisions_count() > 1);
    assert_eq!(forecast.rates, before);
}
