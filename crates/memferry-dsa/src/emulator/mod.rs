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
//! this process, and hands out portals. How badly it behaves, within the specification, is in [`Nasty`].
//!
//! It executes No-op, Batch and Memory Move; every other operation ends with
//! [`Status::BadOpcode`](crate::Status::BadOpcode), as on a device that does not have it.
//!
//! Source: Intel DSA Architecture Specification 3.0, with the limits of the 1.0 parts.

mod arbiter;
mod batch;
mod check;
mod config;
mod deterministic;
mod device;
mod front;
mod memmove;
mod memory;
mod nasty;
mod pages;
mod ring;
mod threaded;

pub use config::{
    BATCH_MAX, ConfigError, DeviceConfig, ENGINES_MAX, ENTRIES_MAX, GROUPS_MAX, GroupConfig, OPERATIONS,
    QUEUES_MAX, TRANSFER_BYTES_MAX, dedicated_queue, shared_queue,
};
pub use deterministic::Deterministic;
pub use device::{Device, Stepped};
pub use front::{DeviceCounters, SoftwareError};
pub use memory::{Access, DirectMemory, FakeMemory, Memory, Visit};
pub use nasty::Nasty;
pub use threaded::{Emulator, StartError};
