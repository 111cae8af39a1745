//! Ownership, waiting and falling back: what the mover promises whatever its engines do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::memory::{Binding, Mapping, Pool};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, EngineKind,
    EngineSite, Faults, Faulty, Guidelines, INLINE_BYTES_MAX, Journey, Mover, MoverError, RawCopy, Refusal,
    Rejected, Route,
};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::emulator::{DeviceConfig, Emulator, GroupConfig, Nasty, dedicated_queue, shared_queue};
use memferry_dsa::{Descriptor, Portal, PortalCounters, PortalKind, Submission, SubmitError, WorkQueueInfo};
use proptest::prelude::*;

const HANG: Duration = Duration::from_secs(60);

/// Whatever the size, devices are asked.
fn everything_offloaded() -> Guidelines {
    Guidelines { offload_bytes_min: 0, llc_bytes: 0 }
}

fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

fn cpu_mover() -> Mover {
    Mover::builder(machine()).build().expect("threads")
}

/// A mover whose copies go through an engine that tests can hold.
fn held_mover() -> (Mover, Arc<Faulty>) {
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let faulty = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"));
    let mover = Mover::builder(machine()).engine(faulty.clone()).build().expect("threads");
    (mover, faulty)
}

fn options() -> CopyOptions {
    CopyOptions::default()
}

/// Waits until something is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANG, "never: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// A buffer that counts its drops, and is overwritten when it is dropped.
#[derive(Debug)]
struct Witness {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl Witness {
    fn new(byte: u8, drops: &Arc<AtomicUsize>) -> Witness {
        Witness { bytes: vec![byte; 10_000], drops: drops.clone() }
    }
}

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Witness {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.bytes.fill(0xdd);
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn waiting_awaiting_and_looking_return_the_buffers() {
    let (mover, engine) = held_mover();
    let source: Arc<[u8]> = vec![3; 5000].into();
    let (_, target, report) = mover.copy(source.clone(), vec![0; 5000], options()).wait().expect("copied");
    assert_eq!((target[..] == source[..], report.bytes()), (true, 5000));

    let transfer = mover.copy(source.clone(), [0; 5000], options());
    let (_, target, _) = futures::executor::block_on(transfer).expect("copied");
    assert_eq!(target[..], source[..]);

    engine.hold();
    let transfer = mover.copy(source.clone(), vec![0; 5000], options());
    let transfer = transfer.try_wait().expect_err("held");
    assert!(!transfer.is_done());
    engine.release();
    eventually("done", || transfer.is_done());
    let (_, target, _) = transfer.try_wait().expect("done").expect("copied");
    assert_eq!(target[..], source[..]);
}

#[test]
fn mappings_and_blocks_can_be_copied() {
    let pool = Pool::new(machine(), NodeId(1), 1 << 20).expect("addresses");
    let bytes: Vec<u8> = (0..10_000_u32).map(|index| index as u8).collect();
    let block = pool.allocate(bytes.len()).expect("room");
    let mapping = Mapping::new(&machine(), bytes.len(), Binding::Any).expect("memory");
    let mover = cpu_mover();
    let (bytes, block, _) = mover.copy(bytes, block, options()).wait().expect("copied");
    let (_, mapping, _) = mover.copy(block, mapping, options()).wait().expect("copied");
    assert_eq!(mapping[..], bytes[..]);
}

#[test]
fn buffers_in_flight_are_not_freed_whatever_happens_to_the_transfer() {
    let (mover, engine) = held_mover();
    let drops = Arc::new(AtomicUsize::new(0));
    engine.hold();
    let begin = || mover.copy(Witness::new(1, &drops), Witness::new(0, &drops), options());
    drop(begin());
    std::mem::forget(begin());
    let mut polled = Box::pin(begin());
    assert!(futures::FutureExt::now_or_never(&mut polled).is_none());
    drop(polled);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _transfer = begin();
        panic!("this panic belongs to the test");
    }));
    assert!(panicked.is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 0, "freed while in flight");
    engine.release();
    // The forgotten transfer keeps its two for ever.
    eventually("six buffers dropped", || drops.load(Ordering::SeqCst) == 6);
    drop((mover, engine));
    assert_eq!(drops.load(Ordering::SeqCst), 6);
}

