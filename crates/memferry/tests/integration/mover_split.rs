//! One copy by several engines: the bytes are those of a plain copy, whoever is slow, full, failing, gone or lost.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, EngineKind,
    EngineStats, Guidelines, Mover, RawRequest, Refusal, Rejected, Route,
};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::Portal;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

const HANG: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn machine() -> Arc<Machine> {
    Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").expect("built in"))
}

fn cpu(workers_count: usize) -> Arc<dyn Engine> {
    let options = CpuOptions { workers_count, ..CpuOptions::default() };
    Arc::new(CpuEngine::new(&machine(), options).expect("threads"))
}

fn dsa(fault_plan: FaultPlan) -> Arc<dyn Engine> {
    let device = Emulator::start(&DeviceConfig::four_engines(), fault_plan).expect("a valid configuration");
    let portals = (0..device.queue_count()).map(|queue| device.portal(queue) as Arc<dyn Portal>);
    Arc::new(DsaEngine::new(portals.collect(), DsaOptions::default()).expect("a thread"))
}

fn faulty(faults: Faults, seed: u64) -> Arc<dyn Engine> {
    Arc::new(Faulty::new(cpu(1), faults, seed).expect("a thread"))
}

/// An engine that reports nothing before it is released: so it takes two pieces, and no more of the others' shares.
fn held() -> Arc<Faulty> {
    let engine = Faulty::new(cpu(1), Faults::default(), 0).expect("a thread");
    engine.hold();
    Arc::new(engine)
}

fn mover(engines: impl IntoIterator<Item = Arc<dyn Engine>>) -> Mover {
    let builder = Mover::builder(machine()).route(Route::All);
    engines.into_iter().fold(builder, |builder, engine| builder.engine(engine)).build().expect("threads")
}

