//! The driver alone, on devices that a test plays, in virtual time: each request ends once, nothing is executed twice, and
//! memory is left alone once its request has ended.

use std::cell::RefCell;
use std::path::Path;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memferry_dsa::internals::driver::{Driver, DriverOptions, Event, Failure, Finished, Loss, Observer};
use memferry_dsa::internals::request::Task;
use memferry_dsa::system::Version;
use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Flags, Opcode, Portal, PortalCounters, PortalKind, Status,
    Submission, SubmitError, WorkQueueInfo,
};
use memferry_dsa_emulator::shared_queue;
use proptest::prelude::*;

use crate::fuzzed;

const TIMEOUT: Duration = Duration::from_millis(50);
/// Longer than the time-out, and than the time of all entries of the queue.
const LONG: Duration = Duration::from_millis(90);

/// A device that does what a test says.
struct ScriptedDevice {
    info: WorkQueueInfo,
    accepted: Mutex<Vec<Descriptor>>,
    is_gone: AtomicBool,
}

// SAFETY: nothing is ever executed but what `complete` pretends, before the record is written.
unsafe impl Portal for ScriptedDevice {
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
    fn completed(&self, _: u32) {}
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

impl ScriptedDevice {
    fn new(transfer_bytes_max: u32) -> Arc<ScriptedDevice> {
        let info = WorkQueueInfo { transfer_bytes_max, ..shared_queue("wq0.0", 8) };
        Arc::new(ScriptedDevice { info, accepted: Mutex::default(), is_gone: AtomicBool::new(false) })
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

/// A driver, its devices, its events, and the memory of its requests. `T` are tags.
struct Fixture<T> {
    devices: Vec<Arc<ScriptedDevice>>,
    driver: Driver<T>,
    events: Events,
    buffers: Vec<Box<[u8]>>,
}

impl<T> Fixture<T> {
    fn new(devices_count: usize) -> Fixture<T> {
        Fixture::with(devices_count, 1 << 16)
    }

    fn with(devices_count: usize, transfer_bytes_max: u32) -> Fixture<T> {
        let devices: Vec<_> = (0..devices_count).map(|_| ScriptedDevice::new(transfer_bytes_max)).collect();
        let options = DriverOptions {
            retries_max: 3,
            faults_max: 2,
            batch_len_max: 8,
            version: Version::V1_0,
            completion_timeout: TIMEOUT,
        };
        let portals = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>);
        let driver = Driver::new(portals, options);
        Fixture { driver, devices, events: Events::default(), buffers: Vec::new() }
    }

    /// Enqueues a copy of so many bytes, and feeds.
    fn copy(&mut self, bytes: usize, into_cache: bool, tag: T) {
        self.enqueue_copy(bytes, into_cache, tag);
        self.feed();
    }

    fn enqueue_copy(&mut self, bytes: usize, into_cache: bool, tag: T) {
        let (source, mut target) =
            (vec![7_u8; bytes].into_boxed_slice(), vec![0_u8; bytes].into_boxed_slice());
        // SAFETY: both live as long as the driver and its devices, and nobody else uses them.
        let mut task = unsafe { Task::copy(source.as_ptr(), target.as_mut_ptr(), bytes) };
        self.buffers.extend([source, target]);
        task.add_hints(into_cache, false);
        self.driver.enqueue(task, 0, tag);
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

/// A device completes one of two descriptors, and is gone then: the other one is lost.
#[test]
fn completions_before_the_device_was_gone_are_found() {
    let mut fixture = Fixture::new(1);
    (0..2).for_each(|tag| fixture.copy(5000, false, tag));
    publish(&fixture.devices[0].next(), status(Status::Success));
    fixture.devices[0].is_gone.store(true, Ordering::SeqCst);
    let ended: Vec<_> = fixture.give_up(Duration::ZERO).into_iter().map(|it| (it.tag, it.result)).collect();
    assert!(matches!(ended[..], [(0, Ok(_)), (1, Err(Failure::Lost(Loss::Gone)))]), "{ended:?}");
    assert!(fixture.driver.all_lost() && fixture.driver.is_idle());
    assert!(fixture.events.has(Event::QueueLost) && fixture.events.has(Event::Lost(1)));
}

/// Silence is a loss after the time-out, in time that somebody attended to the device. A late completion changes nothing.
#[test]
fn silence_is_a_loss_after_the_time_out() {
    let mut fixture = Fixture::new(1);
    fixture.copy(5000, false, ());
    assert!(fixture.give_up(TIMEOUT).is_empty());
    // The process was stopped for an hour: that counts as 100 ms, which is too long all the same; half of it is not.
    let lost = fixture.give_up(Duration::from_secs(3600));
    assert!(matches!(lost[..], [Finished { result: Err(Failure::Lost(Loss::Silent)), .. }]));
    publish(&fixture.devices[0].next(), status(Status::PageFault));
    assert!(
        fixture.complete().is_empty() && fixture.devices[0].is_idle(),
        "a lost request was submitted again"
    );
    // The queue gets no more work.
    fixture.copy(100, false, ());
    let by_cpu = fixture.complete();
    assert_eq!((by_cpu.len(), by_cpu[0].report.cpu_bytes), (1, 100));
}

/// Progress of the queue starts the time anew; completions behind a descriptor do not.
#[test]
fn progress_is_waited_for() {
    let mut fixture = Fixture::new(1);
    (0..4).for_each(|tag| fixture.copy(5000, false, tag));
    let [first, second, ..] = [(); 4].map(|()| fixture.devices[0].next());
    for done in [first, second] {
        assert!(fixture.give_up(TIMEOUT).is_empty());
        publish(&done, status(Status::Success));
        assert_eq!(fixture.complete().len(), 1);
    }
    assert!(fixture.give_up(TIMEOUT).is_empty(), "two have just completed before it");
    assert_eq!(fixture.give_up(LONG).len(), 2);
}

/// A tag may own memory that a device has.
#[test]
fn a_dropped_driver_leaks_what_devices_have() {
    for is_complete in [false, true] {
        let mut fixture = Fixture::new(1);
        let tag = Arc::new(());
        fixture.copy(5000, false, tag.clone());
        if is_complete {
            publish(&fixture.devices[0].next(), status(Status::Success));
            assert_eq!(fixture.complete().len(), 1);
        }
        drop(fixture);
        assert_eq!(Arc::strong_count(&tag), if is_complete { 1 } else { 2 });
    }
    // A lost request, whose end nobody has asked for.
    let mut fixture = Fixture::new(1);
    let tag = Arc::new(());
    fixture.copy(5000, false, tag.clone());
    fixture.driver.give_up(LONG, &mut Vec::new(), &fixture.events);
    assert!(fixture.driver.all_lost());
    drop(fixture);
    assert_eq!(Arc::strong_count(&tag), 2);
}

/// A tag is not dropped while the owner has an item to execute, and an item goes back to its own driver.
#[test]
fn items_that_were_handed_out_are_waited_for() {
    let mut fixture = Fixture::new(0);
    let tag = Arc::new(());
    fixture.copy(5000, false, tag.clone());
    let work = fixture.driver.take_cpu_work().pop().expect("there is no queue");
    let mut other: Fixture<Arc<()>> = Fixture::new(0);
    let executed = || other.driver.executed(work, &other.events);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(executed)).is_err());
    drop(fixture);
    assert_eq!(Arc::strong_count(&tag), 2);
}

#[test]
fn refused_hints_are_remembered() {
    let mut fixture = Fixture::new(1);
    fixture.copy(5000, true, 0);
    let first = fixture.devices[0].next();
    assert!(first.flags().contains(Flags::CACHE_CONTROL));
    // It also complains about a flag that the copy does not have.
    let flags = Flags::CACHE_CONTROL.union(Flags::BLOCK_ON_FAULT).bits();
    publish(&first, Completion { operation: [flags.into(), 0], ..status(Status::InvalidFlags) });
    assert!(fixture.complete().is_empty());
    fixture.copy(5000, true, 1);
    for tag in 0..2 {
        let next = fixture.devices[0].next();
        assert!(!next.flags().contains(Flags::CACHE_CONTROL));
        publish(&next, status(Status::Success));
        assert_eq!(fixture.complete()[0].tag, tag);
    }
    // A hint that was never there cannot be the reason: another queue, or the CPU.
    fixture.copy(5000, false, 2);
    let flags = Flags::CACHE_CONTROL.bits();
    let next = fixture.devices[0].next();
    publish(&next, Completion { operation: [flags.into(), 0], ..status(Status::InvalidFlags) });
    let ended = fixture.complete();
    assert_eq!((ended.len(), ended[0].result), (1, Err(Failure::Device(Status::InvalidFlags))));
}

/// A device that does not execute an operation although its queue says so: the next queue does, and then the CPU.
#[test]
fn another_queue_and_then_the_cpu() {
    let mut fixture = Fixture::new(2);
    fixture.copy(5000, false, ());
    let asked = |fixture: &Fixture<()>| fixture.devices.iter().position(|device| !device.is_idle());
    let first = asked(&fixture).expect("one was asked");
    publish(&fixture.devices[first].next(), status(Status::BadOpcode));
    assert!(fixture.complete().is_empty());
    assert_eq!(asked(&fixture), Some(1 - first));
    publish(&fixture.devices[1 - first].next(), status(Status::BadOpcode));
    let ended = fixture.complete();
    assert_eq!((ended.len(), ended[0].report.cpu_bytes, asked(&fixture)), (1, 5000, None));
}

fn batch(fixture: &mut Fixture<usize>) -> Descriptor {
    (0..4).for_each(|tag| fixture.enqueue_copy(100, false, tag));
    fixture.feed();
    let batch = fixture.devices[0].next();
    assert_eq!((batch.opcode(), batch.size(), fixture.devices[0].is_idle()), (Ok(Opcode::Batch), 4, true));
    batch
}

/// The list is touched and submitted again, and after too many faults its members go alone.
#[test]
fn a_list_that_faults() {
    let mut fixture = Fixture::new(1);
    let mut next = batch(&mut fixture);
    for _ in 0..3 {
        assert_eq!(next.opcode(), Ok(Opcode::Batch));
        let fault_address = next.address_1();
        publish(&next, Completion { fault_address, ..status(Status::BatchListFault) });
        assert!(fixture.complete().is_empty());
        next = fixture.devices[0].next();
    }
    assert!(fixture.events.has(Event::Touched) && !fixture.events.has(Event::StrangeFault));
    let mut ended = Vec::new();
    for left in (0..4).rev() {
        assert_eq!(next.opcode(), Ok(Opcode::Memmove));
        publish(&next, status(Status::Success));
        ended.extend(fixture.complete().into_iter().map(|finished| finished.tag));
        if left > 0 {
            next = fixture.devices[0].next();
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
        let mut fixture = Fixture::new(1);
        publish(&batch(&mut fixture), status(of_batch));
        let ended = fixture.complete();
        let failed = |it: &Finished<usize>| it.result == Err(Failure::Device(of_batch));
        assert_eq!(
            (ended.len(), ended.iter().all(failed)),
            (if is_repeated { 0 } else { 4 }, true),
            "{of_batch}"
        );
        if is_repeated {
            assert_eq!(fixture.devices[0].next().opcode(), Ok(Opcode::Memmove), "no more batches");
        }
    }
}

/// A page is touched, and the rest submitted; after too many faults the CPU executes it.
#[test]
fn the_cpu_after_many_faults() {
    let mut fixture = Fixture::new(1);
    fixture.copy(5000, false, ());
    for done in 0..3 {
        let next = fixture.devices[0].next();
        assert_eq!(next.size(), 5000 - 16 * done);
        let (bytes_completed, fault_address) = (16, next.address_2());
        let fault = status(Status::PageFault);
        publish(&next, Completion { bytes_completed, fault_address, write_fault: true, ..fault });
        let ended = fixture.complete();
        let reports: Vec<_> = ended.iter().map(|it| (it.report.device_bytes, it.report.cpu_bytes)).collect();
        assert_eq!(reports, if done < 2 { vec![] } else { vec![(48, 4952)] });
    }
    assert!(fixture.devices[0].is_idle() && !fixture.events.has(Event::StrangeFault));
}

/// A copy of more bytes than a descriptor can name is cut into parts that cover it once, and ends with the last; also if a
/// part is submitted twice.
#[test]
fn more_than_a_descriptor_can_name() {
    const PART: u64 = 1 << 30;
    let mut fixture = Fixture::with(1, 1 << 30);
    let (source, target) = (std::ptr::without_provenance(1 << 12), std::ptr::without_provenance_mut(1 << 50));
    // SAFETY: nothing is executed: the device only says so, and never that a page was missing.
    let mut task = unsafe { Task::copy(source, target, 6 * PART as usize + 5) };
    task.add_hints(true, false);
    fixture.driver.enqueue(task, 0, ());
    fixture.feed();
    let first = fixture.devices[0].next();
    let operation = [Flags::CACHE_CONTROL.bits().into(), 0];
    publish(&first, Completion { operation, ..status(Status::InvalidFlags) });
    let mut ended = fixture.complete();
    for part in [1, 2, 3, 4, 5, 6, 0] {
        assert!(ended.is_empty());
        let next = fixture.devices[0].next();
        assert_eq!(
            (next.address_1().0, next.address_2().0),
            ((1 << 12) + part * PART, (1 << 50) + part * PART)
        );
        assert_eq!(u64::from(next.size()), if part == 6 { 5 } else { PART });
        publish(&next, status(Status::Success));
        ended = fixture.complete();
    }
    assert_eq!((ended.len(), ended[0].report.device_bytes), (1, 6 * PART + 5));
    assert!(fixture.devices[0].is_idle());
}

/// No bytes are no work for a device.
#[test]
fn nothing_to_copy() {
    let mut fixture = Fixture::new(1);
    fixture.copy(0, false, ());
    assert_eq!((fixture.driver.take_finished().len(), fixture.devices[0].is_idle()), (1, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// What the fuzzer does, from random bytes.
    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..1200)) {
        fuzzed::driver(&data);
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
        let counts = fuzzed::driver(&std::fs::read(entry.path()).expect("a seed"));
        assert!(counts.get(name.as_str()).is_some_and(|count| *count > 0), "{name}: {counts:?}");
        names.push(name);
    }
    assert!(names.len() >= 10, "{names:?}");
}
