//! Signals: instructions that trap are emulated, and what is not ours goes to the program as if nobody had been here.
//!
//! ```text
//! SIGILL            an instruction that the processor does not have; or the slow way out of a patched one
//! SIGSEGV, SIGBUS   one that it has, on a portal; or an access of ours to memory of the program that is not there
//! SIGTRAP           a call site that is being patched
//! ```
//!
//! In here there are no locks, no allocation and no libc; all but these signals are blocked.

pub(crate) mod call;
pub(crate) mod context;
mod emulate;
mod forward;
mod kernel;
pub(crate) mod safe;
pub(crate) mod signals;
mod wait;

pub(crate) use emulate::{Outcome, STATUS_FLAGS, emulate};

use libc::{c_int, c_void, siginfo_t};

use self::call::{Call, Registers};
use self::context::Context;
use self::safe::Fault;
use self::signals::{Action, OURS, OURS_SET, actions};
use crate::patch;
use crate::sys;

/// Does what must not be done in a handler for the first time: the decoder makes its tables.
pub(crate) fn prepare() {
    let _ = Call::decode(&[0xf2, 0x0f, 0x38, 0xf8, 0x02], 0);
}

/// Installs the handlers where they are not. What is set instead is the program's: from before, or past the hooks.
pub(crate) fn install() {
    for signal in OURS {
        let found = kernel::get(signal);
        if found.handler != handle as *const () as usize {
            set_action(signal, found);
        }
    }
    sys::unblock(OURS_SET);
}

/// The program sets an action; what it had set before.
pub(crate) fn set_action(signal: c_int, action: Action) -> Action {
    let before = actions(signal).get();
    actions(signal).set(action);
    kernel::catch(signal, handle, &action);
    before
}

unsafe extern "C" fn handle(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this with the two, which nobody else has.
    let (information, mut context) = unsafe { (&mut *information, Context::new(context)) };
    let is_ours = match signal {
        _ if information.si_code <= 0 => false, // somebody has sent it; no instruction has trapped
        libc::SIGILL => unknown_instruction(&mut context),
        libc::SIGTRAP => breakpoint(&mut context),
        _ => fault(signal, information, &mut context),
    };
    if !is_ours {
        forward::forward(signal, information, &mut context);
    }
}

fn unknown_instruction(context: &mut Context) -> bool {
    if let Some(site) = patch::slow_way_of(context) {
        return at_site(context, site);
    }
    trapped(context)
}

/// An instruction has trapped that may be one of ours.
fn trapped(context: &mut Context) -> bool {
    let address = context.instruction();
    let decoded = call::at(address);
    // After the bytes were read: if they were patched meanwhile, the site says what they were.
    match patch::site_at(address) {
        Some((_, stage)) if stage.is_patched(address) => true, // it is executed again
        Some((site, stage)) if stage.is_being_patched() => at_site(context, site),
        _ => {
            let Some(call) = decoded else { return false };
            patch::try_patch(address, &call);
            at_site(context, call)
        }
    }
}

fn breakpoint(context: &mut Context) -> bool {
    // The processor has executed the one byte.
    let address = context.instruction().wrapping_sub(1);
    let Some((site, stage)) = patch::site_at(address) else { return false };
    if stage.is_patched(address) {
        context.jump(address);
        return true;
    }
    if !stage.is_being_patched() {
        return false; // the program's own, where code of ours once was
    }
    context.jump(address);
    at_site(context, site)
}

fn fault(signal: c_int, information: &siginfo_t, context: &mut Context) -> bool {
    // SAFETY: the kernel has filled in the address for these signals; for others it is zero or anything.
    let address = unsafe { information.si_addr() } as u64;
    if safe::rescue(context, Fault { signal, code: information.si_code, address }) {
        return true;
    }
    trapped(context)
}

/// Emulates an instruction where the program is. A fault of it is delivered as its own.
fn at_site(context: &mut Context, call: Call) -> bool {
    match emulate(&call, context) {
        Ok(Outcome { flags }) => {
            if let Some(flags) = flags {
                let before = context.flags();
                context.set_flags(before & !STATUS_FLAGS | flags);
            }
            context.jump(context.instruction().wrapping_add(call.bytes.into()));
        }
        Err(fault) => forward::deliver(fault, context),
    }
    true
}