fn pattern(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// Copies, and checks every byte and the report.
fn check(mover: &Mover, size_bytes: usize) -> CopyReport {
    let transfer = mover.copy(pattern(size_bytes), vec![0; size_bytes], CopyOptions::default());
    let (source, target, report) = transfer.wait().expect("copied");
    assert!(source == pattern(size_bytes), "the source was written");
    assert!(target == source, "{size_bytes} bytes differ");
    assert_eq!(report.bytes(), size_bytes as u64);
    report
}

fn bytes_of(mover: &Mover) -> Vec<u64> {
    mover.stats().engines.iter().map(|engine| engine.bytes).collect()
}

/// An engine of which tests say what becomes of a copy; what it does itself happens inside of `submit`.
struct Scripted<F> {
    script: F,
    copies_count: AtomicUsize,
    bytes: AtomicU64,
}

enum Act {
    Copy,
    End(CopyError),
    Refuse(Refusal),
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static DEPTH_MAX: Cell<usize> = const { Cell::new(0) };
}

/// How many `submit`s this thread is in.
struct Depth;

impl Depth {
    fn enter() -> Depth {
        DEPTH.set(DEPTH.get() + 1);
        DEPTH_MAX.set(DEPTH_MAX.get().max(DEPTH.get()));
        Depth
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl<F: Fn(usize) -> Act + Send + Sync + 'static> Scripted<F> {
    fn engine(script: F) -> Arc<dyn Engine> {
        Arc::new(Scripted { script, copies_count: AtomicUsize::new(0), bytes: AtomicU64::new(0) })
    }
}

impl<F> std::fmt::Debug for Scripted<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl<F: Fn(usize) -> Act + Send + Sync> Engine for Scripted<F> {
    fn name(&self) -> &str {
        "scripted"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Cpu
    }

    fn node(&self) -> Option<NodeId> {
        None
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        let _depth = Depth::enter();
        match (self.script)(self.copies_count.fetch_add(1, Ordering::Relaxed)) {
            Act::Refuse(why) => return Err(Rejected { copy, why }),
            Act::End(error) => copy.finish(Err(error)),
            Act::Copy => {
                let size_bytes = copy.size_bytes();
                // SAFETY: the ranges of a copy are good and apart until it is finished.
                unsafe { std::ptr::copy_nonoverlapping(copy.source(), copy.target(), size_bytes) };
                self.bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
                copy.finish(Ok(CopyReport { cpu_bytes: size_bytes as u64, dsa_bytes: 0, file_bytes: 0 }));
            }
        }
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats { bytes: self.bytes.load(Ordering::Relaxed), ..cpu(1).stats() }
    }
}

#[test]
fn bytes_are_those_of_a_plain_copy() {
    let sizes = [1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB + 4097, 17 * MIB + 13];
    for engines in [
        vec![cpu(1), cpu(1)],
        vec![cpu(3)],
        vec![cpu(2), dsa(FaultPlan::none())],
        vec![dsa(FaultPlan::none()), dsa(FaultPlan::none()), cpu(1)],
    ] {
        let mover = mover(engines);
        sizes.iter().for_each(|&size| _ = check(&mover, size));
        let stats = mover.stats();
        assert_eq!(stats.split_operations, 4, "the large ones are split: {stats:?}");
        assert_eq!((stats.split_redone, stats.split_leaked_bytes), (0, 0), "{stats:?}");
        let done: u64 = stats.engines.iter().map(|engine| engine.bytes + engine.fallback_bytes).sum();
        assert_eq!(done, sizes.iter().sum::<usize>() as u64, "each byte once: {stats:?}");
    }
}

#[test]
fn faulty_devices_share_copies_too() {
    println!("seeds 0..12");
    for seed in 0..12 {
        let mover = mover([dsa(FaultPlan::from_seed(seed)), dsa(FaultPlan::from_seed(seed + 100)), cpu(1)]);
        check(&mover, 2 * MIB + seed as usize);
        assert_eq!(mover.stats().split_operations, 1, "seed {seed}");
    }
}

#[test]
fn routes_say_who_takes_part() {
    let on = |node| {
        let options = CpuOptions { node: Some(NodeId(node)), ..CpuOptions::default() };
        let engine = Arc::new(CpuEngine::new(&machine(), options).expect("threads"));
        let engine = Arc::new(Faulty::new(engine, Faults::default(), 0).expect("a thread"));
        engine.hold();
        engine
    };
    let between = |source, target| CopyOptions {
        source_node: Some(NodeId(source)),
        target_node: Some(NodeId(target)),
        ..CopyOptions::default()
    };
    for (route, options, expected) in [
        (Route::Single, between(1, 8), vec![1]),
        (Route::PushPull, between(0, 8), vec![0, 1]),
        (Route::PushPull, between(0, 15), vec![0, 7]),
        (Route::Socket, between(4, 14), vec![4, 5, 6, 7]),
    ] {
        // Whether the mover has it, or the copy.
        for (of_mover, of_copy) in [(route, None), (Route::Smart, Some(route))] {
            let engines: Vec<_> = (0..8).map(on).collect();
            let builder = Mover::builder(machine()).route(of_mover);
            let builder = engines.iter().cloned().fold(builder, |builder, engine| builder.engine(engine));
            let mover = builder.build().expect("threads");
            let size_bytes = 8 * MIB;
            let options = CopyOptions { route: of_copy, ..options };
            let transfer = mover.copy(pattern(size_bytes), vec![0; size_bytes], options);
            // Before that nobody could take over what others had not begun.
            engines.iter().for_each(|engine| engine.release());
            assert!(transfer.wait().expect("copied").1 == pattern(size_bytes));
            let bytes = bytes_of(&mover);
            let took_part: Vec<usize> = (0..bytes.len()).filter(|&engine| bytes[engine] > 0).collect();
            assert_eq!(took_part, expected, "{route:?}, of the copy: {of_copy:?}");
        }
    }
}

/// Regression: engines of a split copy were chosen by the operation alone.
#[test]
fn guidelines_hold_for_split_copies_too() {
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 2 * MIB + 1, llc_bytes: 0 };
    let builder = Mover::builder(machine()).route(Route::All).guidelines(guidelines);
    let builder = builder.engine(dsa(FaultPlan::none())).engine(dsa(FaultPlan::none()));
    let mover = builder.build().expect("threads");
    for (waits, size_bytes, offloads) in
        [(true, 2 * MIB, false), (true, 2 * MIB + 1, true), (false, 2 * MIB, true)]
    {
        let options = CopyOptions { waits, ..CopyOptions::default() };
        let transfer = mover.copy(pattern(size_bytes), vec![0; size_bytes], options);
        let (source, target, report) = transfer.wait().expect("copied");
        assert!(source == target);
        assert_eq!(report.dsa_bytes > 0, offloads, "waits: {waits}, {size_bytes} bytes, {report:?}");
    }
}

#[test]
fn who_is_done_takes_over_from_who_is_slow() {
    let fast = cpu(2);
    let other = fast.clone();
    // So slow that the other one has meanwhile done more than its half, which is 16 MiB.
    let slow = Scripted::engine(move |_| {
        let end = Instant::now() + HANG;
        while other.stats().bytes <= 20 * MIB as u64 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        Act::Copy
    });
    // It comes second, as the first one copies on the thread of whoever submits.
    let mover = mover([fast, slow]);
    check(&mover, 32 * MIB);
    let bytes = bytes_of(&mover);
    assert!(bytes[1] < 12 * MIB as u64, "half would be 16 MiB: {bytes:?}");
}

#[test]
fn an_engine_that_fails_is_made_up_for() {
    for failing_since in [0, 1, 3] {
        let partner = held();
        let its_end = partner.clone();
        let broken = Scripted::engine(move |copy| {
            if copy < failing_since {
                return Act::Copy;
            }
            its_end.release();
            Act::End(CopyError::Device { status: 0x1f })
        });
        let mover = mover([broken, partner as Arc<dyn Engine>]);
        check(&mover, 16 * MIB);
        let stats = mover.stats();
        assert_eq!(stats.split_redone, 1, "it gets nothing more after its first failure: {stats:?}");
        assert_eq!(stats.split_taken_over, 0, "{stats:?}");
    }
    // One that fails when the other has long done the rest.
    let late = Scripted::engine(|_| {
        thread::sleep(Duration::from_millis(200));
        Act::End(CopyError::Device { status: 0x1f })
    });
    // The first one is begun with first, and the late one keeps whoever submits.
    let mover_of_late = mover([cpu(1), late]);
    check(&mover_of_late, 4 * MIB);
    let stats = mover_of_late.stats();
    assert_eq!((stats.split_redone, stats.split_taken_over), (1, 0), "the idle one does it: {stats:?}");
    // Failing after the bytes are there, late, and out of order.
    let faults = Faults { fail_per_mille: 300, delay_max: Duration::from_micros(300), refuse_per_mille: 100 };
    for seed in 0..20 {
        let mover = mover([faulty(faults, seed), cpu(1)]);
        check(&mover, 8 * MIB + 1);
    }
}

#[test]
fn when_all_fail_the_copy_fails_and_returns_its_buffers() {
    let faults = Faults { fail_per_mille: 1000, ..Faults::default() };
    let mover = mover([faulty(faults, 1), faulty(faults, 2)]);
    let error = mover.copy(pattern(4 * MIB), vec![0; 4 * MIB], CopyOptions::default()).wait();
    let error = error.expect_err("all failed");
    assert_eq!(error.error, CopyError::Injected);
    let (source, target) = error.buffers.expect("nobody touches them any more");
    assert!(source == pattern(4 * MIB) && target.len() == source.len());
    assert_eq!(
        mover.stats().split_taken_over,
        0,
        "an error is no reason to try elsewhere, as without a split"
    );
}

#[test]
fn full_and_gone_engines_leave_their_shares_to_others() {
    let refuses = |why| Scripted::engine(move |_| Act::Refuse(why));
    for why in [Refusal::Full, Refusal::Gone] {
        let mover = mover([refuses(why), cpu(1)]);
        check(&mover, 8 * MIB);
        assert_eq!(bytes_of(&mover)[..2], [0, 8 * MIB as u64], "{why:?}");
    }
    // One that takes two pieces in ten: in between, the mover's own engines are asked.
    let moody =
        || Scripted::engine(|copy| if copy % 10 < 2 { Act::Copy } else { Act::Refuse(Refusal::Full) });
    let mover_of_moody = mover([moody(), moody()]);
    check(&mover_of_moody, 32 * MIB);
    let stats = mover_of_moody.stats();
    assert!(stats.split_taken_over > 0 && stats.split_redone == 0, "{stats:?}");
    // Gone after a few pieces, both.
    let leaving = || Scripted::engine(|copy| if copy < 2 { Act::Copy } else { Act::Refuse(Refusal::Gone) });
    check(&mover([leaving(), leaving()]), 32 * MIB);
}

/// A copy that is just too large to be done inline.
fn small_copy(done: impl FnOnce() + Send + 'static) -> RawRequest {
    const SIZE: usize = 4097;
    let bytes = Box::leak(Box::new([1_u8; 2 * SIZE]));
    // SAFETY: the bytes are leaked, and the two halves apart.
    unsafe { RawRequest::new(bytes.as_ptr(), bytes.as_mut_ptr().add(SIZE), SIZE, move |_| done()) }
}

#[test]
fn a_copy_that_nobody_takes_is_handed_back_whole() {
    let engine = || Scripted::engine(|_| Act::Refuse(Refusal::Full));
    // One CPU engine of its own, with one worker.
    let machine = Arc::new(Machine::two_tiers().expect("built in"));
    let mover = Mover::builder(machine).route(Route::All).engine(engine()).engine(engine()).build();
    let mover = mover.expect("threads");
    let (go, gate) = channel::<()>();
    let (started, has_started) = channel();
    let gate = Mutex::new(gate);
    let jam = small_copy(move || {
        started.send(()).expect("the test waits");
        let _ = gate.lock().expect("one thread").recv();
    });
    mover.start(jam, None, None);
    has_started.recv_timeout(HANG).expect("the worker is idle");
    while mover.try_start(small_copy(|| {}), None, None).is_ok() {}
    let (source, mut target) = (pattern(4 * MIB), vec![0; 4 * MIB]);
    let (ended, end) = channel();
    let done = move |result: Result<CopyReport, CopyError>| ended.send(result).expect("the test waits");
    // SAFETY: both outlive the copy, which the test waits for.
    let copy = unsafe { RawRequest::new(source.as_ptr(), target.as_mut_ptr(), source.len(), done) };
    let Rejected { copy, why } = mover.try_start(copy, None, None).expect_err("all is full");
    assert_eq!((why, copy.size_bytes()), (Refusal::Full, 4 * MIB));
    assert!(end.try_recv().is_err(), "not finished");
    mover.start(copy, None, None);
    drop(go);
    let report = end.recv_timeout(HANG).expect("finished").expect("copied");
    assert_eq!(report.bytes(), 4 * MIB as u64);
    assert!(target == source);
    assert_eq!(mover.stats().split_operations, 0);
}

#[test]
fn when_a_device_is_lost_the_buffers_are() {
    let partner = held();
    let its_end = partner.clone();
    let lost = Scripted::engine(move |copy| {
        if copy == 0 {
            return Act::Copy;
        }
        its_end.release();
        Act::End(CopyError::DeviceLost)
    });
    let mover = mover([lost, partner as Arc<dyn Engine>]);
    let error = mover.copy(pattern(8 * MIB), vec![0; 8 * MIB], CopyOptions::default()).wait();
    let error = error.expect_err("lost");
    assert!(error.error == CopyError::DeviceLost && error.buffers.is_none());
    let stats = mover.stats();
    // The engine's own count has its piece, which is at least 128 KiB.
    assert!((4 * MIB as u64..8 * MIB as u64).contains(&stats.split_leaked_bytes), "{stats:?}");
}

/// Keeps the first copy that it gets, and hands that one back in the place of the second, which it keeps as well.
#[derive(Debug, Default)]
struct Swaps(Mutex<Vec<RawRequest>>);

impl Engine for Swaps {
    fn name(&self) -> &str {
        "swaps"
    }
    fn kind(&self) -> EngineKind {
        EngineKind::Cpu
    }
    fn node(&self) -> Option<NodeId> {
        None
    }
    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        let mut kept = self.0.lock().expect("no panic");
        kept.push(copy);
        match kept.len() {
            2 => Err(Rejected { copy: kept.remove(0), why: Refusal::Full }),
            _ => Ok(()),
        }
    }
    fn stats(&self) -> EngineStats {
        cpu(1).stats()
    }
}

