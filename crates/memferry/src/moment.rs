//! A fast clock for latencies, read several times for each copy.
//!
//! A read of the kernel's clock takes 25 ns; one of the CPU's time-stamp counter takes 10 ns, or 20 ns if it waits for
//! earlier instructions. So the counter is used if it is the kernel's clock source: then the kernel has checked that it
//! has one constant rate on all CPUs. Otherwise the kernel's clock is used.
//!
//! The counter's rate is measured once per process, in 0.1 ms, to a thousandth; histograms need a quarter. Crates that
//! measure it better take up to 200 ms.

use std::fs;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memferry_dsa::internals::instructions::{time_stamp, time_stamp_after};

/// A point in time, valid also in forked children.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Moment {
    ticks: u64,
}

impl Moment {
    /// The current time.
    #[inline]
    pub(crate) fn now() -> Moment {
        let clock = Clock::get();
        Moment { ticks: if clock.has_counter { time_stamp() } else { clock.ns() } }
    }

    /// Nanoseconds since then, read after all earlier instructions.
    #[inline]
    pub(crate) fn elapsed_ns(self) -> u64 {
        let clock = Clock::get();
        let ticks = if clock.has_counter { time_stamp_after() } else { clock.ns() };
        // Another CPU's counter may be some ticks behind.
        clock.ns_of(ticks.saturating_sub(self.ticks))
    }
}

/// The clock of moments.
#[derive(Debug)]
struct Clock {
    /// Whether ticks are those of the time-stamp counter instead of nanoseconds since `origin`.
    has_counter: bool,
    /// Duration of a tick in 2^-32 ns.
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

/// Measures a tick of the time-stamp counter, in 2^-32 ns; `None` if it does not tick.
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

/// Counter and kernel's clock at the same time: the least disturbed of several reads.
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

    /// Reads of the kernel's clock before and after bound the elapsed time.
    #[test]
    fn it_agrees_with_the_kernel_s_clock() {
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
    fn without_the_counter_it_is_the_kernel_s_clock() {
        let clock = Clock { has_counter: false, scale: 1 << 32, origin: Instant::now() };
        let (before, behind) = (clock.ns(), clock.ns());
        assert!(behind >= before);
        assert_eq!(clock.ns_of(1234), 1234);
    }
}
