//! Signal handlers: they emulate instructions that trap, and forward all other signals to the program.
//!
//! ```text
//! SIGILL            an instruction that the processor does not have; or the slow path of a patched one
//! SIGSEGV, SIGBUS   an instruction on a portal; or an access of this library to unmapped memory of the program
//! SIGTRAP           a call site that is being patched
//! ```
//!
//! Handlers take no locks, allocate nothing and call no libc. All signals except these four are blocked while one runs.

pub(crate) mod context;
mod emulate;
mod forward;
pub(crate) mod guarded;
pub(crate) mod instruction;
mod kernel;
pub(crate) mod signals;
mod wait;

pub(crate) use emulate::emulate;

use libc::{c_int, c_void, siginfo_t};

use self::context::Context;
use self::guarded::Fault;
use self::instruction::Instruction;
use self::signals::{Action, HANDLED, HANDLED_SET, actions};
use crate::patch;
use crate::sys;

/// Has the decoder make its tables, which it must not do for the first time in a handler.
pub(crate) fn prepare() {
    let _ = Instruction::decode(&[0xf2, 0x0f, 0x38, 0xf8, 0x02], 0);
}

/// Installs the handlers. An action that is set instead is the program's; it becomes the stored action.
pub(crate) fn install() {
    for signal in HANDLED {
        let found = kernel::get(signal);
        if found.handler != handle as *const () as usize {
            set_action(signal, found);
        }
    }
    sys::unblock(HANDLED_SET);
}

/// Stores an action of the program, and returns the one before.
pub(crate) fn set_action(signal: c_int, action: Action) -> Action {
    let before = actions(signal).get();
    actions(signal).set(action);
    kernel::catch(signal, handle, &action);
    before
}

unsafe extern "C" fn handle(signal: c_int, information: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both to this call alone.
    let (information, mut context) = unsafe { (&mut *information, Context::new(context)) };
    let is_ours = match signal {
        _ if information.si_code <= 0 => false, // a process sent it; no instruction has trapped
        libc::SIGILL => unknown_instruction(&mut context),
        libc::SIGTRAP => breakpoint(&mut context),
        _ => fault(signal, information, &mut context),
    };
    if !is_ours {
        forward::forward(signal, information, &mut context);
    }
}

fn unknown_instruction(context: &mut Context) -> bool {
    if let Some(site) = patch::take_slow_path(context) {
        return at_site(context, site);
    }
    trapped(context)
}

/// Handles a trap of an instruction that may be an emulated one.
fn trapped(context: &mut Context) -> bool {
    let address = context.instruction_pointer();
    let decoded = instruction::at(address);
    // This look-up follows the read of the bytes: if the site was patched in between, its stage says so.
    match patch::site_at(address) {
        Some((_, stage)) if stage.is_patched(address) => true, // the thread executes the jump
        Some((site, stage)) if stage.is_being_patched() => at_site(context, site),
        _ => {
            let Some(instruction) = decoded else { return false };
            patch::try_patch(address, &instruction);
            at_site(context, instruction)
        }
    }
}

fn breakpoint(context: &mut Context) -> bool {
    // The processor has executed the one byte of the breakpoint.
    let address = context.instruction_pointer().wrapping_sub(1);
    let Some((site, stage)) = patch::site_at(address) else { return false };
    if stage.is_patched(address) {
        context.jump(address);
        return true;
    }
    if !stage.is_being_patched() {
        return false; // a breakpoint of the program, at a former site
    }
    context.jump(address);
    at_site(context, site)
}

fn fault(signal: c_int, information: &siginfo_t, context: &mut Context) -> bool {
    // SAFETY: the kernel fills in the address for these signals. Any value is valid; it is only compared.
    let address = unsafe { information.si_addr() } as u64;
    if guarded::rescue(context, Fault { signal, code: information.si_code, address }) {
        return true;
    }
    trapped(context)
}

/// Emulates the instruction at the program's instruction pointer. Its fault is delivered as if the processor raised it.
fn at_site(context: &mut Context, instruction: Instruction) -> bool {
    match emulate(&instruction, context) {
        Ok(()) => context.jump(context.instruction_pointer().wrapping_add(instruction.bytes.into())),
        Err(fault) => forward::deliver(fault, context),
    }
    true
}
