//! Repair of a ring that stands still: after any number of forged words, the ring makes progress again.

use super::{ClientId, Head, Mark, POSITION, Ring, SLOTS, Stage, entries, next};
use crate::sync::Ordering;

/// The state of a ring at one time, to detect whether it moves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RingSnapshot {
    head: u64,
    tail: u64,
    mark: u64, // of the slot at the head
}

impl RingSnapshot {
    /// Whether the heads are equal: no entry was popped in between.
    pub(crate) fn is_as(&self, before: &RingSnapshot) -> bool {
        (self.head, self.mark) == (before.head, before.mark)
    }

    /// Whether all entries that were pushed have been popped.
    pub(crate) fn is_empty(&self) -> bool {
        self.head & POSITION == self.tail & POSITION
    }
}

impl Ring {
    /// The current state.
    pub(crate) fn snapshot(&self) -> RingSnapshot {
        // ORDERING: Acquire keeps the three loads in this order. They pair with the Releases of `head` in `pop`, of
        // `tail` in `open` and of `mark` in `publish`. A snapshot that is outdated makes the exchanges in `repair`
        // fail.
        let head = self.head.0.load(Ordering::Acquire);
        let tail = self.submitters.0.tail.load(Ordering::Acquire);
        RingSnapshot { head, tail, mark: self.slot(head & POSITION).mark.load(Ordering::Acquire) }
    }

    /// Repairs a ring that has stood still for longer than a push takes. An entry at the head is revoked if it is not
    /// ready, or if no client owns it according to `is_owned`. If the head has no entry although the tail is further
    /// on, the head advances. Returns true if an entry was removed.
    ///
    /// A submitter that was only slow is told that the queue is full.
    pub(crate) fn repair(&self, stood: &RingSnapshot, is_owned: impl FnOnce(ClientId, u64) -> bool) -> bool {
        let (head, tail) = (stood.head & POSITION, stood.tail & POSITION);
        let slot = self.slot(head);
        let mark = Mark(stood.mark);
        if mark.holds(head) {
            let is_stuck = mark.is(Stage::Taken) || !is_owned(mark.client(), head);
            // ORDERING: Relaxed, since this neither publishes nor reads words. A submitter that marks the entry as
            // ready later fails.
            let revoked = Mark::new(head, 0, Stage::Taken).0;
            let is_revoked = is_stuck
                && slot
                    .mark
                    .compare_exchange(stood.mark, revoked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            let entry = Head { client: mark.client(), is_ready: false, stamp: 0, position: head };
            return is_revoked && self.skip(entry);
        }
        // ORDERING (both): AcqRel as in `skip`: Acquire pairs with the Release of `head` in `pop`, Release with the
        // Acquire of `head` in `take_slot`.
        if entries(head, tail) != 0 {
            let after = if entries(head, tail) > SLOTS as u64 { tail } else { next(head) };
            let _ = self.head.0.compare_exchange(stood.head, after, Ordering::AcqRel, Ordering::Relaxed);
        } else if head != tail {
            // The head has passed the tail.
            let _ = self.head.0.compare_exchange(stood.head, tail, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.repair_tail(stood.tail);
        false
    }

    /// Frees a slot at the tail that no submitter could ever take.
    fn repair_tail(&self, tail: u64) {
        let position = tail & POSITION;
        let slot = self.slot(position);
        let mark = Mark(slot.mark.load(Ordering::Relaxed));
        let is_sealed = mark.is_of(position) && mark.is(Stage::Sealed) && tail & super::CLOSED != 0;
        if !mark.is_free_for(position) && !mark.holds(position) && !is_sealed {
            let open = Mark::new(position, 0, Stage::Open).0;
            let _ = slot.mark.compare_exchange(mark.0, open, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
