//! Small Linux guests with the NUMA nodes of a machine profile, under QEMU: the library behind `memferry machine boot` and
//! `cargo xtask numa`.
//!
//! ```text
//! profile ─▶ Layout ─▶ QEMU's arguments ─▶ a guest ─▶ exit status, page map
//!               process 1 (this program) ─▶ Image ──┘ ▲  ▲
//!               Kernel: kept, installed, or fetched ──┘  ├ folders of this machine, by 9p
//!                                                        └ files of this machine as persistent memory
//! ```
//!
//! [`boot`] runs a program of this machine in a guest. The other items are its parts, for guests that run tests.
//!
//! The guest's kernel derives nodes, CPUs, sizes, distances, rates and memory tiers from the firmware's tables. The memory is
//! as fast as the host's: do not measure in a guest.
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod apt;
mod boot;
mod error;
mod image;
// Process 1 of a guest calls the kernel directly.
#[allow(unsafe_code, reason = "mount, fork, trace, reap, exit through a port")]
mod init;
mod kernel;
mod kernel_package;
mod layout;
mod modules;
mod pages;
mod persistent;
mod plan;
mod qemu;
#[allow(unsafe_code, reason = "prctl before exec")]
mod run;
mod scratch;
#[allow(unsafe_code, reason = "modes of serial lines")]
mod serial;
mod share;
#[allow(unsafe_code, reason = "handlers of signals")]
mod signals;
#[allow(unsafe_code, reason = "modes of terminals")]
mod terminal;
#[doc(hidden)]
pub mod tools;

pub use boot::{BootOptions, Booted, boot};
pub use error::Error;
pub use image::Image;
pub use init::{profile_of_this_guest, run_if_init};
pub use kernel::Kernel;
pub use layout::{Layout, LayoutLink, LayoutNode, LayoutRegion};
pub use pages::{NodeBytes, Pages};
pub use persistent::PersistentMemory;
pub use plan::{
    ARRIVALS, COMMAND, COMMAND_VARIABLE, LAYOUT, LAYOUT_VARIABLE, PERSISTENT, PLAN, PROGRAMS, Plan,
    PlanCommand, PlanPersistent, PlanProgram,
};
pub use qemu::{Accelerator, Boot, Qemu};
pub use run::{Outcome, Run};
pub use scratch::Scratch;
pub use share::Share;
