//! Time-outs of a DSA engine: a queue that makes progress is not lost, and a descriptor that is lost is found.
//!
//! Age once counted from the submission of a descriptor. A healthy device with 32 entries of 42 ms was declared lost
//! after a time-out of 1 s: 128 MiB were leaked, and a scope aborted the process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry::mover::{CopyError, CopyOptions, DsaEngine, DsaOptions, Engine, Guidelines, Mover};
use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::shared_queue;

use crate::mover_support::machine;
use crate::slow::{Pace, Slow};

fn mover(info: WorkQueueInfo, pace: Pace, completion_timeout: Duration) -> (Mover, Arc<DsaEngine>) {
    let options = DsaOptions { completion_timeout, ..DsaOptions::default() };
    let dsa = Arc::new(DsaEngine::new(vec![Slow::new(info, pace)], options).expect("a thread"));
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 };
    let mover = Mover::builder(machine()).guidelines(guidelines).engine(dsa.clone()).build();
    (mover.expect("threads"), dsa)
}

/// 30 copies of 100 ms in one queue, and a time-out of 1 s; of borrowed buffers, so that a device that is declared lost
/// ends the process.
#[test]
fn a_deep_queue_that_makes_progress_is_not_lost() {
    let pace = Pace { ahead: Duration::ZERO, each: Duration::from_millis(100), lost_count: 0 };
    let (mover, dsa) = mover(shared_queue("wq0.0", 32), pace, Duration::from_secs(1));
    let source = vec![7; 4096];
    let mut targets = vec![vec![0; 4096]; 30];
    let copied = mover.scope(|scope| {
        for target in &mut targets {
            scope.copy(&source, target);
        }
    });
    assert_eq!(copied, Ok(()));
    assert!(targets.iter().all(|target| *target == source));
    let stats = dsa.stats();
    assert_eq!((stats.descriptors_lost, stats.leaked_bytes, stats.fallbacks), (0, 0, 0), "{stats:?}");
}

/// Another process has filled the queue: nothing of ours completes for four time-outs.
#[test]
fn a_queue_that_others_keep_busy_is_not_lost() {
    // 8 entries of 1 GiB may take 8 s, at 1 GB/s.
    let info = WorkQueueInfo { transfer_bytes_max: 1 << 30, ..shared_queue("wq0.0", 8) };
    let pace = Pace { ahead: Duration::from_secs(2), each: Duration::ZERO, lost_count: 0 };
    let (mover, _dsa) = mover(info, pace, Duration::from_millis(500));
    let (source, target, _) = mover.copy(vec![7; 100], vec![0; 100], CopyOptions::default()).wait().unwrap();
    assert_eq!(source, target);
}

/// A descriptor that is lost is found, although others keep completing.
#[test]
fn a_lost_descriptor_of_a_busy_queue_is_found() {
    let pace = Pace { ahead: Duration::ZERO, each: Duration::from_millis(20), lost_count: 1 };
    let (mover, dsa) = mover(shared_queue("wq0.0", 8), pace, Duration::from_millis(500));
    let copy = || mover.copy(vec![7; 100], vec![0; 100], CopyOptions::default());
    let start = Instant::now();
    let lost = copy();
    while !lost.is_done() {
        assert!(start.elapsed() < Duration::from_secs(60), "a lost descriptor is waited for");
        let others: Vec<_> = (0..3).map(|_| copy()).collect();
        others.into_iter().for_each(|other| drop(other.wait()));
    }
    assert_eq!(lost.wait().expect_err("it is lost").error, CopyError::DeviceLost);
    assert_eq!(dsa.stats().leaked_bytes % 100, 0);
}
