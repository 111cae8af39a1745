//! The entry from a trampoline into the library, and back with all registers restored.
//!
//! ```text
//! stack, from the top   128 bytes of the site's red zone; return address; flags; 16 registers by their numbers;
//!                       16 SSE registers; frames of Rust code
//! ```
//!
//! Rust code may change the caller-saved registers of the instruction set that it is compiled for. That is the baseline
//! with SSE2, whose instructions do not change the upper parts of wider registers.

use std::arch::global_asm;

use super::sites::SITES;
use super::trampoline::{FAST_PATH, RED_ZONE, SLOW_PATH, site_of};
use crate::trap::context::Register;
use crate::trap::emulate;
use crate::trap::instruction::Registers;

global_asm!(
    ".pushsection .text.memferry_enter, \"ax\", @progbits",
    ".hidden memferry_enter",
    ".globl memferry_enter",
    ".type memferry_enter, @function",
    "memferry_enter:",
    "endbr64", // trampolines call it indirectly, and indirect branch tracking requires a mark
    "pushfq",
    "push r15",
    "push r14",
    "push r13",
    "push r12",
    "push r11",
    "push r10",
    "push r9",
    "push r8",
    "push rdi",
    "push rsi",
    "push rbp",
    "push rsp", // replaced below
    "push rbx",
    "push rdx",
    "push rcx",
    "push rax",
    "cld",
    "mov rbx, rsp",
    "lea rax, [rsp + {to_stack}]",
    "mov [rsp + 32], rax",
    "sub rsp, 256",
    "and rsp, -16",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "mov rdi, rbx",
    "call {submit}",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbx",
    "pop rax",
    "pop rcx",
    "pop rdx",
    "pop rbx",
    "lea rsp, [rsp + 8]",
    "pop rbp",
    "pop rsi",
    "pop rdi",
    "pop r8",
    "pop r9",
    "pop r10",
    "pop r11",
    "pop r12",
    "pop r13",
    "pop r14",
    "pop r15",
    "popfq",
    "ret",
    ".popsection",
    to_stack = const size_of::<Frame>() as u64 + RED_ZONE,
    submit = sym submit,
);

unsafe extern "C" {
    /// Called by trampolines only.
    pub(super) fn memferry_enter();
}

/// The stack of [`memferry_enter`].
#[repr(C)]
struct Frame {
    registers: [u64; 16],
    flags: u64,
    back: u64,
}

const _: () = assert!(size_of::<Frame>() == 18 * 8);

impl Registers for Frame {
    #[inline]
    fn get(&self, register: Register) -> u64 {
        self.registers[register & 15]
    }

    #[inline]
    fn flags(&self) -> u64 {
        self.flags
    }

    #[inline]
    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }
}

/// Executes the instruction of the site whose trampoline has called. If it faults or the site is unknown, the
/// trampoline traps, and the handler executes it again.
extern "C" fn submit(frame: &mut Frame) {
    let slot = frame.back - FAST_PATH;
    let instruction = SITES.get(site_of(slot) as usize).and_then(|site| site.instruction());
    if instruction.is_none_or(|instruction| emulate(&instruction, frame).is_err()) {
        frame.back = slot + SLOW_PATH;
    }
}
