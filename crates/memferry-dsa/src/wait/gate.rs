//! How a sleeper and those who bring work do not miss each other.
//!
//! ```text
//! bringer: enter the work; announce: count += 1; if the sleeper lies, clear that and wake it
//! sleeper: look at the count; look for work; none: if the count is still that, lie down; sleep while lying
//! ```
//!
//! Count and bit are one word, so either the announcement comes first, and lying down fails, or lying down comes
//! first, and the announcement sees it.

use crate::sync::{AtomicU64, Ordering};

/// The bit that says that the sleeper wants to be woken.
const LYING: u64 = 1;

pub(super) struct Gate(AtomicU64); // 63:1 announcements, 0 the sleeper lies

impl Gate {
    pub(super) fn new() -> Gate {
        Gate(AtomicU64::new(0))
    }

    /// Work has been entered. True if the caller has to wake the sleeper.
    #[must_use]
    pub(super) fn announce(&self) -> bool {
        // ORDERING: Release pairs with the Acquire in `seen`: who sees the count sees the work.
        self.0.fetch_add(2, Ordering::Release) & LYING != 0 && self.get_up()
    }

    /// The announcements so far. Look for work after this.
    pub(super) fn seen(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `announce`.
        self.0.load(Ordering::Acquire) & !LYING
    }

    /// Lies down if nothing was announced since `seen`.
    #[must_use]
    pub(super) fn lie_down(&self, seen: u64) -> bool {
        // ORDERING: Relaxed: exchanges of one word are in one order; the work itself is published by the count.
        self.0.compare_exchange(seen, seen | LYING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the sleeper was not woken yet.
    pub(super) fn is_lying(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LYING != 0
    }

    /// Nobody needs to wake the sleeper any more. Whether somebody would have had to.
    pub(super) fn get_up(&self) -> bool {
        self.0.fetch_and(!LYING, Ordering::Relaxed) & LYING != 0
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn announcements_wake_who_lies() {
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

    /// Two bring work, one sleeps between: it finds all of it. A wake that was missed would be a deadlock.
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
