//! Retries with growing pauses, for full queues.
//!
//! A full queue has room again when one of its descriptors is dispatched: after some ten nanoseconds for small ones,
//! after 35 us for 1 MiB at the 30 GB/s of a device. A longer wait does not pay: another queue may be free, and the CPU
//! always is.

#![allow(unsafe_code)]

use std::hint;

use super::{Portal, Submission, SubmitError};
use crate::descriptor::Descriptor;
use crate::instructions::{self, CpuFeatures, SleepState};

/// Ticks of the time stamp counter in one PAUSE on CPUs with a DSA: 140 since Skylake.
///
/// Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, PAUSE latency in Skylake.
const PAUSE_TICKS: u64 = 140;

/// The number of times that the pause doubles; the longest pause is 128 PAUSEs, some 5 us.
const DOUBLINGS_MAX: u32 = 7;

/// A limited number of pauses between retries, each twice as long as the one before.
///
/// ```
/// use memferry_dsa::Backoff;
///
/// let mut backoff = Backoff::new(2);
/// while backoff.pause() {} // submit here, until the queue accepts the descriptor
/// assert_eq!(backoff.retries(), 2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    tries_max: u32,
    tries: u32,
}

impl Backoff {
    /// Allows `retries_max` pauses of 1, 2, 4, ... up to 128 PAUSEs; all later ones have 128.
    #[inline]
    pub const fn new(retries_max: u32) -> Backoff {
        Backoff { tries_max: retries_max, tries: 0 }
    }

    /// Pauses before the next try. Returns false, without a pause, after the limit: try the next queue, then the CPU.
    #[must_use]
    pub fn pause(&mut self) -> bool {
        if self.tries >= self.tries_max {
            return false;
        }
        pause(1 << self.tries.min(DOUBLINGS_MAX));
        self.tries += 1;
        true
    }

    /// The pauses made so far.
    #[inline]
    pub fn retries(&self) -> u32 {
        self.tries
    }

    /// Restarts the count, with short pauses.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

impl Default for Backoff {
    /// 14 retries, some 35 us in total: the time in which a device copies 1 MiB.
    fn default() -> Backoff {
        Backoff::new(14)
    }
}

/// Pauses for about `count` PAUSEs; by TPAUSE where the CPU has it.
pub(crate) fn pause(count: u32) {
    if CpuFeatures::detect().waitpkg {
        let until = instructions::time_stamp().wrapping_add(u64::from(count) * PAUSE_TICKS);
        // SAFETY: the CPU has WAITPKG.
        unsafe { instructions::tpause(SleepState::Light, until) };
    } else {
        (0..count).for_each(|_| hint::spin_loop());
    }
}

/// The error of [`submit_with_backoff`]. Nothing was submitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// The queue stayed full during all retries.
    #[error("the queue is still full after {retries} retries: use another queue, or the CPU")]
    Exhausted {
        /// The pauses made.
        retries: u32,
    },
    /// The portal refused the descriptor, or its device is gone.
    #[error(transparent)]
    Portal(#[from] SubmitError),
}

/// Submits, and retries while the queue is full and `backoff` allows. Returns the number of retries.
///
/// ```
/// use memferry_dsa::{Backoff, CompletionRecord, Descriptor, Wait, submit_with_backoff};
/// use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
/// use std::time::Duration;
///
/// let portal = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?.portal(0);
/// let record = CompletionRecord::new();
/// let noop = Descriptor::noop().with_completion(&record);
/// // SAFETY: a no-op names no memory but the record, which outlives the wait.
/// unsafe { submit_with_backoff(&*portal, &noop, Backoff::default())? };
/// Wait::Pause.wait(&record, Duration::from_secs(10))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`BackoffError`]: nothing was submitted.
///
/// # Safety
/// As [`Portal::submit`] if the answer is `Ok`.
#[inline]
pub unsafe fn submit_with_backoff(
    portal: &dyn Portal,
    descriptor: &Descriptor,
    mut backoff: Backoff,
) -> Result<u32, BackoffError> {
    let before = backoff.retries();
    loop {
        // SAFETY: passed on to the caller.
        match unsafe { portal.submit(descriptor)? } {
            Submission::Accepted => return Ok(backoff.retries() - before),
            Submission::Retry if backoff.pause() => {}
            Submission::Retry => return Err(BackoffError::Exhausted { retries: backoff.retries() }),
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn retries_are_limited() {
        let mut backoff = Backoff::new(3);
        for _ in 0..3 {
            assert!(backoff.pause());
        }
        assert_eq!((backoff.pause(), backoff.retries()), (false, 3));
        backoff.reset();
        assert_eq!((backoff.retries(), backoff.pause()), (0, true));
        assert!(!Backoff::new(0).pause());
    }

    /// Many retries do not overflow the shift, and end soon. Takes the shortest of some rounds, since the machine may be
    /// loaded.
    #[test]
    fn pauses_are_bounded() {
        let round = || {
            let start = Instant::now();
            let mut backoff = Backoff::new(40);
            while backoff.pause() {}
            start.elapsed()
        };
        let least = (0..5).map(|_| round()).min().expect("five rounds");
        assert!(least < Duration::from_millis(20), "{least:?}");
        assert!(least > Duration::from_micros(2), "{least:?}: pauses do not grow");
    }
}
