//! The records that a completer watches, with their waiters.
//!
//! Entering a record allocates nothing: all places exist from the start, 64 of them under one lock. The completer visits the
//! chunks with watched records, polls each record under the lock of its chunk, and wakes waiters without the lock. It polls
//! a record only between `enter` and `remove`, which take the same lock, so the memory may be freed after `remove`.

use std::sync::PoisonError;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, Mutex, Ordering, Thread};

/// Places of a chunk: the bits of its masks.
const CHUNK_PLACES: usize = if cfg!(memferry_loom) { 2 } else { 64 };

/// The error of a wait without a completion in time. The descriptor may still be in flight, and its memory in use.
///
/// ```
/// use memferry_dsa::{CompletionRecord, TimedOut, Wait};
/// use std::time::Duration;
///
/// let never = CompletionRecord::new();
/// assert!(matches!(Wait::Pause.wait(&never, Duration::ZERO), Err(TimedOut { .. })));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no completion after {waited:?}: ask whether the device is gone, see its errors in sysfs, and do not use the \
     descriptor's memory"
)]
pub struct TimedOut {
    /// The duration of the wait.
    pub waited: Duration,
}

/// A source of outcomes: a completion record, or a fake in tests.
pub(super) trait Source {
    type Found: Copy;
    fn poll(&self) -> Option<Self::Found>;
}

/// The waiter of a record.
pub(super) enum Waiter {
    Thread(Thread),
    Waker(Waker),
}

impl Waiter {
    pub(super) fn wake(self) {
        match self {
            Waiter::Thread(thread) => thread.unpark(),
            Waiter::Waker(waker) => waker.wake(),
        }
    }
}

/// The outcome of a watched record.
pub(super) type Outcome<F> = Result<F, TimedOut>;

pub(super) struct Table<S: Source> {
    chunks: Box<[Chunk<S>]>,
}

/// | field | written by | read by |
/// |---|---|---|
/// | `watched` | the holder of the lock | the completer, to skip chunks without watched records |
/// | `places` | the holder of the lock | the holder of the lock |
struct Chunk<S: Source> {
    watched: AtomicU64, // bit n: place n is watched
    places: Mutex<Places<S>>,
}

struct Places<S: Source> {
    taken: u64,
    list: Box<[Place<S>]>,
}

struct Place<S: Source> {
    source: Option<S>, // Some while it is watched
    waiter: Option<Waiter>,
    since: Instant,
    timeout: Duration,
    outcome: Option<Outcome<S::Found>>,
}

/// A place in use.
#[derive(Debug)]
pub(super) struct Ticket(usize);

/// The result of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Swept {
    /// Records without an outcome.
    pub(super) watched_count: usize,
    /// The time of the youngest of those.
    pub(super) youngest: Option<Instant>,
    /// Records that were written.
    pub(super) found_count: usize,
    /// Records that timed out.
    pub(super) timed_out_count: usize,
}

impl<S: Source> Table<S> {
    /// A table with at least `places_min` places, all allocated now.
    pub(super) fn new(places_min: usize) -> Table<S> {
        let now = Instant::now();
        let place =
            || Place { source: None, waiter: None, since: now, timeout: Duration::ZERO, outcome: None };
        let chunk = || Chunk {
            watched: AtomicU64::new(0),
            places: Mutex::new(Places { taken: 0, list: (0..CHUNK_PLACES).map(|_| place()).collect() }),
        };
        Table { chunks: (0..places_min.div_ceil(CHUNK_PLACES).max(1)).map(|_| chunk()).collect() }
    }

