//! How often the completer looks.
//!
//! What was submitted just now may be done at once; what has taken a millisecond will hardly be done in the next ten
//! microseconds. So the pauses follow the age of the *youngest* record, which is the one that may be done next:
//!
//! ```text
//! age          below 20 us   spin
//!              then          sleep a quarter of the age, 50 us to 1 ms
//! credit       a twentieth of the time that passes, 1 ms at most; being awake is paid from it
//!              used up:      no spinning, and sleep until it is earned, 1 ms at most
//! ```
//!
//! A transfer that takes T is noticed at most max(50 us, T / 4) late, and never more than 1 ms, to which the kernel
//! adds what it takes to wake two threads. The completer takes at most a twentieth of a core, plus 1 ms once; with
//! one look a millisecond, as for a long transfer, it is some 1 %.

use std::time::{Duration, Instant};

/// A device copies 512 KiB in that time, and small things long before.
///
/// Source of the rate, 30 GB/s: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator
/// in 4th Gen Intel Xeon Scalable Processors" (2024).
const SPIN_MAX: Duration = Duration::from_micros(20);
/// Sleeping is a quarter of the age.
const SLEEP_SHARE: u32 = 4;
/// Shorter sleeps cost more to begin and end than they give.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest sleep, and so the most that sleeping adds.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// One part in so many of the time is the completer's.
const CORE_SHARE: u32 = 20;
/// The most time that can be saved up.
const CREDIT_MAX: Duration = Duration::from_millis(1);
/// What each sleep costs beyond the time awake: two context switches and a timer.
const SLEEP_COST: Duration = Duration::from_micros(5);

/// How long to sleep before the next look at a record that was submitted `age` ago and is expected to take longer: so
/// long that a transfer is noticed at most a quarter of its time late, or 50 us, and never more than 1 ms.
///
/// For those who look for themselves; [`Wait::Block`](super::Wait::Block) does this for everybody else. Sleep with
/// [`reduce_timer_slack`](super::reduce_timer_slack).
pub fn poll_interval(age: Duration) -> Duration {
    (age / SLEEP_SHARE).clamp(SLEEP_MIN, SLEEP_MAX)
}

/// What to do until the next look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Look again.
    Spin,
    /// Sleep, and be woken if something younger comes.
    Sleep(Duration),
    /// Sleep, whatever comes.
    Nap(Duration),
}

/// Decides it, from the times it is told.
#[derive(Debug)]
pub(super) struct Pace {
    credit: Duration,
    debt: Duration,
    /// Until when credit and debt are reckoned.
    reckoned: Instant,
}

impl Pace {
    /// A completer that starts to look now, with all its credit.
    pub(super) fn new(now: Instant) -> Pace {
        Pace { credit: CREDIT_MAX, debt: Duration::ZERO, reckoned: now }
    }

    /// The completer has slept until now.
    pub(super) fn slept(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.reckoned);
        self.reckoned = self.reckoned.max(now);
        self.earn(passed / CORE_SHARE);
        self.pay(SLEEP_COST);
    }

    /// The completer has looked, the youngest record that it watches was entered at `youngest`.
    pub(super) fn next(&mut self, now: Instant, youngest: Instant) -> Next {
        let awake = now.saturating_duration_since(self.reckoned);
        self.reckoned = self.reckoned.max(now);
        self.earn(awake / CORE_SHARE);
        self.pay(awake);
        let age = now.saturating_duration_since(youngest);
        let sleep = poll_interval(age);
        if self.debt > Duration::ZERO {
            Next::Nap((self.debt * CORE_SHARE).clamp(sleep, SLEEP_MAX))
        } else if age < SPIN_MAX {
            Next::Spin
        } else if sleep <= SLEEP_MIN {
            // Waking a thread takes as long as this sleeps.
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
        // What cannot be paid in a second is forgiven: the machine was suspended, or stood still.
        self.debt = (self.debt + missing).min(Duration::from_secs(1) / CORE_SHARE);
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_micros(1);

    /// Runs a completer on a clock of its own for `length`; a record is entered every `every`, and stays for
    /// `stays`. The time it was awake, with what sleeping costs, and the longest sleep.
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
                // Nothing to watch until the next one comes.
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
    fn a_long_transfer_takes_no_core() {
        let second = Duration::from_secs(1);
        let (awake, longest) = run(second, second, second);
        assert!(awake < Duration::from_millis(10), "{awake:?} of a second");
        assert_eq!(longest, SLEEP_MAX);
    }

    /// However records come, the share holds, and no sleep is longer than promised.
    #[test]
    fn the_share_holds_under_any_load() {
        let second = Duration::from_secs(1);
        for every_us in [3, 10, 30, 100, 300, 1000, 5000] {
            for stays_us in [1, 10, 15, 50, 200, 3000] {
                let (every, stays) = (Duration::from_micros(every_us), Duration::from_micros(stays_us));
                let (awake, longest) = run(second, every, stays);
                // Records that are entered and gone faster than sleeping is worth cost at least a sleep each.
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
    fn pauses_follow_the_youngest() {
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

    /// Who has spun his credit away sleeps, and earns it again.
    #[test]
    fn credit_ends_and_comes_back() {
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
