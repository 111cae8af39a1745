//! What `memferry emulate` preloads into programs: the instructions by which they use a DSA are caught, and their
//! descriptors go to emulated devices that all programs of the emulation share.
//!
//! ```text
//! program ── mmap of /dev/dsa/wqX.Y ──▶ hooks    a page that cannot be accessed, remembered as a portal
//!    │                                     └───▶ engine   a thread that executes this process' descriptors
//!    ├── ENQCMD, MOVDIR64B, ... ─────▶ trap     decoded, emulated, and the call site
//!    │                                     └───▶ patch    replaced by a jump: the next time without a signal
//!    └── its own signals, handlers ──▶ hooks    kept, and called as if nobody had been here
//! ```
//!
//! The devices are those of `memferry_dsa_emulator::shared`; the command serves them, at a socket.
//! Without that socket, the library does nothing.
//!
//! It exports libc's functions that it replaces, `memferry_emulated_instructions`, and nothing else. Nobody links it:
//! whoever named one of its symbols would have them replaced in his own program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
// Hooks, signal handlers and code that writes code: there is no part of it without.
#![allow(unsafe_code)]
// Unit tests have no hooks, or they would be hooked themselves; and so nobody who calls what the hooks need.
#![cfg_attr(test, allow(dead_code))]

mod engine;
mod hooks;
#[cfg(not(test))]
mod mem;
mod patch;
mod portals;
mod process;
mod sys;
mod trap;
mod wiped;
