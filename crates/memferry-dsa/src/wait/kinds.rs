//! The ways to wait, behind one interface.

#![allow(unsafe_code)]

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::completer::Completer;
use super::table::TimedOut;
use super::umwait;
use crate::completion::{Completion, CompletionRecord};
use crate::instructions::{CpuFeatures, SleepState};

/// Looks between two looks at the clock, which costs as much as some 20 of them.
const LOOKS_PER_CLOCK: u32 = 64;
/// PAUSEs between two looks, in the end: 16 take some 0.6 us.
const PAUSES_MAX: u32 = 16;
/// How long a thread sleeps that looks for itself because there is no completer.
const SELF_POLL_SLEEP: Duration = Duration::from_micros(200);

/// Waits of kind `Block` in which the thread had to look for itself.
static SELF_POLLED: AtomicU64 = AtomicU64::new(0);

/// How to wait for a completion record.
///
/// ```
/// # use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
/// # use memferry_dsa::{CompletionRecord, Descriptor, Status, Submission, Wait};
/// # use std::time::Duration;
/// let portal = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?.portal(0);
/// let record = CompletionRecord::new();
/// // SAFETY: a no-op names no memory but the record, which outlives the wait.
/// assert_eq!(unsafe { portal.submit(&Descriptor::noop().with_completion(&record))? }, Submission::Accepted);
/// let completion = Wait::Block.wait(&record, Duration::from_secs(10))?;
/// assert_eq!(completion.status, Status::Success);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Looks again and again. For what is done within a microsecond, on a core with nothing else to do.
    Spin,
    /// Looks, with PAUSE in between.
    Pause,
    /// Sleeps on the record's line (UMONITOR, UMWAIT), in the given state; on several records, by TPAUSE.
    ///
    /// On a CPU without these instructions it is `Pause`: [`Wait::effective`] says so.
    Umwait(SleepState),
    /// Gives the core away; the process' [`Completer`] wakes the thread.
    ///
    /// If the completer has no thread or no place, the thread looks for itself, every 200 us
    /// ([`self_polled_count`]).
    Block,
}

impl Wait {
    /// One of each kind.
    pub const ALL: [Wait; 5] = [
        Wait::Spin,
        Wait::Pause,
        Wait::Umwait(SleepState::Light),
        Wait::Umwait(SleepState::Deep),
        Wait::Block,
    ];

    /// What this is on this CPU.
    pub fn effective(self) -> Wait {
        match self {
            Wait::Umwait(_) if !CpuFeatures::detect().waitpkg => Wait::Pause,
            kind => kind,
        }
    }

    /// Waits until the record is written.
    ///
    /// # Errors
    /// [`TimedOut`]; the descriptor may still be in flight, so what [`Portal::submit`](crate::Portal::submit) asks
    /// for still holds. A timeout of zero looks once.
    pub fn wait(self, record: &CompletionRecord, timeout: Duration) -> Result<Completion, TimedOut> {
        self.wait_any(&[record], timeout).map(|(_, completion)| completion)
    }

    /// Waits until one of the records is written: its index, the lowest if there are several.
    ///
    /// # Errors
    /// As [`wait`](Wait::wait); without records at once.
    pub fn wait_any(
        self,
        records: &[&CompletionRecord],
        timeout: Duration,
    ) -> Result<(usize, Completion), TimedOut> {
        if records.is_empty() {
            return Err(TimedOut { waited: Duration::ZERO });
        }
        match self.effective() {
            Wait::Spin => spin(records, timeout, |_| {}),
            Wait::Pause => spin(records, timeout, |round| {
                (0..round.min(PAUSES_MAX)).for_each(|_| hint::spin_loop());
            }),
            Wait::Umwait(state) => {
                // SAFETY: `effective` has seen that the CPU has WAITPKG.
                let sleeper = unsafe { umwait::Waitpkg::new(state) };
                umwait::wait_any(records, timeout, &sleeper)
            }
            Wait::Block => block(records, timeout),
        }
    }
}

/// Waits of kind [`Wait::Block`] of this process in which the thread looked for itself, because the completer had
/// no thread or no place.
pub fn self_polled_count() -> u64 {
    SELF_POLLED.load(Ordering::Relaxed)
}

/// The first record that is written.
pub(super) fn look(records: &[&CompletionRecord]) -> Option<(usize, Completion)> {
    records.iter().enumerate().find_map(|(index, record)| Some((index, record.poll()?)))
}

fn spin(
    records: &[&CompletionRecord],
    timeout: Duration,
    pause: impl Fn(u32),
) -> Result<(usize, Completion), TimedOut> {
    let mut start = None;
    loop {
        for round in 0..LOOKS_PER_CLOCK {
            if let Some(found) = look(records) {
                return Ok(found);
            }
            // What is not done at once has the clock started, so that a short time-out is not missed.
            let start = *start.get_or_insert_with(Instant::now);
            if round == 0 && start.elapsed() >= timeout {
                return Err(TimedOut { waited: start.elapsed() });
            }
            pause(round);
        }
    }
}

fn block(records: &[&CompletionRecord], timeout: Duration) -> Result<(usize, Completion), TimedOut> {
    if let Some(found) = look(records) {
        return Ok(found);
    }
    let start = Instant::now();
    if timeout.is_zero() {
        return Err(TimedOut { waited: Duration::ZERO });
    }
    let completer = Completer::global();
    if let Ok(completer) = completer
        && let Some(result) = completer.wait_any(records, timeout)
    {
        return result;
    }
    SELF_POLLED.fetch_add(1, Ordering::Relaxed);
    loop {
        if let Some(found) = look(records) {
            return Ok(found);
        }
        let waited = start.elapsed();
        if waited >= timeout {
            return Err(TimedOut { waited });
        }
        std::thread::sleep(SELF_POLL_SLEEP.min(timeout - waited));
    }
}
