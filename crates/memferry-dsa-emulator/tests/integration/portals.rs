//! One suite for every portal: emulated, and what Linux offers over a fake kernel and CPU with an emulated device
//! behind them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::portal::executes_batches;
use memferry_dsa::{
    Backoff, BackoffError, CompletionRecord, Descriptor, DevicePortal, Opcode, OpenError, OpenOptions,
    OperationSet, Portal, PortalKind, QueueMode, Refused, Slots, Status, Submission, SubmitError,
    SubmitMethod, Wait, WorkQueueInfo, WriteReason, submit_with_backoff,
};
use memferry_dsa_emulator::{
    DeviceConfig, Emulator, FakePlatform, FaultPlan, GroupConfig, dedicated_queue, shared_queue,
};

use crate::common::pattern;

const PATIENCE: Duration = Duration::from_secs(60);

type Opened = DevicePortal<FakePlatform>;

/// A portal, its emulator, and the kernel between them, if there is one.
struct Subject {
    name: &'static str,
    portal: Arc<dyn Portal>,
    emulator: Arc<Emulator>,
    platform: Option<FakePlatform>,
}

fn device(info: WorkQueueInfo, fault_plan: FaultPlan) -> Arc<Emulator> {
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues: vec![info] }]);
    Emulator::start(&config, fault_plan).expect("a valid configuration")
}

fn queue(mode: QueueMode, size: u32) -> WorkQueueInfo {
    match mode {
        QueueMode::Shared => shared_queue("wq0.0", size),
        QueueMode::Dedicated => dedicated_queue("wq0.0", size),
    }
}

fn options() -> OpenOptions {
    OpenOptions::default()
}

fn open(
    platform: &FakePlatform,
    info: WorkQueueInfo,
    options: OpenOptions,
) -> Result<Arc<Opened>, OpenError> {
    DevicePortal::open_on(platform.clone(), Path::new("/dev/dsa/wq0.0"), info, options)
}

/// A queue of Linux with a faulty device of this mode.
fn on_linux(
    mode: QueueMode,
    size: u32,
    way: SubmitMethod,
    fault_plan: FaultPlan,
) -> (Arc<Opened>, FakePlatform, Arc<Emulator>) {
    let emulator = device(queue(mode, size), fault_plan);
    let platform = FakePlatform::new(emulator.uncounted_portal(0));
    let portal =
        open(&platform, queue(mode, size), OpenOptions { method: way, ..options() }).expect("all is there");
    (portal, platform, emulator)
}

fn subjects(size: u32, fault_plan: &FaultPlan) -> Vec<Subject> {
    let emulated = |name, mode| {
        let emulator = device(queue(mode, size), fault_plan.clone());
        Subject { name, portal: emulator.portal(0), emulator, platform: None }
    };
    let linux = |name, mode, way| {
        let (portal, platform, emulator) = on_linux(mode, size, way, fault_plan.clone());
        Subject { name, portal, emulator, platform: Some(platform) }
    };
    vec![
        emulated("emulated, shared", QueueMode::Shared),
        emulated("emulated, dedicated", QueueMode::Dedicated),
        linux("ENQCMD", QueueMode::Shared, SubmitMethod::Mapped),
        linux("MOVDIR64B", QueueMode::Dedicated, SubmitMethod::Mapped),
        linux("write, shared", QueueMode::Shared, SubmitMethod::Write),
        linux("write, dedicated", QueueMode::Dedicated, SubmitMethod::Write),
    ]
}

impl Subject {
    /// Checks that no descriptor was lost, and that the counters agree.
    fn check(&self, context: &str) {
        let device = self.emulator.counters();
        let counters = self.portal.counters();
        assert_eq!(device.dropped, 0, "{context}: the queue overflowed");
        assert_eq!(device.accepted, counters.accepted, "{context}");
        if let Some(platform) = &self.platform {
            assert_eq!((platform.lost(), platform.violations()), (0, 0), "{context}");
        }
    }
}

/// Three threads, more descriptors than entries, devices that fault, retry, delay and reorder: every copy arrives,
/// and nothing is lost.
#[test]
fn everything_that_is_accepted_completes() {
    for seed in 0..6 {
        let fault_plan = FaultPlan::from_seed(seed);
        for subject in subjects(4, &fault_plan) {
            let context = format!("{}, {fault_plan}", subject.name);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (portal, context) = (&subject.portal, &context);
                    scope.spawn(move || copy_some(&**portal, thread, context));
                }
            });
            subject.check(&context);
            assert_eq!(subject.portal.counters().in_flight, 0, "{context}");
        }
    }
}

