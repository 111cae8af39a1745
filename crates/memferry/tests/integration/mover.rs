//! Ownership, waiting and falling back: what the mover promises whatever its engines do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::internals::{Endpoints, EngineSite, Faults, Faulty, INLINE_BYTES_MAX, first_engine};
use memferry::memory::{Binding, Mapping, Pool};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, CpuEngine, CpuOptions, DsaEngine, DsaOptions, EngineKind, Mover,
    MoverError, RawRequest, Refusal, Rejected, Route,
};
use memferry::topology::{Machine, NodeId};

use crate::mover_support::{Witness, machine};

const HANG: Duration = Duration::from_secs(60);

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
        RawRequest::new(from, to, 100, move |result| {
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
        RawRequest::new([].as_ptr(), [].as_mut_ptr(), 0, move |result| {
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
        RawRequest::new(from, to, SIZE, move |_| {
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
        let copy = unsafe { RawRequest::new(from, to, SIZE, move |_| drop((source, target))) };
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

/// Whoever waits until there is room again has the copy in hand.
#[test]
fn what_was_refused_has_not_begun() {
    let mover = cpu_mover();
    let go = jam(&mover);
    let (source, mut target) = (vec![1_u8; 5000], vec![0_u8; 5000]);
    // SAFETY: both vectors outlive the copy, which is waited for below.
    let copy = unsafe { RawRequest::new(source.as_ptr(), target.as_mut_ptr(), 5000, |_| {}) };
    let Rejected { copy, .. } = mover.try_start(copy, None, None).expect_err("all is full");
    let mut drain = mover.drain();
    go.send(()).expect("the worker waits");
    let end = Instant::now() + HANG;
    while let Err(still) = drain.try_wait() {
        assert!(Instant::now() < end, "the drain waits for a copy that nobody has");
        drain = still;
        std::thread::yield_now();
    }
    mover.try_start(copy, None, None).expect("there is room");
    mover.drain().wait().expect("a drain does not fail");
    assert_eq!(source, target);
}

/// A copy of up to 8 bytes whose `done` starts the next one.
fn chain(mover: &Mover, size: usize, left: usize, ended: std::sync::mpsc::Sender<usize>) {
    let again = mover.clone();
    let (source, mut target) = (Box::new([7_u8; 8]), Box::new([0_u8; 8]));
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let done = move |_| {
        assert_eq!(source[..size], target[..size]);
        match left {
            0 => ended.send(left).expect("the test waits"),
            _ => chain(&again, size, left - 1, ended),
        }
    };
    // SAFETY: both buffers live in `done`.
    mover.start(unsafe { RawRequest::new(from, to, size, done) }, None, None);
}

/// Small copies are done on the spot, and so were those that their callbacks start: on the same stack.
#[test]
fn a_long_chain_of_small_copies_does_not_nest() {
    let (sender, receiver) = channel();
    chain(&cpu_mover(), 8, 20_000, sender);
    assert_eq!(receiver.recv_timeout(HANG), Ok(0));
}

/// Regression: copies that all engines refused, and those of no bytes, were done on the spot, and so were those that their
/// callbacks started: on the same stack.
#[test]
fn a_long_chain_of_copies_that_the_mover_finishes_does_not_nest() {
    let mover = cpu_mover();
    let (sender, receiver) = channel();
    chain(&mover, 0, 20_000, sender);
    assert_eq!(receiver.recv_timeout(HANG), Ok(0));
    for size in [8, 0] {
        let go = jam(&mover);
        let (sender, receiver) = channel();
        chain(&mover, size, 20_000, sender);
        assert!(receiver.try_recv().is_err(), "it waits for the worker");
        go.send(()).expect("the worker waits");
        assert_eq!(receiver.recv_timeout(HANG), Ok(0), "of {size} bytes");
    }
    let stats = mover.stats();
    assert!(stats.inline_operations > 0 && stats.overflow_operations > 0, "{stats:?}");
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
        mover.start(unsafe { RawRequest::new(from, to, size, done) }, None, None);
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
    // The mover's route, and that of a copy, which comes first. With one engine for all, it is the one of this thread.
    for (route, own, expected) in [
        (Route::RoundRobin, None, [10, 10]),
        (Route::Single, None, [0, 20]),
        (Route::Single, Some(Route::RoundRobin), [10, 10]),
        (Route::RoundRobin, Some(Route::Single), [0, 20]),
    ] {
        let mover = Mover::builder(machine()).engine(engine()).engine(engine()).route(route).build();
        let mover = mover.expect("threads");
        let how = CopyOptions { route: own, ..options() };
        for _ in 0..10 {
            mover.copy(vec![1; 10], vec![0; 10], how).wait().expect("copied");
        }
        let mut batch = mover.batch(how);
        let copies: Vec<_> = (0..10).map(|_| batch.copy(vec![1; 10], vec![0; 10])).collect();
        batch.submit();
        copies.into_iter().for_each(|copy| drop(copy.wait().expect("copied")));
        let mut operations = [0, 1].map(|number: usize| mover.stats().engines[number].operations);
        operations.sort_unstable();
        assert_eq!(operations, expected, "{route:?}, {own:?}");
    }
}

#[test]
fn single_is_the_engine_next_to_the_source() {
    let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat").expect("built in");
    let sites: Vec<_> =
        (0..8).map(|node| EngineSite { kind: EngineKind::Dsa, node: Some(NodeId(node)) }).collect();
    let single = |source: Option<u32>, target: Option<u32>| {
        let endpoints = Endpoints {
            source_node: source.map(NodeId),
            target_node: target.map(NodeId),
            ..Endpoints::default()
        };
        first_engine(Route::Single, &xeon_max, &sites, endpoints)
    };
    assert_eq!(single(Some(3), Some(0)), Some(3));
    // Nodes 8 to 15 are the HBM of nodes 0 to 7, and have no devices of their own.
    assert_eq!(single(Some(13), Some(0)), Some(5));
    assert_eq!(single(None, Some(8)), Some(0));
    assert_eq!(single(None, None), Some(0));
    assert_eq!(first_engine(Route::Single, &xeon_max, &[], Endpoints::default()), None);
    // Without a device on its node, the nearest: in the same socket.
    let endpoints = Endpoints { source_node: Some(NodeId(6)), ..Endpoints::default() };
    assert_eq!(first_engine(Route::Single, &xeon_max, &sites[..5], endpoints), Some(4));
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
