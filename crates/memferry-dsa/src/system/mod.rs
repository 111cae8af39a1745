//! What Linux has: devices as the driver `idxd` shows them, their configuration, and why something cannot be used.
//!
//! ```text
//! SystemState::discover()                  sysfs of this machine, or of a recorded tree
//!    state.diagnose(&wanted)         the queues that can be used; if none, why, a sentence each
//!    queue.info(device)              what a portal must know
//! Config, Profile                    accel-config's files, read, written, checked, generated
//! apply::Plan                        the writes to sysfs that make devices so; dry, or carried out
//! ```
//!
//! Plain data and files: nothing here talks to a device. [`Files`] is the seam to the operating system; [`FakeDriver`] has
//! the driver's rules behind it.
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd`, `drivers/dma/idxd`; accel-config 3.5.

pub mod apply;
mod capability;
pub mod config;
mod diagnose;
mod discover;
mod error;
mod files;
mod id;
mod state;
mod status;

pub use capability::{GeneralCapabilities, Version};
pub use config::{Config, Limits, Profile, Shape, UnknownKeys};
pub use diagnose::{Diagnosis, Diagnostic, QueueFilter};
pub use discover::{DEVICES, DRIVERS};
pub use error::SystemError;
pub use files::{Directory, Files, Owner};
pub use id::{DeviceId, EngineId, GroupId, QueueId, UnknownName};
pub use state::{Activity, Device, Engine, Group, Process, Queue, QueueFile, QueueType, SystemState};
pub use status::{CommandStatus, SoftwareError};