/// The piece that a safe engine kept was taken for the one that it handed back: the buffers were given back, and freed,
/// while the engine still had their addresses.
#[test]
fn a_piece_that_was_swapped_is_still_in_flight() {
    let decorated = |swaps: &Arc<Swaps>| -> Arc<dyn Engine> {
        Arc::new(Faulty::new(swaps.clone(), Faults::default(), 0).expect("a thread"))
    };
    for is_decorated in [false, true] {
        let swaps = Arc::new(Swaps::default());
        let engine = if is_decorated { decorated(&swaps) } else { swaps.clone() };
        let mover = mover([engine.clone(), cpu(1)]);
        let (tells, told) = channel();
        let (source, mut target) = (vec![1; 10], vec![0; 10]);
        // SAFETY: both live until the end of the copy, which is awaited.
        #[allow(unsafe_code)]
        let small = unsafe {
            RawRequest::new(source.as_ptr(), target.as_mut_ptr(), 10, move |end| tells.send(end).unwrap())
        };
        engine.submit(small).expect("there is room");
        let transfer = mover.copy(pattern(4 * MIB), vec![0; 4 * MIB], CopyOptions::default());
        assert_eq!(told.recv_timeout(HANG).expect("an end"), Err(CopyError::Abandoned));
        thread::sleep(Duration::from_millis(200));
        assert!(!transfer.is_done(), "an engine has a piece");
        let kept = std::mem::take(&mut *swaps.0.lock().expect("no panic"));
        assert_eq!(kept.len(), 1);
        kept.into_iter().for_each(|piece| cpu(1).submit(piece).expect("there is room"));
        assert!(transfer.wait().expect("copied").1 == pattern(4 * MIB));
    }
}

