//! Accesses to memory that may be unmapped: they return an error where others would crash.
//!
//! The signal handler recognises the instructions of this module ([`rescue`]): a fault makes the function return its
//! signal and address.

use std::arch::global_asm;

use memferry_dsa::Address;

use super::context::Context;

global_asm!(
    ".pushsection .text.memferry_safe, \"ax\", @progbits",
    ".hidden memferry_safe_start, memferry_safe_end, memferry_safe_return",
    ".hidden memferry_copy_64, memferry_copy, memferry_probe, memferry_store_record",
    ".globl memferry_safe_start, memferry_safe_end, memferry_safe_return",
    ".globl memferry_copy_64, memferry_copy, memferry_probe, memferry_store_record",
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
    // (address): a write that changes nothing.
    "memferry_probe:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    // (target, source): 32 bytes, the first eight in one store and last. They contain the status.
    "memferry_store_record:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov rdx, [rsi + 16]",
    "mov rsi, [rsi + 24]",
    "mov [rdi + 8], rcx",
    "mov [rdi + 16], rdx",
    "mov [rdi + 24], rsi",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "memferry_safe_end:",
    // A fault continues here, with the answer in rax and rdx.
    "memferry_safe_return:",
    "ret",
    ".popsection",
);

/// The answer of the functions above, in rax and rdx.
#[repr(C)]
struct Answer {
    signal_code: u64, // 31:0 signal, 63:32 code of the fault; 0 without one
    address: u64,     // of the fault
}

unsafe extern "C" {
    fn memferry_copy_64(target: *mut u64, source: *const u64) -> Answer;
    fn memferry_copy(target: *mut u8, source: *const u8, bytes: usize) -> Answer;
    fn memferry_probe(address: *mut u8) -> Answer;
    fn memferry_store_record(target: *mut u64, source: *const u8) -> Answer;
    static memferry_safe_start: u8;
    static memferry_safe_end: u8;
    static memferry_safe_return: u8;
}

/// A fault, as a `siginfo_t` describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) signal: i32,
    pub(crate) code: i32,
    pub(crate) address: u64,
}

impl Fault {
    /// A general-protection exception, as Linux reports it.
    pub(crate) const PROTECTION: Fault = Fault { signal: libc::SIGSEGV, code: SI_KERNEL, address: 0 };
}

/// `si_code` of a fault without details.
const SI_KERNEL: i32 = 0x80;

impl Answer {
    fn result(self) -> Result<(), Fault> {
        match self.signal_code {
            0 => Ok(()),
            both => Err(Fault { signal: both as i32, code: (both >> 32) as i32, address: self.address }),
        }
    }
}

/// Reads 64 bytes from any address.
#[inline]
pub(crate) fn read_64(source: u64, words: &mut [u64; 8]) -> Result<(), Fault> {
    // SAFETY: the target is the array; an unreadable source is an error.
    unsafe { memferry_copy_64(words.as_mut_ptr(), source as *const u64) }.result()
}

/// Writes 64 bytes to the target of the program's instruction.
#[inline]
pub(crate) fn write_64(target: u64, words: &[u64; 8]) -> Result<(), Fault> {
    // SAFETY: the program's own instruction would write there; an unwritable target is an error.
    unsafe { memferry_copy_64(target as *mut u64, words.as_ptr()) }.result()
}

/// Fills `bytes` from any address.
pub(crate) fn read(source: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: the target is the slice; an unreadable source is an error.
    unsafe { memferry_copy(bytes.as_mut_ptr(), source as *const u8, bytes.len()) }.result()
}

/// Checks that an address can be written, without a change of its content.
pub(crate) fn probe(address: u64) -> Result<(), Fault> {
    // SAFETY: an atomic OR with zero changes nothing; an unwritable address is an error.
    unsafe { memferry_probe(address as *mut u8) }.result()
}

/// Stores a completion record, the status last; false if it cannot be stored. Any thread with the handled signals
/// unblocked may call it.
///
/// # Safety
/// The program has named this address for a completion record.
pub(crate) unsafe fn store_record(record: Address, bytes: &[u8; 32]) -> bool {
    // SAFETY: by the contract of this function; an unwritable address is an error.
    // ORDERING: the store of the status pairs with the Acquire in `CompletionRecord::poll`. On x86-64 stores become
    // visible in program order, and the compiler moves no access across the call.
    unsafe { memferry_store_record(record.0 as *mut u64, bytes.as_ptr()) }.result().is_ok()
}

/// Makes the function above that caused the fault return it. False: none of them did.
pub(super) fn rescue(context: &mut Context, fault: Fault) -> bool {
    let start = &raw const memferry_safe_start as u64;
    let end = &raw const memferry_safe_end as u64;
    let is_ours = (start..end).contains(&context.instruction_pointer());
    if is_ours {
        context.set(super::context::RAX, u64::from(fault.signal as u32) | u64::from(fault.code as u32) << 32);
        context.set(super::context::RDX, fault.address);
        context.jump(&raw const memferry_safe_return as u64);
    }
    is_ours
}
