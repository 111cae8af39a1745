//! How an engine waits for the next descriptor: it looks for some time, or sleeps at once.
//!
//! ```text
//! woken by a thread on another CPU   look: the next descriptor needs no wake-up
//! woken by a thread on the same CPU  sleep at once: looking would only keep that thread from submitting the next
//! that again and again               look for a few milliseconds: only two threads that both want the CPU are separated
//! ```
//!
//! Linux wakes a thread on the CPU of the thread that wakes it if the other CPUs are busy, and in a virtual machine also
//! if the host has halted them. Measurements: docs/decisions/spin-before-sleep.md.

use std::time::Duration;

use super::futex::Wakeup;

/// Idle steps before the thread sleeps: some 50 to 150 microseconds, several times the duration of a submission that traps.
/// A wake-up costs the submitter more than the submission itself.
const STEPS_MAX: u32 = 400;
/// Wake-ups by a thread on the same CPU in a round. With a round trip of 8 microseconds, the first round takes half a
/// millisecond. A round with looking takes 3 to 10 ms: the scheduler separates threads in its next tick, after 1 to 10 ms.
const ROUND: u32 = 64;
/// A longer sleep ends a series of wake-ups: the submitter has been doing something else.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The state of one engine; only its thread uses it.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Wake-ups in series by a thread on the same CPU.
    crowded: u32,
}

impl Linger {
    /// Idle steps before the next sleep.
    pub(super) fn steps_max(&self) -> u32 {
        // The second, third, fifth, ninth, ... round: often at the start of a long series, and rarely if the threads have
        // only this CPU.
        let looks = self.crowded == 0 || (self.crowded / ROUND).is_power_of_two();
        if looks { STEPS_MAX } else { 0 }
    }

    /// Adapts to a sleep. `own_cpu` is the CPU of the engine.
    pub(super) fn slept(&mut self, slept: Duration, wakeup: Wakeup, own_cpu: impl FnOnce() -> u32) {
        let Wakeup::By(Some(cpu)) = wakeup else { return };
        self.crowded = match self.crowded {
            _ if cpu != own_cpu() => 0,
            _ if slept >= PAUSE_MIN => 1,
            count => count.saturating_add(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);
    const LONG: Duration = Duration::from_millis(10);

    fn woken_on(cpu: u32, slept: Duration, linger: &mut Linger) -> u32 {
        linger.slept(slept, Wakeup::By(Some(cpu)), || 1);
        linger.steps_max()
    }

    #[test]
    fn an_engine_looks_unless_it_is_in_the_way_of_the_submitter() {
        let mut linger = Linger::default();
        assert_eq!(linger.steps_max(), STEPS_MAX, "at the start");
        for slept in [SHORT, LONG] {
            assert_eq!(woken_on(1, slept, &mut linger), 0, "on the same CPU after {slept:?}");
            linger.slept(LONG, Wakeup::Unasked, || 1);
            linger.slept(SHORT, Wakeup::By(None), || 1);
            assert_eq!(linger.steps_max(), 0, "nothing new is known");
            assert_eq!(woken_on(0, slept, &mut linger), STEPS_MAX, "on another CPU after {slept:?}");
        }
    }

    #[test]
    fn a_long_series_on_one_cpu_is_made_visible_to_the_scheduler() {
        let mut linger = Linger::default();
        let looks: Vec<u32> = (1..20 * ROUND)
            .filter(|_| woken_on(1, SHORT, &mut linger) > 0)
            .map(|wake| wake / ROUND)
            .collect();
        let rounds: Vec<u32> = (0..20).filter(|round| looks.contains(round)).collect();
        assert_eq!(rounds, [1, 2, 4, 8, 16]);
        assert_eq!(looks.len(), 5 * ROUND as usize, "a round looks each time");
        assert_eq!(woken_on(1, LONG, &mut linger), 0, "a new series");
    }
}
