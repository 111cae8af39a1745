//! Models of a split copy: two engines, each with a thread, accept, refuse and fail items in every order. The copy is
//! finished once, with all of its bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc as StdArc;

use loom::model::Builder;
use loom::thread::{self, JoinHandle};

use super::split::{Cut, Lane, Split, SplitCounters, SplitEngines};
use crate::copy_method::{CopyMethod, CopyMethods};
use crate::mover::engine::halt_poll::HaltPoll;
use crate::mover::engine::queue::Queue;
use crate::mover::engine::{Refusal, Rejected};
use crate::mover::error::CopyError;
use crate::mover::request::{CopyReport, RawRequest};
use crate::sync::{Arc, Latch, Mutex, lock};

/// The smallest items: one byte.
const CUT: Cut = Cut { min: 1, max: 1, grain: 1 };
const SOURCE: [u8; 4] = *b"ferr";

struct Engines {
    queues: [Queue<RawRequest>; 2],
    /// Items that each engine accepts.
    limits: [usize; 2],
    counters: StdArc<SplitCounters>,
}

impl SplitEngines for Arc<Engines> {
    fn submit(&self, engine: usize, item: RawRequest) -> Result<(), Rejected> {
        let pushed = self.queues[engine].push(item, self.limits[engine]);
        pushed.map_err(|(copy, why)| Rejected { copy, why })
    }

    fn take_over(&self, item: RawRequest) {
        let result = item.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
        item.finish(result);
    }

    fn counters(&self) -> &SplitCounters {
        &self.counters
    }
}

struct Outcome {
    result: Mutex<Vec<Result<CopyReport, CopyError>>>,
    is_complete: Latch,
}

/// Splits a copy between two engines with these limits. The second one fails each item with `error`, if any. Passes the
/// result, the target and the counters to `check`.
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
                let (mut taken, mut poll) = (VecDeque::new(), HaltPoll::new());
                let mut pop = || {
                    engines.queues[engine].pop(&mut taken, &mut poll, |_| false);
                    taken.pop_front()
                };
                while let Some(item) = pop() {
                    match error.filter(|_| engine == 1) {
                        Some(error) => item.finish(Err(error)),
                        None => {
                            let result = item.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
                            item.finish(result);
                        }
                    }
                }
            })
        });
        let mut target = vec![0; size_bytes];
        let outcome = Arc::new(Outcome { result: Mutex::new(Vec::new()), is_complete: Latch::new() });
        let shared = outcome.clone();
        let callback = move |result| {
            lock(&shared.result).push(result);
            shared.is_complete.set();
        };
        // SAFETY: the buffers outlive the workers, which are joined below.
        let copy = unsafe { RawRequest::new(SOURCE.as_ptr(), target.as_mut_ptr(), size_bytes, callback) };
        let half = size_bytes / 2;
        let lane = |engine, share: Range<usize>| Lane::new(engine, 1, share);
        let lanes = vec![lane(0, 0..half), lane(1, half..size_bytes)];
        match Split::begin(engines.clone(), copy, lanes, CUT) {
            Ok(()) => {
                outcome.is_complete.wait();
                let results = lock(&outcome.result).clone();
                assert_eq!(results.len(), 1, "finished once");
                check(results[0], &target, &counters);
            }
            Err(Rejected { copy, why }) => {
                assert_eq!(why, Refusal::Full);
                assert!(limits == [0, 0], "an engine had room");
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
fn loom_no_engine_accepts_it() {
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
