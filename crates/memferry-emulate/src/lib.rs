//! Runs a program on emulated DSA devices: the library behind `memferry emulate`.
//!
//! ```text
//! caller ── supervisor ── PROGRAM, its children
//!    │         │ FUSE: /sys/bus/dsa, /sys/module/idxd, /dev/dsa     rules: memferry_dsa_emulator::FakeDriver
//!    │         └ socket /dev/.memferry/devices                      queues: memferry_dsa_emulator::shared
//!    └ signals to the program, its status back
//! ```
//!
//! ```no_run
//! use memferry_emulate::{Options, run};
//!
//! let mut options = Options::new("cat");
//! options.arguments = vec!["/sys/bus/dsa/devices/dsa0/state".into()];
//! let status = run(options)?; // prints "enabled"
//! # Ok::<(), memferry_emulate::Error>(())
//! ```
//!
//! The program runs unmodified in a private mount namespace, in which the driver `idxd` is loaded and has devices.
//! Users other than root get a user namespace too. A default, a file or the program configures the devices. A preload
//! library catches stores to portals. The supervisor executes descriptors that are submitted with `write(2)`, also for
//! static programs.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd` and `drivers/dma/idxd`.

#![deny(unsafe_code)]

mod error;
mod executor;
/// The body of the fuzz target `requests`, which needs private items.
#[cfg(feature = "internals")]
#[path = "../tests/fuzzed/mod.rs"]
pub mod fuzz;
mod layout;
mod namespace;
mod notes;
mod opener;
mod options;
mod pci;
mod preload;
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
/// For `memferry-offload`, which preloads a library, too. No part of the API.
#[doc(hidden)]
pub use program::{Obstacle, Program};
pub use run::{exit_as, run};
pub use supervise::Leftovers;
