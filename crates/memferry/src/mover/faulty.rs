//! An engine for tests that is worse than any real one: it refuses, fails, and reports late, all from a seed;
//! and it can be held, so that copies stay in flight for as long as a test likes.
//!
//! It decorates another engine. What it accepts it finishes exactly once, as every engine does; what it does
//! not fail is copied by the engine inside.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memferry_dsa::Opcode;

use super::done::{Done, Ending};
use super::moment::Moment;
use super::stats::Counters;
use super::{
    CopyError, CopyReport, Engine, EngineKind, EngineStats, MoverError, RawRequest, Refusal, Rejected,
};
use crate::topology::NodeId;

/// What a [`Faulty`] engine does wrong, and how often. `Faults::default()` does nothing wrong.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Copies in a thousand that are refused as if the queue were full.
    pub refuse_per_mille: u32,
    /// Copies in a thousand that end with [`CopyError::Injected`]; half of them after their bytes were copied.
    pub fail_per_mille: u32,
    /// Reports are late by up to this much, which also brings them out of order.
    pub delay_max: Duration,
}

/// Decorates an engine with faults.
///
/// Dropping it releases what it holds and waits until everything is reported. In a forked child nothing is ever
/// reported: its thread is the parent's.
#[derive(Debug)]
pub struct Faulty {
    name: String,
    inner: Option<Arc<dyn Engine>>,
    faults: Faults,
    random: Mutex<Random>,
    shared: Arc<Shared>,
    reporter: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    counters: Counters,
}

#[derive(Default)]
struct State {
    /// Ends that nobody has been told of.
    late: Vec<Late>,
    /// Copies that were accepted and have not come to `late`.
    inside_count: usize,
    held: bool,
    closing: bool,
}

struct Late {
    made: Moment,
    due: Instant,
    done: Done,
    result: Result<CopyReport, CopyError>,
}

impl Faulty {
    /// Decorates `inner`. The same seed and the same submissions give the same refusals and failures.
    ///
    /// # Errors
    /// [`MoverError::Thread`].
    pub fn new(inner: Arc<dyn Engine>, faults: Faults, seed: u64) -> Result<Faulty, MoverError> {
        let name = format!("faulty({})", inner.name());
        let shared = Arc::new(Shared::default());
        let reporter = thread::Builder::new()
            .name("memferry-faulty".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.report()
            })
            .map_err(|source| MoverError::Thread { engine: name.clone(), source })?;
        let random = Mutex::new(Random(seed));
        Ok(Faulty { name, inner: Some(inner), faults, random, shared, reporter: Some(reporter) })
    }

    /// From now on nothing is reported: accepted copies stay in flight.
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Reports again, what was held back included.
    pub fn release(&self) {
        self.shared.lock().held = false;
        self.shared.changed.notify_all();
    }

    fn inner(&self) -> &dyn Engine {
        self.inner.as_deref().expect("there until drop")
    }
}

impl Engine for Faulty {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> EngineKind {
        self.inner().kind()
    }

    fn node(&self) -> Option<NodeId> {
        self.inner().node()
    }

    fn width(&self) -> usize {
        self.inner().width()
    }

    fn supports(&self, opcode: Opcode) -> bool {
        self.inner().supports(opcode)
    }

    fn load(&self) -> usize {
        self.shared.counters.load(&[])
    }

    fn submit(&self, mut copy: RawRequest) -> Result<(), Rejected> {
        let (refuse, fail, before, delay) = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            let (refuse, fail) = (random.per_mille(), random.per_mille());
            (
                refuse < self.faults.refuse_per_mille,
                fail < self.faults.fail_per_mille,
                random.next().is_multiple_of(2),
                self.faults.delay_max.mul_f64(f64::from(random.per_mille()) / 1000.0),
            )
        };
        let (made, due) = (copy.made(), Instant::now() + delay);
        self.shared.counters.submission(|| {
            if refuse {
                return Err(Rejected { copy, why: Refusal::Full });
            }
            self.shared.lock().inside_count += 1;
            let shared = self.shared.clone();
            if fail && before {
                let done = copy.replace_done(Done::call(|_| {}));
                shared.end(Late { made, due, done, result: Err(CopyError::Injected) });
                return Ok(());
            }
            // The engine inside gets the copy with a callback of ours. If it hands the copy back, so do we,
            // with the callback it came with.
            let original = Arc::new(Mutex::new(None));
            let kept = original.clone();
            let done = copy.replace_done(Done::call(move |result: Ending| {
                let done: Option<Done> = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
                // What went wrong inside stays what it is: lost buffers must not pass for injected failures.
                let result =
                    result.and_then(|report| if fail { Err(CopyError::Injected) } else { Ok(report) });
                shared.end(Late {
                    made,
                    due,
                    done: done.expect("put there before the copy was submitted"),
                    result,
                });
            }));
            *original.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            let offered = copy.identity();
            self.inner().submit(copy).or_else(|mut rejected| {
                if rejected.copy.identity() != offered {
                    return Ok(()); // the engine keeps the copy; the other request ends as abandoned
                }
                let done = original.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(rejected.copy.replace_done(done.expect("a rejected copy has not been finished")));
                self.shared.lock().inside_count -= 1;
                Err(rejected)
            })
        })
    }

    fn stats(&self) -> EngineStats {
        let counters = &self.shared.counters;
        let inside = self.inner().stats();
        EngineStats {
            name: self.name.clone(),
            accepted: counters.accepted.get(),
            rejected: counters.rejected.get(),
            operations: counters.operations.get(),
            errors: counters.errors.get(),
            latencies: counters.latencies.read(),
            ..inside
        }
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.held = false;
            state.closing = true;
        }
        self.shared.changed.notify_all();
        // If this was its last owner, the engine inside drains here, into `late`.
        self.inner = None;
        if let Some(reporter) = self.reporter.take()
            && reporter.thread().id() != thread::current().id()
        {
            let _ = reporter.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy has come to its end inside; it is to be reported when it is due.
    fn end(&self, late: Late) {
        let mut state = self.lock();
        state.inside_count -= 1;
        state.late.push(late);
        drop(state);
        self.changed.notify_all();
    }

    /// The reporter's thread.
    fn report(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = state.late.iter().position(|late| late.due <= now).filter(|_| !state.held);
            let next = state.late.iter().map(|late| late.due).min().filter(|_| !state.held);
            state = match (due, next) {
                (Some(index), _) => {
                    let Late { made, done, result, .. } = state.late.swap_remove(index);
                    drop(state);
                    self.counters.end(made, result);
                    done.tell(result);
                    self.lock()
                }
                (None, Some(next)) => {
                    let waited = self.changed.wait_timeout(state, next.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                (None, None) if state.closing && state.inside_count == 0 && state.late.is_empty() => return,
                (None, None) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn per_mille(&mut self) -> u32 {
        (self.next() % 1000) as u32
    }
}
