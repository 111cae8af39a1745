//! A fault-injecting engine for tests: refuses, fails and completes late, from a seed.
//!
//! It decorates another engine, which executes the copies that do not fail. A test can also hold it, so that copies stay
//! in flight.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memferry_dsa::Opcode;

use super::{Engine, Refusal, Rejected};
use crate::moment::Moment;
use crate::mover::error::{CopyError, MoverError};
use crate::mover::request::{Callback, CopyReport, CopyResult, RawRequest};
use crate::mover::stats::{Counters, EngineStats};
use crate::route::EngineKind;
use crate::topology::NodeId;

/// The faults of a [`Faulty`] engine. The default injects none.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Copies in a thousand that are rejected as [`Refusal::Full`].
    pub refuse_per_mille: u32,
    /// Copies in a thousand that complete with [`CopyError::Injected`]; half of them after their bytes were copied.
    pub fail_per_mille: u32,
    /// Completions are delayed by up to this much, and therefore reordered.
    pub delay_max: Duration,
}

/// An engine that injects faults into another one.
///
/// Dropping it releases held completions and waits for all of them. In a forked child nothing completes: the thread
/// belongs to the parent.
#[derive(Debug)]
pub struct Faulty {
    name: String,
    inner: Option<Arc<dyn Engine>>,
    faults: Faults,
    random: Mutex<Random>,
    shared: Arc<Shared>,
    completer: Option<JoinHandle<()>>,
}

/// Shared by submitting threads, the inner engine's threads and the completer; `state` is the lock.
#[derive(Default)]
struct Shared {
    state: Mutex<FaultyState>,
    changed: Condvar,
    counters: Counters,
}

#[derive(Default)]
struct FaultyState {
    /// Completions of the inner engine that are not reported.
    late: Vec<Late>,
    /// Copies that are accepted and not in `late`.
    inside_count: usize,
    held: bool,
    closing: bool,
}

struct Late {
    made: Moment,
    due: Instant,
    callback: Callback,
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
        let completer = thread::Builder::new()
            .name("memferry-faulty".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.complete_late()
            })
            .map_err(|source| MoverError::Thread { engine: name.clone(), source })?;
        let random = Mutex::new(Random(seed));
        Ok(Faulty { name, inner: Some(inner), faults, random, shared, completer: Some(completer) })
    }

    /// Holds all completions from now on: accepted copies stay in flight.
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Releases the held completions and holds no more.
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
                let callback = copy.replace_callback(Callback::new(|_| {}));
                shared.delay(Late { made, due, callback, result: Err(CopyError::Injected) });
                return Ok(());
            }
            // The inner engine gets the copy with another callback. If it hands the copy back, the original callback is
            // restored.
            let original = Arc::new(Mutex::new(None));
            let kept = original.clone();
            let callback = copy.replace_callback(Callback::new(move |result: CopyResult| {
                let callback: Option<Callback> = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
                // An error of the inner engine is kept: lost buffers must not appear as injected failures.
                let result =
                    result.and_then(|report| if fail { Err(CopyError::Injected) } else { Ok(report) });
                shared.delay(Late {
                    made,
                    due,
                    callback: callback.expect("put there before the copy was submitted"),
                    result,
                });
            }));
            *original.lock().unwrap_or_else(PoisonError::into_inner) = Some(callback);
            let offered = copy.identity();
            self.inner().submit(copy).or_else(|mut rejected| {
                if rejected.copy.identity() != offered {
                    return Ok(()); // the engine keeps the copy; the other request completes as abandoned
                }
                let callback = original.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(
                    rejected.copy.replace_callback(callback.expect("a rejected copy has not been finished")),
                );
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
        // If this was the last owner of the inner engine, its copies complete here, into `late`.
        self.inner = None;
        if let Some(completer) = self.completer.take()
            && completer.thread().id() != thread::current().id()
        {
            let _ = completer.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FaultyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a completion of the inner engine until it is due.
    fn delay(&self, late: Late) {
        let mut state = self.lock();
        state.inside_count -= 1;
        state.late.push(late);
        drop(state);
        self.changed.notify_all();
    }

    /// The thread of the completer.
    fn complete_late(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = state.late.iter().position(|late| late.due <= now).filter(|_| !state.held);
            let next = state.late.iter().map(|late| late.due).min().filter(|_| !state.held);
            state = match (due, next) {
                (Some(index), _) => {
                    let Late { made, callback, result, .. } = state.late.swap_remove(index);
                    drop(state);
                    self.counters.end(made, result);
                    callback.call(result);
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
