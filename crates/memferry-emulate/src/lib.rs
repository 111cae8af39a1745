//! Runs a program on emulated DSA devices: what `memferry emulate` does.
//!
//! ```text
//! caller ── supervisor ── PROGRAM, its children
//!    │         │ FUSE: /sys/bus/dsa, /sys/module/idxd, /dev/dsa     rules: memferry_dsa_emulator::FakeDriver
//!    │         └ socket /dev/.memferry/devices                      queues: memferry_dsa_emulator::shared
//!    └ signals to the program, its status back
//! ```
//!
//! The program is in a mount namespace of its own (for anybody but root in a user namespace too), in which the driver
//! `idxd` is loaded and has devices. They are configured by a default, a file, or the program. It is not changed;
//! what it stores to a portal is caught by a preload library, and what it submits with `write(2)` is carried out by
//! the supervisor, so that static programs can do that, too.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd` and `drivers/dma/idxd`.

#![deny(unsafe_code)]

mod agent;
mod error;
pub mod fuzz;
mod layout;
mod namespace;
mod opener;
mod options;
mod program;
mod queues;
mod run;
mod server;
mod setup;
mod summary;
mod supervise;
mod system;

pub use error::Error;
pub use options::{Options, Setup};
pub use program::Obstacle;
pub use run::{exit_as, run};
pub use supervise::Leftovers;
