//! When a copy was made, and how long ago: looked up several times for each copy.
//!
//! A look at the kernel's clock takes 25 ns, one at the CPU's time-stamp counter 10 ns, and 20 ns if it has to wait for
//! what comes before it. So it is the counter where the kernel keeps time by it, which it does only after it has seen
//! that the counter runs at one rate, and on all CPUs alike; elsewhere it is the kernel's clock.
//!
//! The counter's rate is found out once in a process, in 0.1 ms, to a thousandth: histograms ask for a quarter. Crates
//! that know it better take up to 200 ms to learn it.

use std::fs;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memferry_dsa::instructions::{time_stamp, time_stamp_after};

/// A point in time. Those of a forked process are good in its children.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Moment {
    ticks: u64,
}

impl Moment {
    /// Now.
    #[inline]
    pub(crate) fn now() -> Moment {
        let clock = Clock::get();
        Moment { ticks: if clock.has_counter { time_stamp() } else { clock.ns() } }
    }

    /// Nanoseconds since then, once what comes before this has been done.
    #[inline]
    pub(crate) fn elapsed_ns(self) -> u64 {
        let clock = Clock::get();
        let ticks = if clock.has_counter { time_stamp_after() } else { clock.ns() };
        // Another CPU's counter may be some ticks behind.
        clock.ns_of(ticks.saturating_sub(self.ticks))
    }
}

/// What moments are counted in.
#[derive(Debug)]
struct Clock {
    /// Ticks are those of the time-stamp counter, not nanoseconds since `origin`.
    has_counter: bool,
    /// 2^32 of a nanosecond that a tick takes.
    scale: u64,
    origin: Instant,
}

impl Clock {
    #[inline]
    fn get() -> &'static Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        CLOCK.get_or_init(Clock::new)
    }

    fn new() -> Clock {
        let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let keeps_time = !cfg!(memferry_loom) && source.is_ok_and(|name| name.trim_ascii() == "tsc");
        let scale = if keeps_time { counter_scale() } else { None };
        Clock { has_counter: scale.is_some(), scale: scale.unwrap_or(1 << 32), origin: Instant::now() }
    }

    fn ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn ns_of(&self, ticks: u64) -> u64 {
        // A counter that ticks for ten years fits into 96 bits with its scale.
        u64::try_from((u128::from(ticks) * u128::from(self.scale)) >> 32).unwrap_or(u64::MAX)
    }
}

/// How long a tick of the time-stamp counter takes, in 2^-32 ns; `None` if it does not tick.
fn counter_scale() -> Option<u64> {
    const WINDOW: Duration = Duration::from_micros(100);
    let (begin_ticks, begin) = both_clocks();
    while begin.elapsed() < WINDOW {
        spin_loop();
    }
    let (end_ticks, end) = both_clocks();
    let ticks = end_ticks.checked_sub(begin_ticks).filter(|&ticks| ticks > 0)?;
    u64::try_from(((end - begin).as_nanos() << 32) / u128::from(ticks)).ok()
}

/// The counter, and the kernel's clock at the same time: of several looks the one that was disturbed least.
fn both_clocks() -> (u64, Instant) {
    let look = |_| {
        let before = time_stamp_after();
        let now = Instant::now();
        let took = time_stamp_after().saturating_sub(before);
        (took, (before + took / 2, now))
    };
    let (_, clocks) = (0..5).map(look).min_by_key(|&(took, _)| took).expect("five looks");
    clocks
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// Looks at the kernel's clock before and behind tell between which two times it is.
    #[test]
    fn it_keeps_time_with_the_kernel() {
        for milliseconds in [0, 1, 20] {
            let outer = Instant::now();
            let moment = Moment::now();
            let inner = Instant::now();
            thread::sleep(Duration::from_millis(milliseconds));
            let at_least = inner.elapsed();
            let elapsed = Duration::from_nanos(moment.elapsed_ns());
            let at_most = outer.elapsed();
            // A fence more or less.
            let slack = Duration::from_nanos(200) + at_most / 500;
            assert!(
                elapsed + slack >= at_least && elapsed <= at_most + slack,
                "{at_least:?} {elapsed:?} {at_most:?}"
            );
        }
    }

    #[test]
    fn ticks_are_scaled() {
        let origin = Instant::now();
        // 2.5 GHz.
        let clock = Clock { has_counter: true, scale: (1 << 32) / 5 * 2, origin };
        assert_eq!(clock.ns_of(2_500_000_000 * 3600 * 24 * 365) / 1_000_000_000, 3600 * 24 * 365 - 1);
        assert_eq!((clock.ns_of(0), clock.ns_of(3)), (0, 1));
        assert_eq!(Clock { scale: 1 << 62, ..clock }.ns_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_machine_without_the_counter_has_its_kernel_s_clock() {
        let clock = Clock { has_counter: false, scale: 1 << 32, origin: Instant::now() };
        let (before, behind) = (clock.ns(), clock.ns());
        assert!(behind >= before);
        assert_eq!(clock.ns_of(1234), 1234);
    }
}
