//! The tests of the preloaded library: linking one program takes less time than linking many.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;
mod linking;
mod preload;
