//! Configurations of devices: accel-config's files, typed.
//!
//! ```text
//! Config::load(path)            a file of `accel-config save-config`, or a profile
//! Profile::named("8n1d1e1w")    a built-in profile
//! Config::for_devices(&[..])    a shape for any devices
//! Config::of(&state)            the current settings of devices
//!        │
//! validate_on(&state)           all problems, before anything is changed
//!        │
//! to_json()                     a file for `accel-config load-config -c FILE`
//! Plan                          or the writes to sysfs
//! ```
//!
//! A setting that is `None` is not in the file, and the driver's value stays.
//!
//! Source: the files of accel-config 3.5 (`contrib/configs`, `accel-config save-config`); its order of keys is kept,
//! because it applies them in the order of the file.

mod error;
mod json;
mod profile;
mod read;
mod save;
mod shape;
mod validate;
mod write;

pub use error::ConfigError;
pub use json::Json;
pub use profile::Profile;
pub use read::UnknownKeys;
pub use shape::Shape;
pub(super) use validate::READ_BUFFERS_PER_ENGINE;
pub use validate::{Limits, Problems};

use std::fmt;

use super::id::{DeviceId, EngineId, GroupId, QueueId};
use super::state::QueueType;
use crate::operation::OperationSet;
use crate::portal::QueueMode;

/// Settings of devices.
///
/// ```
/// use memferry_dsa::system::{Config, DeviceId, Limits, Shape};
///
/// let shape: Shape = "1n1d4e8w-dedicated".parse()?;
/// let config = Config::for_devices(&[DeviceId(0)], &shape);
/// config.validate(&Limits::dsa_1_0())?;
/// std::fs::write("/dev/null", config.to_json())?; // for `accel-config load-config -c FILE -e`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// The devices. The types of their settings are in `internals`.
    pub devices: Vec<DeviceSettings>,
    /// Settings of other accelerators (`iax1`) in the file. They are written back and never applied.
    pub others: Vec<Json>,
}

/// Settings of a device.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct DeviceSettings {
    /// Its name.
    pub id: DeviceId,
    /// Limit of read buffers for groups with `use_read_buffer_limit`; 0 is no limit.
    pub read_buffer_limit: Option<u32>,
    /// Entries of the event log, since version 2.0.
    pub event_log_size: Option<u32>,
    /// Its groups.
    pub groups: Vec<GroupSettings>,
    /// Queues in no group.
    pub ungrouped_queues: Vec<QueueSettings>,
    /// Engines in no group.
    pub ungrouped_engines: Vec<EngineSettings>,
    /// Unknown keys of the file.
    pub kept: Vec<(String, Json)>,
}

/// Settings of a group.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct GroupSettings {
    /// Its name.
    pub id: GroupId,
    /// Read buffers that are reserved for this group.
    pub read_buffers_reserved: Option<u32>,
    /// Whether the device's limit of read buffers applies.
    pub use_read_buffer_limit: Option<bool>,
    /// Read buffers that its engines may use.
    pub read_buffers_allowed: Option<u32>,
    /// First traffic class.
    pub traffic_class_a: Option<u32>,
    /// Second traffic class.
    pub traffic_class_b: Option<u32>,
    /// Descriptors in progress: 0 to 3 for all, 1/2, 1/4, 1/8 of the engines' maximum.
    pub desc_progress_limit: Option<u32>,
    /// Batches in progress, likewise.
    pub batch_progress_limit: Option<u32>,
    /// Its queues.
    pub queues: Vec<QueueSettings>,
    /// Its engines.
    pub engines: Vec<EngineSettings>,
    /// Unknown keys of the file.
    pub kept: Vec<(String, Json)>,
}

/// Settings of a work queue.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct QueueSettings {
    /// Its name.
    pub id: QueueId,
    /// Shared or dedicated.
    pub mode: Option<QueueMode>,
    /// Entries.
    pub size: Option<u32>,
    /// Weight against the other queues of the group, 1 to 15.
    pub priority: Option<u32>,
    /// Whether descriptors may have [`Flags::BLOCK_ON_FAULT`](crate::Flags::BLOCK_ON_FAULT).
    pub block_on_fault: Option<bool>,
    /// Most members of one batch.
    pub batch_max: Option<u32>,
    /// Largest transfer of one descriptor.
    pub transfer_bytes_max: Option<u64>,
    /// Its users.
    pub kind: Option<QueueType>,
    /// The name set by its owner.
    pub name: Option<String>,
    /// The driver that may bind it: `user`, `dmaengine`.
    pub driver_name: Option<String>,
    /// Shared queues accept submissions while fewer entries than this are in use.
    pub threshold: Option<u32>,
    /// Address translation services off.
    pub ats_disable: Option<bool>,
    /// Page requests off; needs an event log.
    pub prs_disable: Option<bool>,
    /// Operations that it accepts.
    pub operations: Option<OperationSet>,
    /// Unknown keys of the file.
    pub kept: Vec<(String, Json)>,
}

/// Settings of an engine.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct EngineSettings {
    /// Its name.
    pub id: EngineId,
    /// Unknown keys of the file.
    pub kept: Vec<(String, Json)>,
}

impl Config {
    /// Settings of the same shape for each of these devices.
    pub fn for_devices(devices: &[DeviceId], shape: &Shape) -> Config {
        Config { devices: devices.iter().map(|id| shape.device(*id)).collect(), others: Vec::new() }
    }

    /// The kept unknown keys, each with its object.
    pub fn kept_keys(&self) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        for device in &self.devices {
            note(&mut found, &device.id, &device.kept);
            for group in &device.groups {
                note(&mut found, &group.id, &group.kept);
            }
            for (_, queue) in device.queues() {
                note(&mut found, &queue.id, &queue.kept);
            }
            for (_, engine) in device.engines() {
                note(&mut found, &engine.id, &engine.kept);
            }
        }
        found
    }
}

fn note<'a>(found: &mut Vec<(String, &'a str)>, object: &dyn fmt::Display, kept: &'a [(String, Json)]) {
    found.extend(kept.iter().map(|(key, _)| (object.to_string(), key.as_str())));
}

impl DeviceSettings {
    /// All queues, each with the number of its group.
    pub fn queues(&self) -> impl Iterator<Item = (Option<u32>, &QueueSettings)> {
        let grouped = self
            .groups
            .iter()
            .flat_map(|group| group.queues.iter().map(|queue| (Some(group.id.index), queue)));
        grouped.chain(self.ungrouped_queues.iter().map(|queue| (None, queue)))
    }

    /// All engines, each with the number of its group.
    pub fn engines(&self) -> impl Iterator<Item = (Option<u32>, &EngineSettings)> {
        let grouped = self
            .groups
            .iter()
            .flat_map(|group| group.engines.iter().map(|engine| (Some(group.id.index), engine)));
        grouped.chain(self.ungrouped_engines.iter().map(|engine| (None, engine)))
    }
}
