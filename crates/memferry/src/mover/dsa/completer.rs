//! The one thread of a DSA engine: it looks for completions, goes on where page faults stopped a copy, and tells.
//!
//! ```text
//! poll the records, without lock
//!   nothing there, and not for long: spin, later yield, and poll again
//! land what is there: done, failed, or cut short by a page fault
//! touch missed pages, and do on the CPU what no device would, both without lock
//! submit what waits
//! finish copies, without lock
//! sleep: a little longer each time that nothing came; until a submission if there is no copy
//! ```
//!
//! Linux gives user space no completion interrupts for DSA, and UMONITOR watches a single line: hence polling.
//!
//! This is not the process' [`Completer`](memferry_dsa::wait::Completer), which only looks and wakes: page faults, the
//! CPU's share and foreign callbacks take milliseconds, which nobody else shall wait for, and the slots that landing
//! frees are what keeps a device busy.

use std::hint;
use std::io::{self, Write};
use std::process::abort;
use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::{Completion, wait};
use tracing::{debug, warn};

use super::super::trace;
use super::Shared;
use super::piece::Piece;
use super::state::State;

/// Spinning covers what a device does in no time: 1 MiB at the 30 GB/s of one device takes 35 us.
///
/// Source of the rate: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in
/// 4th Gen Intel Xeon Scalable Processors" (2024).
const SPIN_MAX: Duration = Duration::from_micros(40);
/// Then the core is offered to others, for a few larger copies' time, before the thread sleeps.
const YIELD_MAX: Duration = Duration::from_micros(200);
/// How often devices are asked whether they still live, and flights for their age, while nothing completes.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// A completion that was found: queue, slot, and what the record says.
type Landing = (usize, usize, Completion);

/// Aborts the process if the completer panics, which only a bug of ours can make it do. Unwinding would drop
/// the copies, and so give their buffers back while devices write to them.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not `eprintln!`, which panics when stderr is closed.
            let _ = writeln!(
                io::stderr(),
                "memferry: the completer of a DSA engine panicked; devices may be writing, so this aborts"
            );
            abort();
        }
    }
}

/// Runs until the engine is closed and all its copies are finished.
pub(super) fn run(shared: &Shared) {
    let _abort_on_panic = AbortOnPanic;
    wait::reduce_timer_slack();
    let mut landings = Vec::new();
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
        poll(shared, &mut landings);
        if landings.is_empty() {
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
        // First the question, then the records: what had completed before the device was gone is found. Without the lock,
        // since portals ask sysfs.
        let gone = (since_check >= CHECK_EVERY)
            .then(|| shared.queues.iter().map(|queue| queue.portal.is_gone()).collect::<Vec<bool>>());
        let mut state = land(shared, shared.lock(), &mut landings);
        if let Some(gone) = gone {
            checked += since_check;
            state.attend(since_check);
            state = check(shared, state, &gone, &mut landings);
        }
        state.feed(&shared.queues, &shared.options, &shared.counters);
        state = do_on_this_cpu(shared, state);

        let finished = std::mem::take(&mut state.finished);
        if !finished.is_empty() {
            drop(state);
            for (copy, result) in finished {
                if let Err(error) = result {
                    let (engine, operation) = (shared.options.name.as_str(), copy.opcode().name());
                    trace::safely(
                        || warn!(target: "memferry::mover", engine, operation, %error, "copy failed"),
                    );
                }
                copy.finish(result);
            }
            waiting_since = Instant::now();
            continue;
        }
        if state.submissions_count != submissions_seen {
            submissions_seen = state.submissions_count;
            waiting_since = Instant::now();
            continue;
        }
        if state.is_idle() {
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
            let backoff = state.backoff_until().map(|until| until.saturating_duration_since(Instant::now()));
            sleep(shared, state, Some(backoff.map_or(pause, |backoff| backoff.min(pause))));
        }
    }
}

/// Collects the completions that are there now.
fn poll(shared: &Shared, landings: &mut Vec<Landing>) {
    for (index, queue) in shared.queues.iter().enumerate() {
        let completions = queue.records.iter().map(|record| record.0.poll()).enumerate();
        landings.extend(completions.filter_map(|(slot, completion)| Some((index, slot, completion?))));
    }
}

/// Enters the completions into the books, and touches the pages that were missed; without the lock, since the
/// kernel may have to find a page first.
fn land<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    landings: &mut Vec<Landing>,
) -> MutexGuard<'a, State> {
    let mut cut_short = Vec::new();
    for (index, slot, completion) in landings.drain(..) {
        let queue = &shared.queues[index];
        state.land(queue, index, slot, &completion, &mut cut_short, &shared.counters);
    }
    if cut_short.is_empty() {
        return state;
    }
    drop(state);
    cut_short.iter_mut().for_each(|(piece, completion)| piece.touch(completion));
    let mut state = shared.lock();
    cut_short.into_iter().for_each(|(piece, _)| state.resume(piece, &shared.options));
    state
}

/// Gives up what was lost with the queues that are `gone`, and descriptors that nothing is heard of.
fn check<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    gone: &[bool],
    landings: &mut Vec<Landing>,
) -> MutexGuard<'a, State> {
    poll(shared, landings);
    state = land(shared, state, landings);
    let timeout = shared.options.completion_timeout;
    for (index, (queue, gone)) in shared.queues.iter().zip(gone).enumerate() {
        if *gone {
            state.give_up_all(queue, index, &shared.counters);
        } else {
            state.give_up_lost(queue, index, timeout, &shared.counters);
        }
    }
    state
}

/// Does the pieces that devices would not do, without the lock.
fn do_on_this_cpu<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    let mut pieces = std::mem::take(&mut state.for_cpu);
    if pieces.is_empty() {
        return state;
    }
    drop(state);
    let sizes: Vec<u64> = pieces.iter_mut().map(Piece::do_on_this_cpu).collect();
    let (engine, pieces_count, size_bytes) = (&*shared.options.name, pieces.len(), sizes.iter().sum::<u64>());
    trace::safely(|| debug!(target: "memferry::mover", engine, pieces_count, size_bytes, "done by the CPU"));
    let mut state = shared.lock();
    for (piece, size_bytes) in pieces.into_iter().zip(sizes) {
        state.done_by_cpu(piece, size_bytes, &shared.counters);
    }
    state
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
