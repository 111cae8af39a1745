//! How long a worker without work looks out for more before it sleeps.
//!
//! To wake a sleeping thread takes tens of microseconds where its CPU has to be woken too, in a virtual machine above
//! all. So a worker whose sleeps have been short lingers: it looks, and yields its CPU between looks. The window grows
//! after a sleep that it could have covered and shrinks after a longer one, so that a worker which is asked now and then
//! does not linger at all. It ends at once when another thread wants the CPU.
//!
//! Source: the window is that of Linux' governor `haltpoll` (drivers/cpuidle/governors/haltpoll.c), with its constants.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Never longer: `guest_halt_poll_ns`.
const WINDOW_MAX: Duration = Duration::from_micros(200);
/// The first window: `guest_halt_poll_grow_start`. Smaller ones are none.
const WINDOW_MIN: Duration = Duration::from_micros(50);
/// Looks between two yields; some 0.5 us.
const LOOKS: usize = 16;
/// A yield to nobody takes 0.3 us, one to another thread that thread's time slice, of milliseconds.
const YIELD_MAX: Duration = Duration::from_micros(20);

/// Of one worker.
#[derive(Debug)]
pub(super) struct Linger {
    window: Duration,
}

impl Linger {
    /// No lingering before the first short sleep.
    pub(super) fn new() -> Linger {
        Linger { window: Duration::ZERO }
    }

    /// Lingers each time, for one look.
    #[cfg(memferry_loom)]
    pub(super) fn always() -> Linger {
        Linger { window: WINDOW_MIN }
    }

    /// Whether it would look at all.
    pub(super) fn has_window(&self) -> bool {
        !self.window.is_zero()
    }

    /// Looks until `is_there`, the window ends or another thread wants the CPU; whether it was there.
    pub(super) fn look_for(&mut self, is_there: impl Fn() -> bool) -> bool {
        if cfg!(memferry_loom) {
            return is_there();
        }
        let begin = Instant::now();
        let mut now = begin;
        while now - begin < self.window {
            for _ in 0..LOOKS {
                if is_there() {
                    return true;
                }
                spin_loop();
            }
            thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            if now - before > YIELD_MAX {
                self.window = Duration::ZERO;
            }
        }
        is_there()
    }

    /// The worker slept for so long, after its window.
    pub(super) fn slept(&mut self, slept: Duration) {
        if cfg!(memferry_loom) {
            return;
        }
        if slept > WINDOW_MAX {
            self.window /= 2;
            if self.window < WINDOW_MIN {
                self.window = Duration::ZERO;
            }
        } else if slept > self.window {
            self.window = (2 * self.window).clamp(WINDOW_MIN, WINDOW_MAX);
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(199);
    const LONG: Duration = Duration::from_millis(1);

    #[test]
    fn short_sleeps_widen_the_window_and_long_ones_close_it() {
        let mut linger = Linger::new();
        let windows = [LONG, SHORT, SHORT, SHORT, SHORT, LONG, LONG, LONG].map(|sleep| {
            linger.slept(sleep);
            linger.window.as_micros()
        });
        assert_eq!(windows, [0, 50, 100, 200, 200, 100, 50, 0]);
        assert!(!linger.has_window());
        // A sleep that the window would have covered, but for a thread that was in the way, changes nothing.
        linger.window = WINDOW_MAX;
        linger.slept(Duration::from_micros(10));
        assert_eq!(linger.window, WINDOW_MAX);
    }

    #[test]
    fn what_is_there_is_seen_and_what_is_not_ends_with_the_window() {
        let mut linger = Linger { window: WINDOW_MIN };
        assert!(linger.look_for(|| true));
        let begin = Instant::now();
        assert!(!linger.look_for(|| false));
        // No upper bound: the machine may be busy. Either the window has passed, or somebody wanted the CPU.
        assert!(begin.elapsed() >= WINDOW_MIN || !linger.has_window());
    }
}
