//! The device in its own thread, over the memory of this process.

mod common;

use std::time::{Duration, Instant};

use common::pattern;
use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Flags, Portal, Status, Submission, SubmitError,
};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Long enough for any machine; reached only by a device that lost a descriptor.
const PATIENCE: Duration = Duration::from_secs(60);

fn submit(portal: &dyn Portal, descriptor: &Descriptor) {
    // SAFETY: all callers wait for the completion, or for the end of the device, before they free the memory.
    while unsafe { portal.submit(descriptor) } == Ok(Submission::Retry) {
        std::thread::yield_now();
    }
}

fn wait(record: &CompletionRecord, context: &str) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(completion) = record.poll() {
            return completion;
        }
        assert!(start.elapsed() < PATIENCE, "{context}: no completion");
        std::thread::yield_now();
    }
}

/// Copies with resume; returns the number of page faults.
fn copy(portal: &dyn Portal, source: &[u8], target: &mut [u8], context: &str) -> u32 {
    let record = CompletionRecord::new();
    let mut copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), source.len() as u32);
    for faults in 0.. {
        record.reset();
        submit(portal, &copy.with_completion(&record));
        let completion = wait(&record, context);
        match copy.resumed(&completion) {
            Some(rest) => copy = rest,
            None => {
                assert_eq!(completion.status, Status::Success, "{context}");
                return faults;
            }
        }
    }
    unreachable!()
}

/// Descriptors that arrive while idle engines poll, so that any engine may get them.
#[test]
fn the_last_of_some_copies_completes_last() {
    let emulator = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::none()).unwrap();
    let portal = emulator.portal(0);
    let source = pattern(64, 1);
    let mut targets = [[0u8; 64]; 4];
    let records: [CompletionRecord; 4] = std::array::from_fn(|_| CompletionRecord::new());
    for round in 0..20_000 {
        for (target, record) in targets.iter_mut().zip(&records) {
            record.reset();
            let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 64);
            submit(&*portal, &copy.with_completion(record));
        }
        wait(&records[3], "the last");
        let completed = records.iter().filter(|record| record.poll().is_some()).count();
        records.iter().for_each(|record| _ = wait(record, "all"));
        assert_eq!(completed, 4, "round {round}");
    }
}

#[test]
fn threads_copy_through_one_faulty_device() {
    let mut faults = 0;
    for seed in 0..20 {
        let emulator = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::from_seed(seed)).unwrap();
        faults += std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let portal = emulator.portal(0);
                    scope.spawn(move || {
                        let mut faults = 0;
                        for size in [1, 4095, 4097, 100_000] {
                            let context = format!("seed {seed}, thread {thread}, {size} bytes");
                            let (source, mut target) = (pattern(size, thread), vec![0; size]);
                            faults += copy(&*portal, &source, &mut target, &context);
                            assert!(source == target, "{context}: bytes differ");
                        }
                        faults
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the thread's own message is above"))
                .sum::<u32>()
        });
        let counters = emulator.counters();
        assert_eq!(counters.in_flight(), 0, "seed {seed}");
        assert_eq!(counters.bytes_copied, 3 * (1 + 4095 + 4097 + 100_000), "seed {seed}");
    }
    assert!(faults > 100, "only {faults} page faults");
}

/// Two records a line, 32 in flight, one thread: all complete, also after the device has gone to sleep.
#[test]
fn many_in_flight_and_many_naps() {
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).unwrap();
    let portal = emulator.portal(0);
    let records: Vec<_> = (0..32).map(|_| CompletionRecord::new()).collect();
    for round in 0..50 {
        for record in &records {
            record.reset();
            submit(&*portal, &Descriptor::noop().with_completion(record));
        }
        for record in &records {
            assert_eq!(wait(record, "no-op").status, Status::Success);
        }
        if round % 10 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(emulator.counters().completed[&Status::Success], 50 * 32);
}

#[test]
fn a_batch_through_the_portal() {
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).unwrap();
    let portal = emulator.portal(0);
    let source = pattern(5000, 9);
    let (mut middle, mut target) = (vec![0; 5000], vec![0; 5000]);
    let record = CompletionRecord::new();
    let middle_pointer = middle.as_mut_ptr();
    let list = [
        Descriptor::memmove(source.as_ptr(), middle_pointer, 5000),
        Descriptor::memmove(middle_pointer, target.as_mut_ptr(), 5000).with_flags(Flags::FENCE),
    ];
    submit(&*portal, &Descriptor::batch(list.as_ptr(), 2).with_completion(&record));
    assert_eq!(wait(&record, "batch").bytes_completed, 2);
    assert!(target == source);
}

