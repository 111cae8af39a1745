//! One suite for every way to wait, on faulty devices, and the further promises of the completer.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::wait::{Completer, CompleterOptions, Full, Watch, thread_cpu_time};
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

/// Publishes the records after a while, in the background.
fn publish_after(delay: Duration, records: &[&CompletionRecord]) {
    thread::sleep(delay);
    for (number, record) in records.iter().enumerate() {
        record.publish(&done(number as u32));
    }
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
        assert!(wait.wait_any(&[], PATIENCE).is_err());
        // The end of the longest time-out does not overflow.
        record.publish(&done(3));
        assert_eq!(wait.wait(&record, Duration::MAX), Ok(done(3)), "{wait:?}");
        record.reset();
        thread::scope(|scope| {
            scope.spawn(|| publish_after(Duration::from_millis(2), &[&record]));
            assert_eq!(wait.wait(&record, Duration::MAX), Ok(done(0)), "{wait:?}");
        });
        assert_eq!(wait.wait(&record, Duration::ZERO), Ok(done(0)), "{wait:?}");
    }
}

#[test]
fn the_first_of_several() {
    for wait in Wait::ALL {
        let [a, b, c] = [(); 3].map(|()| CompletionRecord::new());
        let all = [&a, &b, &c];
        b.publish(&done(7));
        assert_eq!(wait.wait_any(&all, PATIENCE), Ok((1, done(7))), "{wait:?}");
        b.reset();
        thread::scope(|scope| {
            scope.spawn(|| publish_after(Duration::from_millis(3), &[&c]));
            assert_eq!(wait.wait_any(&all, PATIENCE), Ok((2, done(0))), "{wait:?}");
        });
        c.reset();
        assert!(wait.wait_any(&all, Duration::from_millis(3)).is_err(), "{wait:?}");
    }
}

#[test]
fn ways_are_what_the_cpu_has() {
    for wait in Wait::ALL {
        let same = CpuFeatures::detect().waitpkg || !matches!(wait, Wait::Umwait(_));
        assert_eq!(wait.effective(), if same { wait } else { Wait::Pause });
    }
}

/// Blocking frees the core: a wait of 200 ms costs the waiter and the completer a small part of it.
#[test]
fn blocking_takes_no_core() {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    let record = CompletionRecord::new();
    // SAFETY: the record outlives the watch.
    let watch = unsafe { completer.watch(&record, PATIENCE) }.unwrap();
    let (wall, cpu) = (Instant::now(), thread_cpu_time().expect("Linux tells"));
    thread::scope(|scope| {
        scope.spawn(|| publish_after(Duration::from_millis(200), &[&record]));
        assert_eq!(block_on(watch), Ok(done(0)));
    });
    let (wall, cpu) = (wall.elapsed(), thread_cpu_time().expect("Linux tells") - cpu);
    let stats = completer.stats();
    let completer_cpu = stats.cpu_time.expect("Linux tells");
    assert!(cpu < wall / 20, "the waiter took {cpu:?} of {wall:?}");
    // The promised 5 %, and a margin for slow machines.
    assert!(completer_cpu < wall / 10, "the completer took {completer_cpu:?} of {wall:?}, {stats:?}");
    assert!(stats.sleeps > 20, "{stats:?}: at most 1 ms between looks, which a loaded machine may stretch");
    assert_eq!((stats.found, stats.timed_out, stats.refused), (1, 0, 0));
}

struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on(future: impl Future<Output = <Watch as Future>::Output>) -> <Watch as Future>::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current(), AtomicUsize::new(0))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    }
}

/// The waker of the last poll is woken, once; a time-out wakes it too.
#[test]
fn the_last_waker_is_woken() {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    for completes in [true, false] {
        let record = CompletionRecord::new();
        let timeout = if completes { PATIENCE } else { Duration::from_millis(5) };
        // SAFETY: the record outlives the watch.
        let mut watch = pin!(unsafe { completer.watch(&record, timeout) }.unwrap());
        let wakers = [(); 2].map(|()| Arc::new(Unpark(thread::current(), AtomicUsize::new(0))));
        for waker in &wakers {
            let waker = Waker::from(waker.clone());
            assert!(watch.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        if completes {
            record.publish(&done(1));
        }
        let start = Instant::now();
        while wakers[1].1.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < PATIENCE);
            thread::park_timeout(Duration::from_millis(10));
        }
        assert_eq!(watch.outcome().map(|outcome| outcome.is_ok()), Some(completes));
        assert_eq!(wakers.each_ref().map(|waker| waker.1.load(Ordering::SeqCst)), [0, 1]);
    }
    let stats = completer.stats();
    assert_eq!((stats.found, stats.timed_out), (1, 1));
}

