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
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::entry::Why;
use super::region::Source;
use crate::mover::CopyReport;
use crate::sync::{self, Latch};

/// Shared by the index, entries and the flight; `B` is the near memory.
///
/// `outcome` is written once, by the flight, before it sets `landed`; everybody reads it, after seeing `landed` set.
/// The rest never changes. The block leaves with the slot, so with whoever holds it last. The latch is on its own, so
/// that the flight can let go of the slot before it lets waiters through.
pub(super) struct Slot<B> {
    pub(super) source: Arc<Source>,
    pub(super) range: Range<usize>,
    /// The region's, when the slot was made.
    pub(super) generation: u64,
    outcome: OnceLock<Outcome<B>>,
    landed: sync::Arc<Latch>,
}

/// How a flight ended.
pub(super) enum Outcome<B> {
    /// The copy, and who made it.
    Near(B, CopyReport),
    Source(Why),
}

impl<B> Slot<B> {
    /// In flight: a [`Flight`](super::flight::Flight) must follow.
    pub(super) fn in_flight(source: &Arc<Source>, range: Range<usize>) -> Slot<B> {
        Slot {
            source: source.clone(),
            range,
            generation: source.generation(),
            outcome: OnceLock::new(),
            landed: sync::Arc::new(Latch::new()),
        }
    }

    /// At the source for good.
    pub(super) fn at_source(source: &Arc<Source>, range: Range<usize>, why: Why) -> Slot<B> {
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

    /// Sleeps until it is settled.
    pub(super) fn wait(&self) {
        self.landed.wait();
    }

    /// Whether it is settled; if not, `waker` is woken then.
    pub(super) fn poll(&self, waker: &Waker) -> bool {
        self.landed.poll(waker)
    }

    /// The bytes at home.
    pub(super) fn source_bytes(&self) -> &[u8] {
        self.source.slice(self.range.clone())
    }
}