/// Copies four buffers at a time, repeatedly; resumes after faults.
fn copy_some(portal: &dyn Portal, salt: u64, context: &str) {
    let start = Instant::now();
    for round in 0..5 {
        let sources: Vec<_> = (0..4).map(|number| pattern(3000 + 997 * number, salt + round)).collect();
        let mut targets: Vec<_> = sources.iter().map(|source| vec![0u8; source.len()]).collect();
        let records: [CompletionRecord; 4] = std::array::from_fn(|_| CompletionRecord::new());
        let mut waiting: Vec<(usize, Descriptor)> = Vec::new();
        let mut flying: Vec<(usize, Descriptor)> = Vec::new();
        for (number, (source, target)) in sources.iter().zip(&mut targets).enumerate() {
            let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), source.len() as u32);
            waiting.push((number, copy.with_completion(&records[number])));
        }
        while !waiting.is_empty() || !flying.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{context}: it does not end; {:?}", portal.counters());
            waiting.retain(|(number, copy)| {
                // SAFETY: buffers and records live until all copies are complete, and no other code uses them.
                match unsafe { portal.submit(copy) }.expect("the device lives") {
                    Submission::Accepted => flying.push((*number, *copy)),
                    Submission::Retry => return true,
                }
                false
            });
            flying.retain(|(number, copy)| {
                let Some(completion) = records[*number].poll() else { return true };
                records[*number].reset();
                portal.completed(1);
                match copy.resumed(&completion) {
                    Some(rest) => waiting.push((*number, rest)),
                    None => assert_eq!(completion.status, Status::Success, "{context}"),
                }
                false
            });
            std::thread::yield_now();
        }
        assert!(sources == targets, "{context}: bytes differ");
    }
}

/// A device that completes nothing: a full queue answers Retry, and a dedicated one also if the
/// software does not settle completed descriptors. After they are settled, it accepts again.
#[test]
fn a_full_queue_answers_retry() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        for subject in subjects(4, &FaultPlan::none()) {
            if subject.portal.work_queue().mode != mode {
                continue;
            }
            let context = subject.name;
            let records: Vec<_> = (0..4).map(|_| CompletionRecord::new()).collect();
            let offer = |record: &CompletionRecord| {
                // SAFETY: the records outlive all of this.
                unsafe { subject.portal.submit(&Descriptor::noop().with_completion(record)) }.expect(context)
            };
            if mode == QueueMode::Shared {
                // The queue accepts again as soon as it has room.
                let accepted = records.iter().filter(|record| offer(record) == Submission::Accepted).count();
                assert!(accepted >= 1, "{context}");
                for record in &records[..accepted] {
                    Wait::Block.wait(record, PATIENCE).expect(context);
                }
                assert_eq!(subject.portal.counters().in_flight, 0, "{context}");
                subject.portal.completed(100);
                continue;
            }
            for record in &records {
                assert_eq!(offer(record), Submission::Accepted, "{context}");
            }
            for record in &records {
                Wait::Block.wait(record, PATIENCE).expect(context);
            }
            // The device is idle, and only the credits are used up.
            let extra = CompletionRecord::new();
            assert_eq!(offer(&extra), Submission::Retry, "{context}: nothing was settled");
            assert_eq!(subject.portal.counters().in_flight, 4, "{context}");
            subject.portal.completed(1);
            assert_eq!(offer(&extra), Submission::Accepted, "{context}");
            let another = CompletionRecord::new();
            assert_eq!(offer(&another), Submission::Retry, "{context}");
            // Settling more than there are has no effect: four entries are free, not more.
            subject.portal.completed(100);
            assert_eq!(subject.portal.counters().in_flight, 0, "{context}");
            Wait::Block.wait(&extra, PATIENCE).expect(context);
            assert_eq!(subject.portal.counters().retries, 2, "{context}");
            subject.check(context);
        }
    }
}

