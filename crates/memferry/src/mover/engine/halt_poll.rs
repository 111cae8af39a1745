//! Polling of an idle worker before it sleeps.
//!
//! Waking a thread takes tens of microseconds if its CPU sleeps too, above all in a virtual machine. So a worker whose
//! sleeps have been short polls for a window first, and yields its CPU between polls. The window grows after a sleep that
//! it could have covered, and shrinks after a longer one, so that a rarely used worker does not poll. It ends at once
//! when another thread wants the CPU.
//!
//! Source: the Linux governor `haltpoll` (drivers/cpuidle/governors/haltpoll.c), with its constants.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Longest window: `guest_halt_poll_ns`.
const WINDOW_MAX: Duration = Duration::from_micros(200);
/// First and smallest window: `guest_halt_poll_grow_start`.
const WINDOW_MIN: Duration = Duration::from_micros(50);
/// Polls between two yields; some 0.5 us.
const POLLS: usize = 16;
/// A yield without another runnable thread takes 0.3 us; otherwise it takes a time slice, of milliseconds.
const YIELD_MAX: Duration = Duration::from_micros(20);

/// The polling window of one worker.
#[derive(Debug)]
pub(in crate::mover) struct HaltPoll {
    window: Duration,
}

impl HaltPoll {
    /// No polling before the first short sleep.
    pub(in crate::mover) fn new() -> HaltPoll {
        HaltPoll { window: Duration::ZERO }
    }

    /// Polls each time, once.
    #[cfg(memferry_loom)]
    pub(in crate::mover) fn always() -> HaltPoll {
        HaltPoll { window: WINDOW_MIN }
    }

    /// Whether it polls at all.
    pub(in crate::mover) fn has_window(&self) -> bool {
        !self.window.is_zero()
    }

    /// Polls until `is_there`, the window ends or another thread wants the CPU. Returns the last answer of `is_there`.
    pub(in crate::mover) fn poll(&mut self, is_there: impl Fn() -> bool) -> bool {
        if cfg!(memferry_loom) {
            return is_there();
        }
        let begin = Instant::now();
        let mut now = begin;
        while now - begin < self.window {
            for _ in 0..POLLS {
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

    /// Adapts the window to the duration of a sleep that followed it.
    pub(in crate::mover) fn slept(&mut self, slept: Duration) {
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
        let mut poll = HaltPoll::new();
        let windows = [LONG, SHORT, SHORT, SHORT, SHORT, LONG, LONG, LONG].map(|sleep| {
            poll.slept(sleep);
            poll.window.as_micros()
        });
        assert_eq!(windows, [0, 50, 100, 200, 200, 100, 50, 0]);
        assert!(!poll.has_window());
        // A sleep shorter than the window, because another thread ended the polling, changes nothing.
        poll.window = WINDOW_MAX;
        poll.slept(Duration::from_micros(10));
        assert_eq!(poll.window, WINDOW_MAX);
    }

    #[test]
    fn polling_ends_with_an_item_or_with_the_window() {
        let mut poll = HaltPoll { window: WINDOW_MIN };
        assert!(poll.poll(|| true));
        let begin = Instant::now();
        assert!(!poll.poll(|| false));
        // No upper bound: the machine may be busy. Either the window has passed, or another thread wanted the CPU.
        assert!(begin.elapsed() >= WINDOW_MIN || !poll.has_window());
    }
}
