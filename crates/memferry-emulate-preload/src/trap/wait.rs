//! UMONITOR, UMWAIT and TPAUSE.
//!
//! A wait may end early whenever the processor likes; it ends here when the watched line has changed, at the deadline,
//! or at the limit that Linux sets. Meanwhile others run: the device of this process may need the core.

use std::arch::x86_64::_rdtsc;
use std::arch::{asm, global_asm};
use std::cell::Cell;

use super::emulate::{CARRY, Outcome};
use super::safe::{self, Fault};
use crate::sys;

/// Linux' default of the longest wait, in cycles of the time stamp counter.
///
/// Source: `/sys/devices/system/cpu/umwait_control/max_time`.
const LIMIT: u64 = 100_000;

// A variable of each thread, found without a call: what Rust makes of `thread_local` may allocate at a thread's first
// use, which a handler must not. A library that is loaded with the program may use this model of thread-local storage.
global_asm!(
    ".pushsection .tbss.memferry_watched, \"awT\", @nobits",
    ".balign 8",
    ".hidden memferry_watched",
    ".globl memferry_watched",
    ".type memferry_watched, @tls_object",
    ".size memferry_watched, 72",
    "memferry_watched:",
    ".zero 72",
    ".popsection",
);

/// The line that a thread watches, and what was in it. 0: none.
type Watched = (u64, [u64; 8]);
const _: () = assert!(size_of::<Watched>() == 72 && align_of::<Watched>() == 8);

/// This thread's, zero at its start.
fn watched() -> &'static Cell<Watched> {
    let address: usize;
    // SAFETY: the thread's block begins where FS points, which is stored there, too; the linker knows how far from it
    // the variable is. It lives as long as the thread, and nobody keeps the reference for longer than a call here.
    unsafe {
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "add {0}, qword ptr [rip + memferry_watched@GOTTPOFF]",
            out(reg) address,
            options(pure, readonly, nostack),
        );
        &*(address as *const Cell<Watched>)
    }
}

pub(super) fn monitor(address: u64) -> Result<Outcome, Fault> {
    let line = address & !63;
    let mut words = [0; 8];
    safe::read_64(line, &mut words)?;
    watched().set((line, words));
    Ok(Outcome::QUIET)
}

/// Waits until `deadline`; for UMWAIT, until the watched line changes, and not at all without one.
pub(super) fn wait(control: u64, deadline: u64, watches: bool) -> Result<Outcome, Fault> {
    if control as u32 > 1 {
        return Err(Fault::PROTECTION);
    }
    let (line, before) = if watches { watched().replace((0, [0; 8])) } else { (0, [0; 8]) };
    if watches && line == 0 {
        return Ok(Outcome::with(CARRY, false));
    }
    let limit = now().saturating_add(LIMIT);
    loop {
        // A line that is unmapped meanwhile has changed, too.
        let mut words = [0; 8];
        if line != 0 && (safe::read_64(line, &mut words).is_err() || words != before) {
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