/// Two portals of one dedicated queue count together.
#[test]
fn portals_of_a_queue_share_its_entries() {
    let emulator = device(queue(QueueMode::Dedicated, 2), FaultPlan::none());
    let (one, other) = (emulator.portal(0), emulator.portal(0));
    let noop = Descriptor::noop();
    // SAFETY: a no-op without a record names no memory.
    let offer = |portal: &Arc<dyn Portal>| unsafe { portal.submit(&noop) }.unwrap();
    assert_eq!([offer(&one), offer(&other)], [Submission::Accepted; 2]);
    assert_eq!([offer(&one), offer(&other)], [Submission::Retry; 2]);
    one.completed(1);
    assert_eq!(offer(&other), Submission::Accepted);
}

#[test]
fn an_aborted_device_is_gone_for_every_emulated_portal() {
    for subject in subjects(4, &FaultPlan::none()).into_iter().take(2) {
        subject.emulator.abort();
        assert!(subject.portal.is_gone());
        // SAFETY: a no-op without a record names no memory.
        assert_eq!(unsafe { subject.portal.submit(&Descriptor::noop()) }, Err(SubmitError::Gone));
        assert_eq!(subject.portal.counters().refused, 1);
    }
}

#[test]
fn patience_ends() {
    let (portal, ..) = on_linux(QueueMode::Dedicated, 1, SubmitMethod::Any, FaultPlan::none());
    let noop = Descriptor::noop();
    // SAFETY: a no-op without a record names no memory.
    let submit = |retries_max| unsafe { submit_with_backoff(&*portal, &noop, Backoff::new(retries_max)) };
    assert_eq!(submit(5), Ok(0));
    let Err(BackoffError::Exhausted { retries }) = submit(5) else { panic!("it is full") };
    assert_eq!((retries, portal.counters().retries), (5, 6));
    portal.completed(1);
    assert_eq!(submit(0), Ok(0));
}

/// The kind of the portal depends on the queue's mode, the CPU and the kernel. It has the reason if it is not the best.
#[test]
fn the_kind_of_portal_is_chosen() {
    use PortalKind::{Enqcmd, Movdir64b, Write};
    use QueueMode::{Dedicated, Shared};
    let enqcmd = CpuFeatures { enqcmd: true, ..CpuFeatures::NONE };
    let movdir64b = CpuFeatures { movdir64b: true, ..CpuFeatures::NONE };
    let refused = |errno| Some(WriteReason::MapRefused(errno));
    for (mode, features, map_error, way, expected) in [
        (Shared, enqcmd, 0, SubmitMethod::Any, (Enqcmd, None)),
        (Shared, movdir64b, 0, SubmitMethod::Any, (Write, Some(WriteReason::NoInstruction(Shared)))),
        (Shared, enqcmd, libc::EPERM, SubmitMethod::Any, (Write, refused(libc::EPERM))),
        (Shared, enqcmd, 0, SubmitMethod::Write, (Write, Some(WriteReason::Requested))),
        (Dedicated, movdir64b, 0, SubmitMethod::Any, (Movdir64b, None)),
        (Dedicated, movdir64b, 0, SubmitMethod::Mapped, (Movdir64b, None)),
        (Dedicated, enqcmd, 0, SubmitMethod::Any, (Write, Some(WriteReason::NoInstruction(Dedicated)))),
        (Dedicated, movdir64b, libc::ENOMEM, SubmitMethod::Any, (Write, refused(libc::ENOMEM))),
    ] {
        let emulator = device(queue(mode, 4), FaultPlan::none());
        let platform = FakePlatform::with(emulator.uncounted_portal(0), features, true, true);
        platform.fail_map(map_error);
        let portal = open(&platform, queue(mode, 4), OpenOptions { method: way, ..options() }).unwrap();
        let context = format!("{mode:?} {features:?} {map_error} {way:?}");
        assert_eq!((portal.kind(), portal.write_reason()), expected, "{context}");
        let record = CompletionRecord::new();
        // SAFETY: the record outlives the wait.
        let answer = unsafe { portal.submit(&Descriptor::noop().with_completion(&record)) };
        assert_eq!(answer, Ok(Submission::Accepted), "{context}");
        assert_eq!(Wait::Block.wait(&record, PATIENCE).expect(&context).status, Status::Success);
        assert_eq!((platform.violations(), platform.lost()), (0, 0), "{context}");
        drop(portal);
        assert_eq!((platform.pages_mapped(), platform.violations()), (0, 0), "{context}");
    }
}