/// A waker that runs a function.
struct Waking(fn());

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.0();
    }
}

/// Completes a record whose watcher's waker runs `wake`, then calls `then` with the completer.
fn after_waking(wake: fn(), then: impl FnOnce(&Completer)) {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    let record = CompletionRecord::new();
    // SAFETY: the record outlives the watch.
    let mut watch = pin!(unsafe { completer.watch(&record, PATIENCE) }.unwrap());
    let waker = Waker::from(Arc::new(Waking(wake)));
    assert!(watch.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    record.publish(&done(0));
    then(&completer);
}

/// A waker that panics does not affect other waiters.
#[test]
fn a_waker_that_panics_stops_no_waiter() {
    after_waking(
        || panic!("this one is meant to panic"),
        |completer| {
            let good = CompletionRecord::new();
            good.publish(&done(1));
            // SAFETY: the record outlives the watch.
            assert_eq!(block_on(unsafe { completer.watch(&good, PATIENCE) }.unwrap()), Ok(done(1)));
        },
    );
}

/// The payload of a waker's panic may panic when it is dropped. That once ended the completer, and all waiters of
/// the completer slept until their time-outs.
#[test]
fn a_payload_that_panics_stops_no_waiter() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("this payload is meant to panic");
        }
    }
    after_waking(
        || std::panic::panic_any(Bomb),
        |completer| {
            let good = CompletionRecord::new();
            // The completer has met the first record when it enters the second one's outcome.
            let start = Instant::now();
            while completer.stats().found == 0 {
                assert!(start.elapsed() < PATIENCE, "the first record is not found");
                thread::yield_now();
            }
            good.publish(&done(1));
            // SAFETY: the record outlives the watch.
            let mut other = pin!(unsafe { completer.watch(&good, PATIENCE) }.unwrap());
            while other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                assert!(start.elapsed() < PATIENCE, "the completer has ended");
                thread::yield_now();
            }
        },
    );
}

/// No place is no wait; dropping a watch makes place, also before anything happens.
#[test]
fn places_are_limited_and_come_back() {
    let completer =
        Completer::start(CompleterOptions { records_max: 64, ..CompleterOptions::default() }).unwrap();
    let record = CompletionRecord::new();
    // SAFETY: the record outlives the watches.
    let watch = || unsafe { completer.watch(&record, PATIENCE) };
    let mut watches: Vec<_> = (0..64).map(|_| watch().expect("there is a place")).collect();
    assert_eq!(watch().err(), Some(Full));
    watches.pop();
    watches.push(watch().expect("one was given back"));
    record.publish(&done(5));
    assert!(watches.into_iter().all(|watch| block_on(watch) == Ok(done(5))));
    assert_eq!(completer.stats().refused, 1);
}

/// Waiters that come and go while others wait: dropped watches are not looked at, their memory is used for
/// something else at once.
#[test]
fn dropped_watches_are_forgotten() {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..300 {
                    let record = Box::new(CompletionRecord::new());
                    // SAFETY: the watch is dropped first.
                    let watch = unsafe { completer.watch(&*record, PATIENCE) }.unwrap();
                    if round % 3 == 0 {
                        thread::yield_now();
                    }
                    drop(watch);
                    let mut record = record;
                    // Nobody else may look at it now.
                    *record = CompletionRecord::new();
                    record.publish(&done(1));
                }
            });
        }
    });
    let stats = completer.stats();
    assert_eq!((stats.found, stats.timed_out), (0, 0), "{stats:?}");
}

/// With nothing to watch the completer sleeps, and wakes for what comes.
#[test]
fn an_idle_completer_sleeps() {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(2));
        let record = CompletionRecord::new();
        record.publish(&done(0));
        // SAFETY: the record outlives the watch.
        assert_eq!(block_on(unsafe { completer.watch(&record, PATIENCE) }.unwrap()), Ok(done(0)));
    }
    // By its own clock, because on a loaded machine it may not run for a while although it wants to.
    let cpu_time = || completer.stats().cpu_time.expect("Linux tells");
    let before = cpu_time();
    thread::sleep(Duration::from_millis(200));
    let took = cpu_time() - before;
    assert!(took < Duration::from_millis(5), "it looks although there is nothing, for {took:?} of 200 ms");
}

/// A completer that is dropped still tells those who wait.
#[test]
fn a_dropped_completer_finishes() {
    let completer = Completer::start(CompleterOptions::default()).unwrap();
    let record = CompletionRecord::new();
    // SAFETY: the record outlives the watch.
    let watch = unsafe { completer.watch(&record, PATIENCE) }.unwrap();
    drop(completer);
    record.publish(&done(2));
    assert_eq!(block_on(watch), Ok(done(2)));
}
