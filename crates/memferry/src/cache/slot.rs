//! Slots: the state of one range on one node, shared by the index and all clones of an entry.
//!
//! ```text
//!                 ┌──▶ near(block)     the copy is ready
//!     in flight ──┤
//!                 └──▶ source(why)     it failed, or there was no room
//! ```
//!
//! A slot changes once, by its [`Flight`](super::flight::Flight). A waiter can sleep on its latch from the start, even
//! before the submission, and the flight sets the latch on every path, panics included. This excludes the deadlocks of
//! the thesis below: there, waiting depended on handlers that another thread supplied later.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, sections 4.1.2, 4.1.3 and 5.1.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::entry::Why;
use super::region::Source;
use crate::mover::{CopyError, CopyReport, Demand};
use crate::sync::{self, Latch, Place};

/// Shared by the index, entries and the flight; `B` is the near memory.
///
/// The flight writes `outcome` once, before it sets `is_complete`; any thread reads it after it has seen `is_complete`
/// set. The rest never changes, except `visited`. The last holder of the slot drops the block. The latch has its own
/// allocation, so that the flight can drop its reference to the slot before it wakes waiters.
pub(super) struct Slot<B> {
    pub(super) source: Arc<Source<B>>,
    pub(super) range: Range<usize>,
    /// The region's generation at the creation of the slot.
    pub(super) generation: u64,
    /// `None` for copies of memory. Boxed, because a hit reads the other fields.
    read: Option<Box<ReadState>>,
    outcome: OnceLock<Outcome<B>>,
    is_complete: sync::Arc<Latch>,
    /// Hit since SIEVE's hand last passed. Any reader sets it, the hand resets it under the index' lock. An atomic of std,
    /// because only the choice of victims depends on it.
    visited: AtomicBool,
    /// Rounds of SIEVE's hand that a hit survives, at least 1.
    rounds: u8,
    /// Those of them that are left of the last hit that the hand saw. Read and written under the index' lock only.
    rounds_left: AtomicU8,
}

/// What a slot of a file has beside the others.
struct ReadState {
    demand: Arc<Demand>,
    /// Set before the outcome of a failed read.
    error: OnceLock<CopyError>,
}

impl ReadState {
    /// That of a slot with one reader.
    fn new() -> ReadState {
        ReadState { demand: Arc::new(Demand::one()), error: OnceLock::new() }
    }
}

/// The final state of a slot.
pub(super) enum Outcome<B> {
    /// The ready copy, and the report of its engines.
    Near(B, CopyReport),
    Source(Why),
}

impl<B> Slot<B> {
    /// A slot in flight; its [`Flight`](super::flight::Flight) must follow.
    pub(super) fn in_flight(source: &Arc<Source<B>>, range: Range<usize>) -> Slot<B> {
        Slot {
            source: source.clone(),
            range,
            generation: source.generation(),
            read: source.file().map(|_| Box::new(ReadState::new())),
            outcome: OnceLock::new(),
            is_complete: sync::Arc::new(Latch::new()),
            visited: AtomicBool::new(false),
            rounds: 1,
            rounds_left: AtomicU8::new(0),
        }
    }

    /// A slot with bytes that the program made. Each hit survives `rounds` of SIEVE's hand.
    pub(super) fn made(source: &Arc<Source<B>>, range: Range<usize>, block: B, rounds: u8) -> Slot<B> {
        let slot = Slot { rounds: rounds.max(1), ..Slot::in_flight(source, range) };
        slot.complete(Outcome::Near(block, CopyReport::default())).set();
        slot
    }

    /// A slot that stays at the source.
    pub(super) fn at_source(source: &Arc<Source<B>>, range: Range<usize>, why: Why) -> Slot<B> {
        let slot = Slot::in_flight(source, range);
        slot.complete(Outcome::Source(why)).set();
        slot
    }

    /// Stores the outcome. Only the slot's flight calls it, once, and then sets the returned latch, which publishes it.
    #[must_use = "waiters sleep until the latch is set"]
    pub(super) fn complete(&self, outcome: Outcome<B>) -> sync::Arc<Latch> {
        let first = self.outcome.set(outcome).is_ok();
        assert!(first, "a flight completes once");
        self.is_complete.clone()
    }

