//! What the mover makes of queues that are full, refuse, or have to be opened again: the same by every way into a
//! queue, and to be read in its statistics.

use std::path::Path;
use std::sync::Arc;

use memferry::mover::{CopyOptions, CopyReport, DsaEngine, DsaOptions, EngineKind, EngineStats, Mover};
use memferry::topology::Machine;
use memferry_dsa::{Descriptor, DevicePortal, OpenOptions, Portal, QueueMode, Submission, SubmitMethod};
use memferry_dsa_emulator::FakePlatform;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue};

const SIZE_BYTES: usize = 5000;
/// Entries of each queue.
const ENTRIES: u32 = 2;
const RETRIES_MAX: u32 = 3;

/// A way into a queue, over the fake kernel and CPU if there is one of Linux, with an emulated device at the end.
struct Queue {
    name: &'static str,
    portal: Arc<dyn Portal>,
    device: Arc<Emulator>,
    platform: Option<FakePlatform>,
    mode: QueueMode,
}

type Open = fn(&FaultPlan) -> Queue;

/// Every way into a queue.
const WAYS: [Open; 6] = [
    |fault_plan| emulated("emulated, shared", QueueMode::Shared, fault_plan),
    |fault_plan| emulated("emulated, dedicated", QueueMode::Dedicated, fault_plan),
    |fault_plan| of_linux("ENQCMD", QueueMode::Shared, SubmitMethod::Mapped, fault_plan),
    |fault_plan| of_linux("MOVDIR64B", QueueMode::Dedicated, SubmitMethod::Mapped, fault_plan),
    |fault_plan| of_linux("write, shared", QueueMode::Shared, SubmitMethod::Write, fault_plan),
    |fault_plan| of_linux("write, dedicated", QueueMode::Dedicated, SubmitMethod::Write, fault_plan),
];

fn device(mode: QueueMode, fault_plan: &FaultPlan) -> Arc<Emulator> {
    let queue = match mode {
        QueueMode::Shared => shared_queue("wq0.0", ENTRIES),
        QueueMode::Dedicated => dedicated_queue("wq0.0", ENTRIES),
    };
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
    Emulator::start(&config, fault_plan.clone()).expect("a thread")
}

fn emulated(name: &'static str, mode: QueueMode, fault_plan: &FaultPlan) -> Queue {
    let device = device(mode, fault_plan);
    Queue { name, portal: device.portal(0), device, platform: None, mode }
}

fn of_linux(name: &'static str, mode: QueueMode, way: SubmitMethod, fault_plan: &FaultPlan) -> Queue {
    let device = device(mode, fault_plan);
    let info = device.config().groups[0].queues[0].clone();
    let platform = FakePlatform::new(device.uncounted_portal(0));
    let options = OpenOptions { method: way, ..OpenOptions::default() };
    let path = Path::new("/dev/dsa/wq0.0");
    let portal = DevicePortal::open_on(platform.clone(), path, info, options).expect("all is there");
    Queue { name, portal, device, platform: Some(platform), mode }
}

/// A queue that stays full: a shared one says so, of a dedicated one somebody else holds all entries.
fn full(open: Open) -> Queue {
    let queue = open(&FaultPlan { retries_per_mille: 1000, ..FaultPlan::none() });
    if queue.mode == QueueMode::Dedicated {
        for _ in 0..ENTRIES {
            // SAFETY: a no-op without a record names no memory.
            let answer = unsafe { queue.portal.submit(&Descriptor::noop()) };
            assert_eq!(answer, Ok(Submission::Accepted), "{}", queue.name);
        }
    }
    queue
}

fn empty(open: Open) -> Queue {
    open(&FaultPlan::none())
}

fn mover(queues: &[&Queue]) -> Mover {
    let portals = queues.iter().map(|queue| queue.portal.clone()).collect();
    let options = DsaOptions { retries_max: RETRIES_MAX, ..DsaOptions::default() };
    let engine = DsaEngine::new(portals, options).expect("a thread");
    let machine = Arc::new(Machine::two_tiers().expect("built in"));
    Mover::builder(machine).engine(Arc::new(engine)).build().expect("threads")
}

fn copy(mover: &Mover, told: &str) -> CopyReport {
    let source: Vec<u8> = (0..SIZE_BYTES).map(|index| index as u8).collect();
    let transfer = mover.copy(source, vec![0; SIZE_BYTES], CopyOptions::default());
    let (source, target, report) = transfer.wait().expect(told);
    assert!(source == target, "{told}: bytes differ");
    report
}

const BY_CPU: CopyReport = CopyReport { cpu_bytes: SIZE_BYTES as u64, dsa_bytes: 0, file_bytes: 0 };
const BY_DSA: CopyReport = CopyReport { cpu_bytes: 0, dsa_bytes: SIZE_BYTES as u64, file_bytes: 0 };

/// The DSA engine's part of the mover's statistics.
fn stats(mover: &Mover) -> EngineStats {
    let mut engines = mover.stats().engines.into_iter();
    engines.find(|engine| engine.kind == EngineKind::Dsa).expect("it was built with one")
}

