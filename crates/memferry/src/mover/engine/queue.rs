//! The queue of a CPU engine: bounded, with one lock; it wakes sleeping workers only.
//!
//! At most one worker polls for the next item (see [`HaltPoll`]); an item for it wakes no other worker. Workers take
//! several small items at a time, to lock less often.

use std::collections::VecDeque;
use std::time::Instant;

use super::Refusal;
use super::halt_poll::HaltPoll;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, lock, wait_on};

/// Most small items taken at once: the lock then costs a few nanoseconds per item, and other workers lose little work.
pub(in crate::mover) const TAKEN_MAX: usize = 16;

/// A FIFO queue for any number of producers and consumers.
///
/// `state` is the lock. The two flags are hints outside it: written under the lock, read by any thread.
#[derive(Debug)]
pub(in crate::mover) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    arrived: Condvar,
    /// Set when an item arrived or the queue was closed since a worker began to poll. The polling worker then looks
    /// under the lock.
    news: AtomicBool,
    /// Whether there are items, for threads that do not take the lock.
    has_items: AtomicBool,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    /// Threads inside `pop` that wait for `arrived`.
    sleepers_count: usize,
    /// A thread inside `pop` polls, and will look at `items` before it sleeps.
    is_polled: bool,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue::new()
    }
}

impl<T> Queue<T> {
    pub(in crate::mover) fn new() -> Queue<T> {
        let items = VecDeque::new();
        Queue {
            state: Mutex::new(QueueState { items, sleepers_count: 0, is_polled: false, closed: false }),
            arrived: Condvar::new(),
            news: AtomicBool::new(false),
            has_items: AtomicBool::new(false),
        }
    }

    /// Adds `item`, or hands it back if there are `len_max` items.
    pub(in crate::mover) fn push(&self, item: T, len_max: usize) -> Result<(), (T, Refusal)> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err((item, Refusal::Gone));
        }
        if state.items.len() >= len_max {
            return Err((item, Refusal::Full));
        }
        state.items.push_back(item);
        self.set_has_items(&state);
        if state.is_polled {
            // ORDERING: Relaxed: a hint; the items are seen under the lock.
            self.news.store(true, Ordering::Relaxed);
        }
        // The polling thread takes one of them.
        let is_sleeper_needed = state.items.len() > usize::from(state.is_polled);
        let wakes = is_sleeper_needed && state.sleepers_count > 0;
        drop(state);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Whether the queue was empty a moment ago. Takes no lock, and the flag's line stays shared while it does not change.
    pub(in crate::mover) fn seems_empty(&self) -> bool {
        // ORDERING: Relaxed: a hint. A push that happened before this call is seen.
        !self.has_items.load(Ordering::Relaxed)
    }

    fn set_has_items(&self, state: &QueueState<T>) {
        let has_items = !state.items.is_empty();
        // ORDERING: Relaxed: the lock orders the writers; readers need a hint only.
        if self.has_items.load(Ordering::Relaxed) != has_items {
            self.has_items.store(has_items, Ordering::Relaxed);
        }
    }

    /// Adds items, in order, up to `len_max`; returns the others. Takes one lock, and wakes at most one thread per item.
    pub(in crate::mover) fn push_all(&self, mut items: Vec<T>, len_max: usize) -> (Vec<T>, Refusal) {
        let mut state = lock(&self.state);
        if state.closed {
            return (items, Refusal::Gone);
        }
        let room = len_max.saturating_sub(state.items.len()).min(items.len());
        let refused = items.split_off(room);
        state.items.extend(items);
        self.set_has_items(&state);
        if state.is_polled {
            // ORDERING: Relaxed: as in `push`.
            self.news.store(true, Ordering::Relaxed);
        }
        let needed_count = state.items.len().saturating_sub(usize::from(state.is_polled));
        let wakes_count = needed_count.min(state.sleepers_count);
        drop(state);
        (0..wakes_count).for_each(|_| self.arrived.notify_one());
        (refused, Refusal::Full)
    }

    /// Waits for an item and moves the oldest to `taken`, which is empty. If it is small, also moves the small items that
    /// follow it, up to [`TAKEN_MAX`]. Moves none once the queue is closed and empty.
    pub(in crate::mover) fn pop(
        &self,
        taken: &mut VecDeque<T>,
        poll: &mut HaltPoll,
        is_small: impl Fn(&T) -> bool,
    ) {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.items.pop_front() {
                let is_first_small = is_small(&item);
                taken.push_back(item);
                while is_first_small && taken.len() < TAKEN_MAX {
                    let Some(item) = state.items.pop_front_if(|item| is_small(item)) else { break };
                    taken.push_back(item);
                }
                self.set_has_items(&state);
                return;
            }
            if state.closed {
                return;
            }
            if !state.is_polled && poll.has_window() {
                state.is_polled = true;
                self.news.store(false, Ordering::Relaxed);
                drop(state);
                poll.poll(|| self.news.load(Ordering::Relaxed));
                state = lock(&self.state);
                state.is_polled = false;
                if !state.items.is_empty() || state.closed {
                    continue;
                }
            }
            let begin = Instant::now();
            state.sleepers_count += 1;
            state = wait_on(&self.arrived, state);
            state.sleepers_count -= 1;
            poll.slept(begin.elapsed());
        }
    }

    /// Refuses further items. Items in the queue can still be popped.
    pub(in crate::mover) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        self.news.store(true, Ordering::Relaxed);
        drop(state);
        self.arrived.notify_all();
    }
}
