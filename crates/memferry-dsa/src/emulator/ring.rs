//! The entries of one work queue: a bounded ring, many submitters, one device.
//!
//! ```text
//! push:  claim a position (tail += 1 while tail - head < limit), write the words, mark the slot with position + 1
//!        (`head` is looked at only when the last look says that the ring is full: its line is the device's)
//! pop:   if the slot at head is marked head + 1: read the words, head += 1
//! close: set a bit of the tail, so that no later claim succeeds
//! ```
//!
//! The words are atomics, so that this needs no `unsafe`; on x86 they cost what plain moves cost.
//!
//! Source: after Dmitry Vyukov's bounded MPMC queue, with an exact limit because there is one consumer.

use crate::sync::{AtomicU64, Ordering};

/// The bit of the tail that says that the ring is closed.
const CLOSED: u64 = 1 << 63;

/// Why [`Ring::push`] took nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    Full,
    Closed,
}

/// | field | written by | read by |
/// |---|---|---|
/// | `tail` | submitters (claim), anybody (close) | submitters |
/// | `head_seen` | submitters: a `head` that one of them has seen | submitters |
/// | `head` | the device | submitters |
/// | slot words | the submitter who claimed the position | the device, after the slot's mark |
pub(super) struct Ring {
    submitters: Line<Submitters>,
    head: Line<AtomicU64>, // positions popped since the start
    slots: Box<[Line<Slot>]>,
}

struct Submitters {
    tail: AtomicU64, // 63 closed, 62:0 positions claimed since the start
    head_seen: AtomicU64,
}

/// A value on cache lines of its own. 128: adjacent lines are prefetched in pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Slot {
    mark: AtomicU64, // the position whose words are complete, plus 1
    words: [AtomicU64; 8],
    stamp: AtomicU64,
}

impl Ring {
    pub(super) fn new(capacity: u32) -> Ring {
        let slot = || Slot {
            mark: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            stamp: AtomicU64::new(0),
        };
        let slots = capacity.max(1).next_power_of_two();
        Ring {
            submitters: Line(Submitters { tail: AtomicU64::new(0), head_seen: AtomicU64::new(0) }),
            head: Line(AtomicU64::new(0)),
            slots: (0..slots).map(|_| Line(slot())).collect(),
        }
    }

