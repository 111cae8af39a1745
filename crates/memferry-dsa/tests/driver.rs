//! The driver alone, on devices that a test plays, in virtual time: each request ends once, nothing is executed twice, and
//! memory is left alone once its request has ended.

use std::cell::RefCell;
use std::path::Path;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memferry_dsa::driver::{Driver, DriverOptions, Event, Failure, Finished, Loss, Observer};
use memferry_dsa::emulator::{fuzz, shared_queue};
use memferry_dsa::request::Task;
use memferry_dsa::system::Version;
use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Flags, Opcode, Portal, PortalCounters, PortalKind, Status,
    Submission, SubmitError, WorkQueueInfo,
};
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_millis(50);
/// Longer than the time-out, and than the time of all entries of the queue.
const LONG: Duration = Duration::from_millis(90);

/// A device that does what a test says.
struct Played {
    info: WorkQueueInfo,
    accepted: Mutex<Vec<Descriptor>>,
    is_gone: AtomicBool,
}

// SAFETY: nothing is ever executed but what `complete` pretends, before the record is written.
unsafe impl Portal for Played {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }
    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        self.accepted.lock().expect("no panic").push(*descriptor);
        Ok(Submission::Accepted)
    }
    fn settled(&self, _: u32) {}
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }
    fn counters(&self) -> PortalCounters {
        PortalCounters::default()
    }
}

fn publish(descriptor: &Descriptor, completion: Completion) {
    let record: *const CompletionRecord = with_exposed_provenance(descriptor.completion_address().0 as usize);
    // SAFETY: the driver keeps the record of a descriptor until it is written, or leaks it.
    unsafe { &*record }.publish(&completion);
}

impl Played {
    fn new() -> Arc<Played> {
        let info = WorkQueueInfo { transfer_bytes_max: 1 << 16, ..shared_queue("wq0.0", 8) };
        Arc::new(Played { info, accepted: Mutex::default(), is_gone: AtomicBool::new(false) })
    }

    /// Takes the oldest descriptor.
    fn next(&self) -> Descriptor {
        self.accepted.lock().expect("no panic").remove(0)
    }

    fn is_idle(&self) -> bool {
        self.accepted.lock().expect("no panic").is_empty()
    }
}

#[derive(Default)]
struct Events(RefCell<Vec<Event>>);

impl Observer for Events {
    fn count(&self, event: Event) {
        self.0.borrow_mut().push(event);
    }
}

impl Events {
    fn has(&self, event: Event) -> bool {
        self.0.borrow().contains(&event)
    }
}

/// A driver, its devices, and its events. `T` are tags.
struct Bench<T> {
    devices: Vec<Arc<Played>>,
    driver: Driver<T>,
    events: Events,
}

impl<T> Bench<T> {
    fn new(devices_count: usize) -> Bench<T> {
        let devices: Vec<_> = (0..devices_count).map(|_| Played::new()).collect();
        let options = DriverOptions {
            retries_max: 3,
            faults_max: 2,
            batch_len_max: 8,
            version: Version::V1_0,
            completion_timeout: TIMEOUT,
        };
        let portals = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>);
        Bench { driver: Driver::new(portals, options), devices, events: Events::default() }
    }

    /// Enqueues a copy of so many bytes, which nobody frees, and feeds.
    fn copy(&mut self, bytes: usize, into_cache: bool, tag: T) {
        let (source, target) = (vec![7_u8; bytes].leak(), vec![0_u8; bytes].leak());
        // SAFETY: both are leaked, and nobody else has them.
        let mut task = unsafe { Task::copy(source.as_ptr(), target.as_mut_ptr(), bytes) };
        task.add_hints(into_cache, false);
        self.driver.enqueue(task, 0, tag);
        self.feed();
    }

    fn feed(&mut self) {
        self.driver.feed(|| Duration::ZERO, &self.events);
    }

    /// Completes what is written, and feeds. The requests that have ended.
    fn complete(&mut self) -> Vec<Finished<T>> {
        let (mut written, mut faulted) = (Vec::new(), Vec::new());
        self.driver.queues().poll(&mut written);
        written.into_iter().for_each(|written| self.driver.complete(written, &mut faulted, &self.events));
        for mut faulted in faulted {
            faulted.touch(&self.events);
            self.driver.resume(faulted);
        }
        self.feed();
        for work in self.driver.take_cpu_work() {
            self.driver.executed(work, &self.events);
        }
        self.driver.take_finished()
    }

    fn give_up(&mut self, elapsed: Duration) -> Vec<Finished<T>> {
        self.driver.queues().ask(&self.events);
        let mut faulted = Vec::new();
        self.driver.give_up(elapsed, &mut faulted, &self.events);
        assert!(faulted.is_empty());
        self.driver.take_finished()
    }
}

