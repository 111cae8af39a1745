//! The timing model in real time: never too early, and asleep meanwhile. A program of its own with one test, because it
//! measures the processor time of the process.

use std::time::{Duration, Instant};

use memferry_dsa::{CompletionRecord, Descriptor, Status, Submission};
use memferry_dsa_emulator::{
    DeviceConfig, DeviceCosts, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue,
};

/// Reached only if a descriptor is lost.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn completions_are_not_early() {
    a_large_transfer();
    many_small_ones();
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A large transfer takes as long as the model says, and the thread sleeps for most of it.
fn a_large_transfer() {
    let timing = DeviceCosts { bytes_per_second: 100_000_000, ..DeviceCosts::sapphire_rapids() };
    let mut config = DeviceConfig::one_dedicated_queue().with_timing(timing);
    config.groups[0].queues[0].transfer_bytes_max = 1 << 28;
    let emulator = Emulator::start(&config, FaultPlan::none()).unwrap();
    let portal = emulator.portal(0);
    let size = 64 << 20;
    let (source, mut target) = (vec![3u8; size], vec![1u8; size]);
    let record = CompletionRecord::new();
    let copy =
        Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size as u32).with_completion(&record);
    let (start, processor) = (Instant::now(), processor_time());
    // SAFETY: source, target and record outlive the wait.
    assert_eq!(unsafe { portal.submit(&copy) }, Ok(Submission::Accepted));
    while record.poll().is_none() {
        assert!(start.elapsed() < PATIENCE, "the copy does not end: {:?}", emulator.counters());
        std::thread::sleep(Duration::from_millis(1));
    }
    let (took, worked) = (start.elapsed(), processor_time() - processor);
    let modelled = Duration::from_nanos(timing.transfer_ns(size as u64));
    assert!(took >= modelled, "{took:?} instead of {modelled:?}");
    assert!(took < modelled * 10, "{took:?} instead of {modelled:?}");
    // The copy itself takes about 10 ms of it, on a busy machine 70.
    assert!(worked < took / 2, "modelled {modelled:?}, took {took:?}, of which the processor {worked:?}");
    assert!(target == source);
}

/// Many small transfers: each no earlier than modelled, and submitters that wait for room make progress.
///
/// Its first version never released the entries of the dedicated queue, which worked while that queue dropped
/// descriptors. Since the portal counts entries, it correctly answered Retry, and the loop did not end.
fn many_small_ones() {
    let timing = DeviceCosts { latency_ns: 300_000, ..DeviceCosts::sapphire_rapids() };
    let queues = vec![shared_queue("wq0.0", 4), dedicated_queue("wq0.1", 4)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues }]).with_timing(timing);
    let emulator = Emulator::start(&config, FaultPlan::none()).unwrap();
    let portals = [emulator.portal(0), emulator.portal(1)];
    let records: Vec<_> = (0..40).map(|_| CompletionRecord::new()).collect();
    let mut in_flight = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let portal = &*portals[number % 2];
        let patience_ends = Instant::now() + PATIENCE;
        let start = loop {
            let start = Instant::now();
            // SAFETY: a no-op names no memory but its record, which outlives the device's end below.
            match unsafe { portal.submit(&Descriptor::noop().with_completion(record)) } {
                Ok(Submission::Accepted) => {
                    in_flight.push((record, portal));
                    break start;
                }
                Ok(Submission::Retry) => in_flight.retain(|(record, portal)| {
                    let is_done = record.poll().is_some();
                    portal.completed(u32::from(is_done));
                    !is_done
                }),
                Err(error) => panic!("no-op {number}: {error}"),
            }
            assert!(start < patience_ends, "no-op {number} finds no room: {:?}", portal.counters());
        };
        if number % 10 == 0 {
            while record.poll().is_none() {
                assert!(
                    Instant::now() < patience_ends,
                    "no-op {number} does not end: {:?}",
                    portal.counters()
                );
                std::thread::yield_now();
            }
            assert!(start.elapsed() >= Duration::from_nanos(timing.latency_ns + timing.dispatch_ns));
        }
    }
    emulator.disable();
    in_flight.iter().for_each(|(_, portal)| portal.completed(1));
    let ended = records.iter().filter_map(CompletionRecord::poll).filter(|end| end.status == Status::Success);
    assert_eq!(ended.count(), 40);
    assert_eq!(emulator.counters().dropped, 0);
    let counters = portals.map(|portal| portal.counters());
    assert_eq!(counters.map(|of| (of.accepted, of.in_flight)), [(20, 0); 2]);
    assert!(counters[1].retries >= 4, "five times as many as there are entries: {counters:?}");
}
