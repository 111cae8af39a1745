//! Accesses to memory that may not be there: they answer where others would crash.
//!
//! The signal handler knows the instructions here ([`rescue`]): a fault in one ends the function with the address.

use std::arch::global_asm;

use super::context::Context;

global_asm!(
    ".pushsection .text.memferry_safe, \"ax\", @progbits",
    ".hidden memferry_safe_start, memferry_safe_end, memferry_safe_return",
    ".hidden memferry_copy_64, memferry_copy, memferry_probe",
    ".globl memferry_safe_start, memferry_safe_end, memferry_safe_return",
    ".globl memferry_copy_64, memferry_copy, memferry_probe",
    "memferry_safe_start:",
    // (target, source): 64 bytes, read before the first is written.
    "memferry_copy_64:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov rdx, [rsi + 16]",
    "mov r8, [rsi + 24]",
    "mov r9, [rsi + 32]",
    "mov r10, [rsi + 40]",
    "mov r11, [rsi + 48]",
    "mov rsi, [rsi + 56]",
    "mov [rdi], rax",
    "mov [rdi + 8], rcx",
    "mov [rdi + 16], rdx",
    "mov [rdi + 24], r8",
    "mov [rdi + 32], r9",
    "mov [rdi + 40], r10",
    "mov [rdi + 48], r11",
    "mov [rdi + 56], rsi",
    "xor eax, eax",
    "ret",
    // (target, source, bytes)
    "memferry_copy:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    // (address): whether it can be written.
    "memferry_probe:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    "memferry_safe_end:",
    // Where a fault continues, with the answer in rax and rdx.
    "memferry_safe_return:",
    "ret",
    ".popsection",
);

/// What the functions above answer, in rax and rdx.
#[repr(C)]
struct Answer {
    signal_code: u64, // 31:0 signal, 63:32 code of the fault; 0 without one
    address: u64,     // of the fault
}

unsafe extern "C" {
    fn memferry_copy_64(target: *mut u64, source: *const u64) -> Answer;
    fn memferry_copy(target: *mut u8, source: *const u8, bytes: usize) -> Answer;
    fn memferry_probe(address: *mut u8) -> Answer;
    static memferry_safe_start: u8;
    static memferry_safe_end: u8;
    static memferry_safe_return: u8;
}

/// A fault, as the kernel tells it in a `siginfo_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) signal: i32,
    pub(crate) code: i32,
    pub(crate) address: u64,
}

impl Fault {
    /// What Linux makes of a general-protection exception.
    pub(crate) const PROTECTION: Fault = Fault { signal: libc::SIGSEGV, code: SI_KERNEL, address: 0 };
}

/// `si_code`: the kernel does not say more.
const SI_KERNEL: i32 = 0x80;

impl Answer {
    fn result(self) -> Result<(), Fault> {
        match self.signal_code {
            0 => Ok(()),
            both => Err(Fault { signal: both as i32, code: (both >> 32) as i32, address: self.address }),
        }
    }
}

/// Reads 64 bytes from anywhere.
#[inline]
pub(crate) fn read_64(source: u64, words: &mut [u64; 8]) -> Result<(), Fault> {
    // SAFETY: the target is the array; a source that is not readable is answered.
    unsafe { memferry_copy_64(words.as_mut_ptr(), source as *const u64) }.result()
}

/// Writes 64 bytes to where the program says.
#[inline]
pub(crate) fn write_64(target: u64, words: &[u64; 8]) -> Result<(), Fault> {
    // SAFETY: the program's own instruction would write there; a target that is not writable is answered.
    unsafe { memferry_copy_64(target as *mut u64, words.as_ptr()) }.result()
}

/// Reads `bytes` from anywhere.
pub(crate) fn read(source: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the target is the slice; a source that is not readable is answered.
    unsafe { memferry_copy(bytes.as_mut_ptr(), source as *const u8, bytes.len()) }.result()
}

/// Whether an address could be written. It is not changed.
pub(crate) fn probe(address: u64) -> Result<(), Fault> {
    // SAFETY: an atomic write of what is there; an address that is not writable is answered.
    unsafe { memferry_probe(address as *mut u8) }.result()
}

/// If the fault is of one of the functions above: ends it with that answer.
pub(super) fn rescue(context: &mut Context, fault: Fault) -> bool {
    let start = &raw const memferry_safe_start as u64;
    let end = &raw const memferry_safe_end as u64;
    let is_ours = (start..end).contains(&context.instruction());
    if is_ours {
        context.set(super::context::RAX, u64::from(fault.signal as u32) | u64::from(fault.code as u32) << 32);
        context.set(super::context::RDX, fault.address);
        context.jump(&raw const memferry_safe_return as u64);
    }
    is_ours
}