#[test]
fn bad_lengths_and_failed_copies_return_the_buffers() {
    let error = cpu_mover().copy(vec![1; 3], vec![0; 4], options()).wait().expect_err("lengths differ");
    assert_eq!(error.error, CopyError::LengthMismatch { source_bytes: 3, target_bytes: 4 });
    assert_eq!(error.buffers, Some((vec![1; 3], vec![0; 4])));

    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let faults = Faults { fail_per_mille: 1000, ..Faults::default() };
    let faulty = Faulty::new(Arc::new(cpu), faults, 0).expect("a thread");
    let mover = Mover::builder(machine()).engine(Arc::new(faulty)).build().expect("threads");
    let error = mover.copy(vec![1; 3], vec![0; 3], options()).wait().expect_err("injected");
    assert_eq!(error.error, CopyError::Injected);
    assert_eq!(error.buffers.expect("returned").0, vec![1; 3]);

    let mut target = [0; 3];
    let scoped = mover.scope(|scope| drop(scope.copy(&[1; 3], &mut target)));
    assert_eq!(scoped, Err(CopyError::Injected));
    let scoped = mover.scope(|scope| scope.copy(&[1; 4], &mut target).wait().map(|_| ()));
    assert_eq!(scoped, Err(CopyError::LengthMismatch { source_bytes: 4, target_bytes: 3 }));
}

#[test]
fn an_empty_copy_is_done_at_once() {
    let transfer = cpu_mover().copy([0_u8; 0], [0_u8; 0], options());
    assert!(transfer.is_done());
    assert_eq!(transfer.wait().expect("nothing to go wrong").2, CopyReport::default());
}

#[test]
fn a_scope_waits_for_copies_whose_handles_are_gone() {
    let (mover, engine) = held_mover();
    let source = vec![9; 100_000];
    let (mut dropped, mut forgotten, mut waited) = (vec![0; 100_000], vec![0; 100_000], vec![0; 100_000]);
    let releaser = {
        engine.hold();
        let engine = engine.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            engine.release();
        })
    };
    let length = mover.scope(|scope| {
        drop(scope.copy(&source, &mut dropped));
        std::mem::forget(scope.copy(&source, &mut forgotten));
        let (target, report) = scope.copy(&source, &mut waited).wait().expect("copied");
        assert_eq!(report.bytes(), 100_000);
        target.len()
    });
    assert_eq!(length, Ok(100_000));
    assert!(dropped == source && forgotten == source && waited == source);
    releaser.join().expect("no panic");
}

#[test]
fn a_scope_waits_when_it_unwinds() {
    let (mover, engine) = held_mover();
    let source = vec![9; 1000];
    let mut target = vec![0; 1000];
    engine.hold();
    let released = Arc::new(AtomicBool::new(false));
    let releaser = {
        let released = released.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            released.store(true, Ordering::SeqCst);
            engine.release();
        })
    };
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        mover.scope(|scope| {
            scope.copy(&source, &mut target);
            panic!("this panic belongs to the test");
        })
    }));
    assert!(panicked.is_err() && released.load(Ordering::SeqCst), "it did not wait");
    assert_eq!(target, source);
    releaser.join().expect("no panic");
}

#[test]
fn the_last_mover_may_go_in_a_callback() {
    let mover = cpu_mover();
    let (sender, receiver) = channel();
    let last = mover.clone();
    // SAFETY: no bytes are read or written before `done`: the vectors live in it.
    let copy = unsafe {
        let (source, mut target) = (vec![1_u8; 100], vec![0_u8; 100]);
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        RawCopy::new(from, to, 100, move |result| {
            drop(last);
            sender.send((result, source == target)).expect("the test waits");
        })
    };
    mover.start(copy, None, None);
    drop(mover);
    let (result, equal) = receiver.recv_timeout(HANG).expect("a worker waited for itself");
    assert_eq!((result.map(|report| report.bytes()), equal), (Ok(100), true));
}

#[test]
fn a_copy_that_an_engine_drops_is_reported() {
    let (sender, receiver) = channel();
    // SAFETY: a copy of nothing touches nothing.
    let copy = unsafe {
        RawCopy::new([].as_ptr(), [].as_mut_ptr(), 0, move |result| {
            sender.send(result).expect("the test waits")
        })
    };
    drop(copy);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Err(CopyError::Abandoned)]);
}

