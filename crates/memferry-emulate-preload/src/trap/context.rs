//! The registers of a program that a signal has interrupted.

use crate::trap::instruction::Registers;

/// The number of a register in the encoding of instructions.
pub(crate) type Register = usize;
pub(crate) const RAX: Register = 0;
pub(crate) const RDX: Register = 2;
pub(crate) const RSP: Register = 4;

/// Indices of the registers in `gregs`, by their numbers.
///
/// Source: `sys/ucontext.h`.
const GREGS: [i32; 16] = [
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

/// The state of the interrupted program, which a handler may change.
pub(crate) struct Context<'c>(&'c mut libc::ucontext_t);

impl<'c> Context<'c> {
    /// # Safety
    /// `context` is the third argument of a signal handler; nothing else uses it during `'c`.
    pub(crate) unsafe fn new(context: *mut libc::c_void) -> Context<'c> {
        // SAFETY: by the contract of this function.
        Context(unsafe { &mut *context.cast() })
    }

    /// RIP.
    pub(crate) fn instruction_pointer(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as u64
    }

    /// Makes the program continue at an address.
    pub(crate) fn jump(&mut self, address: u64) {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
    }

    pub(crate) fn set(&mut self, register: Register, value: u64) {
        self.0.uc_mcontext.gregs[GREGS[register & 15] as usize] = value as i64;
    }

    /// The signals that the program had blocked.
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
        self.0.uc_mcontext.gregs[GREGS[register & 15] as usize] as u64
    }

    fn flags(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] as u64
    }

    fn set_flags(&mut self, flags: u64) {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] = flags as i64;
    }
}
