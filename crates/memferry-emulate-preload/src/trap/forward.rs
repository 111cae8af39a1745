//! Signals for the program: its handler is called as the kernel would have called it.

use std::mem::transmute;

use libc::{c_int, c_void, siginfo_t};

use super::context::Context;
use super::guarded::Fault;
use super::kernel;
use super::signals::{Action, HANDLED_SET, actions, bit};
use crate::sys;

/// Applies the program's action to a signal.
pub(super) fn forward(signal: c_int, information: &mut siginfo_t, context: &mut Context) {
    let action = actions(signal).get();
    let is_sent = information.si_code <= 0;
    match action.handler {
        libc::SIG_IGN if is_sent => {}
        // The kernel does not let a program ignore a fault.
        libc::SIG_DFL | libc::SIG_IGN => terminate(signal, information, is_sent || signal == libc::SIGTRAP),
        handler => call_handler(signal, handler, &action, information, context),
    }
}

/// Raises the fault of an emulated instruction, at the program's instruction pointer.
pub(super) fn deliver(fault: Fault, context: &mut Context) {
    let mut information = fault.information();
    let action = actions(fault.signal).get();
    match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => terminate(fault.signal, &information, true),
        handler => call_handler(fault.signal, handler, &action, &mut information, context),
    }
}

/// Lets the signal kill the program. An instruction that traps traps again when the handler returns. Otherwise the
/// signal is sent, and blocked until the handler returns to the mask of the program, which never has a handled signal.
/// So the program dies at its own instruction.
fn terminate(signal: c_int, information: &siginfo_t, must_be_sent: bool) {
    kernel::set(signal, kernel::DEFAULT);
    if must_be_sent {
        sys::set_mask(!HANDLED_SET | bit(signal));
        sys::queue_to_self(signal, information);
    }
}

fn call_handler(
    signal: c_int,
    handler: usize,
    action: &Action,
    information: &mut siginfo_t,
    context: &mut Context,
) {
    if action.flags & libc::SA_RESETHAND as u64 != 0 {
        super::set_action(signal, kernel::DEFAULT);
    }
    // The mask that the kernel would have set, without the handled signals: the program's handler may submit too.
    sys::set_mask((context.blocked() | action.mask) & !HANDLED_SET);
    type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    // SAFETY: the program has set it as a handler for this signal. A handler that takes the number alone does not read
    // the other two registers.
    unsafe { transmute::<usize, Handler>(handler)(signal, information, context.pointer()) };
}

impl Fault {
    /// The fault as the kernel would describe it.
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
        // SAFETY: it consists of integers and pointers, for which zero is valid; the start has this layout on x86-64.
        unsafe {
            let mut information: siginfo_t = std::mem::zeroed();
            (&raw mut information).cast::<Start>().write(start);
            information
        }
    }
}
