//! A DSA device in software: every rule of the real one that a client can trip over, and none of its silicon.
//!
//! ```text
//! Portal / submit ──▶ queues ──▶ arbiter of the group ──▶ engines ──▶ completion records
//!                    (ring)      (priorities)            (batch unit,  (late, out of order)
//!                                                         copies)           │
//!                                                            └── Memory ◀───┘
//! ```
//!
//! The [`Device`] is a state machine that does something only when it is stepped. [`Deterministic`] steps it in the
//! calling thread and replays a seed exactly; [`Emulator`] steps it in a thread of its own, over the memory of
//! this process, and hands out portals. How badly it behaves, within the specification, is in [`FaultPlan`].
//!
//! Several processes can share one device; what they have in common is then in a file ([`shared`]).
//!
//! [`FakeDriver`] is the driver's part: its files, with its rules behind them. [`conformance`] checks whatever executes
//! requests, devices and software alike.
//!
//! It executes all operations of version 1.0, or those that its configuration leaves it. It can take as long as
//! silicon would ([`Timing`]), in virtual time or in real time; what is measured with it is emulated.
//!
//! Source: Intel DSA Architecture Specification 3.0, with the limits of the 1.0 parts.

#![deny(unsafe_code)]

mod arc_ref;
mod config;
#[cfg(not(memferry_loom))]
pub mod conformance;
mod device;
mod driver;
pub mod fuzz;
mod memory;
mod monotonic;
mod ops;
pub mod procfs;
mod queue;
mod runner;
pub mod shared;
mod sync;

pub use config::{
    BATCH_MAX, Capabilities, ConfigError, DeviceConfig, ENTRIES_MAX, FaultPlan, GroupConfig, OPERATIONS,
    QUEUES_MAX, TRANSFER_BYTES_MAX, Timing, dedicated_queue, shared_queue,
};
pub use device::{Device, DeviceCounters, Stepped};
pub use driver::{FakeDevice, FakeDriver, FakeKernel, FakePlatform};
pub use memory::{
    Access, AddressSpace, CheckedMemory, DirectMemory, FakeMemory, Memory, ProcessMemory, Vanished, Visit,
};
pub use runner::{Deterministic, Emulator, EnableError, StartError};
