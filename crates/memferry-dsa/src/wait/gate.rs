//! A gate between one sleeping thread and the threads that bring work, without lost wake-ups.
//!
//! ```text
//! producer: publish the work; announce: count += 1; if the sleeper's bit is set, clear it and wake the sleeper
//! sleeper:  read the count; search for work; none: set the bit if the count is unchanged; sleep while it is set
//! ```
//!
//! Count and bit are one word. Either the announcement comes first, and setting the bit fails; or the bit is set first,
//! and the announcement sees it.

use crate::sync::{AtomicU64, Ordering};

/// The bit of a sleeper that waits to be woken.
const LYING: u64 = 1;

/// One word: producers write it in `announce`, the sleeper in `lie_down` and `get_up`; both read it.
pub(super) struct Gate(AtomicU64); // 63:1 announcements, 0 the sleeper waits

impl Gate {
    pub(super) fn new() -> Gate {
        Gate(AtomicU64::new(0))
    }

    /// Announces published work. Returns true if the caller must wake the sleeper.
    #[must_use]
    pub(super) fn announce(&self) -> bool {
        // ORDERING: Release pairs with the Acquire in `seen`: a sleeper that reads the count sees the work.
        self.0.fetch_add(2, Ordering::Release) & LYING != 0 && self.get_up()
    }

    /// The announcements so far. The sleeper calls this before it searches for work.
    pub(super) fn seen(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `announce`: the announced work is visible.
        self.0.load(Ordering::Acquire) & !LYING
    }

    /// Sets the bit if nothing was announced since `seen`.
    #[must_use]
    pub(super) fn lie_down(&self, seen: u64) -> bool {
        // Relaxed: exchanges of one word are in one order; the count publishes the work.
        self.0.compare_exchange(seen, seen | LYING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the bit is set: the sleeper has not been woken.
    pub(super) fn is_lying(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LYING != 0
    }

    /// Clears the bit. Returns whether it was set.
    pub(super) fn get_up(&self) -> bool {
        self.0.fetch_and(!LYING, Ordering::Relaxed) & LYING != 0
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn announcements_wake_the_sleeper() {
        let gate = Gate::new();
        assert!(!gate.announce());
        let seen = gate.seen();
        assert!(!gate.announce());
        assert!(!gate.lie_down(seen), "something was announced since");
        assert!(gate.lie_down(gate.seen()));
        assert!(gate.is_lying());
        assert!(gate.announce());
        assert!(!gate.announce(), "the first one woke it");
        assert!(!gate.is_lying() && !gate.get_up());
    }
}

#[cfg(all(test, memferry_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Two threads bring work to one sleeper, which finds all of it. A lost wake-up would be a deadlock.
    #[test]
    fn loom_gate() {
        // Without a bound this takes minutes; each race here needs one preemption, or two.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Gate::new(), [AtomicBool::new(false), AtomicBool::new(false)]));
            let sleeper = loom::thread::current();
            for number in 0..2 {
                let (shared, sleeper) = (Arc::clone(&shared), sleeper.clone());
                loom::thread::spawn(move || {
                    shared.1[number].store(true, Ordering::Relaxed);
                    if shared.0.announce() {
                        sleeper.unpark();
                    }
                });
            }
            let (gate, work) = &*shared;
            loop {
                let seen = gate.seen();
                if work.iter().all(|work| work.load(Ordering::Relaxed)) {
                    break;
                }
                if gate.lie_down(seen) {
                    while gate.is_lying() {
                        loom::thread::park();
                    }
                }
            }
        });
    }
}