/// Blocks the only worker of a mover, and fills its queue. Returns what lets the worker go again.
fn jam(mover: &Mover) -> std::sync::mpsc::Sender<()> {
    let (go, gate) = channel::<()>();
    let (started, has_started) = channel();
    let gate = Mutex::new(gate);
    // More than is done inline.
    const SIZE: usize = 5000;
    // SAFETY: the bytes are leaked, and apart.
    let copy = unsafe {
        let bytes = Box::leak(Box::new([1_u8; 2 * SIZE]));
        let (from, to) = (bytes.as_ptr(), bytes.as_mut_ptr().add(SIZE));
        RawCopy::new(from, to, SIZE, move |_| {
            started.send(()).expect("the test waits");
            let _ = gate.lock().expect("one thread").recv();
        })
    };
    mover.start(copy, None, None);
    has_started.recv_timeout(HANG).expect("the worker is idle");
    loop {
        let (source, mut target) = (vec![1_u8; SIZE], vec![0_u8; SIZE]);
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        // SAFETY: both vectors live in `done`.
        let copy = unsafe { RawCopy::new(from, to, SIZE, move |_| drop((source, target))) };
        if let Err(Rejected { why, copy }) = mover.try_start(copy, None, None) {
            assert_eq!((why, copy.size_bytes()), (Refusal::Full, SIZE));
            return go;
        }
    }
}

#[test]
fn when_all_is_full_small_copies_are_done_at_once_and_large_ones_wait() {
    let mover = cpu_mover();
    let go = jam(&mover);
    let small = mover.copy(vec![1; INLINE_BYTES_MAX], vec![0; INLINE_BYTES_MAX], options());
    assert!(small.is_done(), "the caller does it");
    let large = mover.copy(vec![1; INLINE_BYTES_MAX + 1], vec![0; INLINE_BYTES_MAX + 1], options());
    assert!(!large.is_done(), "the caller is not kept");
    go.send(()).expect("the worker waits");
    let (source, target, _) = large.wait().expect("copied");
    assert_eq!(source, target);
    let stats = mover.stats();
    assert_eq!((stats.inline_operations, stats.inline_bytes), (1, INLINE_BYTES_MAX as u64));
    assert_eq!(stats.overflow_operations, 1);
}

/// A copy whose `done` starts the next one.
fn chain(mover: &Mover, left: usize, ended: std::sync::mpsc::Sender<usize>) {
    let again = mover.clone();
    let (source, mut target) = (Box::new([7_u8; 8]), Box::new([0_u8; 8]));
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let done = move |_| {
        assert_eq!(*source, *target);
        match left {
            0 => ended.send(left).expect("the test waits"),
            _ => chain(&again, left - 1, ended),
        }
    };
    // SAFETY: both buffers live in `done`.
    mover.start(unsafe { RawCopy::new(from, to, 8, done) }, None, None);
}

/// Small copies are done on the spot, and so were those that their callbacks start: on the same stack.
#[test]
fn a_long_chain_of_small_copies_does_not_nest() {
    let (sender, receiver) = channel();
    chain(&cpu_mover(), 20_000, sender);
    assert_eq!(receiver.recv_timeout(HANG), Ok(0));
}

#[test]
fn small_copies_are_done_by_who_submits_them() {
    let mover = cpu_mover();
    let (small, limit) = (Arc::new(AtomicUsize::new(0)), CpuOptions::default().inline_bytes_max);
    let who = thread::current().id();
    for size in [1, limit, limit + 1] {
        let (sender, receiver) = channel();
        let (source, mut target) = (vec![1_u8; size], vec![0_u8; size]);
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        let small = small.clone();
        let done = move |_| {
            small.fetch_add(usize::from(thread::current().id() == who), Ordering::SeqCst);
            sender.send(source == target).expect("the test waits");
        };
        // SAFETY: both vectors live in `done`.
        mover.start(unsafe { RawCopy::new(from, to, size, done) }, None, None);
        assert_eq!(receiver.recv_timeout(HANG), Ok(true));
    }
    assert_eq!(small.load(Ordering::SeqCst), 2);
    let stats = mover.stats();
    assert_eq!((stats.engines[0].operations, stats.engines[0].latencies.count()), (3, 3));
    assert_eq!(stats.inline_operations, 0, "that is for copies that all engines refused");
}

#[test]
fn round_robin_takes_turns_and_single_stays() {
    let engine = || Arc::new(CpuEngine::new(&machine(), CpuOptions::default()).expect("threads"));
    for (route, expected) in [(Route::RoundRobin, [5, 5]), (Route::Single, [10, 0])] {
        let mover = Mover::builder(machine()).engine(engine()).engine(engine()).route(route).build();
        let mover = mover.expect("threads");
        for _ in 0..10 {
            mover.copy(vec![1; 10], vec![0; 10], options()).wait().expect("copied");
        }
        let operations: Vec<u64> = mover.stats().engines.iter().map(|engine| engine.operations).collect();
        assert_eq!(operations[..2], expected, "{route:?}");
    }
}

