//! The polling interval of the completer.
//!
//! A descriptor that was just submitted may complete at once. One that has taken a millisecond will hardly complete within
//! the next ten microseconds. So the interval follows the age of the *youngest* record, the one likely to be next:
//!
//! ```text
//! age          below 20 us   spin
//!              then          sleep a quarter of the age, 50 us to 1 ms
//! credit       a twentieth of the elapsed time, 1 ms at most; time awake is paid from it
//!              used up:      no spinning; sleep until it is earned, 1 ms at most
//! ```
//!
//! The completion of a transfer of length T is noticed at most max(50 us, T / 4) late, and never more than 1 ms, plus the
//! kernel's time for waking two threads. The completer uses at most a twentieth of a core, plus 1 ms once; with one poll a
//! millisecond, as for a long transfer, some 1 %.

use std::time::{Duration, Instant};

/// The age up to which the completer spins: a device copies 512 KiB in that time.
///
/// Source of the rate, 30 GB/s: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator
/// in 4th Gen Intel Xeon Scalable Processors" (2024).
const SPIN_MAX: Duration = Duration::from_micros(20);
/// A sleep is a quarter of the age.
const SLEEP_SHARE: u32 = 4;
/// The shortest sleep; shorter ones cost more to start and end than they save.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest sleep, and so the most added latency.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// The completer uses at most one part in this many of a core.
const CORE_SHARE: u32 = 20;
/// The most credit that can be saved.
const CREDIT_MAX: Duration = Duration::from_millis(1);
/// The cost of a sleep beyond the time awake: two context switches and a timer.
const SLEEP_COST: Duration = Duration::from_micros(5);

/// The sleep before the next poll of a record that was submitted `age` ago: a completion is noticed at most a quarter of
/// its time late, or 50 us, and never more than 1 ms.
///
/// For threads that poll by themselves; [`Wait::Block`](super::Wait::Block) does this for all others. Combine it with
/// [`reduce_timer_slack`](super::reduce_timer_slack).
pub fn poll_interval(age: Duration) -> Duration {
    (age / SLEEP_SHARE).clamp(SLEEP_MIN, SLEEP_MAX)
}

/// The completer's action until the next poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Poll again.
    Spin,
    /// Sleep; a younger record ends the sleep.
    Sleep(Duration),
    /// Sleep without interruption.
    Nap(Duration),
}

/// The credit account that decides the next action.
#[derive(Debug)]
pub(super) struct Pace {
    credit: Duration,
    debt: Duration,
    /// The time up to which credit and debt are accounted.
    accounted: Instant,
}

impl Pace {
    /// A completer that starts now, with full credit.
    pub(super) fn new(now: Instant) -> Pace {
        Pace { credit: CREDIT_MAX, debt: Duration::ZERO, accounted: now }
    }