    /// Puts 64 bytes and a stamp into the ring if fewer than `limit` entries are taken; `limit` is at most the
    /// capacity.
    pub(super) fn push(&self, words: [u64; 8], stamp: u64, limit: u32) -> Result<(), Refusal> {
        let Submitters { tail: shared_tail, head_seen } = &self.submitters.0;
        let mut tail = shared_tail.load(Ordering::Relaxed);
        // ORDERING: Acquire pairs with the Release of `head_seen` below: the slot's former words have been read.
        let mut head = head_seen.load(Ordering::Acquire);
        loop {
            if tail & CLOSED != 0 {
                return Err(Refusal::Closed);
            }
            // `head` passes a stale `tail`; then nothing is taken, and the exchange fails.
            if tail.saturating_sub(head) >= u64::from(limit) {
                // ORDERING: Acquire pairs with the Release of `head` in `pop`, and Release hands that on to the
                // submitter who sees `head_seen`. One that is overtaken by an older value costs a look more.
                head = self.head.0.load(Ordering::Acquire);
                head_seen.store(head, Ordering::Release);
                if tail.saturating_sub(head) >= u64::from(limit) {
                    return Err(Refusal::Full);
                }
            }
            // ORDERING: Relaxed: the claim publishes nothing, the mark does.
            match shared_tail.compare_exchange_weak(tail, tail + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        let slot = self.slot(tail);
        for (place, word) in slot.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        slot.stamp.store(stamp, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of `mark` in `pop`: whoever sees the mark sees the words, and
        // all memory that the submitter wrote before.
        slot.mark.store(tail + 1, Ordering::Release);
        Ok(())
    }

    /// Takes the oldest entry. Only the device's thread calls this.
    pub(super) fn pop(&self) -> Option<[u64; 8]> {
        let head = self.head.0.load(Ordering::Relaxed);
        let slot = self.slot(head);
        // ORDERING: Acquire pairs with the Release of `mark` in `push`.
        if slot.mark.load(Ordering::Acquire) != head + 1 {
            return None;
        }
        let words = std::array::from_fn(|index| slot.words[index].load(Ordering::Relaxed));
        // ORDERING: Release pairs with the Acquire of `head` in `push`: the words have been read.
        self.head.0.store(head + 1, Ordering::Release);
        Some(words)
    }

    /// The stamp of the oldest entry. Only the device's thread calls this.
    pub(super) fn stamp(&self) -> Option<u64> {
        let head = self.head.0.load(Ordering::Relaxed);
        let slot = self.slot(head);
        // ORDERING: as in `pop`.
        (slot.mark.load(Ordering::Acquire) == head + 1).then(|| slot.stamp.load(Ordering::Relaxed))
    }

    /// Whether `pop` would find nothing. Only the device's thread calls this.
    pub(super) fn is_empty(&self) -> bool {
        let head = self.head.0.load(Ordering::Relaxed);
        // ORDERING: as in `pop`.
        self.slot(head).mark.load(Ordering::Acquire) != head + 1
    }

    /// Refuses every `push` from now on; what was taken stays.
    pub(super) fn close(&self) {
        self.submitters.0.tail.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Entries taken since the start.
    pub(super) fn pushed(&self) -> u64 {
        self.submitters.0.tail.load(Ordering::Relaxed) & !CLOSED
    }

    /// Entries given to the device since the start.
    pub(super) fn popped(&self) -> u64 {
        self.head.0.load(Ordering::Relaxed)
    }

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize & (self.slots.len() - 1)].0
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_order_is_kept() {
        let ring = Ring::new(5);
        for round in 0..100 {
            for entry in 0..3 {
                assert_eq!(ring.push([round, entry, 0, 0, 0, 0, 0, 7], 0, 3), Ok(()));
            }
            assert_eq!(ring.push([0; 8], 0, 3), Err(Refusal::Full));
            for entry in 0..3 {
                assert_eq!(ring.pop(), Some([round, entry, 0, 0, 0, 0, 0, 7]));
            }
            assert_eq!(ring.pop(), None);
        }
        assert_eq!((ring.pushed(), ring.popped()), (300, 300));
    }

    #[test]
    fn a_closed_ring_keeps_what_it_has() {
        let ring = Ring::new(2);
        ring.push([1; 8], 0, 2).unwrap();
        ring.close();
        assert_eq!(ring.push([2; 8], 0, 2), Err(Refusal::Closed));
        assert_eq!(ring.pushed(), 1);
        assert_eq!(ring.pop(), Some([1; 8]));
        assert!(ring.is_empty());
    }

    #[test]
    fn nothing_is_lost_or_torn_between_threads() {
        const EACH: u64 = 20_000;
        let ring = Ring::new(8);
        std::thread::scope(|scope| {
            for submitter in 0..3 {
                let ring = &ring;
                scope.spawn(move || {
                    for number in 0..EACH {
                        while ring.push([submitter << 32 | number; 8], 0, 6).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 3];
            while next.iter().sum::<u64>() < 3 * EACH {
                let Some(words) = ring.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(words, [words[0]; 8], "an entry is torn");
                let submitter = (words[0] >> 32) as usize;
                assert_eq!(
                    words[0] & 0xffff_ffff,
                    next[submitter],
                    "entries of submitter {submitter} out of order"
                );
                next[submitter] += 1;
            }
        });
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// Two submitters and the device on a ring of two with a limit of one: slots are reused, nothing is lost,
    /// torn or seen twice, and the limit holds.
    #[test]
    fn loom_ring() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(1));
            let submitters: Vec<_> = (1..=2)
                .map(|number| {
                    let ring = Arc::clone(&ring);
                    loom::thread::spawn(move || ring.push([number; 8], 0, 1).is_ok())
                })
                .collect();
            let mut seen = Vec::new();
            for _ in 0..2 {
                seen.extend(ring.pop());
                loom::thread::yield_now();
            }
            let accepted =
                submitters.into_iter().map(|submitter| submitter.join().unwrap()).filter(|ok| *ok).count();
            seen.extend(std::iter::from_fn(|| ring.pop()));
            assert_eq!(seen.len(), accepted);
            assert!(accepted >= 1);
            for words in &seen {
                assert_eq!(*words, [words[0]; 8]);
            }
            seen.dedup();
            assert_eq!(seen.len(), accepted);
        });
    }

    /// A push that races with `close` either happened, and its entry is there, or did not.
    #[test]
    fn loom_ring_close() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(1));
            let submitter = {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || ring.push([1; 8], 0, 1).is_ok())
            };
            ring.close();
            let accepted = submitter.join().unwrap();
            assert_eq!(ring.pop().is_some(), accepted);
            assert_eq!(ring.pushed(), u64::from(accepted));
        });
    }
}
