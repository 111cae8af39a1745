//! The server's look at a ring that stands still: whatever somebody has written into it, it goes on again.

use super::{ClientId, Head, Mark, POSITION, Ring, SLOTS, Stage, entries, next};
use crate::sync::Ordering;

/// Where a ring stands, to see whether it moves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RingSnapshot {
    head: u64,
    tail: u64,
    mark: u64, // of the slot at the head
}

impl RingSnapshot {
    /// Whether the heads are the same: nothing was taken since.
    pub(crate) fn is_as(&self, before: &RingSnapshot) -> bool {
        (self.head, self.mark) == (before.head, before.mark)
    }
}

impl Ring {
    /// Where it stands.
    pub(crate) fn snapshot(&self) -> RingSnapshot {
        let head = self.head.0.load(Ordering::Acquire);
        let tail = self.submitters.0.tail.load(Ordering::Acquire);
        RingSnapshot { head, tail, mark: self.slot(head & POSITION).mark.load(Ordering::Acquire) }
    }

    /// Makes sense of a ring that has stalls still for longer than a submitter takes: an entry at the head that is not ready
    /// is revoked, one that `is_owed` says nobody has is removed, and where there is none although the tail is further on,
    /// the head follows. True if an entry was removed.
    ///
    /// A submitter that was only slow gets the answer that the queue is full.
    pub(crate) fn repair(&self, stalls: &RingSnapshot, is_owed: impl FnOnce(ClientId, u64) -> bool) -> bool {
        let (head, tail) = (stalls.head & POSITION, stalls.tail & POSITION);
        let slot = self.slot(head);
        let mark = Mark(stalls.mark);
        if mark.holds(head) {
            let is_stuck = mark.is(Stage::Taken) || !is_owed(mark.client(), head);
            // ORDERING: Relaxed: nobody's words are published or read by this; whoever would mark the entry as ready
            // fails.
            let revoked = Mark::new(head, 0, Stage::Taken).0;
            let is_revoked = is_stuck
                && slot
                    .mark
                    .compare_exchange(stalls.mark, revoked, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            let entry = Head { client: mark.client(), is_ready: false, stamp: 0, position: head };
            return is_revoked && self.skip(entry);
        }
        if entries(head, tail) != 0 {
            let after = if entries(head, tail) > SLOTS as u64 { tail } else { next(head) };
            let _ = self.head.0.compare_exchange(stalls.head, after, Ordering::AcqRel, Ordering::Relaxed);
        } else if head != tail {
            // The head has passed the tail.
            let _ = self.head.0.compare_exchange(stalls.head, tail, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.repair_tail(stalls.tail);
        false
    }

    /// A slot at the tail that nobody could ever take becomes free.
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
