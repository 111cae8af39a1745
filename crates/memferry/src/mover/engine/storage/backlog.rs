//! The accepted reads of a storage engine, from which its threads take pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use super::job::{Job, Piece};
use crate::mover::engine::Refusal;
use crate::mover::request::RawRequest;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_on};

/// A queue of reads, first in, first out; `state` is the lock.
///
/// A read becomes a [`Job`] when its first piece is taken; that is also when it may be cancelled.
pub(super) struct Backlog {
    state: Mutex<State>,
    arrived: Condvar,
    piece_bytes: usize,
}

struct State {
    waiting: VecDeque<RawRequest>,
    /// The read whose pieces are being taken, and the begin of the next one.
    active: Option<(Arc<Job>, usize)>,
    is_closed: bool,
    /// Threads that wait for `arrived`.
    sleepers_count: usize,
    /// The ring's thread sleeps in the kernel, or is about to.
    is_ring_asleep: bool,
}

/// What a thread of the engine does next.
pub(super) enum Next {
    /// Read a piece.
    Piece(Piece),
    /// Complete this many pieces of a failed read without reading them.
    Skip(Arc<Job>, usize),
    /// Finish a read that nobody wants.
    Cancel(RawRequest),
    /// Nothing is there now.
    Empty,
    /// Nothing is there and nothing will come.
    Closed,
}

impl Backlog {
    pub(super) fn new(piece_bytes: usize) -> Backlog {
        let state = State {
            waiting: VecDeque::new(),
            active: None,
            is_closed: false,
            sleepers_count: 0,
            is_ring_asleep: false,
        };
        Backlog { state: Mutex::new(state), arrived: Condvar::new(), piece_bytes }
    }

    /// Adds a read, or hands it back if `len_max` are waiting. Returns whether the ring's thread must be woken.
    pub(super) fn push(&self, request: RawRequest, len_max: usize) -> Result<bool, (RawRequest, Refusal)> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err((request, Refusal::Gone));
        }
        if state.waiting.len() >= len_max {
            return Err((request, Refusal::Full));
        }
        let pieces_count = request.size_bytes().div_ceil(self.piece_bytes);
        state.waiting.push_back(request);
        let wakes_ring = std::mem::take(&mut state.is_ring_asleep);
        let wakes_count = pieces_count.min(state.sleepers_count);
        drop(state);
        (0..wakes_count).for_each(|_| self.arrived.notify_one());
        Ok(wakes_ring)
    }

    /// The next step. Never blocks.
    pub(super) fn next(&self) -> Next {
        self.next_of(&mut lock(&self.state))
    }

    /// The next step; sleeps until there is one. Never [`Next::Empty`].
    pub(super) fn wait_next(&self) -> Next {
        let mut state = lock(&self.state);
        loop {
            match self.next_of(&mut state) {
                Next::Empty => {}
                next => return next,
            }
            state.sleepers_count += 1;
            state = wait_on(&self.arrived, state);
            state.sleepers_count -= 1;
        }
    }

    /// Whether the ring's thread may sleep: nothing is there. The next push or the closing then wakes it.
    pub(super) fn ring_sleeps(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_ring_asleep = state.waiting.is_empty() && state.active.is_none() && !state.is_closed;
        state.is_ring_asleep
    }

    /// The ring's thread is awake.
    pub(super) fn ring_woke(&self) {
        lock(&self.state).is_ring_asleep = false;
    }

    /// Refuses further reads. Accepted ones can still be taken.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.arrived.notify_all();
    }

    fn next_of(&self, state: &mut MutexGuard<'_, State>) -> Next {
        if state.active.is_none() {
            let Some(request) = state.waiting.pop_front() else {
                return if state.is_closed { Next::Closed } else { Next::Empty };
            };
            if !request.starts() {
                return Next::Cancel(request);
            }
            state.active = Some((Arc::new(Job::new(request, self.piece_bytes)), 0));
        }
        let (job, start) = state.active.take().expect("set above");
        if job.has_failed() {
            let left_count = (job.size_bytes() - start).div_ceil(self.piece_bytes);
            return Next::Skip(job, left_count);
        }
        let piece = job.piece(start, self.piece_bytes);
        let end = start + self.piece_bytes;
        if end < job.size_bytes() {
            state.active = Some((job, end));
        }
        Next::Piece(piece)
    }
}