    /// Takes a free place, if there is one. The caller then announces it to the completer.
    pub(super) fn enter(
        &self,
        source: S,
        waiter: Option<Waiter>,
        since: Instant,
        timeout: Duration,
    ) -> Option<Ticket> {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let mut places = chunk.lock();
            let free = (!places.taken).trailing_zeros() as usize;
            if free >= CHUNK_PLACES {
                continue;
            }
            places.taken |= 1 << free;
            places.list[free] = Place { source: Some(source), waiter, since, timeout, outcome: None };
            // ORDERING: Relaxed: the announcement that follows (`Gate::announce`) publishes the bit to the completer.
            chunk.watched.fetch_or(1 << free, Ordering::Relaxed);
            return Some(Ticket(number * CHUNK_PLACES + free));
        }
        None
    }

    /// The outcome, if there is one.
    pub(super) fn outcome(&self, ticket: &Ticket) -> Option<Outcome<S::Found>> {
        self.chunk(ticket).lock().list[ticket.0 % CHUNK_PLACES].outcome
    }

    /// The outcome; without one, `waker` is woken later.
    pub(super) fn outcome_or_wake(&self, ticket: &Ticket, waker: &Waker) -> Option<Outcome<S::Found>> {
        // Wakers are foreign code, which may use the table: they are neither cloned nor dropped under the lock.
        let mut waiter = Some(Waiter::Waker(waker.clone()));
        let mut places = self.chunk(ticket).lock();
        let place = &mut places.list[ticket.0 % CHUNK_PLACES];
        let outcome = place.outcome;
        if outcome.is_none() {
            std::mem::swap(&mut place.waiter, &mut waiter);
        }
        drop(places);
        drop(waiter);
        outcome
    }

    /// Frees the place. The record is not polled after this.
    pub(super) fn remove(&self, ticket: Ticket) -> Option<Outcome<S::Found>> {
        let chunk = self.chunk(&ticket);
        let index = ticket.0 % CHUNK_PLACES;
        let mut places = chunk.lock();
        let place = &mut places.list[index];
        place.source = None;
        // A waker's drop may run foreign code: not under the lock.
        let (waiter, outcome) = (place.waiter.take(), place.outcome.take());
        places.taken &= !(1 << index);
        chunk.watched.fetch_and(!(1 << index), Ordering::Relaxed);
        drop(places);
        drop(waiter);
        outcome
    }

    /// Polls every record once. Adds the waiters to wake to `wake`.
    pub(super) fn sweep(&self, now: Instant, wake: &mut Vec<Waiter>) -> Swept {
        let mut swept = Swept { watched_count: 0, youngest: None, found_count: 0, timed_out_count: 0 };
        for chunk in &self.chunks {
            // ORDERING: Relaxed: see `enter`.
            if chunk.watched.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut places = chunk.lock();
            // Under the lock the mask is exact.
            let mut left = chunk.watched.load(Ordering::Relaxed);
            while left != 0 {
                let index = left.trailing_zeros() as usize;
                left &= left - 1;
                let place = &mut places.list[index];
                let waited = now.saturating_duration_since(place.since);
                place.outcome = match place.source.as_ref().and_then(S::poll) {
                    Some(found) => Some(Ok(found)),
                    None if waited >= place.timeout => Some(Err(TimedOut { waited })),
                    None => {
                        swept.watched_count += 1;
                        swept.youngest = swept.youngest.max(Some(place.since));
                        continue;
                    }
                };
                match place.outcome {
                    Some(Ok(_)) => swept.found_count += 1,
                    _ => swept.timed_out_count += 1,
                }
                place.source = None;
                wake.extend(place.waiter.take());
                chunk.watched.fetch_and(!(1 << index), Ordering::Relaxed);
            }
        }
        swept
    }

    fn chunk(&self, ticket: &Ticket) -> &Chunk<S> {
        &self.chunks[ticket.0 / CHUNK_PLACES]
    }
}

impl<S: Source> Chunk<S> {
    #[cfg(not(memferry_loom))]
    fn lock(&self) -> std::sync::MutexGuard<'_, Places<S>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(memferry_loom)]
    fn lock(&self) -> loom::sync::MutexGuard<'_, Places<S>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::{Arc, mpsc};
    use std::task::Wake;
    use std::thread;

    use super::*;

    struct Fake(Rc<Cell<Option<u32>>>);

    impl Source for Fake {
        type Found = u32;
        fn poll(&self) -> Option<u32> {
            self.0.get()
        }
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn places_are_used_again() {
        let table = Table::new(65);
        let record = Rc::new(Cell::new(None));
        let now = Instant::now();
        let enter = || table.enter(Fake(record.clone()), None, now, LONG);
        let mut tickets: Vec<_> = std::iter::from_fn(enter).collect();
        assert_eq!(tickets.len(), 128, "two chunks");
        assert_eq!(table.sweep(now, &mut Vec::new()).watched_count, 128);
        assert_eq!(table.remove(tickets.swap_remove(70)), None);
        assert_eq!(table.sweep(now, &mut Vec::new()).watched_count, 127);
        assert!(enter().is_some() && enter().is_none());
        record.set(Some(7));
        let mut wake = Vec::new();
        let swept = table.sweep(now, &mut wake);
        assert_eq!((swept.watched_count, swept.found_count, wake.len()), (0, 128, 0));
        assert_eq!(table.sweep(now, &mut wake).found_count, 0, "each is found once");
        assert!(enter().is_none(), "outcomes wait to be fetched");
        assert!(tickets.into_iter().all(|ticket| table.remove(ticket) == Some(Ok(7))));
        assert!(enter().is_some());
    }

