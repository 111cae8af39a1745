//! The queue in front of a CPU engine's workers: bounded, one lock, and nobody is woken who is not asleep.
//!
//! One worker at most lingers for what comes next (see [`Linger`]); an item that it will take wakes nobody. Small items
//! are taken several at a time, so that the lock is not taken for each.

use std::collections::VecDeque;
use std::time::Instant;

use super::Refusal;
use super::linger::Linger;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, lock, wait_on};

/// Small items that are taken at once: the lock is then a few nanoseconds of each, and another worker misses little.
pub(super) const TAKEN_MAX: usize = 16;

/// First in, first out, for any number of threads on both sides.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    /// Something came, or the queue was closed, since somebody began to linger. Written under the lock of `state`; a
    /// hint for who lingers, who then looks under the lock.
    news: AtomicBool,
    /// Whether there are items. Written under the lock, when it changes; a hint for who does not take the lock.
    has_items: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// Threads inside `pop` that wait for `arrived`.
    sleepers_count: usize,
    /// A thread inside `pop` lingers, and will look at `items` before it sleeps.
    somebody_lingers: bool,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue::new()
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        let items = VecDeque::new();
        Queue {
            state: Mutex::new(State { items, sleepers_count: 0, somebody_lingers: false, closed: false }),
            arrived: Condvar::new(),
            news: AtomicBool::new(false),
            has_items: AtomicBool::new(false),
        }
    }

    /// Adds `item` unless there are `len_max` already, or hands it back.
    pub(super) fn push(&self, item: T, len_max: usize) -> Result<(), (T, Refusal)> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err((item, Refusal::Gone));
        }
        if state.items.len() >= len_max {
            return Err((item, Refusal::Full));
        }
        state.items.push_back(item);
        self.tell_items(&state);
        if state.somebody_lingers {
            // ORDERING: Relaxed: a hint; the items are seen under the lock.
            self.news.store(true, Ordering::Relaxed);
        }
        // Who lingers takes one of them.
        let somebody_is_needed = state.items.len() > usize::from(state.somebody_lingers);
        let wakes = somebody_is_needed && state.sleepers_count > 0;
        drop(state);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Nothing waited a moment ago. Costs nothing as long as that does not change.
    pub(super) fn seems_empty(&self) -> bool {
        // ORDERING: Relaxed: a hint. What this thread knows to have been pushed is seen.
        !self.has_items.load(Ordering::Relaxed)
    }

    fn tell_items(&self, state: &State<T>) {
        let has_items = !state.items.is_empty();
        // ORDERING: Relaxed: the lock orders the writers, and readers want a hint.
        if self.has_items.load(Ordering::Relaxed) != has_items {
            self.has_items.store(has_items, Ordering::Relaxed);
        }
    }

    /// Adds items, in order, as long as there are fewer than `len_max`; returns the others. One lock, and no more threads
    /// are woken than there are items.
    pub(super) fn push_all(&self, mut items: Vec<T>, len_max: usize) -> (Vec<T>, Refusal) {
        let mut state = lock(&self.state);
        if state.closed {
            return (items, Refusal::Gone);
        }
        let room = len_max.saturating_sub(state.items.len()).min(items.len());
        let refused = items.split_off(room);
        state.items.extend(items);
        self.tell_items(&state);
        if state.somebody_lingers {
            // ORDERING: Relaxed: as in `push`.
            self.news.store(true, Ordering::Relaxed);
        }
        let needed_count = state.items.len().saturating_sub(usize::from(state.somebody_lingers));
        let wakes_count = needed_count.min(state.sleepers_count);
        drop(state);
        (0..wakes_count).for_each(|_| self.arrived.notify_one());
        (refused, Refusal::Full)
    }

    /// Moves the oldest item to `taken`, which is empty; and if it is small, the small ones that follow it, up to
    /// [`TAKEN_MAX`]. Waits for one; none once the queue is closed and empty. `linger` is this thread's.
    pub(super) fn pop(&self, taken: &mut VecDeque<T>, linger: &mut Linger, is_small: impl Fn(&T) -> bool) {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.items.pop_front() {
                let is_first_small = is_small(&item);
                taken.push_back(item);
                while is_first_small && taken.len() < TAKEN_MAX {
                    let Some(item) = state.items.pop_front_if(|item| is_small(item)) else { break };
                    taken.push_back(item);
                }
                self.tell_items(&state);
                return;
            }
            if state.closed {
                return;
            }
            if !state.somebody_lingers && linger.has_window() {
                state.somebody_lingers = true;
                self.news.store(false, Ordering::Relaxed);
                drop(state);
                linger.look_for(|| self.news.load(Ordering::Relaxed));
                state = lock(&self.state);
                state.somebody_lingers = false;
                if !state.items.is_empty() || state.closed {
                    continue;
                }
            }
            let begin = Instant::now();
            state.sleepers_count += 1;
            state = wait_on(&self.arrived, state);
            state.sleepers_count -= 1;
            linger.slept(begin.elapsed());
        }
    }

    /// Takes no more items. What is in there can still be popped.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.news.store(true, Ordering::Relaxed);
        drop(state);
        self.arrived.notify_all();
    }
}
