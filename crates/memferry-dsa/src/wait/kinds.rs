//! The kinds of waiting, behind one interface.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};
use std::{hint, thread};

use super::{TimedOut, poll_interval, umwait};
use crate::completion::{Completion, CompletionRecord};
use crate::instructions::{CpuFeatures, SleepState};

/// Polls between two reads of the clock, each of which costs as much as some 20 polls.
const POLLS_PER_CLOCK: u32 = 64;
/// The most PAUSEs between two polls: 16 take some 0.6 us.
const PAUSES_MAX: u32 = 16;
/// How long [`Wait::Block`] polls before it sleeps: small operations take less, and a sleep takes as long.
///
/// Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in 4th Gen Intel Xeon
/// Scalable Processors" (2024).
const SPIN_MAX: Duration = Duration::from_micros(20);

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
    /// Sleeps on the record's cache line (UMONITOR, UMWAIT) in the given state.
    ///
    /// On a CPU without these instructions it is `Pause`; see [`Wait::effective`].
    Umwait(SleepState),
    /// Gives up the core, and sleeps between two polls: a quarter of the time waited so far, from 50 us to 1 ms.
    ///
    /// A long wait uses less than 1 % of a core.
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
        match self.effective() {
            Wait::Spin => spin(record, timeout, |_| {}),
            Wait::Pause => spin(record, timeout, |round| {
                (0..round.min(PAUSES_MAX)).for_each(|_| hint::spin_loop());
            }),
            Wait::Umwait(state) => {
                // SAFETY: `effective` has checked that the CPU has WAITPKG.
                let sleeper = unsafe { umwait::Waitpkg::new(state) };
                umwait::wait(record, timeout, &sleeper)
            }
            Wait::Block => block(record, timeout),
        }
    }
}

fn spin(record: &CompletionRecord, timeout: Duration, pause: impl Fn(u32)) -> Result<Completion, TimedOut> {
    let mut start = None;
    loop {
        for round in 0..POLLS_PER_CLOCK {
            if let Some(completion) = record.poll() {
                return Ok(completion);
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

fn block(record: &CompletionRecord, timeout: Duration) -> Result<Completion, TimedOut> {
    let mut start = None;
    loop {
        if let Some(completion) = record.poll() {
            return Ok(completion);
        }
        let waited = start.get_or_insert_with(Instant::now).elapsed();
        if waited >= timeout {
            return Err(TimedOut { waited });
        }
        match waited < SPIN_MAX {
            true => hint::spin_loop(),
            false => thread::sleep(poll_interval(waited).min(timeout - waited)),
        }
    }
}
