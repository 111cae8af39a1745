//! Signals that are the program's: its handler is called as the kernel would have called it.

use std::mem::transmute;

use libc::{c_int, c_void, siginfo_t};

use super::context::Context;
use super::kernel;
use super::safe::Fault;
use super::signals::{Action, OURS_SET, actions, bit};
use crate::sys;

/// Hands a signal to the program.
pub(super) fn forward(signal: c_int, information: &mut siginfo_t, context: &mut Context) {
    let action = actions(signal).get();
    let is_sent = information.si_code <= 0;
    match action.handler {
        libc::SIG_IGN if is_sent => {}
        // A fault cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => end(signal, information, is_sent || signal == libc::SIGTRAP),
        handler => call(signal, handler, &action, information, context),
    }
}

/// Raises a fault for an instruction that was emulated, where the program is.
pub(super) fn deliver(fault: Fault, context: &mut Context) {
    let mut information = fault.information();
    let action = actions(fault.signal).get();
    match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => end(fault.signal, &information, true),
        handler => call(fault.signal, handler, &action, &mut information, context),
    }
}

/// Lets the signal end the program. An instruction that traps by itself does so again when it is executed again;
/// otherwise the signal is sent, and blocked until this handler has returned to the program's own set of blocked
/// signals, which never has ours, so that the program ends where it was.
fn end(signal: c_int, information: &siginfo_t, must_be_sent: bool) {
    kernel::set(signal, kernel::DEFAULT);
    if must_be_sent {
        sys::set_mask(!OURS_SET | bit(signal));
        sys::queue_to_self(signal, information);
    }
}

fn call(signal: c_int, handler: usize, action: &Action, information: &mut siginfo_t, context: &mut Context) {
    if action.flags & libc::SA_RESETHAND as u64 != 0 {
        super::set_action(signal, kernel::DEFAULT);
    }
    // What the kernel would have blocked. Ours never are: the handler may submit, too.
    sys::set_mask((context.blocked() | action.mask) & !OURS_SET);
    type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    // SAFETY: the program has set it as a handler for this signal. One that takes the number alone does not look at
    // the other two registers.
    unsafe { transmute::<usize, Handler>(handler)(signal, information, context.pointer()) };
}

impl Fault {
    /// As the kernel would tell it.
    fn information(&self) -> siginfo_t {
        /// The start of `siginfo_t`, for faults.
        #[repr(C)]
        struct Start {
            signal: c_int,
            error: c_int,
            code: c_int,
            padding: c_int,
            address: u64,
        }
        const _: () = assert!(size_of::<Start>() <= size_of::<siginfo_t>());
        let start =
            Start { signal: self.signal, error: 0, code: self.code, padding: 0, address: self.address };
        // SAFETY: all of it is integers and pointers, for which zero is valid; the start has this layout on x86-64.
        unsafe {
            let mut information: siginfo_t = std::mem::zeroed();
            (&raw mut information).cast::<Start>().write(start);
            information
        }
    }
}
