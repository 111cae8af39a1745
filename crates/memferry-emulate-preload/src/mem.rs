//! The memory functions that the compiler calls, for this library alone.
//!
//! Another preloaded library may have replaced libc's by ones that submit copies to the device, that is, to this
//! library. The symbols are hidden: everything in here is bound to them, and nothing outside.

use std::arch::global_asm;

global_asm!(
    ".pushsection .text.memferry_mem, \"ax\", @progbits",
    ".hidden memcpy, memmove, memset, memcmp, bcmp",
    ".globl memcpy, memmove, memset, memcmp, bcmp",
    ".type memcpy, @function",
    ".type memmove, @function",
    ".type memset, @function",
    ".type memcmp, @function",
    ".type bcmp, @function",
    "memmove:",
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx", // unsigned: the target begins inside the source
    "jb 2f",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "2:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "mov rcx, rdx",
    "cmp rcx, rcx", // equal, if there are no bytes
    "repe cmpsb",
    "je 3f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub eax, ecx",
    "3:",
    "ret",
    ".popsection",
);
