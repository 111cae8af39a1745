//! The memory functions that the compiler calls, private to this library.
//!
//! Another preloaded library may replace libc's functions by ones that submit copies to the device, and so call this
//! library. The symbols are hidden: this library is bound to them, and no other one is.

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
