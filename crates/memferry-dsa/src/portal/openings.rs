//! The openings of a queue: one in each process, without waiting, and without a lock that a fork could leave held.
//!
//! ```text
//! current ──▶ opening of this process ──▶ opening of its parent ──▶ ...      the list only grows
//! opener      none, or the generation that is opening now
//!
//! get:      return `current` if it is of this generation; else become the opener, open, and prepend the opening
//! replace:  the same, unless another thread has replaced it already
//! ```
//!
//! A dedicated queue can be opened only once, so two threads of a child must not both open it. A fork may copy `opener`
//! while a thread of the parent is opening. That thread does not exist in the child, which sees it by the generation in
//! the word.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;

use super::OpenError;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// The list of openings, newest first.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `current` | the opener | all threads |
/// | `opener` | threads that become or cease to be the opener | threads that want to open |
pub(super) struct Openings<T> {
    current: AtomicPtr<Opening<T>>, // null, or from `Box::into_raw`; freed by `drop`
    opener: AtomicU64,              // 0: none; else the generation of the opener, plus 1
    owns: PhantomData<Opening<T>>,
}

/// One attempt to open the queue. Immutable once it is current.
pub(super) struct Opening<T> {
    generation: u32,
    outcome: Result<T, OpenError>,
    before: *mut Opening<T>, // null, or the opening that it replaced
}

// SAFETY: the pointers own the openings as boxes do: they are shared as `&T` and dropped with the list.
unsafe impl<T: Send + Sync> Sync for Openings<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Openings<T> {}

impl<T> Openings<T> {
    pub(super) fn new() -> Openings<T> {
        Openings { current: AtomicPtr::new(ptr::null_mut()), opener: AtomicU64::new(0), owns: PhantomData }
    }

    /// The newest opening, of this process or of one that it was forked from.
    pub(super) fn last(&self) -> Option<&Opening<T>> {
        // ORDERING: Acquire pairs with the Release of `current` in `open`: the opening's fields are visible.
        // SAFETY: null, or from `open`; the list frees its openings with itself.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }
    }

    /// The newest opening, if it is of this generation.
    pub(super) fn last_of(&self, generation: u32) -> Option<&Opening<T>> {
        self.last().filter(|last| last.generation == generation)
    }

    /// This process' opening, made by `open` on the first call; `None` while another thread is opening.
    pub(super) fn get(
        &self,
        generation: u32,
        open: impl FnOnce() -> Result<T, OpenError>,
    ) -> Option<&Opening<T>> {
        match self.last() {
            Some(last) if last.generation == generation => Some(last),
            last => self.open(generation, last, open),
        }
    }

    /// This process' replacement of `old`, made by `open` on the first call; `None` while another thread is opening.
    pub(super) fn replace(
        &self,
        old: &Opening<T>,
        open: impl FnOnce() -> Result<T, OpenError>,
    ) -> Option<&Opening<T>> {
        self.open(old.generation, Some(old), open)
    }

    /// This process' successful openings.
    pub(super) fn of(&self, generation: u32) -> impl Iterator<Item = &T> {
        self.filtered(move |opening| opening.generation == generation)
    }

    /// The successful openings of other processes, of which a fork has left copies.
    pub(super) fn of_others(&self, generation: u32) -> impl Iterator<Item = &T> {
        self.filtered(move |opening| opening.generation != generation)
    }

    fn filtered(&self, of: impl Fn(&Opening<T>) -> bool) -> impl Iterator<Item = &T> {
        // SAFETY: as in `last`.
        let list = std::iter::successors(self.last(), |opening| unsafe { opening.before.as_ref() });
        list.filter(move |opening| of(opening)).filter_map(|opening| opening.outcome.as_ref().ok())
    }

    /// Opens, unless an opening of this generation other than `known` is current.
    #[cold]
    fn open(
        &self,
        generation: u32,
        known: Option<&Opening<T>>,
        open: impl FnOnce() -> Result<T, OpenError>,
    ) -> Option<&Opening<T>> {
        let _opener = Opener::new(&self.opener, generation)?;
        let last = self.last();
        let pointer = |opening: Option<&Opening<T>>| opening.map_or(ptr::null(), ptr::from_ref);
        if let Some(last) = last
            && last.generation == generation
            && !ptr::eq(last, pointer(known))
        {
            return Some(last);
        }
        let before = pointer(last).cast_mut();
        let opening = Box::into_raw(Box::new(Opening { generation, outcome: open(), before }));
        // ORDERING: Release pairs with the Acquire of `current` in `last`: it publishes the opening's fields.
        self.current.store(opening, Ordering::Release);
        // SAFETY: it was just made, and the list frees it with itself.
        Some(unsafe { &*opening })
    }
}

impl<T> Opening<T> {
    pub(super) fn outcome(&self) -> Result<&T, OpenError> {
        self.outcome.as_ref().map_err(OpenError::clone)
    }
}

impl<T> Drop for Openings<T> {
    fn drop(&mut self) {
        // Relaxed: no other thread has the list.
        let mut next = self.current.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: from `Box::into_raw` in `open`, and nobody has a reference, since this has `&mut self`.
            next = unsafe { Box::from_raw(next) }.before;
        }
    }
}

/// The right of one thread of a process to open. Dropping it, also in a panic, gives it up.
struct Opener<'o>(&'o AtomicU64);

