//! Movers on devices that die, fall silent, refuse and fault: what is lost, what is leaked, and that the books agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, DsaEngine, DsaOptions, Engine, EngineKind, Guidelines, Mover,
};
use memferry_dsa::{Descriptor, Portal, PortalCounters, PortalKind, Submission, SubmitError, WorkQueueInfo};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, dedicated_queue, shared_queue};
use proptest::prelude::*;

use crate::mover_support::{Witness, machine};

/// Whatever the size, devices are asked.
fn everything_offloaded() -> Guidelines {
    Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 }
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// A device that takes everything and does nothing, and whether it is dead.
struct Silent {
    info: WorkQueueInfo,
    dead: AtomicBool,
}

impl Silent {
    fn new(name: &str) -> Arc<Silent> {
        Arc::new(Silent { info: shared_queue(name, 4), dead: false.into() })
    }
}

// SAFETY: nothing is ever done with what it accepts.
unsafe impl Portal for Silent {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }

    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }

    unsafe fn submit(&self, _: &Descriptor) -> Result<Submission, SubmitError> {
        if self.dead.load(Ordering::SeqCst) { Err(SubmitError::Gone) } else { Ok(Submission::Accepted) }
    }

    fn completed(&self, _: u32) {}

    fn is_gone(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn counters(&self) -> PortalCounters {
        PortalCounters::default()
    }
}

fn dsa_mover(portals: Vec<Arc<dyn Portal>>, options: DsaOptions) -> (Mover, Arc<DsaEngine>) {
    let dsa = Arc::new(DsaEngine::new(portals, options).expect("a thread"));
    (
        Mover::builder(machine())
            .guidelines(everything_offloaded())
            .engine(dsa.clone())
            .build()
            .expect("threads"),
        dsa,
    )
}

#[test]
fn a_device_that_dies_leaks_what_it_had_and_nothing_else() {
    let silent = Silent::new("wq-dies");
    let (mover, dsa) = dsa_mover(vec![silent.clone()], DsaOptions::default());
    let drops = Arc::new(AtomicUsize::new(0));
    // Four slots: these are in flight, and the device may write to them for ever.
    let flying: Vec<_> =
        (0..4).map(|_| mover.copy(Witness::new(1, &drops), Witness::new(0, &drops), options())).collect();
    // These wait inside the engine, which has not shown them to the device.
    let waiting: Vec<_> = (0..3).map(|_| mover.copy(vec![1; 100], vec![0; 100], options())).collect();
    silent.dead.store(true, Ordering::SeqCst);
    for transfer in flying {
        let error = transfer.wait().expect_err("the device is dead");
        assert_eq!(error.error, CopyError::DeviceLost);
        assert!(error.buffers.is_none());
    }
    for transfer in waiting {
        let (source, target, report) = transfer.wait().expect("the CPU did it");
        assert_eq!((source == target, report.cpu_bytes), (true, 100));
    }
    // From now on the mover goes on without it.
    let (_, _, report) = mover.copy(vec![1; 100], vec![0; 100], options()).wait().expect("copied");
    assert_eq!(report.cpu_bytes, 100);
    let stats = dsa.stats();
    assert_eq!((stats.errors, stats.descriptors_lost, stats.leaked_bytes), (4, 4, 40_000), "{stats:?}");
    assert_eq!((stats.fallbacks, stats.fallback_bytes, stats.rejected), (3, 300, 1), "{stats:?}");
    drop((mover, dsa));
    assert_eq!(drops.load(Ordering::SeqCst), 0, "freed although the device may write there");
}

/// A decorator that fails everything once told that buffers may be given back which a dead device could still
/// write to.
#[test]
fn an_injected_failure_does_not_hide_lost_buffers() {
    let silent = Silent::new("wq-hidden");
    let dsa = DsaEngine::new(vec![silent.clone()], DsaOptions::default()).expect("a thread");
    let faults = Faults { fail_per_mille: 1000, ..Faults::default() };
    let faulty = Arc::new(Faulty::new(Arc::new(dsa), faults, 0).expect("a thread"));
    let mover =
        Mover::builder(machine()).guidelines(everything_offloaded()).engine(faulty).build().expect("threads");
    // Half of the failures come before the device is asked.
    let transfers: Vec<_> = (0..8).map(|_| mover.copy(vec![1; 100], vec![0; 100], options())).collect();
    silent.dead.store(true, Ordering::SeqCst);
    let errors: Vec<_> =
        transfers.into_iter().map(|transfer| transfer.wait().expect_err("all fail")).collect();
    assert!(errors.iter().any(|error| error.error == CopyError::DeviceLost), "{errors:?}");
    assert!(errors.iter().all(|error| error.buffers.is_some() != error.error.buffers_are_lost()));
}

