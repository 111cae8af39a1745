//! The thread of a DSA engine: it polls for completions, resumes copies after page faults, and reports their end.
//!
//! ```text
//! poll the records, without the lock
//!   no completion: spin, after a while yield, and poll again
//! complete the descriptors whose records are written: done, failed, or stopped by a page fault
//! touch missing pages, and execute the CPU's work items, both without the lock
//! submit waiting items
//! finish copies, without the lock
//! sleep: longer after each poll without a completion; until a submission if no copy is in progress
//! ```
//!
//! Linux gives user space no completion interrupts for DSA, and UMONITOR watches a single line: hence polling.
//!
//! This is not the [`Completer`](memferry_dsa::internals::wait::Completer) of the process, which only polls and wakes waiters. Page
//! faults, work items on the CPU and callbacks take milliseconds, for which other waiters must not wait. And a device
//! stays busy only if its slots are free again soon after their completions.

use std::io::{self, Write};
use std::process::abort;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

use memferry_dsa::internals::driver::{CpuWork, Failure, Faulted, Finished, Written};
use memferry_dsa::internals::wait;
use tracing::{debug, warn};

use super::{Shared, State};
use crate::mover::stats::trace;
use crate::mover::{CopyError, CopyReport, RawRequest};

/// Spinning covers short copies: 1 MiB at the 30 GB/s of one device takes 35 us.
///
/// Source of the rate: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in
/// 4th Gen Intel Xeon Scalable Processors" (2024).
const SPIN_MAX: Duration = Duration::from_micros(40);
/// Then the thread yields the core, for the time of a few larger copies, before it sleeps.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// The interval of looking for devices that are gone and descriptors that are lost.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Aborts the process if the completer panics, which only a bug in this crate causes. Unwinding would drop the copies, and
/// so free their buffers while devices write to them.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not `eprintln!`, which panics when stderr is closed.
            let _ = writeln!(
                io::stderr(),
                "memferry: the completer of a DSA engine panicked while devices may write to memory; ending the process"
            );
            abort();
        }
    }
}

/// Runs until the engine is closed and all its copies are finished.
pub(super) fn run(shared: &Shared) {
    let _abort_on_panic = AbortOnPanic;
    wait::reduce_timer_slack();
    let mut written: Vec<Written> = Vec::new();
    let mut waiting_since = Instant::now();
    let mut checked = Instant::now();
    let mut submissions_seen = 0;
    let mut gone_seen = 0;
    loop {
        let queues_gone = shared.counters.queues_gone.get();
        if queues_gone > gone_seen {
            gone_seen = queues_gone;
            let engine = &*shared.options.name;
            trace::safely(|| warn!(target: "memferry::mover", engine, queues_gone, "queue gone"));
        }
        shared.queues.poll(&mut written);
        if written.is_empty() {
            let waited = waiting_since.elapsed();
            if waited < SPIN_MAX {
                hint::spin_loop();
                continue;
            }
            if waited < YIELD_MAX {
                thread::yield_now();
                continue;
            }
        } else {
            waiting_since = Instant::now();
        }
        let since_check = checked.elapsed();
        if since_check >= CHECK_EVERY {
            // Without the lock, because portals read sysfs.
            shared.queues.ask(&shared.counters);
        }
        let mut faulted = Vec::new();
        let mut state = shared.lock();
        for written in written.drain(..) {
            state.driver.complete(written, &mut faulted, &shared.counters);
        }
        if since_check >= CHECK_EVERY {
            checked += since_check;
            state.driver.give_up(since_check, &mut faulted, &shared.counters);
        }
        state = resume(shared, state, faulted);
        shared.feed_driver(&mut state);
        state = do_on_this_cpu(shared, state);

        let finished = state.driver.take_finished();
        if !finished.is_empty() {
            drop(state);
            finished.into_iter().for_each(|finished| finish(shared, finished));
            waiting_since = Instant::now();
            continue;
        }
        if state.submissions_count != submissions_seen {
            submissions_seen = state.submissions_count;
            waiting_since = Instant::now();
            continue;
        }
        if state.driver.is_idle() {
            if state.closing {
                return;
            }
            sleep(shared, state, None);
            waiting_since = Instant::now();
            checked = waiting_since;
            continue;
        }
        let waited = waiting_since.elapsed();
        if waited >= YIELD_MAX {
            let pause = wait::poll_interval(waited);
            let backoff = state.driver.backoff_until().map(|until| until.saturating_sub(shared.now()));
            sleep(shared, state, Some(backoff.map_or(pause, |backoff| backoff.min(pause))));
        }
    }
}

/// Touches missing pages and resumes the items. Not under the lock, because the kernel may take long to bring a page in.
fn resume<'a>(
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    mut faulted: Vec<Faulted>,
) -> MutexGuard<'a, State> {
    if faulted.is_empty() {
        return state;
    }
    drop(state);
    faulted.iter_mut().for_each(|faulted| faulted.touch(&shared.counters));
    let mut state = shared.lock();
    faulted.into_iter().for_each(|faulted| state.driver.resume(faulted));
    state
}

/// Executes the work items that no device executes, without the lock.
fn do_on_this_cpu<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    let mut works = state.driver.take_cpu_work();
    if works.is_empty() {
        return state;
    }
    drop(state);
    works.iter_mut().for_each(CpuWork::execute);
    let size_bytes = works.iter().map(CpuWork::size_bytes).sum::<u64>();
    let (engine, pieces_count) = (&*shared.options.name, works.len());
    trace::safely(|| debug!(target: "memferry::mover", engine, pieces_count, size_bytes, "done by the CPU"));
    let mut state = shared.lock();
    works.into_iter().for_each(|work| state.driver.executed(work, &shared.counters));
    state
}

/// Counts a finished copy and calls back its submitter.
fn finish(shared: &Shared, Finished { tag: copy, report, result }: Finished<RawRequest>) {
    let report = CopyReport { cpu_bytes: report.cpu_bytes, dsa_bytes: report.device_bytes, file_bytes: 0 };
    let result = match result {
        Ok(ended) => {
            copy.store_outcome(ended);
            Ok(report)
        }
        Err(Failure::Device(status)) => Err(CopyError::Device { status: status.code() }),
        Err(Failure::Lost(_)) => {
            shared.counters.leaked_bytes.add(copy.size_bytes() as u64);
            Err(CopyError::DeviceLost)
        }
    };
    shared.counters.end(copy.made(), result);
    if let Err(error) = result {
        let (engine, operation) = (shared.options.name.as_str(), copy.opcode().name());
        trace::safely(|| warn!(target: "memferry::mover", engine, operation, %error, "copy failed"));
    }
    copy.finish(result);
}

/// Sleeps until a submission, or for `pause` if there is one.
fn sleep<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>, pause: Option<Duration>) {
    state.completer_sleeps = true;
    let mut state = match pause {
        None => shared.submitted.wait(state).unwrap_or_else(PoisonError::into_inner),
        Some(pause) => shared.submitted.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0,
    };
    state.completer_sleeps = false;
}
