//! UMONITOR, UMWAIT and TPAUSE.
//!
//! The processor may end a wait at any time. This emulation ends it when the watched line has changed, at the deadline,
//! or at the limit that Linux sets. It yields the core meanwhile, because the engine of this process may need it.

use std::arch::x86_64::_rdtsc;
use std::arch::{asm, global_asm};
use std::cell::Cell;

use super::emulate::{CARRY, NewFlags, only};
use super::guarded::{self, Fault};
use crate::sys;

/// The longest wait, in cycles of the time stamp counter: the default of Linux.
///
/// Source: `/sys/devices/system/cpu/umwait_control/max_time`.
const LIMIT: u64 = 100_000;

// A thread-local variable that is found without a call. `thread_local!` of Rust may allocate at the first use in a
// thread, which a handler must not do. A library that is loaded with the program may use the initial-exec model.
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

/// The address of the line that a thread watches, and its content at UMONITOR. Address 0: none.
type Watched = (u64, [u64; 8]);
const _: () = assert!(size_of::<Watched>() == 72 && align_of::<Watched>() == 8);

/// The variable of this thread; zero when the thread starts.
fn watched() -> &'static Cell<Watched> {
    let address: usize;
    // SAFETY: FS points to the thread's block, whose first word is its own address; the linker knows the distance of
    // the variable. It lives as long as the thread, and no caller keeps the reference after its own call.
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

pub(super) fn monitor(address: u64) -> Result<NewFlags, Fault> {
    let line = address & !63;
    let mut words = [0; 8];
    guarded::read_64(line, &mut words)?;
    watched().set((line, words));
    Ok(None)
}

/// Waits until `deadline`. With `watches` (UMWAIT), also until the watched line changes; returns at once if there is
/// none.
pub(super) fn wait(control: u64, deadline: u64, watches: bool) -> Result<NewFlags, Fault> {
    if control as u32 > 1 {
        return Err(Fault::PROTECTION);
    }
    let (line, before) = if watches { watched().replace((0, [0; 8])) } else { (0, [0; 8]) };
    if watches && line == 0 {
        return Ok(only(CARRY, false));
    }
    let limit = now().saturating_add(LIMIT);
    loop {
        // An unmapped line counts as changed.
        let mut words = [0; 8];
        if line != 0 && (guarded::read_64(line, &mut words).is_err() || words != before) {
            return Ok(only(CARRY, false));
        }
        let now = now();
        if now >= deadline {
            return Ok(only(CARRY, false));
        }
        if now >= limit {
            return Ok(only(CARRY, true));
        }
        sys::yield_now();
    }
}

fn now() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
    unsafe { _rdtsc() }
}