/// Each error says what to do.
#[test]
fn errors_of_open_have_advice() {
    let emulator = device(queue(QueueMode::Shared, 4), FaultPlan::none());
    let platform = FakePlatform::new(emulator.portal(0));
    let path = || PathBuf::from("/dev/dsa/wq0.0");
    for (errno, expected, advice) in [
        (libc::ENOENT, OpenError::NotFound(path()), "enable-wq"),
        (libc::EACCES, OpenError::Denied(path()), "udev"),
        (libc::EBUSY, OpenError::Busy(path()), "dedicated"),
        (libc::ENXIO, OpenError::Disabled(path()), "cmd_status"),
        (libc::EOPNOTSUPP, OpenError::NoAddressSpace(path()), "pasid_enabled"),
        (libc::ENFILE, OpenError::Other { path: path(), errno: libc::ENFILE }, "files"),
    ] {
        platform.fail_open(errno);
        let error = open(&platform, queue(QueueMode::Shared, 4), options()).unwrap_err();
        assert_eq!(error, expected);
        let text = error.to_string();
        assert!(text.contains("/dev/dsa/wq0.0") && text.contains(advice), "{text}");
    }
    platform.fail_open(0);
    platform.fail_map(libc::EPERM);
    let mapped = OpenOptions { method: SubmitMethod::Mapped, ..options() };
    let error = open(&platform, queue(QueueMode::Shared, 4), mapped).unwrap_err();
    assert!(
        matches!(error, OpenError::NotMapped { why: WriteReason::MapRefused(libc::EPERM), .. }),
        "{error}"
    );
    // No kind is possible: an old kernel, and no permission.
    let old = FakePlatform::with(emulator.portal(0), CpuFeatures::ALL, false, false);
    old.fail_map(libc::EPERM);
    let error = open(&old, queue(QueueMode::Shared, 4), options()).unwrap_err();
    assert_eq!(error, OpenError::NoWrite(path()));
    assert!(error.to_string().contains("6.9.1"), "{error}");
}

/// The real `open`, on files of every machine: a missing file, and a file that is not a queue.
#[test]
fn linux_answers_for_files_that_are_no_queues() {
    let info = || queue(QueueMode::Shared, 4);
    let missing = Path::new("/dev/dsa/there-is-no-such-queue");
    assert_eq!(
        DevicePortal::open(missing, info(), options()).unwrap_err(),
        OpenError::NotFound(missing.to_owned())
    );
    let wanted = OpenOptions { method: SubmitMethod::Mapped, ..options() };
    let error = DevicePortal::open(Path::new("/proc/self/status"), info(), wanted).unwrap_err();
    assert!(matches!(error, OpenError::Denied(_) | OpenError::NotMapped { .. }), "{error}");
}

/// An error of `write(2)` becomes Retry, a refusal or Gone, and a dedicated queue's entry is free again. The end of
/// submissions does not imply the end of submitted descriptors: only the attributes in sysfs show that.
#[test]
fn errors_of_write_are_told_apart() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        for (errno, expected) in [
            (libc::EAGAIN, Ok(Submission::Retry)),
            (libc::EINTR, Ok(Submission::Retry)),
            (libc::EINVAL, Err(SubmitError::Refused(Refused::Errno(libc::EINVAL)))),
            (libc::EFAULT, Err(SubmitError::Refused(Refused::Errno(libc::EFAULT)))),
            (libc::ENXIO, Err(SubmitError::Gone)),
        ] {
            let (portal, platform, _emulator) = on_linux(mode, 4, SubmitMethod::Write, FaultPlan::none());
            platform.fail_write(errno);
            // SAFETY: a no-op without a record names no memory.
            let offer = || unsafe { portal.submit(&Descriptor::noop()) };
            for _ in 0..6 {
                assert_eq!(offer(), expected, "{mode:?}, errno {errno}");
            }
            platform.fail_write(0);
            assert!(!portal.is_gone(), "{mode:?}, errno {errno}: what was accepted may be processed");
            assert_eq!(offer(), Ok(Submission::Accepted), "{mode:?}, errno {errno}");
            let counters = portal.counters();
            assert_eq!(counters.refused, if expected.is_err() { 6 } else { 0 }, "{mode:?}, errno {errno}");
            assert_eq!(counters.in_flight, u32::from(mode == QueueMode::Dedicated));
        }
    }
}