#[test]
fn a_full_queue_is_tried_again_a_few_times_and_then_the_cpu_copies() {
    for open in WAYS {
        let queue = full(open);
        let (mover, told) = (mover(&[&queue]), queue.name);
        let before = queue.portal.counters().retries;
        assert_eq!(copy(&mover, told), BY_CPU, "{told}");
        let counted = stats(&mover);
        let tries = u64::from(RETRIES_MAX) + 1;
        assert_eq!((counted.retries, counted.backoffs), (tries, tries - 1), "{told}: {counted:?}");
        assert_eq!(
            (counted.fallbacks, counted.fallback_bytes),
            (1, SIZE_BYTES as u64),
            "{told}: {counted:?}"
        );
        assert_eq!(
            (counted.descriptors, counted.diverted, counted.refused),
            (0, 0, 0),
            "{told}: {counted:?}"
        );
        assert_eq!((counted.operations, counted.queues_gone), (1, 0), "{told}: {counted:?}");
        assert_eq!(queue.portal.counters().retries - before, tries, "{told}: the portal's books");
        if queue.mode == QueueMode::Dedicated {
            // The other one is done: there is room.
            while queue.device.counters().completed_count() < ENTRIES.into() {
                std::thread::yield_now();
            }
            queue.portal.completed(ENTRIES);
            assert_eq!(copy(&mover, told), BY_DSA, "{told}");
            assert_eq!(stats(&mover).retries, tries, "{told}");
        }
    }
}

#[test]
fn what_a_full_queue_does_not_take_goes_to_the_next() {
    for open in WAYS {
        let (crowded, free) = (full(open), empty(open));
        let (mover, told) = (mover(&[&crowded, &free]), crowded.name);
        for _ in 0..4 {
            assert_eq!(copy(&mover, told), BY_DSA, "{told}");
        }
        let counted = stats(&mover);
        assert_eq!((counted.retries, counted.diverted), (4, 4), "{told}: {counted:?}");
        assert_eq!((counted.descriptors, counted.descriptors_done), (4, 4), "{told}: {counted:?}");
        assert_eq!((counted.backoffs, counted.fallbacks), (0, 0), "{told}: {counted:?}");
        assert_eq!(free.portal.counters().accepted, 4, "{told}");
        // Without a full one in the way nothing is diverted.
        let (one, other) = (empty(open), empty(open));
        let calm = self::mover(&[&one, &other]);
        (0..4).for_each(|_| assert_eq!(copy(&calm, told), BY_DSA, "{told}"));
        assert_eq!((stats(&calm).diverted, one.portal.counters().accepted), (0, 2), "{told}");
    }
}

/// What the kernel says of one descriptor is no reason to give up the queue; that the device is gone, is.
#[test]
fn what_the_kernel_refuses_is_copied_by_the_cpu() {
    for open in &WAYS[4..] {
        let queue = empty(*open);
        let platform = queue.platform.as_ref().expect("a way of Linux");
        let (mover, told) = (mover(&[&queue]), queue.name);
        for (errno, expected, refused, queues_gone) in [
            (libc::EFAULT, BY_CPU, 1, 0),
            (0, BY_DSA, 1, 0),
            (libc::EINVAL, BY_CPU, 2, 0),
            (libc::ENXIO, BY_CPU, 3, 1),
            (0, BY_CPU, 3, 1),
        ] {
            platform.fail_write(errno);
            assert_eq!(copy(&mover, told), expected, "{told}, errno {errno}");
            let counted = stats(&mover);
            assert_eq!((counted.refused, counted.queues_gone), (refused, queues_gone), "{told}: {counted:?}");
        }
        let counted = stats(&mover);
        assert_eq!((counted.fallbacks, counted.rejected, counted.retries), (3, 1, 0), "{told}: {counted:?}");
    }
}

/// A fork, as far as portals see it.
#[test]
fn queues_that_a_child_opens_again_are_counted() {
    for open in &WAYS[2..] {
        let queues = [empty(*open), empty(*open)];
        let platforms = queues.each_ref().map(|queue| queue.platform.as_ref().expect("a way of Linux"));
        let (mover, told) = (mover(&queues.each_ref()), queues[0].name);
        let copy_twice = || (0..2).for_each(|_| assert_eq!(copy(&mover, told), BY_DSA, "{told}"));
        copy_twice();
        assert_eq!(stats(&mover).reopened, 0, "{told}");
        platforms[0].fork();
        copy_twice();
        assert_eq!(stats(&mover).reopened, 1, "{told}");
        platforms.iter().for_each(|platform| platform.fork());
        copy_twice();
        assert_eq!(stats(&mover).reopened, 3, "{told}");
        // One that cannot be opened leaves the work to the other, and then to the CPU.
        platforms[0].fork();
        platforms[0].fail_open(libc::EBUSY);
        copy_twice();
        let counted = stats(&mover);
        assert_eq!(
            (counted.reopened, counted.refused, counted.queues_gone),
            (3, 1, 1),
            "{told}: {counted:?}"
        );
        platforms[1].fork();
        platforms[1].fail_open(libc::EBUSY);
        assert_eq!(copy(&mover, told), BY_CPU, "{told}");
        let counted = stats(&mover);
        assert_eq!(
            (counted.refused, counted.queues_gone, counted.fallbacks),
            (2, 2, 1),
            "{told}: {counted:?}"
        );
        platforms.iter().for_each(|platform| assert_eq!(platform.violations(), 0, "{told}"));
    }
}
