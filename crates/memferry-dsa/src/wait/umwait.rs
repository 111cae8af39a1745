//! Sleeping until the record's cache line is written, without giving the core away.
//!
//! ```text
//! loop: done? return.  watch the line.  done? return.  out of time? return.  sleep until the line is written
//! ```
//!
//! The second look is what makes it safe: the device may write between the first one and the watching, and that
//! write wakes nobody. A sleep may also end for any other reason, so it is always a loop; and it always ends, because
//! the operating system limits it.
//!
//! Source: SDM, UMONITOR, UMWAIT and TPAUSE; Linux' `Documentation/ABI/testing/sysfs-devices-system-cpu`
//! (`umwait_control`).

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::table::TimedOut;
use crate::completion::{Completion, CompletionRecord};
use crate::instructions::{self, SleepState};

/// The limit that Linux sets by default, in ticks of the time stamp counter.
const LIMIT_TICKS: u64 = 100_000;
/// Between two looks at several records: at first some 100 ns, in the end some 5 us.
const PAUSE_TICKS: [u64; 2] = [256, 16 << 10];

/// The instructions, so that tests can put something else in their place.
pub(super) trait Sleeper {
    /// UMONITOR.
    fn watch(&self, record: &CompletionRecord);
    /// UMWAIT for at most so many ticks.
    fn sleep(&self, ticks: u64);
    /// TPAUSE for at most so many ticks.
    fn pause(&self, ticks: u64);
}

/// The CPU's.
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
        // SAFETY: `new` was promised the instruction. Who ended the sleep does not matter.
        unsafe { instructions::umwait(self.0, until) };
    }

    fn pause(&self, ticks: u64) {
        let until = instructions::time_stamp().saturating_add(ticks);
        // SAFETY: as in `sleep`.
        unsafe { instructions::tpause(self.0, until) };
    }
}

/// Waits for one record.
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
        // No clock is read for what is done by now.
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

/// Waits for one of several records. There is but one line that can be watched, so this sleeps by the clock.
pub(super) fn wait_any(
    records: &[&CompletionRecord],
    timeout: Duration,
    sleeper: &impl Sleeper,
) -> Result<(usize, Completion), TimedOut> {
    if let [record] = records {
        return wait(record, timeout, sleeper).map(|completion| (0, completion));
    }
    let start = Instant::now();
    let mut pause = PAUSE_TICKS[0];
    loop {
        if let Some(found) = super::kinds::look(records) {
            return Ok(found);
        }
        let waited = start.elapsed();
        if waited >= timeout {
            return Err(TimedOut { waited });
        }
        sleeper.pause(pause.min(ticks(timeout - waited)));
        pause = (pause * 2).min(PAUSE_TICKS[1]);
    }
}

/// Ticks that are over by then: the counters of the CPUs that have WAITPKG count faster than nanoseconds. So a
/// sleep ends early rather than late, and the loop goes on.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The most that a sleep may take. The CPU cuts longer ones anyway; asking for no more keeps the loop's arithmetic
/// true.
fn limit_ticks() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let file = fs::read_to_string("/sys/devices/system/cpu/umwait_control/max_time");
        limit_from(file.ok().as_deref())
    })
}

/// 0 is no limit for Linux; here there always is one, because a device may die.
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

    /// A CPU on which the device writes at the n-th step, whatever that is.
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
        fn pause(&self, _: u64) {
            self.step("pause");
        }
    }

    /// Whenever the device writes, the wait ends, and never sleeps after that.
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
            record.reset();
            let other = CompletionRecord::new();
            let fake = Fake {
                record: &record,
                device_writes_at: device_writes_at.max(1),
                steps: RefCell::default(),
            };
            assert_eq!(wait_any(&[&other, &record], Duration::from_secs(60), &fake), Ok((1, done())));
        }
    }

    #[test]
    fn time_runs_out() {
        let record = CompletionRecord::new();
        let fake = Fake { record: &record, device_writes_at: usize::MAX, steps: RefCell::default() };
        let timeout = Duration::from_millis(2);
        assert!(wait(&record, timeout, &fake).unwrap_err().waited >= timeout);
        assert!(wait_any(&[&record, &record], timeout, &fake).unwrap_err().waited >= timeout);
        assert_eq!(fake.steps.borrow_mut().drain(..).next(), Some("watch"));
        assert!(wait(&record, Duration::ZERO, &fake).is_err());
        assert_eq!(*fake.steps.borrow(), ["watch"], "no time, no sleep");
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
