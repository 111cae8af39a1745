//! The free entries of a dedicated queue, which only its submitter can count.
//!
//! One word holds the number of entries in use and the process that uses them: after a fork the child opens a queue of
//! its own, while its memory still holds the parent's count.
//!
//! ```text
//! take:     if the word is this process's and the count is at the limit: no entry is free
//!           else the count goes up by one (from zero, if the word was another process's)
//! release:  if the word is this process's, the count goes down
//! ```
//!
//! Source: DSA specification 5.3 (a full dedicated queue loses what is written to it).

use crate::sync::{AtomicU64, Ordering};

/// Entries in use of a dedicated queue, for types that implement [`Portal`](super::Portal).
///
/// Submitters write `word` in `take`, threads that see completions write it in `release`. `generation` is the number of
/// the calling process ([`fork::generation`](crate::fork::generation)).
pub struct Credits {
    limit: u32,
    word: AtomicU64, // 63:32 process generation, 31:0 entries in use
}

impl Credits {
    /// A queue with `limit` entries, all free.
    pub fn new(limit: u32) -> Credits {
        Credits { limit, word: AtomicU64::new(0) }
    }

    /// Takes an entry, if one is free.
    #[inline]
    pub fn take(&self, generation: u32) -> bool {
        let next = |word| {
            let taken = taken(word, generation);
            (taken < self.limit).then(|| pack(generation, taken + 1))
        };
        // ORDERING: Acquire pairs with the Release in `release`: the releasing thread's accesses to its descriptor and record
        // happen before this thread's. The count itself needs no ordering: updates of one word are in one order.
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }

    /// Gives entries back; at most as many as this process has in use, the excess is ignored.
    #[inline]
    pub fn release(&self, generation: u32, count: u32) {
        let next = |word| Some(pack(generation, taken(word, generation).saturating_sub(count)));
        // ORDERING: Release pairs with the Acquire in `take`, which then sees the use of the entry as finished. The update
        // always succeeds.
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }

    /// The entries in use.
    pub fn taken(&self, generation: u32) -> u32 {
        taken(self.word.load(Ordering::Relaxed), generation)
    }
}

fn pack(generation: u32, taken: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(taken)
}

fn taken(word: u64, generation: u32) -> u32 {
    if (word >> 32) as u32 == generation { word as u32 } else { 0 }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_limit_is_exact() {
        let credits = Credits::new(3);
        for _ in 0..3 {
            assert!(credits.take(1));
        }
        assert!(!credits.take(1));
        credits.release(1, 2);
        assert_eq!(credits.taken(1), 1);
        assert!(credits.take(1) && credits.take(1) && !credits.take(1));
        credits.release(1, 99);
        assert_eq!(credits.taken(1), 0);
        assert!(!Credits::new(0).take(1));
    }

    /// The parent's descriptors in flight do not count in the child.
    #[test]
    fn a_child_counts_from_zero() {
        let credits = Credits::new(2);
        assert!(credits.take(1) && credits.take(1));
        assert_eq!(credits.taken(2), 0);
        assert!(credits.take(2) && credits.take(2) && !credits.take(2));
        credits.release(2, 1);
        assert_eq!(credits.taken(2), 1);
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        const LIMIT: u32 = 5;
        let (credits, inside, most) = (Credits::new(LIMIT), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let count = (0..3).filter(|_| credits.take(7)).count() as u32;
                        most.fetch_max(inside.fetch_add(count, Ordering::SeqCst) + count, Ordering::SeqCst);
                        inside.fetch_sub(count, Ordering::SeqCst);
                        credits.release(7, count);
                    }
                });
            }
        });
        assert!(most.into_inner() <= LIMIT);
        assert_eq!(credits.taken(7), 0);
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Two threads take and release one entry: at most one holds it at a time, and it is free at the end.
    #[test]
    fn loom_credits() {
        loom::model(|| {
            let credits = Arc::new(Credits::new(1));
            let inside = Arc::new(AtomicU32::new(0));
            let work = |credits: &Credits, inside: &AtomicU32| {
                if credits.take(1) {
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two hold one entry");
                    inside.fetch_sub(1, Ordering::Relaxed);
                    credits.release(1, 1);
                }
            };
            let other = loom::thread::spawn({
                let (credits, inside) = (Arc::clone(&credits), Arc::clone(&inside));
                move || work(&credits, &inside)
            });
            work(&credits, &inside);
            other.join().unwrap();
            assert_eq!(credits.taken(1), 0);
            assert!(credits.take(1));
        });
    }
}
