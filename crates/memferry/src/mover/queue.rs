//! The queue in front of a CPU engine's workers: bounded, one lock, and nobody is woken who is not asleep.

use std::collections::VecDeque;

use super::Refusal;
use crate::sync::{Condvar, Mutex, lock, wait_on};

/// First in, first out, for any number of threads on both sides.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    /// Threads inside `pop` that wait for `arrived`.
    sleepers_count: usize,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue::new()
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        Queue {
            state: Mutex::new(State { items: VecDeque::new(), sleepers_count: 0, closed: false }),
            arrived: Condvar::new(),
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
        let somebody_sleeps = state.sleepers_count > 0;
        drop(state);
        if somebody_sleeps {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// The oldest item; waits for one. `None` once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state.sleepers_count += 1;
            state = wait_on(&self.arrived, state);
            state.sleepers_count -= 1;
        }
    }

    /// Takes no more items. What is in there can still be popped.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.arrived.notify_all();
    }
}