#[test]
fn the_kernel_refuses_batches_and_misaligned_records() {
    let emulator = device(queue(QueueMode::Shared, 4), FaultPlan::none());
    let platform = FakePlatform::with(emulator.portal(0), CpuFeatures::ALL, true, false);
    let write = OpenOptions { method: SubmitMethod::Write, ..options() };
    let portal = open(&platform, queue(QueueMode::Shared, 4), write).unwrap();
    assert!(portal.supports_batch(), "the queue says so, and nobody has tried");
    let list = [Descriptor::noop(); 2];
    // SAFETY: the list lives until the end, and is refused anyway.
    let answer = unsafe { portal.submit(&Descriptor::batch(list.as_ptr(), 2)) };
    assert_eq!(answer, Err(SubmitError::Refused(Refused::Batch)));
    assert!(!portal.supports_batch(), "it learns");
    // SAFETY: the descriptor is refused.
    let answer = unsafe { portal.submit(&Descriptor::noop().with_completion_at(0x1010)) };
    assert_eq!(answer, Err(SubmitError::Refused(Refused::RecordAlignment)));
    // SAFETY: a no-op without a record names no memory.
    assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Ok(Submission::Accepted));
}

/// Linux hides Batch of version 1.0, so the hardware is probed, once.
#[test]
fn batches_are_probed() {
    let without = |info: WorkQueueInfo| WorkQueueInfo {
        operations: OperationSet::of(&[Opcode::Noop, Opcode::Memmove]),
        ..info
    };
    for (device_has_it, told_so, way, expected) in [
        (true, true, SubmitMethod::Any, true),
        (true, false, SubmitMethod::Any, true),
        (false, false, SubmitMethod::Any, false),
        (true, false, SubmitMethod::Write, false),
        (true, true, SubmitMethod::Write, true),
    ] {
        for mode in [QueueMode::Shared, QueueMode::Dedicated] {
            let context = format!("{mode:?} {device_has_it} {told_so} {way:?}");
            let (full, hidden) = (queue(mode, 4), without(queue(mode, 4)));
            let emulator =
                device(if device_has_it { full.clone() } else { hidden.clone() }, FaultPlan::none());
            let platform = FakePlatform::new(emulator.uncounted_portal(0));
            let patient = OpenOptions { method: way, batch_probe_timeout: Some(PATIENCE), ..options() };
            let portal = open(&platform, if told_so { full } else { hidden }, patient).unwrap();
            assert_eq!(portal.supports_batch(), expected, "{context}");
            assert_eq!(portal.counters().in_flight, 0, "{context}");
        }
    }
    // Without a probe it is unknown.
    let emulator = device(queue(QueueMode::Shared, 4), FaultPlan::none());
    let unasked = OpenOptions { batch_probe_timeout: None, ..options() };
    let platform = FakePlatform::new(emulator.portal(0));
    let portal = open(&platform, without(queue(QueueMode::Shared, 4)), unasked).unwrap();
    assert!(!portal.supports_batch());
}

/// The probe of a device that never answers ends with a time-out.
#[test]
fn the_probe_of_a_silent_device_times_out() {
    let fault_plan = FaultPlan { lost_records_per_mille: 1000, ..FaultPlan::none() };
    let emulator = device(queue(QueueMode::Shared, 4), fault_plan);
    assert!(!executes_batches(&*emulator.portal(0), Duration::from_millis(20)));
    let fault_plan = FaultPlan { retries_per_mille: 1000, ..FaultPlan::none() };
    let emulator = device(queue(QueueMode::Shared, 4), fault_plan);
    assert!(!executes_batches(&*emulator.portal(0), Duration::from_millis(20)));
    emulator.abort();
    assert!(!executes_batches(&*emulator.portal(0), Duration::from_millis(20)));
}

#[test]
fn slots_of_the_page_rotate_or_stay() {
    for (slots, expected) in [(Slots::Rotating, u64::MAX), (Slots::One, 1)] {
        for mode in [QueueMode::Shared, QueueMode::Dedicated] {
            let emulator = device(queue(mode, 128), FaultPlan::none());
            let platform = FakePlatform::new(emulator.uncounted_portal(0));
            let portal = open(&platform, queue(mode, 128), OpenOptions { slots, ..options() }).unwrap();
            for _ in 0..100 {
                // SAFETY: a no-op without a record names no memory.
                while unsafe { portal.submit(&Descriptor::noop()) } != Ok(Submission::Accepted) {}
            }
            assert_eq!((platform.slots_used(), platform.violations()), (expected, 0), "{slots:?}");
        }
    }
}

