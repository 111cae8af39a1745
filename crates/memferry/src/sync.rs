//! The choice between std and loom, and the [`Latch`], on which all waiters wait.
//!
//! Model-checked code takes its locks, atomics and threads only from this module. Under `--cfg memferry_loom` they are
//! those of loom, which work only inside `loom::model`; other code uses std directly.
//!
//! A latch is set once and stays set. The setting thread wakes all waiters, threads and futures.
//!
//! ```text
//! set:   state = SET; was it AWAITED? lock; take the waiters; unlock; wake everybody
//! wait:  spin for as long as sleeping costs.  lock; UNSET: AWAITED; while not SET: sleep on the condition
//! poll:  SET? ready.                          lock; UNSET: AWAITED; leave the waker in the future's place; unlock; pending
//! ```
//!
//! Without waiters, setting is one exchange. A waiter writes AWAITED to the same word, under the lock, and keeps the lock
//! until it sleeps or has stored its waker. So a thread that exchanges AWAITED for SET finds the waiter, and no wake-up is
//! lost.
//!
//! In a forked child no thread sets a latch from before the fork, and its lock may be held for ever: there waiting
//! returns at once, and the latch does not change.

use std::hint::spin_loop;
use std::sync::TryLockError;
use std::task::Waker;
use std::time::{Duration, Instant};

use memferry_dsa::internals::{fork, panics};
use slab::Slab;

#[cfg(memferry_loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(memferry_loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

#[cfg(memferry_loom)]
pub(crate) use loom::cell::UnsafeCell;

use atomic::{AtomicU32, Ordering};

