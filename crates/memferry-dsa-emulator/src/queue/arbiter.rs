//! The arbiter of a group: it chooses the queue that an engine serves next, by the rule of [`Turns`].
//!
//! The state is one word, so that processes that share a device can share it. A choice is made on a copy and takes
//! effect if no other process has chosen meanwhile. Any value is valid, also one that a hostile client has written.

use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::WorkQueueInfo;
use memferry_dsa::internals::device_time::Turns;

use crate::arc_ref::ArcRef;
use crate::device::clock::AHEAD_MAX_NS;
use crate::device::interface::Queue;
use crate::queue::ring::{ClientId, Head};

/// On cache lines of its own, as an engine is.
#[repr(align(128))] // `CacheLine`'s
pub(crate) struct Arbiter {
    first: usize, // number of the group's first queue
    priorities: Vec<u8>,
    state: ArbiterState,
}

enum ArbiterState {
    Own(Turns),
    /// Chooses among the entries of all clients.
    Shared(ArcRef<AtomicU64>),
}

impl Arbiter {
    pub(crate) fn new(first: usize, queues: &[WorkQueueInfo]) -> Arbiter {
        let priorities = queues.iter().map(|queue| queue.priority).collect();
        Arbiter { first, priorities, state: ArbiterState::Own(Turns::default()) }
    }

    /// Shares the state with others from now on.
    pub(crate) fn share(&mut self, state: ArcRef<AtomicU64>) {
        self.state = ArbiterState::Shared(state);
    }

    /// The next entry that was in its queue at `stamped_max`, if it is `client`'s, and the number of its queue. The
    /// caller pops it.
    pub(crate) fn take(
        &mut self,
        queues: &[Queue],
        client: ClientId,
        stamped_max: u64,
    ) -> Option<(usize, Head)> {
        match &mut self.state {
            ArbiterState::Own(word) => {
                let is_candidate = |head: &Head| head.is_ready_for(client) && head.stamp <= stamped_max;
                let (seat, head, next) =
                    choose(*word, &self.priorities, &queues[self.first..], is_candidate)?;
                *word = next;
                Some((self.first + seat, head))
            }
            ArbiterState::Shared(shared) => {
                let before = shared.load(Ordering::Relaxed);
                let is_candidate = |head: &Head| head.is_ready && has_come(head.stamp, stamped_max);
                let word = Turns(before);
                let (seat, head, next) = choose(word, &self.priorities, &queues[self.first..], is_candidate)?;
                // ORDERING: Relaxed, since the mark in the ring publishes the entry (`Ring::head`).
                let is_mine = head.client == client
                    && shared.compare_exchange(before, next.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
                is_mine.then_some((self.first + seat, head))
            }
        }
    }

    /// Whether [`take`](Self::take) would return an entry now.
    pub(crate) fn would_take(&self, queues: &[Queue], client: ClientId, stamped_max: u64) -> bool {
        let ArbiterState::Shared(shared) = &self.state else { return true };
        let is_candidate = |head: &Head| head.is_ready && has_come(head.stamp, stamped_max);
        let word = Turns(shared.load(Ordering::Relaxed));
        let chosen = choose(word, &self.priorities, &queues[self.first..], is_candidate);
        chosen.is_some_and(|(_, head, _)| head.client == client)
    }

    /// The earliest stamp of all oldest entries that `client` could take.
    pub(crate) fn earliest(&self, queues: &[Queue], client: ClientId) -> Option<u64> {
        let queues = queues[self.first..].iter().take(self.priorities.len());
        let heads = queues.filter_map(|queue| queue.ring().head());
        let stamps = heads.filter(|head| head.is_ready_for(client)).map(|head| head.stamp);
        match self.state {
            ArbiterState::Own(_) => stamps.min(),
            ArbiterState::Shared(_) => stamps.map(|stamp| stamp.min(STAMP_MAX)).min(),
        }
    }
}

/// Whether an entry was in its queue at `stamped_max`. A stamp far in the future was forged and counts as past.
fn has_come(stamp: u64, stamped_max: u64) -> bool {
    stamp <= stamped_max || stamp - stamped_max > AHEAD_MAX_NS
}

/// The latest honest stamp: 292 years. Additions to it do not overflow.
const STAMP_MAX: u64 = u64::MAX / 2;

/// The seat that is next among those whose oldest entry is a candidate, that entry, and the state afterwards.
#[inline]
fn choose(
    turns: Turns,
    priorities: &[u8],
    queues: &[Queue],
    is_candidate: impl Fn(&Head) -> bool,
) -> Option<(usize, Head, Turns)> {
    turns.choose(priorities, |seat| queues[seat].ring().head().filter(&is_candidate))
}
