//! The kinds of waiting, behind one interface.

#![allow(unsafe_code)]

use std::hint;
use std::time::{Duration, Instant};

use super::completer::Completer;
use super::table::TimedOut;
use super::umwait;
use crate::completion::{Completion, CompletionRecord};
use crate::instructions::{CpuFeatures, SleepState};

/// Polls between two reads of the clock, each of which costs as much as some 20 polls.
const POLLS_PER_CLOCK: u32 = 64;
/// The most PAUSEs between two polls: 16 take some 0.6 us.
const PAUSES_MAX: u32 = 16;
/// The sleep between two polls of a thread without a completer.
const SELF_POLL_SLEEP: Duration = Duration::from_micros(200);

/// A kind of waiting for a completion record.
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
    /// Polls without pauses: for operations below a microsecond, on a core without other work.
    Spin,
    /// Polls, with PAUSE in between.
    Pause,
    /// Sleeps on the record's cache line (UMONITOR, UMWAIT) in the given state; on several records, by TPAUSE.
    ///
    /// On a CPU without these instructions it is `Pause`; see [`Wait::effective`].
    Umwait(SleepState),
    /// Gives up the core; the process' completer wakes the thread.
    ///
    /// If the completer has no thread or no free entry, the thread polls every 200 us.
    Block,
}

impl Wait {
    /// Every kind.
    pub const ALL: [Wait; 5] = [
        Wait::Spin,
        Wait::Pause,
        Wait::Umwait(SleepState::Light),
        Wait::Umwait(SleepState::Deep),
        Wait::Block,
    ];

    /// The kind that this CPU uses for this one.
    pub fn effective(self) -> Wait {
        match self {
            Wait::Umwait(_) if !CpuFeatures::detect().waitpkg => Wait::Pause,
            kind => kind,
        }
    }

    /// Waits until the record is written.
    ///
    /// # Errors
    /// [`TimedOut`]: the descriptor may still be in flight, so the contract of [`Portal::submit`](crate::Portal::submit)
    /// still holds. A timeout of zero polls once.
    pub fn wait(self, record: &CompletionRecord, timeout: Duration) -> Result<Completion, TimedOut> {
        self.wait_any(&[record], timeout).map(|(_, completion)| completion)
    }

    /// Waits until one of the records is written. Returns the lowest index of a written record.
    ///
    /// # Errors
    /// As [`wait`](Wait::wait); at once if there are no records.
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
                // SAFETY: `effective` has checked that the CPU has WAITPKG.
                let sleeper = unsafe { umwait::Waitpkg::new(state) };
                umwait::wait_any(records, timeout, &sleeper)
            }
            Wait::Block => block(records, timeout),
        }
    }
}

/// Polls all records; returns the first written one.
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
        for round in 0..POLLS_PER_CLOCK {
            if let Some(found) = look(records) {
                return Ok(found);
            }
            // The first unsuccessful poll starts the clock, so that a short timeout is kept.
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
