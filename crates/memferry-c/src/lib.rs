//! libmemferry: the C interface of memferry.
//!
//! ```text
//! machine    nodes, links            emulator   emulated DSA devices in this process
//! mover      operation ─▶ transfer   asynchronous operations: submit, poll, wait, callback
//! cache      region, entry, view     the interface of the thesis, chapter 4, and lock-free hits
//!
//! thread     every call: reentrance, panics, pins         handles   numbers for objects
//! error      statuses and messages
//! ```
//!
//! `include/memferry.h` is generated from this crate by `cargo xtask c-header --write`; `include/memferry.hpp` is C++20
//! on top of it. The guide for users is `docs/guides/c.md`.
//!
//! The installed name of the library is `memferry`; here it is `memferry_c`, since `memferry` is the Rust library.
#![allow(non_camel_case_types, reason = "the names of the C interface")]

mod cache;
mod emulator;
mod error;
mod handles;
mod machine;
mod mover;
mod operation;
mod thread;
mod transfer;
mod view;

pub use cache::*;
pub use emulator::*;
pub use error::{mf_error_message, mf_status, mf_status_name};
pub use machine::{
    MF_NAME_SIZE, MF_NO_NODE, mf_accelerator, mf_link, mf_machine, mf_machine_accelerators,
    mf_machine_discover, mf_machine_free, mf_machine_from_profile, mf_machine_link, mf_machine_name,
    mf_machine_nearest_faster, mf_machine_nodes, mf_node, mf_node_info, mf_tier,
};
pub use mover::*;
pub use operation::*;
pub use transfer::*;
pub use view::*;

/// The version of the library, such as "0.2.0". Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn mf_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
