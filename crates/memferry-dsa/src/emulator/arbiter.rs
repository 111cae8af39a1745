//! Which queue of a group an engine serves next.
//!
//! Each queue has as many credits as its priority says and pays one for each descriptor; the queues with credits take
//! turns. When no queue that has work has credits left, all get theirs back.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 3.4 (group arbiter).

use super::front::Queue;
use crate::portal::WorkQueueInfo;

pub(super) struct Arbiter {
    first: usize, // the number of the group's first queue
    seats: Vec<Seat>,
    turn: usize, // the seat that is asked first
}

struct Seat {
    priority: u8,
    credits: u8,
}

impl Arbiter {
    pub(super) fn new(first: usize, queues: &[WorkQueueInfo]) -> Arbiter {
        let seat = |queue: &WorkQueueInfo| Seat { priority: queue.priority, credits: queue.priority };
        Arbiter { first, seats: queues.iter().map(seat).collect(), turn: 0 }
    }

    /// The next descriptor that was in its queue at `stamped_max`, and the number of the queue.
    pub(super) fn take(&mut self, queues: &[Queue], stamped_max: u64) -> Option<(usize, [u64; 8])> {
        // Most looks find nothing, and must not cost two rounds.
        if self.earliest(queues)? > stamped_max {
            return None;
        }
        self.take_with_credits(queues, stamped_max).or_else(|| {
            self.seats.iter_mut().for_each(|seat| seat.credits = seat.priority);
            self.take_with_credits(queues, stamped_max)
        })
    }

    /// The earliest stamp of all oldest entries.
    pub(super) fn earliest(&self, queues: &[Queue]) -> Option<u64> {
        queues[self.first..self.first + self.seats.len()].iter().filter_map(|queue| queue.ring.stamp()).min()
    }

    fn take_with_credits(&mut self, queues: &[Queue], stamped_max: u64) -> Option<(usize, [u64; 8])> {
        let count = self.seats.len();
        for index in (self.turn..count).chain(0..self.turn.min(count)) {
            let seat = &mut self.seats[index];
            let ring = &queues[self.first + index].ring;
            if seat.credits > 0
                && ring.stamp().is_some_and(|stamp| stamp <= stamped_max)
                && let Some(words) = ring.pop()
            {
                seat.credits -= 1;
                self.turn = index + 1;
                return Some((self.first + index, words));
            }
        }
        None
    }
}
