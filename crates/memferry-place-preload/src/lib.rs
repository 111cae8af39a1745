//! The preload library of `memferry place`. It chooses the nodes of the large mappings of a program before they have
//! pages, and asks the kernel for the result at the exit.
//!
//! ```text
//! program ── malloc, mmap, … ──▶ hooks    below the minimum size: the next function, and nothing else
//!                                  └────▶ policy   of the heap, of anonymous mappings, of files by their names
//!                                           ├ interleave    mbind: the kernel's pattern, or `stripes`
//!                                           ├ first touch   mbind(MPOL_LOCAL); no read-ahead for files
//!                                           └ replicate     `files`: a copy on the node of this process
//! exit ──▶ report    /proc/self/numa_maps, and samples of memory that was freed before (`ranges`)
//! ```
//!
//! Memory of a thread with a policy of its own (`set_mempolicy`, libnuma) is left alone, and so are stacks, small
//! allocations, and device memory. The reasons are in `docs/decisions/placement-of-programs.md`.
//!
//! The library exports the replaced functions and nothing else. No crate links it: the functions would replace those of
//! that crate's own program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
// Replaced functions of libc, system calls and memory that belongs to the program: most parts need unsafe code.
#![allow(unsafe_code)]
// Unit tests are built without the exports and without the constructor.
#![cfg_attr(test, allow(dead_code))]

mod counts;
mod files;
mod hooks;
mod next;
mod policy;
mod ranges;
mod report;
mod settings;
mod start;
mod stripes;
mod sys;
