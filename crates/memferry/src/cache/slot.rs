//! One range of a region on its way to a node, or there: what the index and all clones of an entry share.
//!
//! ```text
//!                 ┌──▶ near(block)     the copy arrived
//!     in flight ──┤
//!                 └──▶ source(why)     it failed, or there was no room
//! ```
//!
//! A slot changes once, and only the [`Flight`](super::flight::Flight) that was made with it changes it. It is born
//! waitable: whoever finds it before the copy is even submitted sleeps on the same latch as everybody else, and the
//! flight sets that latch on every way out, a panic included. That is the whole answer to the deadlocks that the
//! thesis below found one by one: there, waiting depended on handlers that another thread had yet to supply.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, sections 4.1.2, 4.1.3 and 5.1.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::entry::Why;
use super::region::Source;
use crate::mover::CopyReport;
use crate::sync::{self, Latch, Place};

/// Shared by the index, entries and the flight; `B` is the near memory.
///
/// `outcome` is written once, by the flight, before it sets `landed`; everybody reads it, after seeing `landed` set.
/// The rest never changes. The block leaves with the slot, so with whoever holds it last. The latch is on its own, so
/// that the flight can let go of the slot before it lets waiters through.
pub(super) struct Slot<B> {
    pub(super) source: Arc<Source<B>>,
    pub(super) range: Range<usize>,
    /// The region's, when the slot was made.
    pub(super) generation: u64,
    outcome: OnceLock<Outcome<B>>,
    landed: sync::Arc<Latch>,
    /// Hit since SIEVE's hand last passed. Any reader sets it, the hand resets it under the index' lock. std's, not
    /// loom's: nothing but the choice of victims hangs on it.
    visited: AtomicBool,
}

/// How a flight ended.
pub(super) enum Outcome<B> {
    /// The copy, and who made it.
    Near(B, CopyReport),
    Source(Why),
}

impl<B> Slot<B> {
    /// In flight: a [`Flight`](super::flight::Flight) must follow.
    pub(super) fn in_flight(source: &Arc<Source<B>>, range: Range<usize>) -> Slot<B> {
        Slot {
            source: source.clone(),
            range,
            generation: source.generation(),
            outcome: OnceLock::new(),
            landed: sync::Arc::new(Latch::new()),
            visited: AtomicBool::new(false),
        }
    }

    /// At the source for good.
    pub(super) fn at_source(source: &Arc<Source<B>>, range: Range<usize>, why: Why) -> Slot<B> {
        let slot = Slot::in_flight(source, range);
        slot.settle(Outcome::Source(why)).set();
        slot
    }

    /// Says how it ended. Only the slot's flight may, once; then it sets the latch, and everybody sees it.
    #[must_use = "waiters sleep until the latch is set"]
    pub(super) fn settle(&self, outcome: Outcome<B>) -> sync::Arc<Latch> {
        let first = self.outcome.set(outcome).is_ok();
        assert!(first, "a flight lands once");
        self.landed.clone()
    }

    /// How it ended; `None` while in flight.
    pub(super) fn outcome(&self) -> Option<&Outcome<B>> {
        // The cell alone would do. The latch comes first because loom knows its ordering and not the cell's; that
        // the cell is filled before the latch is set is therefore left to the ordinary tests.
        if self.landed.is_set() { self.outcome.get() } else { None }
    }

    /// The near copy, once it is there.
    pub(super) fn near(&self) -> Option<&B> {
        match self.outcome() {
            Some(Outcome::Near(block, _)) => Some(block),
            _ => None,
        }
    }

    /// The memory of the near copy, once that is there.
    pub(super) fn into_near(self) -> Option<B> {
        match self.outcome.into_inner() {
            Some(Outcome::Near(block, _)) => Some(block),
            _ => None,
        }
    }

    /// The near copy of a slot that was found in a [`Directory`](super::directory::Directory): only such are there, and
    /// the way through it has made the copy visible, so the latch need not be asked.
    #[inline]
    pub(super) fn published(&self) -> &B {
        match self.outcome.get() {
            Some(Outcome::Near(block, _)) => block,
            _ => unreachable!("only slots that are near are published"),
        }
    }

    /// A hit. Most find the mark set and write nothing.
    #[inline]
    pub(super) fn touch(&self) {
        // ORDERING: Relaxed, no partner: a mark that is lost or late costs a good victim, nothing else.
        if !self.visited.load(Ordering::Relaxed) {
            self.visited.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there was a hit since this was last asked.
    pub(super) fn take_visited(&self) -> bool {
        // ORDERING: Relaxed: see `touch`.
        let visited = self.visited.load(Ordering::Relaxed);
        self.visited.store(false, Ordering::Relaxed);
        visited
    }

    /// Whether there was a hit since the hand last passed.
    pub(super) fn is_visited(&self) -> bool {
        // ORDERING: Relaxed: see `touch`.
        self.visited.load(Ordering::Relaxed)
    }

    /// Sleeps until it is settled.
    pub(super) fn wait(&self) {
        self.landed.wait();
    }

    /// Whether it is settled; if not, `waker` is woken then.
    pub(super) fn poll(&self, place: &mut Place, waker: &Waker) -> bool {
        self.landed.poll(place, waker)
    }

    /// The future of this place waits no longer.
    pub(super) fn leave(&self, place: &mut Place) {
        self.landed.leave(place);
    }

    /// The bytes at home.
    pub(super) fn source_bytes(&self) -> &[u8] {
        self.source.slice(self.range.clone())
    }
}
