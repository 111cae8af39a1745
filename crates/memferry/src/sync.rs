//! Where std and loom are chosen between, and the [`Latch`]: the one thing that everybody here waits on.
//!
//! Code that is model-checked takes its locks, atomics and threads from this module, and only from here. Under
//! `--cfg memferry_loom` they are loom's, which work only inside `loom::model`; everything else uses std directly.
//!
//! A latch is set once and stays set. Whoever sets it wakes all that wait: threads and futures alike.
//!
//! ```text
//! set:   state = SET; was it AWAITED? lock; take the waiters; unlock; wake everybody
//! wait:  look for as long as sleeping costs.  lock; UNSET: AWAITED; while not SET: sleep on the condition
//! poll:  SET? ready.                          lock; UNSET: AWAITED; leave the waker in the future's place; unlock; pending
//! ```
//!
//! Setting is one exchange as long as nobody waits. Who waits says so in the same word, under the lock, and keeps the
//! lock until it sleeps or has left its waker: so whoever exchanges AWAITED for SET finds it there, and no wake-up
//! falls between.
//!
//! In a forked child nobody is left to set a latch from before the fork, and its lock may be held for ever: there
//! waiting ends at once, and the latch stays as it was.

use std::hint::spin_loop;
use std::sync::TryLockError;
use std::task::Waker;
use std::time::{Duration, Instant};

use memferry_dsa::{fork, panics};
use slab::Slab;

#[cfg(memferry_loom)]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(memferry_loom))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

#[cfg(memferry_loom)]
pub(crate) use loom::cell::UnsafeCell;

use atomic::{AtomicU32, Ordering};

/// std's cell with loom's interface: access goes through closures, so that loom can watch it.
#[cfg(not(memferry_loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(memferry_loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Locks. Our critical sections move values in and out of collections, one step at a time: a panic inside one
/// leaves nothing half changed. So a poisoned lock is taken like any other.
///
/// Under ThreadSanitizer (`--cfg memferry_tsan`) a thread does not sleep for a lock: the sanitizer does not see the part of
/// the standard library that does, and so neither what the lock orders.
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

/// As [`lock`], but only if nobody has it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits on a condition; like [`lock`], indifferent to poison.
pub(crate) fn wait_on<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Nobody has waited yet.
const UNSET: u32 = 0;
/// Somebody has left word in `waiters`.
const AWAITED: u32 = 1;
/// It has happened.
const SET: u32 = 2;

/// How long a thread looks before it sleeps. To sleep and be woken takes about as long, so that whoever waits never
/// spends more than twice what would have been best; and what is woken for each of many short copies spends all its
/// time on that, and the time of the thread that wakes it.
///
/// Source: Karlin, Li, Manasse, Owicki, "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor"
/// (1991); 10 us is what a wake-up takes on the virtual machine of results/.
const LOOK_MAX: Duration = Duration::from_micros(10);
/// Looks between two looks at the clock.
const LOOKS: u32 = 16;

/// An event that happens once.
///
/// What the setting thread did before [`set`](Latch::set) is visible to everybody who has seen the latch set.
/// Fields: `state` goes from UNSET to AWAITED under the lock of `waiters`, and to SET without it.
///
/// Cost: setting it is one exchange if nobody waits, and makes a system call only if a thread sleeps. However many wait,
/// each costs the same.
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
    /// Of futures, each in its [`Place`].
    wakers: Slab<Waker>,
    /// Threads that wait for `changed`.
    sleepers_count: usize,
}

/// Where a future leaves its waker, if it has. Each future has one of its own, for one latch, and
/// [gives it back](Latch::leave) when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<usize>);

impl Latch {
    /// A latch that is not set.
    pub(crate) fn new() -> Latch {
        Latch {
            state: AtomicU32::new(UNSET),
            generation: fork::generation(),
            waiters: Mutex::new(Waiters { wakers: Slab::new(), sleepers_count: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Has it happened? Never blocks.
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `set`: what was written before it is visible here.
        self.state.load(Ordering::Acquire) == SET
    }

    /// Lets everybody through, now and for ever. Setting it again does nothing.
    pub(crate) fn set(&self) {
        // ORDERING: Release pairs with the Acquire in `is_set` and `announce`. What waiters left is read under the
        // lock, which they took before the exchange that is seen here and let go after it.
        if self.state.swap(SET, Ordering::Release) != AWAITED {
            return;
        }
        let mut waiters = lock(&self.waiters);
        let wakers = std::mem::take(&mut waiters.wakers);
        let somebody_sleeps = waiters.sleepers_count > 0;
        drop(waiters);
        if somebody_sleeps {
            self.changed.notify_all();
        }
        for (_, waker) in wakers {
            // Wakers are foreign code: one that panics must not keep the others from hearing of it, for ever. The
            // panic hook has told already, and there is nobody here who could do more.
            let _ = panics::contain(|| waker.wake());
        }
    }

    /// Nobody will set it: it was made by the process that this one was forked from.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Blocks this thread until the latch is set, unless it is orphaned.
    pub(crate) fn wait(&self) {
        if self.is_set() || self.is_orphaned() || self.look() {
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

    /// True when it is set, or orphaned; otherwise leaves `waker` to be woken then, in place of the one that the future
    /// left before. Never blocks.
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
        // Not under the lock: wakers are foreign code.
        drop(former);
        false
    }

    /// The future of this place waits no longer.
    pub(crate) fn leave(&self, place: &mut Place) {
        let Some(key) = place.0.take() else { return };
        if self.is_set() || self.is_orphaned() {
            return;
        }
        // If it is set meanwhile, all wakers are gone, and no other comes.
        let waker = lock(&self.waiters).wakers.try_remove(key);
        drop(waker);
    }

    /// Says that somebody waits, unless it is set: then true. Under the lock of `waiters`.
    fn announce(&self) -> bool {
        // ORDERING: Acquire as in `is_set`. Announcing publishes nothing: the lock does.
        let was = self.state.compare_exchange(UNSET, AWAITED, Ordering::Relaxed, Ordering::Acquire);
        was == Err(SET)
    }

    /// Whether it is set soon.
    fn look(&self) -> bool {
        if cfg!(memferry_loom) {
            return self.is_set();
        }
        let begin = Instant::now();
        while begin.elapsed() < LOOK_MAX {
            for _ in 0..LOOKS {
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

    /// Once the first waker that panicked left all behind it waiting.
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

    /// Each waiter was once compared with all before it: 40 000 of them took 5.5 s, half of which are 800 million
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
        assert_eq!(rung.load(Ordering::SeqCst), WAITERS / 2, "who stays is woken once, and nobody else");
    }

    /// A waker stayed until the latch was set: those of futures that were dropped, and all those that a future was ever
    /// polled with.
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

/// What loom's models wait with where programs have an executor.
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

    /// A latch and something that was written before it was set, relaxed: only the latch can make it visible.
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
