//! Who copies what the callbacks of copies submit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

use memferry::mover::{CpuEngine, CpuOptions, Engine, RawRequest};

use crate::mover_support::machine;

const HANG: Duration = Duration::from_secs(60);
/// More than is done inline.
const SIZE: usize = 5000;

fn engine(workers_count: usize, queue_copies_max: usize) -> Arc<CpuEngine> {
    let options = CpuOptions { workers_count, queue_copies_max, ..CpuOptions::default() };
    Arc::new(CpuEngine::new(&machine(), options).expect("threads"))
}

/// A copy of which `done` is told nothing but that it has ended.
fn copy(done: impl FnOnce() + Send + 'static) -> RawRequest {
    let (source, mut target) = (vec![3_u8; SIZE], vec![0_u8; SIZE]);
    let (from, to) = (source.as_ptr(), target.as_mut_ptr());
    let done = move |result: Result<_, _>| {
        assert!(result.is_ok() && source == target);
        done();
    };
    // SAFETY: both vectors live in `done`.
    unsafe { RawRequest::new(from, to, SIZE, done) }
}

/// Copies that follow each other until there are no more, or it is told to stop.
fn chain(engine: &Arc<CpuEngine>, left: usize, stop: Arc<AtomicBool>, ended: Sender<Vec<ThreadId>>) {
    fn link(
        engine: Arc<CpuEngine>,
        left: usize,
        stop: Arc<AtomicBool>,
        mut threads: Vec<ThreadId>,
        ended: Sender<Vec<ThreadId>>,
    ) -> RawRequest {
        copy(move || {
            if threads.last() != Some(&thread::current().id()) {
                threads.push(thread::current().id());
            }
            if left == 0 || stop.load(Ordering::SeqCst) {
                return ended.send(threads).expect("the test waits");
            }
            let next = link(engine.clone(), left - 1, stop, threads, ended);
            engine.submit(next).expect("there is room");
        })
    }
    engine.submit(link(engine.clone(), left, stop, Vec::new(), ended)).expect("there is room");
}

/// Two workers passed the links of a chain to each other, and with them the bytes from cache to cache.
#[test]
fn a_chain_stays_with_its_worker() {
    let engine = engine(2, 1);
    let (sender, ends) = channel();
    chain(&engine, 10_000, Arc::default(), sender);
    let threads = ends.recv_timeout(HANG).expect("a chain that does not end");
    assert_eq!(threads.len(), 1, "the worker changed");
    let stats = engine.stats();
    assert_eq!((stats.accepted, stats.operations, stats.latencies.count()), (10_001, 10_001, 10_001));
    assert_eq!(stats.bytes, 10_001 * SIZE as u64);
}

/// What its worker keeps for itself must not keep others waiting for ever.
#[test]
fn a_chain_without_end_starves_nobody() {
    let engine = engine(1, 8);
    let (stop, (sender, ends)) = (Arc::new(AtomicBool::new(false)), channel());
    chain(&engine, usize::MAX, stop.clone(), sender);
    let (others, waits) = channel();
    for _ in 0..4 {
        let others = others.clone();
        engine.submit(copy(move || others.send(()).expect("the test waits"))).expect("there is room");
    }
    let came = (0..4).all(|_| waits.recv_timeout(HANG).is_ok());
    stop.store(true, Ordering::SeqCst);
    assert!(came, "the chain went on and on");
    assert_eq!(ends.recv_timeout(HANG).expect("stopped").len(), 1, "there is one worker");
}

/// Of two that a callback submits one is for somebody else: both run at the same time, which the second waits for.
#[test]
fn the_second_that_a_callback_submits_is_anybodys() {
    let engine = engine(2, 8);
    let (sender, met) = channel();
    let submitter = engine.clone();
    let first = copy(move || {
        let (there, here) = (channel(), channel());
        for (tell, hear) in [(there.0, here.1), (here.0, there.1)] {
            let sender = sender.clone();
            let meet = copy(move || {
                tell.send(thread::current().id()).expect("the other waits");
                let other = hear.recv_timeout(HANG).expect("the other comes");
                sender.send(other != thread::current().id()).expect("the test waits");
            });
            submitter.submit(meet).expect("there is room");
        }
    });
    engine.submit(first).expect("there is room");
    for _ in 0..2 {
        assert_eq!(met.recv_timeout(HANG), Ok(true));
    }
}