    /// Accounts for a sleep that ends now.
    pub(super) fn slept(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.accounted);
        self.accounted = self.accounted.max(now);
        self.earn(passed / CORE_SHARE);
        self.pay(SLEEP_COST);
    }

    /// Accounts for a poll that ends now, and decides the next action; `youngest` is the time of the youngest record.
    pub(super) fn next(&mut self, now: Instant, youngest: Instant) -> Next {
        let awake = now.saturating_duration_since(self.accounted);
        self.accounted = self.accounted.max(now);
        self.earn(awake / CORE_SHARE);
        self.pay(awake);
        let age = now.saturating_duration_since(youngest);
        let sleep = poll_interval(age);
        if self.debt > Duration::ZERO {
            Next::Nap((self.debt * CORE_SHARE).clamp(sleep, SLEEP_MAX))
        } else if age < SPIN_MAX {
            Next::Spin
        } else if sleep <= SLEEP_MIN {
            // Waking a thread takes as long as this sleep.
            Next::Nap(sleep)
        } else {
            Next::Sleep(sleep)
        }
    }

    fn earn(&mut self, earned: Duration) {
        let left = earned.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(earned);
        self.credit = (self.credit + left).min(CREDIT_MAX);
    }

    fn pay(&mut self, cost: Duration) {
        let missing = cost.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(cost);
        // A debt above one second's credit is dropped: the machine was suspended or stalled.
        self.debt = (self.debt + missing).min(Duration::from_secs(1) / CORE_SHARE);
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_micros(1);

    /// Runs a completer in virtual time for `length`; a record arrives every `every` and stays for `stays`. Returns the
    /// time awake, including the cost of sleeps, and the longest sleep.
    fn run(length: Duration, every: Duration, stays: Duration) -> (Duration, Duration) {
        let start = Instant::now();
        let (mut pace, mut now, mut awake, mut longest) =
            (Pace::new(start), start, Duration::ZERO, Duration::ZERO);
        while now - start < length {
            now += LOOK;
            awake += LOOK;
            let since_start = (now - start).as_nanos();
            let last = start + Duration::from_nanos((since_start - since_start % every.as_nanos()) as u64);
            if now - last > stays {
                // No record until the next one arrives.
                now = last + every;
                awake += SLEEP_COST;
                pace.slept(now);
                continue;
            }
            let sleep = match pace.next(now, last) {
                Next::Spin => continue,
                Next::Nap(sleep) => sleep,
                // Woken by the next record.
                Next::Sleep(sleep) => sleep.min(last + every - now),
            };
            longest = longest.max(sleep);
            now += sleep;
            awake += SLEEP_COST;
            pace.slept(now);
        }
        (awake, longest)
    }

    #[test]
    fn a_long_transfer_leaves_the_core_idle() {
        let second = Duration::from_secs(1);
        let (awake, longest) = run(second, second, second);
        assert!(awake < Duration::from_millis(10), "{awake:?} of a second");
        assert_eq!(longest, SLEEP_MAX);
    }

    /// For any arrival of records, the share of the core and the longest sleep are bounded.
    #[test]
    fn the_share_holds_under_any_load() {
        let second = Duration::from_secs(1);
        for every_us in [3, 10, 30, 100, 300, 1000, 5000] {
            for stays_us in [1, 10, 15, 50, 200, 3000] {
                let (every, stays) = (Duration::from_micros(every_us), Duration::from_micros(stays_us));
                let (awake, longest) = run(second, every, stays);
                // Short-lived records cost at least a sleep each.
                let sleeps = if stays < every {
                    SLEEP_COST * (second.as_micros() / every.as_micros()) as u32
                } else {
                    Duration::ZERO
                };
                let bound = second / CORE_SHARE + CREDIT_MAX + LOOK * 2000 + sleeps;
                assert!(awake <= bound, "every {every:?}, for {stays:?}: {awake:?}");
                assert!(longest <= SLEEP_MAX);
            }
        }
    }

    #[test]
    fn sleeps_follow_the_youngest_record() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut pace = Pace::new(start);
        assert_eq!(pace.next(at(1), start), Next::Spin);
        assert_eq!(pace.next(at(19), start), Next::Spin);
        assert_eq!(pace.next(at(20), start), Next::Nap(SLEEP_MIN));
        pace.slept(at(70));
        pace.slept(at(400));
        assert_eq!(pace.next(at(400), start), Next::Sleep(Duration::from_micros(100)));
        assert_eq!(pace.next(at(400), at(399)), Next::Spin);
        pace.slept(at(50_000));
        assert_eq!(pace.next(at(50_000), start), Next::Sleep(SLEEP_MAX));
    }

    /// Spinning uses up the credit; sleeping earns it again.
    #[test]
    fn credit_is_used_up_and_earned_again() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let (mut now, mut spun) = (start, Duration::ZERO);
        while pace.next(now, now) == Next::Spin {
            now += LOOK;
            spun += LOOK;
            assert!(spun < 2 * CREDIT_MAX);
        }
        assert!(spun >= CREDIT_MAX, "{spun:?}");
        assert!(matches!(pace.next(now, now), Next::Nap(_)));
        now += Duration::from_millis(40);
        pace.slept(now);
        assert_eq!(pace.next(now, now), Next::Spin);
    }
}