impl<'o> Opener<'o> {
    /// `None` if another thread of this process is opening.
    fn new(opener: &'o AtomicU64, generation: u32) -> Option<Opener<'o>> {
        let this = u64::from(generation) + 1;
        let holder = opener.load(Ordering::Relaxed);
        if holder == this {
            return None;
        }
        // ORDERING: Acquire pairs with the Release in `drop`: the former opener's store of `current` is visible.
        let taken = opener.compare_exchange(holder, this, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Opener(opener))
    }
}

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `new`: it publishes this opener's store of `current`.
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    fn open(value: u32) -> impl FnOnce() -> Result<u32, OpenError> {
        move || Ok(value)
    }

    fn value(opening: Option<&Opening<u32>>) -> u32 {
        *opening.expect("no other thread is opening").outcome().expect("it was opened")
    }

    #[test]
    fn a_process_opens_once_and_a_failure_stays() {
        let openings = Openings::new();
        assert_eq!(value(openings.get(1, open(10))), 10);
        assert_eq!(value(openings.get(1, open(11))), 10);
        let failed = || OpenError::ForkUnnoticed(std::io::ErrorKind::Other, "queue".into());
        assert!(openings.get(2, || Err(failed())).is_some_and(|opening| opening.outcome().is_err()));
        assert!(openings.get(2, open(20)).is_some_and(|opening| opening.outcome().is_err()), "opened again");
        assert_eq!(value(openings.get(3, open(30))), 30);
        assert_eq!(openings.of_others(3).copied().collect::<Vec<_>>(), [10]);
        let old = openings.last().expect("the third");
        assert_eq!(value(openings.replace(old, open(31))), 31);
        assert_eq!(value(openings.replace(old, open(32))), 31, "it was replaced already");
        assert_eq!(openings.of(3).copied().collect::<Vec<_>>(), [31, 30]);
    }

    /// A thread of the parent was opening while another one forked. The child once found the parent's lock held for ever,
    /// and its queue answered `Retry` to every submission.
    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let openings = Openings::new();
        let in_parent = Opener::new(&openings.opener, 1);
        assert!(in_parent.is_some() && openings.get(1, open(10)).is_none(), "the parent is opening");
        assert_eq!(value(openings.get(2, open(20))), 20);
    }

    #[test]
    fn a_panic_ends_the_opening() {
        let openings = Openings::new();
        let panics = || openings.get(1, || panic!("this test is meant to panic")).is_some();
        assert_eq!(crate::panics::contain(panics), None);
        assert_eq!(value(openings.get(1, open(10))), 10);
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    /// A queue that can be opened once, and a value whose accesses loom checks.
    struct Queue {
        openings: Openings<UnsafeCell<u32>>,
        opened_count: AtomicU32,
    }

    impl Queue {
        fn new() -> Queue {
            Queue { openings: Openings::new(), opened_count: AtomicU32::new(0) }
        }

        fn open(&self, value: u32) -> Result<UnsafeCell<u32>, OpenError> {
            self.opened_count.fetch_add(1, Ordering::Relaxed);
            Ok(UnsafeCell::new(value))
        }

        /// Submits in a generation; returns whether the queue was open.
        fn submit(&self, generation: u32) -> bool {
            let opening = self.openings.get(generation, || self.open(generation));
            // SAFETY: no thread writes the cell once it is current; loom checks that.
            opening
                .inspect(|opening| {
                    let cell = opening.outcome().expect("it can be opened");
                    cell.with(|value| assert_eq!(unsafe { *value }, generation));
                })
                .is_some()
        }
    }

    /// Two threads of a child submit first. The parent had opened the queue, or was opening it in a thread that the child
    /// does not have. One thread opens the queue, once, and both see its opening.
    #[test]
    fn loom_portal_reopening() {
        for parent_was_opening in [false, true] {
            loom::model(move || {
                let queue = Arc::new(Queue::new());
                assert!(queue.submit(1));
                if parent_was_opening {
                    std::mem::forget(Opener::new(&queue.openings.opener, 1));
                }
                let other = thread::spawn({
                    let queue = queue.clone();
                    move || queue.submit(2)
                });
                let here = queue.submit(2);
                assert!(other.join().unwrap() || here, "neither could open");
                assert!(queue.submit(2), "the opener has not ended");
                assert_eq!(queue.opened_count.load(Ordering::Relaxed), 2, "opened twice in one process");
            });
        }
    }

    /// The kernel refuses the submissions of two threads by the same file: the queue is reopened once.
    #[test]
    fn loom_portal_replaced() {
        loom::model(|| {
            let queue = Arc::new(Queue::new());
            assert!(queue.submit(1));
            let replace = |queue: &Queue| {
                let Some(opening) = queue.openings.get(1, || queue.open(1)) else { return };
                let cell = opening.outcome().expect("it can be opened");
                // SAFETY: as in `submit`.
                if cell.with(|value| unsafe { *value }) == 1 {
                    let new = queue.openings.replace(opening, || queue.open(7));
                    let cell = new.map(|opening| opening.outcome().expect("it can be opened"));
                    // SAFETY: as in `submit`.
                    assert!(cell.is_none_or(|cell| cell.with(|value| unsafe { *value }) == 7));
                }
            };
            let other = thread::spawn({
                let queue = queue.clone();
                move || replace(&queue)
            });
            replace(&queue);
            other.join().unwrap();
            assert_eq!(queue.opened_count.load(Ordering::Relaxed), 2, "replaced twice");
        });
    }
}
