//! UMONITOR, UMWAIT and TPAUSE.
//!
//! A wait may end early whenever the processor likes; it ends here when the watched line has changed, at the deadline, or at
//! the limit that Linux sets. Meanwhile others run: the device of this process may need the core.

use std::arch::x86_64::_rdtsc;
use std::cell::Cell;

use super::emulate::{CARRY, Outcome};
use super::safe::{self, Fault};
use crate::sys;

/// Linux' default of the longest wait, in cycles of the time stamp counter.
///
/// Source: `/sys/devices/system/cpu/umwait_control/max_time`.
const LIMIT: u64 = 100_000;

thread_local! {
    /// The line that this thread watches, and what was in it. 0: none.
    static WATCHED: Cell<(u64, [u64; 8])> = const { Cell::new((0, [0; 8])) };
}

pub(super) fn monitor(address: u64) -> Result<Outcome, Fault> {
    let line = address & !63;
    let words = safe::read_64(line)?;
    WATCHED.set((line, words));
    Ok(Outcome::QUIET)
}

/// Waits until `deadline`; for UMWAIT, until the watched line changes, and not at all without one.
pub(super) fn wait(control: u64, deadline: u64, watches: bool) -> Result<Outcome, Fault> {
    if control as u32 > 1 {
        return Err(Fault::PROTECTION);
    }
    let (line, before) = if watches { WATCHED.replace((0, [0; 8])) } else { (0, [0; 8]) };
    if watches && line == 0 {
        return Ok(Outcome::with(CARRY, false));
    }
    let limit = now().saturating_add(LIMIT);
    loop {
        // A line that is unmapped meanwhile has changed, too.
        if line != 0 && safe::read_64(line) != Ok(before) {
            return Ok(Outcome::with(CARRY, false));
        }
        let now = now();
        if now >= deadline {
            return Ok(Outcome::with(CARRY, false));
        }
        if now >= limit {
            return Ok(Outcome::with(CARRY, true));
        }
        sys::yield_now();
    }
}

fn now() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
    unsafe { _rdtsc() }
}
