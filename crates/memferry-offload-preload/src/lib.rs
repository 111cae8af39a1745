//! The preload library of `memferry offload`. It replaces memcpy, memmove, memset, memcmp and their relatives, and has a
//! DSA execute a share of the large calls.
//!
//! ```text
//! program ── memcpy ──▶ entry    below the limit: a jump to libc's function
//!                         └────▶ large     counts the call and decides
//!                                  ├─────▶ libc      overlap, nested call, no device, or the CPU is faster
//!                                  └─────▶ operation one piece after the other: device and CPU at the same time
//!                                            ├ queues   of the node of the target; opened again in a child of fork
//!                                            └ tuner    compares both ways for each class of sizes
//! ```
//!
//! A call of these functions may come from anywhere: from an allocator that holds its locks, a signal handler, a child of
//! vfork, the dynamic linker. So no path of a call uses the program's allocator, a lock, or a function that needs more
//! than this library has prepared (`start`). The reasons are in `docs/decisions/offload.md`.
//!
//! The library exports the replaced functions and nothing else. No crate links it: the functions would replace those of
//! that crate's own program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
// Replaced functions of libc, system calls and thread-local memory: every part needs unsafe code.
#![allow(unsafe_code)]
// Unit tests are built without the exports and without the constructor.
#![cfg_attr(test, allow(dead_code))]

mod arena;
mod checked;
mod counts;
mod entry;
mod large;
mod operation;
mod queues;
mod report;
mod settings;
mod start;
mod sys;
mod thread;
mod tuner;
