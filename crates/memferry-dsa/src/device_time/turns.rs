//! Which queue of a group an engine serves next.

/// The turn and the credits of the queues of a group; zero at the start. Any value is valid.
///
/// Each queue gets as many credits as its priority and pays one for each descriptor; the queues with credits take turns.
/// When no queue with work has credits left, all credits are restored.
///
/// Source: Intel DSA Architecture Specification 3.0, section 3.4 (group arbiter).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Turns(pub u64); // 35:32 the queue that is asked first; 31:0 credits, 4 bits for each queue

impl Turns {
    /// The queue that is next among those for which `candidate` has an entry, that entry, and the state afterwards.
    #[inline]
    pub fn choose<T>(
        self,
        priorities: &[u8],
        candidate: impl Fn(usize) -> Option<T>,
    ) -> Option<(usize, T, Turns)> {
        let count = priorities.len();
        let turn = self.turn().min(count);
        let mut first = None;
        for queue in (turn..count).chain(0..turn) {
            let Some(head) = candidate(queue) else { continue };
            if self.credits(queue) > 0 {
                return Some((queue, head, self.paid(queue)));
            }
            first.get_or_insert((queue, head));
        }
        // No queue with work can pay: all credits are restored, and the first of these queues pays.
        let (queue, head) = first?;
        Some((queue, head, Turns::refilled(priorities).paid(queue)))
    }

    fn turn(self) -> usize {
        (self.0 >> 32 & 0xf) as usize
    }

    fn credits(self, queue: usize) -> u64 {
        self.0 >> (4 * queue) & 0xf
    }

    /// Takes one credit from a queue and moves the turn to the next.
    fn paid(self, queue: usize) -> Turns {
        let credits = self.0 & 0xffff_ffff;
        Turns((credits - (1 << (4 * queue))) | ((queue as u64 + 1) << 32))
    }

    fn refilled(priorities: &[u8]) -> Turns {
        let credit = |(queue, priority): (usize, &u8)| u64::from(*priority & 0xf) << (4 * queue);
        Turns(priorities.iter().enumerate().map(credit).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_served_by_priority() {
        let mut turns = Turns::default();
        let mut served = [0; 2];
        for _ in 0..160 {
            let (queue, (), next) = turns.choose(&[15, 1], |_| Some(())).expect("both have work");
            (turns, served[queue]) = (next, served[queue] + 1);
        }
        assert_eq!(served, [150, 10]);
        let (queue, ..) = turns.choose(&[15, 1], |queue| (queue == 1).then_some(())).expect("one has work");
        assert_eq!(queue, 1);
        assert_eq!(turns.choose(&[15, 1], |_| None::<()>), None);
    }
}
