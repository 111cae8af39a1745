//! One suite for every way to wait, on faulty devices.

use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::wait::thread_cpu_time;
use memferry_dsa::{Address, Completion, CompletionRecord, Descriptor, Portal, Status, Submission, Wait};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_testing::{Needs, skip};

use crate::common::pattern;

const PATIENCE: Duration = Duration::from_secs(60);

fn submit(portal: &dyn Portal, descriptor: &Descriptor) {
    // SAFETY: all callers wait for the completion before they free the memory.
    while unsafe { portal.submit(descriptor) } == Ok(Submission::Retry) {
        thread::yield_now();
    }
}

fn done(number: u32) -> Completion {
    Completion {
        status: Status::Success,
        write_fault: false,
        result: 0,
        bytes_completed: number,
        fault_address: Address(0),
        operation: [0; 2],
    }
}

/// Publishes the record after a while, in the background.
fn publish_after(delay: Duration, record: &CompletionRecord) {
    thread::sleep(delay);
    record.publish(&done(0));
}

/// Copies with resume on a device that delays, faults and reorders: each wait returns, and returns the content of
/// the record.
#[test]
fn every_wait_returns() {
    if !CpuFeatures::detect().waitpkg {
        let why = "UMWAIT is tried as PAUSE, and its loop in umwait.rs over a fake";
        skip(Needs::Instruction("UMWAIT"), why);
    }
    for wait in Wait::ALL {
        for seed in 0..4 {
            let fault_plan = FaultPlan::from_seed(seed);
            let context = format!("{wait:?}, {fault_plan}");
            let emulator = Emulator::start(&DeviceConfig::four_engines(), fault_plan).unwrap();
            thread::scope(|scope| {
                for thread in 0..2 {
                    let (portal, context) = (emulator.portal(0), &context);
                    scope.spawn(move || {
                        for size in [1, 4097, 60_000] {
                            let (source, mut target) = (pattern(size, thread), vec![0; size]);
                            let record = CompletionRecord::new();
                            let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size as u32);
                            let mut next = Some(copy.with_completion(&record));
                            while let Some(copy) = next {
                                record.reset();
                                submit(&*portal, &copy);
                                let completion = wait.wait(&record, PATIENCE).expect(context);
                                assert_eq!(Some(completion), record.poll(), "{context}");
                                next = copy.resumed(&completion);
                            }
                            assert!(source == target, "{context}: {size} bytes differ");
                        }
                    });
                }
            });
        }
    }
}

/// A record that is never written: the wait times out, neither early nor very late,
/// and the next one works.
#[test]
fn every_wait_times_out() {
    let fault_plan = FaultPlan { lost_records_per_mille: 1000, ..FaultPlan::none() };
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).unwrap();
    let portal = emulator.portal(0);
    for wait in Wait::ALL {
        let record = CompletionRecord::new();
        submit(&*portal, &Descriptor::noop().with_completion(&record));
        for timeout in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(10)] {
            let start = Instant::now();
            let timed_out = wait.wait(&record, timeout).unwrap_err();
            let waited = start.elapsed();
            assert!(waited >= timeout && timed_out.waited <= waited, "{wait:?}, {timeout:?}: {waited:?}");
            assert!(waited < timeout + Duration::from_secs(5), "{wait:?}, {timeout:?}: {waited:?}");
        }
        // The end of the longest time-out does not overflow.
        record.publish(&done(3));
        assert_eq!(wait.wait(&record, Duration::MAX), Ok(done(3)), "{wait:?}");
        record.reset();
        thread::scope(|scope| {
            scope.spawn(|| publish_after(Duration::from_millis(2), &record));
            assert_eq!(wait.wait(&record, Duration::MAX), Ok(done(0)), "{wait:?}");
        });
        assert_eq!(wait.wait(&record, Duration::ZERO), Ok(done(0)), "{wait:?}");
    }
}

#[test]
fn ways_are_what_the_cpu_has() {
    for wait in Wait::ALL {
        let same = CpuFeatures::detect().waitpkg || !matches!(wait, Wait::Umwait(_));
        assert_eq!(wait.effective(), if same { wait } else { Wait::Pause });
    }
}

/// Blocking frees the core: a wait of 200 ms costs the waiter a small part of it.
#[test]
fn blocking_takes_no_core() {
    let record = CompletionRecord::new();
    let (wall, cpu) = (Instant::now(), thread_cpu_time().expect("Linux tells"));
    thread::scope(|scope| {
        scope.spawn(|| publish_after(Duration::from_millis(200), &record));
        assert_eq!(Wait::Block.wait(&record, PATIENCE), Ok(done(0)));
    });
    let (wall, cpu) = (wall.elapsed(), thread_cpu_time().expect("Linux tells") - cpu);
    assert!(cpu < wall / 20, "the waiter took {cpu:?} of {wall:?}");
}