fn status(status: Status) -> Completion {
    Completion::new(status)
}

/// The device completes a descriptor and is gone then: nothing is lost.
#[test]
fn what_completed_before_the_device_was_gone_is_found() {
    let mut bench = Bench::new(1);
    (0..2).for_each(|tag| bench.copy(5000, false, tag));
    publish(&bench.devices[0].next(), status(Status::Success));
    bench.devices[0].is_gone.store(true, Ordering::SeqCst);
    let ended: Vec<_> = bench.give_up(Duration::ZERO).into_iter().map(|it| (it.tag, it.result)).collect();
    assert!(matches!(ended[..], [(0, Ok(_)), (1, Err(Failure::Lost(Loss::Gone)))]), "{ended:?}");
    assert!(bench.driver.all_lost() && bench.driver.is_idle());
    assert!(bench.events.has(Event::QueueLost) && bench.events.has(Event::Lost(1)));
}

/// Silence is a loss after the time-out, in time that somebody attended to the device. A late completion changes nothing.
#[test]
fn silence_is_a_loss_after_the_time_out() {
    let mut bench = Bench::new(1);
    bench.copy(5000, false, ());
    assert!(bench.give_up(TIMEOUT).is_empty());
    // The process was stopped for an hour: that counts as 100 ms, which is too long all the same; half of it is not.
    let lost = bench.give_up(Duration::from_secs(3600));
    assert!(matches!(lost[..], [Finished { result: Err(Failure::Lost(Loss::Silent)), .. }]));
    publish(&bench.devices[0].next(), status(Status::PageFault));
    assert!(bench.complete().is_empty() && bench.devices[0].is_idle(), "a lost request was submitted again");
    // The queue gets no more work.
    bench.copy(100, false, ());
    let by_cpu = bench.complete();
    assert_eq!((by_cpu.len(), by_cpu[0].report.cpu_bytes), (1, 100));
}

/// Progress of the queue starts the time anew; completions behind a descriptor do not.
#[test]
fn progress_is_waited_for() {
    let mut bench = Bench::new(1);
    (0..4).for_each(|tag| bench.copy(5000, false, tag));
    let [first, second, ..] = [(); 4].map(|()| bench.devices[0].next());
    for done in [first, second] {
        assert!(bench.give_up(TIMEOUT).is_empty());
        publish(&done, status(Status::Success));
        assert_eq!(bench.complete().len(), 1);
    }
    assert!(bench.give_up(TIMEOUT).is_empty(), "two have just completed before it");
    assert_eq!(bench.give_up(LONG).len(), 2);
}

/// A tag may own memory that a device has.
#[test]
fn a_dropped_driver_leaks_what_devices_have() {
    for is_complete in [false, true] {
        let mut bench = Bench::new(1);
        let tag = Arc::new(());
        bench.copy(5000, false, tag.clone());
        if is_complete {
            publish(&bench.devices[0].next(), status(Status::Success));
            assert_eq!(bench.complete().len(), 1);
        }
        drop(bench);
        assert_eq!(Arc::strong_count(&tag), if is_complete { 1 } else { 2 });
    }
}

#[test]
fn refused_hints_are_remembered() {
    let mut bench = Bench::new(1);
    bench.copy(5000, true, 0);
    let first = bench.devices[0].next();
    assert!(first.flags().contains(Flags::CACHE_CONTROL));
    // It also complains about a flag that the copy does not have.
    let flags = Flags::CACHE_CONTROL.union(Flags::BLOCK_ON_FAULT).bits();
    publish(&first, Completion { operation: [flags.into(), 0], ..status(Status::InvalidFlags) });
    assert!(bench.complete().is_empty());
    bench.copy(5000, true, 1);
    for tag in 0..2 {
        let next = bench.devices[0].next();
        assert!(!next.flags().contains(Flags::CACHE_CONTROL));
        publish(&next, status(Status::Success));
        assert_eq!(bench.complete()[0].tag, tag);
    }
    // A hint that was never there cannot be the reason: another queue, or the CPU.
    bench.copy(5000, false, 2);
    let flags = Flags::CACHE_CONTROL.bits();
    let next = bench.devices[0].next();
    publish(&next, Completion { operation: [flags.into(), 0], ..status(Status::InvalidFlags) });
    let ended = bench.complete();
    assert_eq!((ended.len(), ended[0].result), (1, Err(Failure::Device(Status::InvalidFlags))));
}

