//! A drain waits for all requests before it, on all engines, and for no others.

use std::sync::Arc;
use std::sync::mpsc::channel;

use futures::executor::block_on;
use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyOptions, CpuEngine, CpuOptions, DsaOptions, Guidelines, Mover, RawRequest, Route,
};
use memferry_dsa::Request;
use memferry_dsa_emulator::{DeviceConfig, FaultPlan};

use crate::mover_support::{machine, mover_of};

/// An engine whose copies end when the test says so.
fn held(faults: Faults) -> Arc<Faulty> {
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let held = Arc::new(Faulty::new(Arc::new(cpu), faults, 0).expect("a thread"));
    held.hold();
    held
}

#[test]
fn what_comes_later_is_not_waited_for() {
    let engines = [held(Faults::default()), held(Faults::default())];
    let builder = Mover::builder(machine()).route(Route::RoundRobin);
    let mover = builder.engine(engines[0].clone()).engine(engines[1].clone()).build().expect("threads");
    let early = mover.copy(vec![1; 100], vec![0; 100], CopyOptions::default());
    let drain = mover.clone().drain();
    let late = mover.copy(vec![1; 100], vec![0; 100], CopyOptions::default());
    let drain_of_both = mover.drain();
    assert!(!drain.is_done(), "the first engine has a copy");
    engines[0].release();
    drain.wait().expect("a drain does not fail");
    assert!(early.is_done() && !late.is_done() && !drain_of_both.is_done());
    engines[1].release();
    block_on(drain_of_both).expect("a drain does not fail");
    assert!(late.is_done());
}

#[test]
fn each_copy_of_a_batch_is_waited_for() {
    let engine = held(Faults::default());
    let mover = Mover::builder(machine()).engine(engine.clone()).build().expect("threads");
    let mut batch = mover.batch(CopyOptions::default());
    let copies: Vec<_> = (0..8).map(|byte| batch.copy(vec![byte; 600], vec![0; 600])).collect();
    assert!(mover.drain().is_done(), "it has not begun");
    batch.submit();
    let drain = mover.drain();
    assert!(!drain.is_done());
    engine.release();
    drain.wait().expect("a drain does not fail");
    assert!(copies.iter().all(|copy| copy.is_done()));
}

#[test]
fn failures_and_dropped_handles_end_as_well() {
    let faulty = held(Faults { fail_per_mille: 500, ..Faults::default() });
    let mover = Mover::builder(machine()).engine(faulty.clone()).build().expect("threads");
    let (sender, ends) = channel();
    for _ in 0..100 {
        let (source, mut target) = (vec![1_u8; 300], vec![0_u8; 300]);
        let (from, to) = (source.as_ptr(), target.as_mut_ptr());
        let sender = sender.clone();
        let done = move |result| {
            drop((source, target));
            sender.send(result).expect("the test waits");
        };
        // SAFETY: both vectors live in `done`.
        mover.start(unsafe { RawRequest::new(from, to, 300, done) }, None, None);
    }
    let drain = mover.drain();
    assert!(!drain.is_done());
    faulty.release();
    drain.wait().expect("a drain does not fail");
    // What was reported was reported before.
    let ends: Vec<_> = ends.try_iter().collect();
    assert_eq!(ends.len(), 100);
    assert!(ends.contains(&Err(CopyError::Injected)) && ends.iter().any(Result::is_ok));
}

/// Split among queues, cut short by page faults, in batches, refused, done by the CPU: all of it.
#[test]
fn nothing_is_left_on_a_faulty_device() {
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 };
    for seed in 0..4 {
        let (mover, ..) = mover_of(
            &DeviceConfig::four_engines(),
            FaultPlan::from_seed(seed),
            DsaOptions::default(),
            guidelines,
        );
        let sizes = [0, 1, 4096, 100_000, 3 << 20, 5 << 20];
        let copies: Vec<_> = (sizes.iter().cycle().take(30))
            .map(|&size| mover.copy(vec![seed as u8 + 1; size], vec![0; size], CopyOptions::default()))
            .collect();
        let filled = mover.run(vec![0; 5000], |bytes| Request::fill(7, bytes), CopyOptions::default());
        let mut batch = mover.batch(CopyOptions::default());
        let batched: Vec<_> = (0..20).map(|byte| batch.copy(vec![byte; 600], vec![0; 600])).collect();
        batch.submit();
        mover.drain().wait().expect("a drain does not fail");
        assert!(filled.is_done() && copies.iter().chain(&batched).all(|copy| copy.is_done()), "seed {seed}");
        for copy in copies.into_iter().chain(batched) {
            let (source, target, _) = copy.wait().expect("copied");
            assert!(source == target, "seed {seed}");
        }
    }
}

#[test]
fn a_drain_of_nothing_is_done() {
    let mover = Mover::builder(machine()).build().expect("threads");
    assert!(mover.drain().is_done());
}