    /// A waker that gives its own place back when it is dropped hung: it was dropped under the lock.
    #[test]
    fn wakers_may_enter_the_table_when_they_are_dropped() {
        struct Pending;
        impl Source for Pending {
            type Found = u32;
            fn poll(&self) -> Option<u32> {
                None
            }
        }
        struct Removes(Arc<Table<Pending>>, Mutex<Option<Ticket>>);
        impl Wake for Removes {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Removes {
            fn drop(&mut self) {
                let ticket = self.1.lock().unwrap().take().unwrap();
                assert_eq!(self.0.remove(ticket), None);
            }
        }
        let (tells, told) = mpsc::channel();
        thread::spawn(move || {
            let table = Arc::new(Table::new(2));
            let enter = || table.enter(Pending, None, Instant::now(), LONG).unwrap();
            let (ticket, its) = (enter(), Mutex::new(Some(enter())));
            let waker = Waker::from(Arc::new(Removes(table.clone(), its)));
            assert_eq!(table.outcome_or_wake(&ticket, &waker), None);
            drop(waker);
            assert_eq!(table.outcome_or_wake(&ticket, Waker::noop()), None);
            tells.send(table.sweep(Instant::now(), &mut Vec::new()).watched_count).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(1));
    }

    #[test]
    fn time_runs_out_for_each_by_itself() {
        let table = Table::new(1);
        let (now, silent) = (Instant::now(), Rc::new(Cell::new(None)));
        let second = Duration::from_secs(1);
        let short = table.enter(Fake(silent.clone()), None, now, second).unwrap();
        let long = table.enter(Fake(silent.clone()), None, now + second, LONG).unwrap();
        let swept = table.sweep(now + second / 2, &mut Vec::new());
        assert_eq!((swept.watched_count, swept.youngest), (2, Some(now + second)));
        let swept = table.sweep(now + second, &mut Vec::new());
        assert_eq!((swept.watched_count, swept.timed_out_count), (1, 1));
        assert_eq!(table.outcome(&short), Some(Err(TimedOut { waited: second })));
        // What is complete is no time-out, however late anybody looks.
        silent.set(Some(1));
        table.sweep(now + 1000 * second, &mut Vec::new());
        assert_eq!(table.outcome(&long), Some(Ok(1)));
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};

    use super::super::gate::Gate;
    use super::*;

    /// A record in memory that may be gone: looking at it then is what must not happen.
    struct Fake {
        done: Arc<AtomicBool>,
        alive: Arc<AtomicBool>,
    }

    impl Source for Fake {
        type Found = u32;
        fn poll(&self) -> Option<u32> {
            assert!(self.alive.load(Ordering::Relaxed), "looked at after it was removed");
            self.done.load(Ordering::Acquire).then_some(7)
        }
    }

    const LONG: Duration = Duration::from_secs(10_000);

    struct Shared {
        table: Table<Fake>,
        gate: Gate,
    }

    /// The completer's loop, until it has found `count`; it sleeps only when it watches nothing.
    fn complete(shared: &Shared, count: usize) {
        let mut found = 0;
        while found < count {
            let seen = shared.gate.seen();
            let mut wake = Vec::new();
            let swept = shared.table.sweep(Instant::now(), &mut wake);
            wake.into_iter().for_each(Waiter::wake);
            found += swept.found_count;
            if found == count {
                break;
            }
            if swept.watched_count == 0 {
                if shared.gate.lie_down(seen) {
                    while shared.gate.is_lying() {
                        loom::thread::park();
                    }
                }
            } else {
                loom::thread::yield_now();
            }
        }
    }

    /// A thread enters a record and sleeps until it is told; the device completes it at any time. Nobody sleeps for
    /// ever.
    #[test]
    fn loom_table_wakes() {
        loom::model(|| {
            let shared = Arc::new(Shared { table: Table::new(1), gate: Gate::new() });
            let done = Arc::new(AtomicBool::new(false));
            let alive = Arc::new(AtomicBool::new(true));
            let completer = loom::thread::current();
            let waiter = {
                let (shared, done) = (Arc::clone(&shared), Arc::clone(&done));
                loom::thread::spawn(move || {
                    let source = Fake { done: Arc::clone(&done), alive };
                    let me = Waiter::Thread(loom::thread::current());
                    // The device is quick: done before the record is entered, or after.
                    done.store(true, Ordering::Release);
                    let ticket = shared.table.enter(source, Some(me), Instant::now(), LONG).unwrap();
                    if shared.gate.announce() {
                        completer.unpark();
                    }
                    while shared.table.outcome(&ticket).is_none() {
                        loom::thread::park();
                    }
                    assert_eq!(shared.table.remove(ticket), Some(Ok(7)));
                })
            };
            complete(&shared, 1);
            waiter.join().unwrap();
        });
    }

    /// A record is removed while the completer looks: afterwards its memory may go.
    #[test]
    fn loom_table_removes() {
        loom::model(|| {
            let shared = Arc::new(Shared { table: Table::new(1), gate: Gate::new() });
            let done = Arc::new(AtomicBool::new(false));
            let alive = Arc::new(AtomicBool::new(true));
            let source = Fake { done: Arc::clone(&done), alive: Arc::clone(&alive) };
            let ticket = shared.table.enter(source, None, Instant::now(), LONG).unwrap();
            let owner = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let outcome = shared.table.remove(ticket);
                    alive.store(false, Ordering::Relaxed);
                    outcome
                })
            };
            done.store(true, Ordering::Release);
            let swept = shared.table.sweep(Instant::now(), &mut Vec::new());
            let outcome = owner.join().unwrap();
            assert_eq!(swept.found_count == 1, outcome == Some(Ok(7)));
            let swept = shared.table.sweep(Instant::now(), &mut Vec::new());
            assert_eq!((swept.watched_count, swept.found_count), (0, 0));
        });
    }
}
