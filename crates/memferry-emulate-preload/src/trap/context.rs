//! The registers of a program that a signal has interrupted.

use crate::trap::call::Registers;

/// A register's number in instructions.
pub(crate) type Register = usize;
pub(crate) const RAX: Register = 0;
pub(crate) const RDX: Register = 2;
pub(crate) const RSP: Register = 4;

/// Where Linux has the registers, by their numbers.
///
/// Source: `sys/ucontext.h`.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// What a handler may change of the program.
pub(crate) struct Context<'c>(&'c mut libc::ucontext_t);

impl<'c> Context<'c> {
    /// # Safety
    /// The third argument of a signal handler, which nobody else uses meanwhile.
    pub(crate) unsafe fn new(context: *mut libc::c_void) -> Context<'c> {
        // SAFETY: passed on to the caller.
        Context(unsafe { &mut *context.cast() })
    }

    pub(crate) fn instruction(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as u64
    }

    /// Goes on there.
    pub(crate) fn jump(&mut self, address: u64) {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
    }

    pub(crate) fn set(&mut self, register: Register, value: u64) {
        self.0.uc_mcontext.gregs[PLACES[register & 15] as usize] = value as i64;
    }

    /// The signals that were blocked.
    pub(crate) fn blocked(&self) -> u64 {
        // SAFETY: the kernel's set is the first 8 bytes of libc's.
        unsafe { (&raw const self.0.uc_sigmask).cast::<u64>().read() }
    }

    pub(crate) fn pointer(&mut self) -> *mut libc::c_void {
        (&raw mut *self.0).cast()
    }
}

impl Registers for Context<'_> {
    fn get(&self, register: Register) -> u64 {
        self.0.uc_mcontext.gregs[PLACES[register & 15] as usize] as u64
    }

    fn flags(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] as u64
    }

    fn set_flags(&mut self, flags: u64) {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] = flags as i64;
    }
}