#[test]
fn an_emulated_device_that_dies_with_work_in_it_is_survived() {
    let mut totals = (0, 0);
    for seed in 0..20 {
        println!("seed {seed}");
        let fault_plan = FaultPlan { delay_steps_max: 1000, ..FaultPlan::from_seed(seed) };
        let device = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).expect("a device");
        let (mover, dsa) = dsa_mover(vec![device.portal(0)], DsaOptions::default());
        let transfers: Vec<_> =
            (0..30).map(|_| mover.copy(vec![1; 50_000], vec![0; 50_000], options())).collect();
        device.abort();
        let (mut copied, mut lost) = (0, 0);
        for transfer in transfers {
            match transfer.wait() {
                Ok((source, target, report)) => {
                    assert_eq!((source == target, report.bytes()), (true, 50_000));
                    copied += 1;
                }
                Err(error) => {
                    assert_eq!(error.error, CopyError::DeviceLost);
                    lost += 1;
                }
            }
        }
        let stats = dsa.stats();
        assert_eq!((copied + lost, stats.errors, stats.leaked_bytes), (30, lost, lost * 50_000));
        let ended = stats.descriptors_done
            + stats.faults_resumed
            + stats.descriptors_skipped
            + stats.descriptors_lost;
        assert_eq!(stats.descriptors, ended, "{stats:?}");
        totals = (totals.0 + copied, totals.1 + lost);
    }
    println!("{} copied, {} lost", totals.0, totals.1);
    assert!(totals.0 > 0 && totals.1 > 0, "the devices died too early or too late: {totals:?}");
}

#[test]
fn a_record_that_never_comes_is_given_up() {
    let fault_plan = FaultPlan { lost_records_per_mille: 1000, ..FaultPlan::none() };
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).expect("a device");
    let patience = DsaOptions { completion_timeout: Duration::from_millis(30), ..DsaOptions::default() };
    let (mover, dsa) = dsa_mover(vec![device.portal(0)], patience);
    let error = mover.copy(vec![1; 100], vec![0; 100], options()).wait().expect_err("lost");
    assert!(error.error.buffers_are_lost() && error.buffers.is_none());
    assert_eq!((dsa.stats().descriptors_lost, dsa.stats().leaked_bytes), (1, 100));
    // The queue is not trusted again, and the device that lost one is the only one.
    let (_, _, report) = mover.copy(vec![1; 100], vec![0; 100], options()).wait().expect("copied");
    assert_eq!(report.cpu_bytes, 100);
}

#[test]
fn a_queue_that_always_refuses_is_survived() {
    let fault_plan = FaultPlan { retries_per_mille: 1000, ..FaultPlan::none() };
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).expect("a device");
    let (mover, dsa) = dsa_mover(vec![device.portal(0)], DsaOptions::default());
    let (source, target, report) = mover.copy(vec![1; 100], vec![0; 100], options()).wait().expect("copied");
    assert_eq!(
        (source == target, report),
        (true, CopyReport { cpu_bytes: 100, dsa_bytes: 0, file_bytes: 0 })
    );
    let stats = dsa.stats();
    assert_eq!((stats.retries, stats.fallbacks, stats.fallback_bytes), (11, 1, 100), "{stats:?}");
    assert_eq!(device.counters().retried, 11);
}

#[test]
fn a_device_waits_for_pages_only_if_asked_and_allowed() {
    for (asked, allowed) in [(false, true), (true, false), (true, true)] {
        let queue = WorkQueueInfo { block_on_fault: allowed, ..shared_queue("wq0.0", 8) };
        let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
        let fault_plan = FaultPlan { page_faults_per_mille: 500, ..FaultPlan::none() };
        let device = Emulator::start(&config, fault_plan).expect("a device");
        let (mover, dsa) = dsa_mover(vec![device.portal(0)], DsaOptions::default());
        let how = CopyOptions { block_on_fault: asked, ..options() };
        let (source, target, _) = mover.copy(vec![1; 100_000], vec![0; 100_000], how).wait().expect("copied");
        assert_eq!(source, target);
        let (resumed, waited) = (dsa.stats().faults_resumed, device.counters().page_requests);
        assert_eq!((resumed == 0, waited > 0), (asked && allowed, asked && allowed), "{asked} {allowed}");
    }
}

#[test]
fn borrowed_buffers_of_a_dead_device_abort_the_process() {
    const CHILD: &str = "MEMFERRY_TEST_ABORTS";
    if std::env::var_os(CHILD).is_some() {
        let silent = Silent::new("wq-aborts");
        let (mover, _) = dsa_mover(vec![silent.clone()], DsaOptions::default());
        let mut target = [0; 100];
        let _ = mover.scope(|scope| {
            scope.copy(&[1; 100], &mut target);
            silent.dead.store(true, Ordering::SeqCst);
        });
        panic!("the scope ended although the device may still write to the stack");
    }
    let child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "mover_dsa::borrowed_buffers_of_a_dead_device_abort_the_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this test can be run");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(said.contains("a device was lost that could write to borrowed memory"), "{said}");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.status), Some(6), "SIGABRT");
}

/// Nanoseconds that the thread of this name has spent on a CPU.
fn cpu_time_ns(thread: &str) -> u64 {
    for task in std::fs::read_dir("/proc/self/task").expect("Linux") {
        let task = task.expect("Linux").path();
        if std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == thread) {
            let schedstat = std::fs::read_to_string(task.join("schedstat")).expect("the thread lives");
            return schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number");
        }
    }
    panic!("no thread {thread}");
}

