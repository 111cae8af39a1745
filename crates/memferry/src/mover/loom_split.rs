//! Models of a split copy: two engines, each with a thread, that take, refuse and fail pieces in every order. It is
//! finished once, with all of its bytes, and nothing is left over.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc as StdArc;

use loom::model::Builder;
use loom::thread::{self, JoinHandle};

use super::linger::Linger;
use super::queue::Queue;
use super::split::{Crew, Cut, Lane, Split, SplitCounters};
use super::{CopyError, CopyMethod, CopyMethods, CopyReport, RawRequest, Refusal, Rejected};
use crate::sync::{Arc, Latch, Mutex, lock};

/// As small as can be: pieces of one byte.
const CUT: Cut = Cut { min: 1, max: 1, grain: 1 };
const SOURCE: [u8; 4] = *b"ferr";

struct Engines {
    queues: [Queue<RawRequest>; 2],
    /// What an engine accepts.
    limits: [usize; 2],
    counters: StdArc<SplitCounters>,
}

impl Crew for Arc<Engines> {
    fn submit(&self, engine: usize, piece: RawRequest) -> Result<(), Rejected> {
        let pushed = self.queues[engine].push(piece, self.limits[engine]);
        pushed.map_err(|(copy, why)| Rejected { copy, why })
    }

    fn take_over(&self, piece: RawRequest) {
        let result = piece.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
        piece.finish(result);
    }

    fn counters(&self) -> &SplitCounters {
        &self.counters
    }
}

struct Outcome {
    result: Mutex<Vec<Result<CopyReport, CopyError>>>,
    finished: Latch,
}

/// Splits a copy of so many bytes between two engines that accept so many pieces at a time, the second of which
/// ends each with `error`, if any. What it comes to, and the counters.
fn model(
    size_bytes: usize,
    limits: [usize; 2],
    error: Option<CopyError>,
    check: impl Fn(Result<CopyReport, CopyError>, &[u8], &SplitCounters) + Send + Sync + 'static,
) {
    let mut builder = Builder::new();
    // With three all models together take a minute; more takes long.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let counters = StdArc::new(SplitCounters::default());
        let engines =
            Arc::new(Engines { queues: [Queue::new(), Queue::new()], limits, counters: counters.clone() });
        let workers: [JoinHandle<()>; 2] = [0, 1].map(|engine| {
            let engines = engines.clone();
            thread::spawn(move || {
                let (mut taken, mut linger) = (VecDeque::new(), Linger::new());
                let mut pop = || {
                    engines.queues[engine].pop(&mut taken, &mut linger, |_| false);
                    taken.pop_front()
                };
                while let Some(piece) = pop() {
                    match error.filter(|_| engine == 1) {
                        Some(error) => piece.finish(Err(error)),
                        None => {
                            let result = piece.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
                            piece.finish(result);
                        }
                    }
                }
            })
        });
        let mut target = vec![0; size_bytes];
        let outcome = Arc::new(Outcome { result: Mutex::new(Vec::new()), finished: Latch::new() });
        let told = outcome.clone();
        let done = move |result| {
            lock(&told.result).push(result);
            told.finished.set();
        };
        // SAFETY: the buffers outlive the workers, which are joined below.
        let copy = unsafe { RawRequest::new(SOURCE.as_ptr(), target.as_mut_ptr(), size_bytes, done) };
        let half = size_bytes / 2;
        let lane = |engine, share: Range<usize>| Lane::new(engine, 1, share);
        let lanes = vec![lane(0, 0..half), lane(1, half..size_bytes)];
        match Split::begin(engines.clone(), copy, lanes, CUT) {
            Ok(()) => {
                outcome.finished.wait();
                let results = lock(&outcome.result).clone();
                assert_eq!(results.len(), 1, "finished once");
                check(results[0], &target, &counters);
            }
            Err(Rejected { copy, why }) => {
                assert_eq!(why, Refusal::Full);
                assert!(limits == [0, 0], "somebody had room");
                copy.cancel();
            }
        }
        engines.queues.iter().for_each(Queue::close);
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
}

fn is_copied(result: Result<CopyReport, CopyError>, target: &[u8]) {
    assert_eq!(result.map(|report| report.bytes()), Ok(target.len() as u64));
    assert_eq!(target, &SOURCE[..target.len()]);
}

#[test]
fn loom_two_engines_share() {
    model(4, [2, 2], None, |result, target, counters| {
        is_copied(result, target);
        assert_eq!((counters.redone.get(), counters.taken_over.get()), (0, 0));
    });
}

#[test]
fn loom_one_engine_refuses() {
    model(3, [1, 0], None, |result, target, _| is_copied(result, target));
}

#[test]
fn loom_nobody_takes_it() {
    model(2, [0, 0], None, |_, _, _| unreachable!());
}

#[test]
fn loom_one_engine_fails() {
    model(3, [2, 2], Some(CopyError::Injected), |result, target, counters| {
        is_copied(result, target);
        assert!(counters.redone.get() <= 2);
    });
}

#[test]
fn loom_a_device_is_lost() {
    model(3, [1, 2], Some(CopyError::DeviceLost), |result, target, counters| match result {
        // The first engine did both bytes.
        Ok(_) => is_copied(result, target),
        Err(error) => {
            assert_eq!(error, CopyError::DeviceLost);
            assert_eq!(counters.redone.get(), 0);
        }
    });
}