/// The cell of std with loom's interface: access through closures, which loom can watch.
#[cfg(not(memferry_loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(memferry_loom))]
impl<T> UnsafeCell<T> {
    #[inline]
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Locks a mutex, poisoned or not. Our critical sections move values in and out of collections in single steps, so a panic
/// leaves consistent data.
///
/// Under ThreadSanitizer (`--cfg memferry_tsan`) a thread does not sleep for a lock: the sanitizer does not see the part of
/// the standard library that does, nor its ordering.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(memferry_tsan)]
    loop {
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
        std::thread::yield_now();
    }
    #[cfg(not(memferry_tsan))]
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks a mutex if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits on a condition variable, poisoned or not.
pub(crate) fn wait_on<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Not set, without waiters.
const UNSET: u32 = 0;
/// Not set, with waiters in `waiters`.
const AWAITED: u32 = 1;
/// Set.
const SET: u32 = 2;

/// How long a thread spins before it sleeps. Sleep and wake-up take about as long, so a waiter spends at most twice the
/// optimum. Wake-ups for each of many short copies would take all time of the waiter, and of the waking thread.
///
/// Source: Karlin, Li, Manasse, Owicki, "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor"
/// (1991); 10 us is what a wake-up takes on the virtual machine of results/.
const SPIN_MAX: Duration = Duration::from_micros(10);
/// Loads between two reads of the clock.
const SPINS: u32 = 16;

/// An event that happens once.
///
/// Writes before [`set`](Latch::set) are visible to every thread that has seen the latch set.
/// Fields: waiters change `state` from UNSET to AWAITED under the lock of `waiters`; the setting thread changes it to SET
/// without the lock.
///
/// Cost: one exchange without waiters; a system call only if a thread sleeps; constant per waiter.
#[derive(Debug)]
pub(crate) struct Latch {
    state: AtomicU32,
    /// The process that made it.
    generation: u32,
    waiters: Mutex<Waiters>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiters {
    /// Wakers of futures, each with its key in a [`Place`].
    wakers: Slab<Waker>,
    /// Threads that wait on `changed`.
    sleepers_count: usize,
}

/// The key of a future's waker in a latch, if it has stored one. Each future has its own, and
/// [removes the waker](Latch::leave) when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<usize>);

impl Latch {
    /// A latch that is not set.
    #[inline]
    pub(crate) fn new() -> Latch {
        Latch {
            state: AtomicU32::new(UNSET),
            generation: fork::generation(),
            waiters: Mutex::new(Waiters { wakers: Slab::new(), sleepers_count: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Whether it is set. Never blocks.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `set`: writes before it are visible here.
        self.state.load(Ordering::Acquire) == SET
    }

    /// Sets the latch and wakes all waiters. A second call does nothing.
    #[inline]
    pub(crate) fn set(&self) {
        // ORDERING: Release pairs with the Acquire of `is_set` and `announce`: writes before this are visible there. The
        // waiters are read under the lock, which they held during the exchange that is seen here.
        if self.state.swap(SET, Ordering::Release) != AWAITED {
            return;
        }
        let mut waiters = lock(&self.waiters);
        let wakers = std::mem::take(&mut waiters.wakers);
        let is_any_asleep = waiters.sleepers_count > 0;
        drop(waiters);
        if is_any_asleep {
            self.changed.notify_all();
        }
        for (_, waker) in wakers {
            // Wakers are foreign code: a panic of one must not stop the others. The panic hook has printed it.
            let _ = panics::contain(|| waker.wake());
        }
    }

    /// Whether no thread will set it, because it was made before this process was forked.
    #[inline]
    pub(crate) fn is_orphaned(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Blocks this thread until the latch is set, unless it is orphaned.
    #[inline]
    pub(crate) fn wait(&self) {
        if self.is_set() || self.is_orphaned() || self.spin() {
            return;
        }
        let mut waiters = lock(&self.waiters);
        if self.announce() {
            return;
        }
        waiters.sleepers_count += 1;
        while !self.is_set() {
            waiters = wait_on(&self.changed, waiters);
        }
        waiters.sleepers_count -= 1;
    }

    /// Returns true if it is set or orphaned. Otherwise stores `waker`, in place of the future's former one. Never blocks.
    pub(crate) fn poll(&self, place: &mut Place, waker: &Waker) -> bool {
        if self.is_set() || self.is_orphaned() {
            return true;
        }
        let mut waiters = lock(&self.waiters);
        if self.announce() {
            return true;
        }
        let former = match place.0.and_then(|key| waiters.wakers.get_mut(key)) {
            Some(known) if is_same(known, waker) => None,
            Some(known) => Some(std::mem::replace(known, waker.clone())),
            None => {
                place.0 = Some(waiters.wakers.insert(waker.clone()));
                None
            }
        };
        drop(waiters);
        // Dropped outside the lock: wakers are foreign code.
        drop(former);
        false
    }

    /// Removes the waker of a future that no longer waits.
    #[inline]
    pub(crate) fn leave(&self, place: &mut Place) {
        let Some(key) = place.0.take() else { return };
        if self.is_set() || self.is_orphaned() {
            return;
        }
        // If it was set meanwhile, all wakers are removed, and no new one is added.
        let waker = lock(&self.waiters).wakers.try_remove(key);
        drop(waker);
    }

    /// Marks it as awaited. Returns true if it is set. Called under the lock of `waiters`.
    #[inline]
    fn announce(&self) -> bool {
        // ORDERING: Acquire pairs with the Release of `set`, like `is_set`. Success is Relaxed: the lock publishes the
        // waiter.
        let was = self.state.compare_exchange(UNSET, AWAITED, Ordering::Relaxed, Ordering::Acquire);
        was == Err(SET)
    }

    /// Spins for a short time. Returns whether it is set.
    fn spin(&self) -> bool {
        if cfg!(memferry_loom) {
            return self.is_set();
        }
        let begin = Instant::now();
        while begin.elapsed() < SPIN_MAX {
            for _ in 0..SPINS {
                if self.is_set() {
                    return true;
                }
                spin_loop();
            }
        }
        false
    }
}

fn is_same(known: &Waker, waker: &Waker) -> bool {
    #[cfg(all(test, not(memferry_loom)))]
    tests::COMPARISONS.set(tests::COMPARISONS.get() + 1);
    known.will_wake(waker)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::{Latch, Place};

    thread_local! {
        /// Of wakers, by this thread.
        pub(super) static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    struct Rings(Arc<AtomicUsize>);
    struct Panics;

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this panic belongs to the test");
        }
    }

    /// Regression: a waker that panicked left all later ones waiting.
    #[test]
    fn a_waker_that_panics_strands_nobody() {
        let rung = Arc::new(AtomicUsize::new(0));
        let rings = || Waker::from(Arc::new(Rings(rung.clone())));
        let latch = Latch::new();
        for waker in [rings(), Waker::from(Arc::new(Panics)), rings(), rings()] {
            assert!(!latch.poll(&mut Place::default(), &waker));
        }
        latch.set();
        assert_eq!(rung.load(Ordering::SeqCst), 3);
    }

    /// Regression: each waiter was compared with all earlier ones: 40 000 of them took 5.5 s, half of it for 800 million
    /// comparisons.
    #[test]
    fn a_waiter_costs_the_same_however_many_there_are() {
        const WAITERS: usize = 40_000;
        let rung = Arc::new(AtomicUsize::new(0));
        let latch = Latch::new();
        let waiters = (0..WAITERS).map(|_| (Place::default(), Waker::from(Arc::new(Rings(rung.clone())))));
        let mut waiters: Vec<_> = waiters.collect();
        COMPARISONS.set(0);
        for _ in 0..2 {
            for (place, waker) in &mut waiters {
                assert!(!latch.poll(place, waker));
            }
        }
        assert!(COMPARISONS.get() <= 2 * WAITERS as u64, "{} comparisons", COMPARISONS.get());
        waiters.iter_mut().step_by(2).for_each(|(place, _)| latch.leave(place));
        latch.set();
        assert_eq!(
            rung.load(Ordering::SeqCst),
            WAITERS / 2,
            "each remaining waiter is woken once, and no other"
        );
    }

    /// Regression: wakers of dropped futures, and all former wakers of a future, stayed until the latch was set.
    #[test]
    fn a_waiter_leaves_one_waker_and_takes_it_along() {
        let rings: Vec<_> = (0..3).map(|_| Arc::new(Rings(Arc::default()))).collect();
        let held = || rings.iter().map(|rings| Arc::strong_count(rings) - 1).collect::<Vec<_>>();
        let (latch, mut place) = (Latch::new(), Place::default());
        for rings in &rings {
            assert!(!latch.poll(&mut place, &Waker::from(rings.clone())));
        }
        assert_eq!(held(), [0, 0, 1]);
        latch.leave(&mut place);
        assert_eq!(held(), [0, 0, 0]);
        assert!(!latch.poll(&mut place, &Waker::from(rings[0].clone())));
        latch.set();
        latch.leave(&mut place);
        assert!(latch.poll(&mut place, Waker::noop()));
        assert_eq!(rings.iter().map(|rings| rings.0.load(Ordering::SeqCst)).collect::<Vec<_>>(), [1, 0, 0]);
    }
}

/// An executor for loom's models.
#[cfg(all(test, memferry_loom))]
pub(crate) mod loom_executor {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    use super::{Condvar, Mutex, lock, wait_on};

    struct Bell {
        rang: Mutex<bool>,
        changed: Condvar,
    }

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            *lock(&self.rang) = true;
            self.changed.notify_one();
        }
    }

    /// Polls a future, and again only after it was woken: a lost wake-up is a deadlock, which loom reports.
    pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let bell = Arc::new(Bell { rang: Mutex::new(false), changed: Condvar::new() });
        let waker = Waker::from(bell.clone());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            let mut rang = lock(&bell.rang);
            while !*rang {
                rang = wait_on(&bell.changed, rang);
            }
            *rang = false;
        }
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_latch {
    use std::future::poll_fn;
    use std::task::{Context, Poll, Waker};

    use loom::thread;

    use super::atomic::{AtomicU32, Ordering};
    use super::loom_executor::block_on;
    use super::{Arc, Latch, Place};

    /// A latch, and content that is written relaxed before it is set: only the latch makes it visible.
    struct Message {
        latch: Latch,
        content: AtomicU32,
    }

    impl Message {
        fn new() -> Arc<Message> {
            Arc::new(Message { latch: Latch::new(), content: AtomicU32::new(0) })
        }

        fn send(&self) {
            self.content.store(7, Ordering::Relaxed);
            self.latch.set();
        }

        fn check(&self) {
            assert_eq!(self.content.load(Ordering::Relaxed), 7);
        }
    }

    async fn ready(latch: &Latch) {
        let mut place = Place::default();
        let look = |context: &mut Context<'_>| {
            if latch.poll(&mut place, context.waker()) { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(look).await;
    }

    #[test]
    fn loom_two_threads_wait() {
        loom::model(|| {
            let message = Message::new();
            let other = message.clone();
            let waiter = thread::spawn(move || {
                other.latch.wait();
                other.check();
            });
            let other = message.clone();
            let sender = thread::spawn(move || other.send());
            message.latch.wait();
            message.check();
            sender.join().expect("no panic");
            waiter.join().expect("no panic");
        });
    }

    #[test]
    fn loom_a_future_and_a_thread_wait() {
        loom::model(|| {
            let message = Message::new();
            let other = message.clone();
            let waiter = thread::spawn(move || {
                block_on(ready(&other.latch));
                other.check();
            });
            let other = message.clone();
            let sender = thread::spawn(move || other.send());
            message.latch.wait();
            message.check();
            sender.join().expect("no panic");
            waiter.join().expect("no panic");
        });
    }

    #[test]
    fn loom_looking_once_sees_all_or_nothing() {
        loom::model(|| {
            let message = Message::new();
            let other = message.clone();
            let sender = thread::spawn(move || other.send());
            if message.latch.is_set() {
                message.check();
            }
            sender.join().expect("no panic");
            assert!(message.latch.is_set());
        });
    }

    /// A future gives up while the latch is set; another one stays, and is woken.
    #[test]
    fn loom_one_of_two_futures_leaves() {
        loom::model(|| {
            let message = Message::new();
            let other = message.clone();
            let sender = thread::spawn(move || other.send());
            let mut place = Place::default();
            if !message.latch.poll(&mut place, Waker::noop()) {
                message.latch.leave(&mut place);
            }
            block_on(ready(&message.latch));
            message.check();
            sender.join().expect("no panic");
        });
    }

    #[test]
    fn loom_two_threads_set() {
        loom::model(|| {
            let message = Message::new();
            let other = message.clone();
            let sender = thread::spawn(move || other.send());
            message.send();
            block_on(ready(&message.latch));
            sender.join().expect("no panic");
        });
    }
}