#[test]
fn the_completer_burns_no_core() {
    let spent_in = |duration| {
        let before = cpu_time_ns("thrifty-complet");
        thread::sleep(duration);
        Duration::from_nanos(cpu_time_ns("thrifty-complet") - before)
    };
    let silent = Silent::new("wq-thrifty");
    let name = DsaOptions { name: "thrifty".to_owned(), ..DsaOptions::default() };
    let (mover, _dsa) = dsa_mover(vec![silent.clone()], name);
    thread::sleep(Duration::from_millis(20));
    let idle = spent_in(Duration::from_millis(200));
    assert!(idle < Duration::from_millis(1), "{idle:?} of 200 ms with nothing to wait for");
    let transfer = mover.copy(vec![1; 100], vec![0; 100], options());
    thread::sleep(Duration::from_millis(20));
    let waiting = spent_in(Duration::from_millis(200));
    assert!(waiting < Duration::from_millis(40), "{waiting:?} of 200 ms with a copy that takes its time");
    silent.dead.store(true, Ordering::SeqCst);
    assert!(transfer.wait().is_err());
}

/// A run of copies on a faulty device: their sizes, and how the device and the engine are set up.
#[derive(Debug, Clone)]
struct Run {
    sizes: Vec<usize>,
    seed: u64,
    transfer_bytes_max_log2: u32,
    entries: u32,
    faults_max: u32,
    retries_max: u32,
    dedicated: bool,
}

fn runs() -> impl Strategy<Value = Run> {
    let sizes = prop::collection::vec(prop_oneof![0..200_usize, 4000..4200_usize, 0..60_000_usize], 1..20);
    (sizes, any::<u64>(), 12..18_u32, 1..12_u32, 0..10_u32, 0..6_u32, any::<bool>()).prop_map(
        |(sizes, seed, transfer_bytes_max_log2, entries, faults_max, retries_max, dedicated)| Run {
            sizes,
            seed,
            transfer_bytes_max_log2,
            entries,
            faults_max,
            retries_max,
            dedicated,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Against the plainest oracle there is, the bytes themselves; and the books of both sides of the portal
    /// agree.
    #[test]
    fn bytes_arrive_and_counters_add_up(run in runs()) {
        let queue = if run.dedicated { dedicated_queue } else { shared_queue }("wq0.0", run.entries);
        let queue = WorkQueueInfo { transfer_bytes_max: 1 << run.transfer_bytes_max_log2, ..queue };
        let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues: vec![queue] }]);
        let device = Emulator::start(&config, FaultPlan::from_seed(run.seed)).expect("a valid configuration");
        let (faults_max, retries_max) = (run.faults_max, run.retries_max);
        let options = DsaOptions { faults_max, retries_max, ..DsaOptions::default() };
        let (mover, dsa) = dsa_mover(vec![device.portal(0)], options);
        let transfers: Vec<_> = run
            .sizes
            .iter()
            .map(|&size| {
                let source: Vec<u8> = (0..size).map(|index| (index * 7 + size) as u8).collect();
                mover.copy(source, vec![0; size], CopyOptions::default())
            })
            .collect();
        let mut reported = CopyReport::default();
        for transfer in transfers {
            let (source, target, report) = transfer.wait().expect("a faulty device fails nothing for good");
            prop_assert!(source == target);
            prop_assert_eq!(report.bytes(), source.len() as u64);
            reported.cpu_bytes += report.cpu_bytes;
            reported.dsa_bytes += report.dsa_bytes;
        }
        let (ours, theirs, all) = (dsa.stats(), device.counters(), mover.stats());
        let copies = run.sizes.iter().filter(|&&size| size > 0).count() as u64;
        prop_assert_eq!(ours.accepted + ours.rejected, copies);
        prop_assert_eq!((ours.operations, ours.errors, ours.leaked_bytes), (ours.accepted, 0, 0));
        let ended = ours.descriptors_done + ours.faults_resumed + ours.descriptors_skipped;
        prop_assert_eq!(ours.descriptors, ended);
        prop_assert_eq!(reported.dsa_bytes, all.bytes_by(EngineKind::Dsa));
        prop_assert_eq!(reported.dsa_bytes, ours.bytes);
        prop_assert_eq!(
            reported.cpu_bytes,
            ours.fallback_bytes + all.bytes_by(EngineKind::Cpu) + all.inline_bytes
        );
        prop_assert_eq!(reported.bytes(), run.sizes.iter().sum::<usize>() as u64);
        // The device keeps its own books.
        let submitted = ours.descriptors - ours.batch_members + ours.batches;
        prop_assert_eq!(
            (submitted, ours.retries, ours.bytes),
            (theirs.accepted, theirs.retried, theirs.bytes_copied)
        );
        // Lists of batches fault as well; then members are skipped.
        let faults_of_lists = theirs.page_faults.checked_sub(ours.faults_resumed);
        prop_assert!(faults_of_lists == Some(0) || ours.descriptors_skipped > 0, "{:?}", faults_of_lists);
        prop_assert_eq!((theirs.dropped, theirs.records_lost), (0, 0));
    }
}