/// A device that does not execute an operation although its queue says so: the next queue does, and then the CPU.
#[test]
fn another_queue_and_then_the_cpu() {
    let mut bench = Bench::new(2);
    bench.copy(5000, false, ());
    let asked = |bench: &Bench<()>| bench.devices.iter().position(|device| !device.is_idle());
    let first = asked(&bench).expect("one was asked");
    publish(&bench.devices[first].next(), status(Status::BadOpcode));
    assert!(bench.complete().is_empty());
    assert_eq!(asked(&bench), Some(1 - first));
    publish(&bench.devices[1 - first].next(), status(Status::BadOpcode));
    let ended = bench.complete();
    assert_eq!((ended.len(), ended[0].report.cpu_bytes, asked(&bench)), (1, 5000, None));
}

fn batch(bench: &mut Bench<usize>) -> Descriptor {
    let small = |_| (vec![7_u8; 100].leak(), vec![0_u8; 100].leak());
    for (tag, (source, target)) in (0..4).map(small).enumerate() {
        // SAFETY: both are leaked, and nobody else has them.
        let task = unsafe { Task::copy(source.as_ptr(), target.as_mut_ptr(), 100) };
        bench.driver.enqueue(task, 0, tag);
    }
    bench.feed();
    let batch = bench.devices[0].next();
    assert_eq!((batch.opcode(), batch.size(), bench.devices[0].is_idle()), (Ok(Opcode::Batch), 4, true));
    batch
}

/// The list is touched and submitted again, and after too many faults its members go alone.
#[test]
fn a_list_that_faults() {
    let mut bench = Bench::new(1);
    let mut next = batch(&mut bench);
    for _ in 0..3 {
        assert_eq!(next.opcode(), Ok(Opcode::Batch));
        let fault_address = next.address_1();
        publish(&next, Completion { fault_address, ..status(Status::BatchListFault) });
        assert!(bench.complete().is_empty());
        next = bench.devices[0].next();
    }
    assert!(bench.events.has(Event::Touched) && !bench.events.has(Event::StrangeFault));
    let mut ended = Vec::new();
    for left in (0..4).rev() {
        assert_eq!(next.opcode(), Ok(Opcode::Memmove));
        publish(&next, status(Status::Success));
        ended.extend(bench.complete().into_iter().map(|finished| finished.tag));
        if left > 0 {
            next = bench.devices[0].next();
        }
    }
    assert_eq!(ended, [0, 1, 2, 3]);
}

/// A batch that ends well, of whose members nothing is said, has failed: they may have been executed.
#[test]
fn members_without_a_record() {
    for (of_batch, is_repeated) in
        [(Status::Success, false), (Status::HardwareRead, false), (Status::BadOpcode, true)]
    {
        let mut bench = Bench::new(1);
        publish(&batch(&mut bench), status(of_batch));
        let ended = bench.complete();
        let failed = |it: &Finished<usize>| it.result == Err(Failure::Device(of_batch));
        assert_eq!(
            (ended.len(), ended.iter().all(failed)),
            (if is_repeated { 0 } else { 4 }, true),
            "{of_batch}"
        );
        if is_repeated {
            assert_eq!(bench.devices[0].next().opcode(), Ok(Opcode::Memmove), "no more batches");
        }
    }
}

/// No bytes are no work for a device.
#[test]
fn nothing_to_copy() {
    let mut bench = Bench::new(1);
    bench.copy(0, false, ());
    assert_eq!((bench.driver.take_finished().len(), bench.devices[0].is_idle()), (1, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// What the fuzzer does, from random bytes.
    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..1200)) {
        fuzz::driver(&data);
    }
}

/// The fuzzer begins with these, and each leads to the event that its name says.
#[test]
fn seeds_of_the_fuzzer() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/driver");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).expect("seeds") {
        let entry = entry.expect("a seed");
        let name = entry.file_name().into_string().expect("a name").replace('-', " ");
        let counts = fuzz::driver(&std::fs::read(entry.path()).expect("a seed"));
        assert!(counts.get(name.as_str()).is_some_and(|count| *count > 0), "{name}: {counts:?}");
        names.push(name);
    }
    assert!(names.len() >= 10, "{names:?}");
}
