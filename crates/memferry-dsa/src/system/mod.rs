//! The devices of Linux: discovery in sysfs, configuration, and diagnostics.
//!
//! ```text
//! SystemState::discover()            reads sysfs of this machine, or of a recorded tree
//!    state.diagnose(&filter)         the usable queues, and a sentence for each obstacle
//!    queue.info(device)              the description of a queue for its portal
//! Config, Profile                    accel-config's files: read, written, validated, generated
//! Plan                               the writes to sysfs that configure devices; dry, or carried out
//! ```
//!
//! Plain data and files; nothing here accesses a device. The trait `Files` is the seam to the operating system;
//! `FakeDriver` of the crate `memferry-dsa-emulator` implements it with the driver's rules.
//!
//! ```
//! use memferry_dsa::system::{QueueFilter, SystemState};
//!
//! let state = SystemState::discover()?;
//! let diagnosis = state.diagnose(&QueueFilter::default());
//! for (device, queue) in &diagnosis.usable {
//!     println!("{} on node {:?}", queue.id, device.node);
//! }
//! for diagnostic in &diagnosis.diagnostics {
//!     println!("{diagnostic}");
//! }
//! # Ok::<(), memferry_dsa::system::SystemError>(())
//! ```
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd`, `drivers/dma/idxd`; accel-config 3.5.

mod apply;
mod capability;
pub(crate) mod config;
mod diagnose;
pub(crate) mod discover;
pub(crate) mod error;
pub(crate) mod files;
mod id;
mod state;
mod status;

pub use apply::{Action, ApplyError, ApplyOptions, Plan, PlanError, Step};
pub use capability::{GeneralCapabilities, Version};
pub use config::{Config, ConfigError, Limits, Problems, Profile, Shape, UnknownKeys};
pub use diagnose::{Diagnosis, Diagnostic, QueueFilter};
pub use error::SystemError;
pub use id::{DeviceId, EngineId, GroupId, QueueId, UnknownName};
pub use state::{Activity, Device, Engine, Group, Process, Queue, QueueFile, QueueType, SystemState};
pub use status::{CommandStatus, SoftwareError};
