//! What an emulated device consists of: groups of engines and work queues.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.2-3.4 and 5.6 (checks when a device is enabled);
//! limits of the DSA 1.0 parts as listed by `accel-config list` (Sapphire Rapids, Emerald Rapids).

use crate::operation::{Opcode, OperationSet};
use crate::portal::{QueueMode, WorkQueueInfo};

/// Most groups of a 1.0 device.
pub const GROUPS_MAX: usize = 4;
/// Most engines of a 1.0 device, all groups together.
pub const ENGINES_MAX: u32 = 4;
/// Most work queues of a 1.0 device, all groups together.
pub const QUEUES_MAX: usize = 8;
/// Entries that the work queues of a 1.0 device share.
pub const ENTRIES_MAX: u32 = 128;
/// Largest transfer that a 1.0 queue can be configured for.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 31;
/// Largest batch that a 1.0 queue can be configured for.
pub const BATCH_MAX: u32 = 1024;

/// The operations that the emulated device executes.
pub const OPERATIONS: OperationSet = OperationSet::of(&[Opcode::Noop, Opcode::Batch, Opcode::Memmove]);

/// An emulated device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// The groups; work queues are numbered through all of them in this order.
    pub groups: Vec<GroupConfig>,
}

/// Work queues and the engines that serve them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// Engines of the group. With one engine, data is written in the order of submission; with more, in any.
    pub engines: u32,
    /// Work queues of the group.
    pub queues: Vec<WorkQueueInfo>,
}

impl DeviceConfig {
    /// One group with one engine and one shared queue of 32 entries.
    pub fn one_shared_queue() -> DeviceConfig {
        DeviceConfig { groups: vec![GroupConfig { engines: 1, queues: vec![shared_queue("wq0.0", 32)] }] }
    }

    /// One group with one engine and one dedicated queue of 32 entries.
    pub fn one_dedicated_queue() -> DeviceConfig {
        DeviceConfig { groups: vec![GroupConfig { engines: 1, queues: vec![dedicated_queue("wq0.0", 32)] }] }
    }

    /// One group with four engines and one shared queue of 128 entries: descriptors run side by side.
    pub fn four_engines() -> DeviceConfig {
        DeviceConfig { groups: vec![GroupConfig { engines: 4, queues: vec![shared_queue("wq0.0", 128)] }] }
    }

    /// The same device on a NUMA node.
    pub fn on_node(mut self, node: u32) -> DeviceConfig {
        for queue in self.groups.iter_mut().flat_map(|group| &mut group.queues) {
            queue.node = Some(node);
        }
        self
    }

    /// All work queues by their number.
    pub fn queues(&self) -> impl Iterator<Item = &WorkQueueInfo> {
        self.groups.iter().flat_map(|group| &group.queues)
    }

    /// Checks what a device checks when it and its queues are enabled.
    ///
    /// # Errors
    /// The first rule that the configuration breaks.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let engines = self.groups.iter().map(|group| group.engines).fold(0, u32::saturating_add);
        let queues = self.queues().count();
        let entries = self.queues().map(|queue| queue.size).fold(0, u32::saturating_add);
        if entries > ENTRIES_MAX {
            return Err(ConfigError::TooManyEntries(entries));
        }
        if self.groups.len() > GROUPS_MAX || engines > ENGINES_MAX || queues > QUEUES_MAX {
            return Err(ConfigError::TooMany { groups: self.groups.len(), engines, queues });
        }
        for (number, group) in self.groups.iter().enumerate() {
            if group.queues.is_empty() != (group.engines == 0) {
                return Err(ConfigError::HalfGroup(number));
            }
        }
        self.queues().try_for_each(validate_queue)
    }
}

fn validate_queue(queue: &WorkQueueInfo) -> Result<(), ConfigError> {
    let wrong = |what| Err(ConfigError::Queue { name: queue.name.clone(), what });
    if queue.size == 0 {
        return wrong("a size of at least 1");
    }
    if !(1..=15).contains(&queue.priority) {
        return wrong("a priority from 1 to 15");
    }
    if queue.mode == QueueMode::Shared && queue.threshold == 0 {
        return wrong("a threshold of at least 1, or nobody can submit");
    }
    if !queue.batch_max.is_power_of_two() || queue.batch_max > BATCH_MAX {
        return wrong("a largest batch that is a power of two up to 1024");
    }
    if !queue.transfer_bytes_max.is_power_of_two() || queue.transfer_bytes_max > TRANSFER_BYTES_MAX {
        return wrong("a largest transfer that is a power of two up to 2 GiB");
    }
    if !queue.operations.is_subset_of(OPERATIONS) {
        return wrong("only operations that the emulated device has");
    }
    Ok(())
}

/// A shared queue with the limits that Linux sets by default, open up to its size.
pub fn shared_queue(name: &str, size: u32) -> WorkQueueInfo {
    WorkQueueInfo {
        name: name.to_owned(),
        mode: QueueMode::Shared,
        size,
        threshold: size,
        priority: 10,
        block_on_fault: false,
        transfer_bytes_max: 2 << 20,
        batch_max: 32,
        operations: OPERATIONS,
        node: None,
    }
}

/// A dedicated queue with the limits that Linux sets by default.
pub fn dedicated_queue(name: &str, size: u32) -> WorkQueueInfo {
    WorkQueueInfo { mode: QueueMode::Dedicated, threshold: 0, ..shared_queue(name, size) }
}

/// A configuration that no device accepts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Command status 0x14.
    #[error("the work queues have {0} entries together; a device has 128")]
    TooManyEntries(u32),
    /// More of something than the device has.
    #[error("{groups} groups, {engines} engines, {queues} work queues; a device has at most 4, 4 and 8")]
    TooMany {
        /// Groups asked for.
        groups: usize,
        /// Engines asked for.
        engines: u32,
        /// Work queues asked for.
        queues: usize,
    },
    /// Command status 0x15.
    #[error("group {0} has queues but no engine, or engines but no queue: give it both or neither")]
    HalfGroup(usize),
    /// Command statuses 0x22-0x2d.
    #[error("work queue {name} needs {what}")]
    Queue {
        /// The queue.
        name: String,
        /// What it needs.
        what: &'static str,
    },
}