    /// The outcome; `None` while in flight.
    pub(super) fn outcome(&self) -> Option<&Outcome<B>> {
        // The cell alone would suffice. The latch comes first because loom models its ordering and not that of the cell;
        // ordinary tests check that the cell is filled before the latch is set.
        if self.is_complete.is_set() { self.outcome.get() } else { None }
    }

    /// The near copy, once it is ready.
    #[inline]
    pub(super) fn near(&self) -> Option<&B> {
        match self.outcome() {
            Some(Outcome::Near(block, _)) => Some(block),
            _ => None,
        }
    }

    /// Returns the memory of the near copy, if it is ready.
    pub(super) fn into_near(self) -> Option<B> {
        match self.outcome.into_inner() {
            Some(Outcome::Near(block, _)) => Some(block),
            _ => None,
        }
    }

    /// The near copy of a slot from a [`Directory`](super::directory::Directory). Only near slots are published, and the
    /// lookup has made the copy visible, so the latch is not read.
    #[inline]
    pub(super) fn published(&self) -> &B {
        match self.outcome.get() {
            Some(Outcome::Near(block, _)) => block,
            _ => unreachable!("only slots that are near are published"),
        }
    }

    /// Marks a hit. Most hits find the mark set and write nothing.
    #[inline]
    pub(super) fn touch(&self) {
        // ORDERING: Relaxed, no partner: a lost or late mark only makes the choice of victims worse.
        if !self.visited.load(Ordering::Relaxed) {
            self.visited.store(true, Ordering::Relaxed);
        }
    }

    /// Whether SIEVE's hand spares it: there was a hit since the last call, or it has rounds left. Uses up the mark, or a
    /// round.
    pub(super) fn take_spare(&self) -> bool {
        // ORDERING: Relaxed: see `touch`; the rounds are ordered by the index' lock.
        let visited = self.visited.load(Ordering::Relaxed);
        self.visited.store(false, Ordering::Relaxed);
        let left = self.rounds_left.load(Ordering::Relaxed);
        self.rounds_left
            .store(if visited { self.rounds - 1 } else { left.saturating_sub(1) }, Ordering::Relaxed);
        visited || left > 0
    }

    /// Whether there was a hit since the hand last passed.
    pub(super) fn is_visited(&self) -> bool {
        // ORDERING: Relaxed: see `touch`.
        self.visited.load(Ordering::Relaxed)
    }

    /// Adds a reader. Returns false if the read of the slot was cancelled.
    pub(super) fn join(&self) -> bool {
        self.read.as_ref().is_none_or(|read| read.demand.join())
    }

    /// Removes a reader that was added.
    pub(super) fn leave_demand(&self) {
        if let Some(read) = &self.read {
            read.demand.leave();
        }
    }

    /// The demand for the read of a slot of a file.
    pub(super) fn demand(&self) -> Option<Arc<Demand>> {
        self.read.as_ref().map(|read| read.demand.clone())
    }

    /// Stores the error of a failed read. The flight calls it before it completes the slot.
    pub(super) fn set_error(&self, error: CopyError) {
        if let Some(read) = &self.read {
            let _ = read.error.set(error);
        }
    }

    /// The error of a failed read.
    pub(super) fn error(&self) -> Option<CopyError> {
        self.read.as_ref()?.error.get().copied()
    }

    /// Sleeps until it is complete.
    pub(super) fn wait(&self) {
        self.is_complete.wait();
    }

    /// Whether it is complete; if not, wakes `waker` on completion.
    pub(super) fn poll(&self, place: &mut Place, waker: &Waker) -> bool {
        self.is_complete.poll(place, waker)
    }

    /// Ends the wait of the future with this place.
    pub(super) fn leave(&self, place: &mut Place) {
        self.is_complete.leave(place);
    }

    /// The bytes at the source.
    pub(super) fn source_bytes(&self) -> &[u8] {
        self.source.slice(self.range.clone())
    }
}