#[test]
fn engines_that_copy_inside_of_submit_do_not_recurse() {
    let inline = || Scripted::engine(|_| Act::Copy);
    check(&mover([inline(), inline(), inline()]), 64 * MIB);
    assert!(DEPTH_MAX.get() <= 3, "once for each engine, not for each piece: {}", DEPTH_MAX.get());
}

#[test]
fn a_mover_that_is_dropped_finishes_its_split_copies() {
    for _ in 0..20 {
        let mover = mover([cpu(2), cpu(1), dsa(FaultPlan::none())]);
        let transfers: Vec<_> =
            (0..4).map(|_| mover.copy(pattern(3 * MIB), vec![0; 3 * MIB], CopyOptions::default())).collect();
        drop(mover);
        for transfer in transfers {
            assert!(transfer.wait().expect("copied").1 == pattern(3 * MIB));
        }
    }
}

#[test]
fn many_threads_split_at_once() {
    let faults = Faults { refuse_per_mille: 200, delay_max: Duration::from_micros(100), fail_per_mille: 0 };
    let mover = mover([cpu(2), faulty(faults, 7), dsa(FaultPlan::none())]);
    thread::scope(|scope| {
        for thread in 0..4 {
            let mover = &mover;
            scope.spawn(move || {
                for round in 0..8 {
                    let size_bytes = 2 * MIB + thread * 300_000 + round * 77_777;
                    if round % 2 == 0 {
                        check(mover, size_bytes);
                    } else {
                        let (source, mut target) = (pattern(size_bytes), vec![0; size_bytes]);
                        mover.scope(|scope| _ = scope.copy(&source, &mut target)).expect("copied");
                        assert!(source == target);
                    }
                }
            });
        }
    });
    let stats = mover.stats();
    assert_eq!(stats.split_operations, 32, "{stats:?}");
    for engine in stats.engines {
        assert_eq!(engine.accepted, engine.operations + engine.errors, "{engine:?}");
    }
}