/// ENQCMD of a descriptor with a PASID kills the process, so the portal clears the PASID.
#[test]
fn the_submitter_is_left_to_the_cpu() {
    let (portal, platform, emulator) =
        on_linux(QueueMode::Shared, 4, SubmitMethod::Mapped, FaultPlan::none());
    let record = CompletionRecord::new();
    let named = Descriptor::noop().with_completion(&record).submitted_by(0xabcde);
    // SAFETY: the record outlives the wait.
    assert_eq!(unsafe { portal.submit(&named) }, Ok(Submission::Accepted));
    assert_eq!(Wait::Block.wait(&record, PATIENCE).unwrap().status, Status::Success);
    assert_eq!((platform.violations(), emulator.counters().accepted), (0, 1));
}

/// A fork, as a portal sees it: the first submission opens the queue again, the parent's page stays mapped,
/// and the parent's descriptors in flight do not count.
#[test]
fn a_child_opens_the_queue_again() {
    for (mode, way) in [
        (QueueMode::Shared, SubmitMethod::Mapped),
        (QueueMode::Dedicated, SubmitMethod::Mapped),
        (QueueMode::Shared, SubmitMethod::Write),
        (QueueMode::Dedicated, SubmitMethod::Write),
    ] {
        let (portal, platform, _emulator) = on_linux(mode, 16, way, FaultPlan::none());
        // SAFETY: a no-op without a record names no memory.
        let offer = || unsafe { portal.submit(&Descriptor::noop()) };
        let context = format!("{mode:?}, {way:?}");
        assert_eq!(offer(), Ok(Submission::Accepted), "{context}");
        for generation in 1..=3 {
            platform.fork();
            assert_eq!(portal.counters().in_flight, 0, "{context}");
            assert_eq!(offer(), Ok(Submission::Accepted), "{context}");
            assert_eq!(offer(), Ok(Submission::Accepted), "{context}");
            let counters = portal.counters();
            assert_eq!((counters.reopened, counters.accepted), (generation, 1 + 2 * generation), "{context}");
            assert_eq!(counters.in_flight, if mode == QueueMode::Dedicated { 2 } else { 0 }, "{context}");
        }
        drop(portal);
        assert_eq!(platform.violations(), 0, "{context}: touched a page of its parent");
        // Only the parents unmap their pages.
        assert_eq!(platform.pages_mapped(), if way == SubmitMethod::Mapped { 3 } else { 0 }, "{context}");
    }
}

/// A child that cannot open the queue reports it and does not try at each submission; the next child tries again.
#[test]
fn a_child_without_permission_reports_it() {
    let (portal, platform, _emulator) =
        on_linux(QueueMode::Dedicated, 4, SubmitMethod::Any, FaultPlan::none());
    platform.fork();
    platform.fail_open(libc::EBUSY);
    // SAFETY: a no-op without a record names no memory.
    let offer = || unsafe { portal.submit(&Descriptor::noop()) };
    let busy = OpenError::Busy("/dev/dsa/wq0.0".into());
    assert_eq!(offer(), Err(SubmitError::NotReopened(Box::new(busy.clone()))));
    platform.fail_open(0);
    assert_eq!(offer(), Err(SubmitError::NotReopened(Box::new(busy))), "opened at each submission");
    assert!(!portal.is_gone(), "the device is not");
    assert_eq!(portal.counters().in_flight, 0);
    platform.fork();
    platform.fail_map(libc::EPERM);
    assert_eq!(offer(), Ok(Submission::Accepted));
    assert_eq!(portal.kind(), PortalKind::Write, "the grandchild has fewer rights, and the portal knows");
    assert_eq!((portal.counters().reopened, platform.violations()), (1, 0));
}

/// EPERM of `write(2)`, as for a file that was inherited: the queue is opened again, once.
#[test]
fn a_file_of_another_process_is_opened_again() {
    let (portal, platform, _emulator) =
        on_linux(QueueMode::Shared, 4, SubmitMethod::Write, FaultPlan::none());
    platform.fail_write(libc::EPERM);
    // SAFETY: a no-op without a record names no memory.
    let offer = || unsafe { portal.submit(&Descriptor::noop()) };
    for _ in 0..3 {
        let answer = offer();
        assert!(matches!(answer, Err(SubmitError::NotReopened(_))), "{answer:?}");
    }
    assert_eq!(portal.counters().reopened, 1, "opened at each submission");
}
