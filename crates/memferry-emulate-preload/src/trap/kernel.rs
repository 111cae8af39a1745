//! The kernel's actions for the handled signals: it calls this library, whatever action the program has set.

use std::arch::global_asm;

use libc::{c_int, c_void};

use super::signals::{Action, HANDLED_SET};
use crate::sys;

global_asm!(
    ".pushsection .text.memferry_restorer, \"ax\", @progbits",
    ".hidden memferry_restorer",
    ".globl memferry_restorer",
    "memferry_restorer:",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    ".popsection",
);

unsafe extern "C" {
    fn memferry_restorer();
}

/// The kernel's `struct sigaction`.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: sys::Signals,
}

const SA_RESTORER: u64 = 0x0400_0000;

/// Sets the kernel's action for a handled signal.
pub(super) fn set(signal: c_int, action: Action) {
    let new = KernelAction {
        handler: action.handler,
        flags: action.flags | SA_RESTORER,
        restorer: memferry_restorer as *const () as usize,
        mask: action.mask,
    };
    let arguments = [signal as usize, &raw const new as usize, 0, size_of::<sys::Signals>(), 0, 0];
    // SAFETY: it reads one action. The handler is one of this library, or the default.
    unsafe { sys::call(libc::SYS_rt_sigaction, arguments) };
}

/// Returns the kernel's action for a handled signal.
pub(super) fn get(signal: c_int) -> Action {
    let mut now = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let arguments = [signal as usize, 0, &raw mut now as usize, size_of::<sys::Signals>(), 0, 0];
    // SAFETY: it writes one action.
    unsafe { sys::call(libc::SYS_rt_sigaction, arguments) };
    Action { handler: now.handler, flags: now.flags & !SA_RESTORER, mask: now.mask }
}

/// Makes the kernel call `handler`, on the stack that the program wants for this signal. All signals are blocked while
/// it runs, except the handled ones, which the handler itself may raise. System calls start again if the program wants it,
/// or ignores the signal.
pub(super) fn catch(
    signal: c_int,
    handler: unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
    program: &Action,
) {
    let mut flags = (libc::SA_SIGINFO | libc::SA_NODEFER) as u64;
    flags |= program.flags & (libc::SA_ONSTACK | libc::SA_RESTART) as u64;
    if program.handler == libc::SIG_IGN {
        flags |= libc::SA_RESTART as u64;
    }
    set(signal, Action { handler: handler as usize, flags, mask: !HANDLED_SET });
}

/// The action of a program that has set none.
pub(super) const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 };