/// Addresses that are obvious garbage do not crash the process.
#[test]
fn addresses_that_no_process_has() {
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).unwrap();
    let portal = emulator.portal(0);
    let mut target = [0u8; 8];
    for source in [0u64, 8, 1 << 47, u64::MAX - 3] {
        let record = CompletionRecord::new();
        submit(&*portal, &Descriptor::memmove(source, target.as_mut_ptr(), 8).with_completion(&record));
        assert_eq!(wait(&record, "garbage").status, Status::PageFault, "{source:#x}");
    }
}

/// An aborted device completes none of its work, reports that it is gone, and accepts no more.
#[test]
fn an_aborted_device_is_gone() {
    for seed in 0..30 {
        let fault_plan = FaultPlan { delay_steps_max: 1 << 30, ..FaultPlan::from_seed(seed) };
        let emulator = Emulator::start(&DeviceConfig::four_engines(), fault_plan).unwrap();
        let portal = emulator.portal(0);
        let records: Vec<_> = (0..20).map(|_| CompletionRecord::new()).collect();
        for record in &records {
            submit(&*portal, &Descriptor::noop().with_completion(record));
        }
        assert!(!portal.is_gone());
        emulator.abort();
        assert!(portal.is_gone());
        // SAFETY: a no-op without a record names no memory.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Err(SubmitError::Gone));
        let counters = emulator.counters();
        assert_eq!((counters.accepted, counters.in_flight()), (20, 0), "seed {seed}");
        assert!(counters.aborted > 10, "seed {seed}: {counters:?}");
        let completed = records.iter().filter(|record| record.poll().is_some()).count() as u64;
        assert_eq!(completed, counters.records_written, "seed {seed}");
    }
}

/// Submitters race with an abort: each submission is accepted and accounted for, or refused.
#[test]
fn an_abort_under_load_loses_no_descriptor() {
    for seed in 0..20 {
        let emulator = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::from_seed(seed)).unwrap();
        let accepted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let portal = emulator.portal(0);
                    scope.spawn(move || {
                        let mut accepted = 0;
                        loop {
                            // SAFETY: a no-op without a record names no memory.
                            match unsafe { portal.submit(&Descriptor::noop()) } {
                                Ok(Submission::Accepted) => accepted += 1,
                                Ok(Submission::Retry) => std::thread::yield_now(),
                                Err(_) => return accepted,
                            }
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(2));
            emulator.abort();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let counters = emulator.counters();
        assert_eq!(counters.accepted, accepted, "seed {seed}");
        assert_eq!(counters.completed_count() + counters.aborted, accepted, "seed {seed}: {counters:?}");
    }
}

/// Dropping the last handle completes the accepted descriptors.
#[test]
fn dropping_the_device_finishes_its_work() {
    for seed in 0..20 {
        let records: Vec<_> = (0..40).map(|_| CompletionRecord::new()).collect();
        let emulator = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::from_seed(seed)).unwrap();
        let portal = emulator.portal(0);
        drop(emulator);
        for record in &records {
            submit(&*portal, &Descriptor::noop().with_completion(record));
        }
        drop(portal);
        assert!(records.iter().all(|record| record.poll().is_some()), "seed {seed}");
    }
}

/// A submission right before the last handle is dropped completes. A worker that loads its order after its work could
/// lose it; that window is so narrow that this test has never hit it.
#[test]
fn the_last_submission_before_the_end_is_not_lost() {
    for round in 0..200u32 {
        let [first, last] = [CompletionRecord::new(), CompletionRecord::new()];
        let portal = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::none()).unwrap().portal(0);
        submit(&*portal, &Descriptor::noop().with_completion(&first));
        wait(&first, "the worker is awake and polls");
        // The worker is at another place of its loop in each round.
        (0..round % 50).for_each(|_| std::hint::spin_loop());
        submit(&*portal, &Descriptor::noop().with_completion(&last));
        drop(portal);
        assert!(last.poll().is_some(), "round {round}");
    }
}
