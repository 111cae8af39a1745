//! Sleeping until the record's cache line is written, without giving up the core.
//!
//! ```text
//! loop: poll.  watch the line (UMONITOR).  poll.  timeout? return.  sleep until the line is written (UMWAIT)
//! ```
//!
//! The second poll prevents a lost wake-up: a write between the first poll and UMONITOR wakes no thread. A sleep may end
//! for any other reason, hence the loop; and it always ends, because the operating system limits it.
//!
//! Source: SDM, UMONITOR and UMWAIT; Linux' `Documentation/ABI/testing/sysfs-devices-system-cpu`
//! (`umwait_control`).

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::TimedOut;
use crate::completion::{Completion, CompletionRecord};
use crate::instructions::{self, SleepState};

/// The default limit of Linux, in ticks of the time stamp counter.
const LIMIT_TICKS: u64 = 100_000;

/// The instructions, behind a seam for tests.
pub(super) trait Sleeper {
    /// UMONITOR.
    fn watch(&self, record: &CompletionRecord);
    /// UMWAIT for at most this many ticks.
    fn sleep(&self, ticks: u64);
}

/// The CPU's instructions.
pub(super) struct Waitpkg(SleepState);

impl Waitpkg {
    /// # Safety
    /// The CPU has WAITPKG.
    pub(super) unsafe fn new(state: SleepState) -> Waitpkg {
        Waitpkg(state)
    }
}

impl Sleeper for Waitpkg {
    fn watch(&self, record: &CompletionRecord) {
        // SAFETY: `new` was promised the instruction; a record can be read.
        unsafe { instructions::umonitor(std::ptr::from_ref(record).cast()) }
    }

    fn sleep(&self, ticks: u64) {
        let until = instructions::time_stamp().saturating_add(ticks);
        // SAFETY: `new` was promised the instruction. The cause of the wake-up does not matter.
        unsafe { instructions::umwait(self.0, until) };
    }
}

/// Waits until the record is written.
pub(super) fn wait(
    record: &CompletionRecord,
    timeout: Duration,
    sleeper: &impl Sleeper,
) -> Result<Completion, TimedOut> {
    let mut start = None;
    loop {
        if let Some(completion) = record.poll() {
            return Ok(completion);
        }
        // The clock is not read if the first poll succeeds.
        let waited = start.get_or_insert_with(Instant::now).elapsed();
        sleeper.watch(record);
        if let Some(completion) = record.poll() {
            return Ok(completion);
        }
        if waited >= timeout {
            return Err(TimedOut { waited });
        }
        sleeper.sleep(ticks(timeout - waited).min(limit_ticks()));
    }
}

/// A number of ticks that takes at most `time`: on CPUs with WAITPKG the counter is faster than 1 GHz. A sleep ends early
/// rather than late, and the loop continues.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The operating system's limit of a sleep. The CPU cuts longer sleeps anyway; respecting the limit keeps the loop's
/// arithmetic exact.
fn limit_ticks() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let file = fs::read_to_string("/sys/devices/system/cpu/umwait_control/max_time");
        limit_from(file.ok().as_deref())
    })
}

/// 0 means no limit to Linux; here a sleep always has a limit, because a device may die.
fn limit_from(max_time: Option<&str>) -> u64 {
    match max_time.and_then(|text| text.trim().parse().ok()) {
        None | Some(0) => LIMIT_TICKS,
        Some(limit) => limit,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::address::Address;
    use crate::completion::Status;

    fn done() -> Completion {
        Completion {
            status: Status::Success,
            write_fault: false,
            result: 0,
            bytes_completed: 0,
            fault_address: Address(0),
            operation: [0; 2],
        }
    }

    /// A CPU on which the device writes at the n-th step.
    struct Fake<'r> {
        record: &'r CompletionRecord,
        device_writes_at: usize,
        steps: RefCell<Vec<&'static str>>,
    }

    impl Fake<'_> {
        fn step(&self, name: &'static str) {
            let mut steps = self.steps.borrow_mut();
            assert!(name != "sleep" || steps.last() == Some(&"watch"), "sleeps without watching: {steps:?}");
            if name == "sleep" && self.record.poll().is_some() {
                panic!("sleeps although it is done, and nothing will wake it: {steps:?}");
            }
            steps.push(name);
            if steps.len() == self.device_writes_at {
                self.record.publish(&done());
            }
        }
    }

    impl Sleeper for Fake<'_> {
        fn watch(&self, record: &CompletionRecord) {
            assert!(std::ptr::eq(record, self.record));
            self.step("watch");
        }
        fn sleep(&self, ticks: u64) {
            assert!((1..=limit_ticks()).contains(&ticks));
            self.step("sleep");
        }
    }

    /// The wait ends whenever the device writes, and never sleeps after the write.
    #[test]
    fn no_write_is_missed() {
        for device_writes_at in 0..9 {
            let record = CompletionRecord::new();
            let fake = Fake { record: &record, device_writes_at, steps: RefCell::default() };
            if device_writes_at == 0 {
                record.publish(&done());
            }
            assert_eq!(wait(&record, Duration::from_secs(60), &fake), Ok(done()));
            assert_eq!(fake.steps.borrow().len(), device_writes_at);
        }
    }

    #[test]
    fn time_runs_out() {
        let record = CompletionRecord::new();
        let fake = Fake { record: &record, device_writes_at: usize::MAX, steps: RefCell::default() };
        let timeout = Duration::from_millis(2);
        assert!(wait(&record, timeout, &fake).unwrap_err().waited >= timeout);
        assert_eq!(fake.steps.borrow_mut().drain(..).next(), Some("watch"));
        assert!(wait(&record, Duration::ZERO, &fake).is_err());
        assert_eq!(*fake.steps.borrow(), ["watch"], "a timeout of zero does not sleep");
    }

    #[test]
    fn limits_of_the_system() {
        for (text, limit) in
            [(None, 100_000), (Some("0\n"), 100_000), (Some("2000\n"), 2000), (Some("x"), 100_000)]
        {
            assert_eq!(limit_from(text), limit, "{text:?}");
        }
        assert_eq!(ticks(Duration::MAX), u64::MAX);
    }
}
