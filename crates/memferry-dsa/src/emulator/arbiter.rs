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

    /// The next descriptor, and the number of its queue.
    pub(super) fn take(&mut self, queues: &[Queue]) -> Option<(usize, [u64; 8])> {
        self.take_with_credits(queues).or_else(|| {
            self.seats.iter_mut().for_each(|seat| seat.credits = seat.priority);
            self.take_with_credits(queues)
        })
    }

    fn take_with_credits(&mut self, queues: &[Queue]) -> Option<(usize, [u64; 8])> {
        let count = self.seats.len();
        for index in (0..count).map(|index| (self.turn + index) % count) {
            let seat = &mut self.seats[index];
            if seat.credits > 0
                && let Some(words) = queues[self.first + index].ring.pop()
            {
                seat.credits -= 1;
                self.turn = index + 1;
                return Some((self.first + index, words));
            }
        }
        None
    }
}