#[test]
fn single_is_the_engine_next_to_the_source() {
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat").expect("built in");
    let sites: Vec<_> =
        (0..8).map(|node| EngineSite { kind: EngineKind::Dsa, node: Some(NodeId(node)) }).collect();
    let single = |source: Option<u32>, target: Option<u32>| {
        let journey = Journey {
            source_node: source.map(NodeId),
            target_node: target.map(NodeId),
            ..Journey::default()
        };
        Route::Single.first(&xeon_max, &sites, journey)
    };
    assert_eq!(single(Some(3), Some(0)), Some(3));
    // Nodes 8 to 15 are the HBM of nodes 0 to 7, and have no devices of their own.
    assert_eq!(single(Some(13), Some(0)), Some(5));
    assert_eq!(single(None, Some(8)), Some(0));
    assert_eq!(single(None, None), Some(0));
    assert_eq!(Route::Single.first(&xeon_max, &[], Journey::default()), None);
    // Without a device on its node, the nearest: in the same socket.
    let journey = Journey { source_node: Some(NodeId(6)), ..Journey::default() };
    assert_eq!(Route::Single.first(&xeon_max, &sites[..5], journey), Some(4));
}

#[test]
fn movers_and_engines_refuse_nonsense() {
    assert!(matches!(Mover::builder(machine()).cpu_workers(0).build(), Err(MoverError::NoWorkers)));
    let nowhere = CpuOptions { node: Some(NodeId(77)), ..CpuOptions::default() };
    assert!(matches!(CpuEngine::new(&machine(), nowhere), Err(MoverError::Topology(_))));
    let no_queue = CpuOptions { queue_copies_max: 0, ..CpuOptions::default() };
    assert!(matches!(CpuEngine::new(&machine(), no_queue), Err(MoverError::NoQueue)));
    assert!(matches!(DsaEngine::new(vec![], DsaOptions::default()), Err(MoverError::NoPortals)));
    // A node that the machine does not have is no reason not to copy.
    let unknown = CopyOptions { source_node: Some(NodeId(77)), ..options() };
    assert!(cpu_mover().copy(vec![1], vec![0], unknown).wait().is_ok());
}

#[test]
fn workers_are_pinned_on_this_machine_and_not_on_a_profile() {
    let here = Machine::discover().expect("this machine can be read");
    let node = here.nodes().iter().find(|node| !node.cpus.is_empty()).expect("CPUs are somewhere");
    let options = CpuOptions { node: Some(node.id), workers_count: 2, ..CpuOptions::default() };
    assert_eq!(CpuEngine::new(&here, options).expect("threads").pinned_workers_count(), 2);
    let options = CpuOptions { node: Some(NodeId(0)), ..CpuOptions::default() };
    assert_eq!(CpuEngine::new(&machine(), options).expect("threads").pinned_workers_count(), 0);
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

    fn settled(&self, _: u32) {}

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
        let nasty = Nasty { delay_steps_max: 1000, ..Nasty::from_seed(seed) };
        let device = Emulator::start(&DeviceConfig::one_shared_queue(), nasty).expect("a device");
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
    let nasty = Nasty { lost_records_per_mille: 1000, ..Nasty::none() };
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), nasty).expect("a device");
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
    let nasty = Nasty { retries_per_mille: 1000, ..Nasty::none() };
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), nasty).expect("a device");
    let (mover, dsa) = dsa_mover(vec![device.portal(0)], DsaOptions::default());
    let (source, target, report) = mover.copy(vec![1; 100], vec![0; 100], options()).wait().expect("copied");
    assert_eq!((source == target, report), (true, CopyReport { cpu_bytes: 100, dsa_bytes: 0 }));
    let stats = dsa.stats();
    assert_eq!((stats.retries, stats.fallbacks, stats.fallback_bytes), (11, 1, 100), "{stats:?}");
    assert_eq!(device.counters().retried, 11);
}

#[test]
fn a_device_waits_for_pages_only_if_asked_and_allowed() {
    for (asked, allowed) in [(false, true), (true, false), (true, true)] {
        let queue = WorkQueueInfo { block_on_fault: allowed, ..shared_queue("wq0.0", 8) };
        let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
        let nasty = Nasty { page_faults_per_mille: 500, ..Nasty::none() };
        let device = Emulator::start(&config, nasty).expect("a device");
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
        .args(["--exact", "borrowed_buffers_of_a_dead_device_abort_the_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this test can be run");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(said.contains("a device died while it could write to borrowed memory"), "{said}");
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

/// A run of copies on a nasty device: their sizes, and how the device and the engine are set up.
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
        let device = Emulator::start(&config, Nasty::from_seed(run.seed)).expect("a valid configuration");
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
            let (source, target, report) = transfer.wait().expect("a nasty device fails nothing for good");
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
