//! The preload library of `memferry emulate`. It catches the instructions by which a program uses a DSA, and submits
//! their descriptors to emulated devices, which all programs of the emulation share.
//!
//! ```text
//! program ── mmap of /dev/dsa/wqX.Y ──▶ hooks    the page gets no access rights and becomes a portal
//!    │                                     └───▶ engine   a thread that executes the descriptors of this process
//!    ├── ENQCMD, MOVDIR64B, ... ─────▶ trap     decodes and emulates the instruction
//!    │                                     └───▶ patch    replaces it by a jump: no signal the next time
//!    ├── its own signals, handlers ──▶ hooks    store its handlers; trap calls them as the kernel would
//!    └── exec, posix_spawn ──────────▶ hooks    have the next program load this library too
//! ```
//!
//! The devices are those of `memferry_dsa_emulator::shared`. The command serves them at a socket. Without that socket
//! the library does nothing.
//!
//! The library exports the functions of libc that it replaces and `memferry_emulated_instructions`. No crate links it:
//! the hooks would replace the functions of that crate's own program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
// Hooks, signal handlers and code that writes code: every part needs unsafe code.
#![allow(unsafe_code)]
// Unit tests are built without hooks, which would replace their own functions. Code that only hooks use is unused
// there.
#![cfg_attr(test, allow(dead_code))]

mod engine;
mod fork_local;
mod hooks;
#[cfg(not(test))]
mod mem;
mod patch;
mod portals;
mod process;
mod sys;
mod trap;
