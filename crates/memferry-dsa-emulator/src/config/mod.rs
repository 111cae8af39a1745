//! The configuration of an emulated device: groups of engines and work queues, timing, injected faults.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.2-3.4 and 5.6 (checks when a device is enabled);
//! limits of the DSA 1.0 parts as listed by `accel-config list` (Sapphire Rapids, Emerald Rapids).

mod fault_plan;

pub(crate) use fault_plan::Random;
pub use memferry_dsa::DeviceCosts;
use memferry_dsa::{Opcode, OperationSet, QueueMode, WorkQueueInfo};

pub use self::fault_plan::FaultPlan;

/// Maximum number of groups of a 1.0 device.
pub(crate) const GROUPS_MAX: usize = 4;
/// Maximum number of engines of a 1.0 device, all groups together.
pub(crate) const ENGINES_MAX: u32 = 4;
/// Maximum number of work queues of a 1.0 device, all groups together.
pub const QUEUES_MAX: usize = 8;
/// Entries that the work queues of a 1.0 device share.
pub const ENTRIES_MAX: u32 = 128;
/// Largest transfer that a 1.0 queue can be configured for.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 31;
/// Largest batch that a 1.0 queue can be configured for.
pub const BATCH_MAX: u32 = 1024;

/// The operations of a device with all of DSA 1.0.
pub const OPERATIONS: OperationSet = OperationSet::of(&Opcode::ALL);

/// The capabilities of a device besides its operations: the register GENCAP.
///
/// ```
/// use memferry_dsa_emulator::{Capabilities, DeviceConfig};
///
/// let mut config = DeviceConfig::four_engines();
/// let without_readback = Capabilities::ALL.bits() & !Capabilities::DRAIN_READBACK.bits();
/// config.capabilities = Capabilities::from_bits(without_readback);
/// assert!(!config.capabilities.contains(Capabilities::DRAIN_READBACK));
/// ```
///
/// Source: DSA specification 9.2.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Descriptors may block on page faults.
    pub const BLOCK_ON_FAULT: Capabilities = Capabilities(1 << 0);
    /// Source and target of Memory Move may overlap.
    pub const OVERLAPPING_COPY: Capabilities = Capabilities(1 << 1);
    /// Cache control for targets in memory.
    pub const CACHE_CONTROL: Capabilities = Capabilities(1 << 2);
    /// Cache control for Cache Flush.
    pub const CACHE_CONTROL_OF_FLUSH: Capabilities = Capabilities(1 << 3);
    /// The flag [`DESTINATION_READBACK`](memferry_dsa::Flags::DESTINATION_READBACK).
    pub const DESTINATION_READBACK: Capabilities = Capabilities(1 << 8);
    /// The readback flags and addresses of Drain.
    pub const DRAIN_READBACK: Capabilities = Capabilities(1 << 9);

    /// The value of `gen_cap` on Sapphire Rapids and Emerald Rapids.
    ///
    /// Source: listings of these machines by `accel-config list`.
    pub const PRODUCTION: Capabilities = Capabilities(0x40_915f_0107);
    /// [`PRODUCTION`](Self::PRODUCTION) with all optional capabilities of version 1.0.
    pub const ALL: Capabilities =
        Capabilities(Self::PRODUCTION.0 | Self::CACHE_CONTROL_OF_FLUSH.0 | Self::DRAIN_READBACK.0);

    /// The capabilities with these bits of the register.
    pub const fn from_bits(bits: u64) -> Capabilities {
        Capabilities(bits)
    }

    /// The value of the register.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the device has all of `capabilities`.
    pub const fn contains(self, capabilities: Capabilities) -> bool {
        self.0 & capabilities.0 == capabilities.0
    }

    /// Bits 20:16: the largest transfer that a queue can be configured for.
    pub const fn transfer_bytes_max(self) -> u64 {
        1 << (self.0 >> 16 & 0x1f)
    }

    /// Bits 24:21: the largest batch that a queue can be configured for.
    pub const fn batch_max(self) -> u64 {
        1 << (self.0 >> 21 & 0xf)
    }
}

/// The configuration of an emulated device.
///
/// ```
/// use memferry_dsa_emulator::{DeviceConfig, GroupConfig, DeviceCosts, dedicated_queue, shared_queue};
///
/// let queues = vec![shared_queue("wq0.0", 64), dedicated_queue("wq0.1", 16)];
/// let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues }]).with_timing(DeviceCosts::sapphire_rapids());
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// The groups; work queues are numbered through all of them in this order.
    pub groups: Vec<GroupConfig>,
    /// The operations that the device has: its register OPCAP. Queues allow these or fewer.
    pub operations: OperationSet,
    /// Its register GENCAP.
    pub capabilities: Capabilities,
    /// The modelled durations. `None`: as fast as this machine executes.
    pub timing: Option<DeviceCosts>,
    /// Read buffers that each group may use, which limit its rate under a timing; empty: all groups may use all.
    pub read_buffers: Vec<u32>,
}

/// Work queues and the engines that serve them. An example is at [`DeviceConfig`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// Engines of the group. One engine writes data in the order of submission, several in any order.
    pub engines: u32,
    /// Work queues of the group.
    pub queues: Vec<WorkQueueInfo>,
}

impl DeviceConfig {
    /// A device with these groups and all operations and capabilities of DSA 1.0.
    pub fn new(groups: Vec<GroupConfig>) -> DeviceConfig {
        DeviceConfig {
            groups,
            operations: OPERATIONS,
            capabilities: Capabilities::ALL,
            timing: None,
            read_buffers: Vec::new(),
        }
    }

    /// One group with one engine and one shared queue of 32 entries.
    pub fn one_shared_queue() -> DeviceConfig {
        DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![shared_queue("wq0.0", 32)] }])
    }

    /// One group with one engine and one dedicated queue of 32 entries.
    pub fn one_dedicated_queue() -> DeviceConfig {
        DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![dedicated_queue("wq0.0", 32)] }])
    }

    /// One group with four engines and one shared queue of 128 entries: descriptors run side by side.
    pub fn four_engines() -> DeviceConfig {
        DeviceConfig::new(vec![GroupConfig { engines: 4, queues: vec![shared_queue("wq0.0", 128)] }])
    }

    /// [`four_engines`](Self::four_engines) with the operations and capabilities of the parts on the market.
    pub fn production() -> DeviceConfig {
        DeviceConfig::four_engines().as_production()
    }

    /// The same device with the operations and capabilities of the parts on the market: without the delta operations.
    ///
    /// Source: `op_cap` and `gen_cap` of Sapphire Rapids and Emerald Rapids as listed by `accel-config list`. The list
    /// has no Batch either, which Linux hides there; the hardware has it. [`without`](Self::without) makes a device
    /// that refuses it.
    pub fn as_production(mut self) -> DeviceConfig {
        self.capabilities = Capabilities::PRODUCTION;
        self.without(&[Opcode::CreateDelta, Opcode::ApplyDelta])
    }

    /// The same device without these operations, in its queues as well.
    pub fn without(mut self, opcodes: &[Opcode]) -> DeviceConfig {
        self.operations = self.operations.without(opcodes);
        for queue in self.groups.iter_mut().flat_map(|group| &mut group.queues) {
            queue.operations = queue.operations.without(opcodes);
        }
        self
    }

    /// The same device with modelled durations.
    pub fn with_timing(self, timing: DeviceCosts) -> DeviceConfig {
        DeviceConfig { timing: Some(timing), ..self }
    }

    /// The operations that Linux shows in `op_cap`: all but Batch, which it hides for devices of version 1.0.
    ///
    /// Source: Linux' answer to INTEL-SA-01084 in `drivers/dma/idxd`.
    pub fn operations_shown(&self) -> OperationSet {
        self.operations.without(&[Opcode::Batch])
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

    /// Checks the configuration as a device does when it and its queues are enabled.
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
        if let Some(timing) = &self.timing
            && timing.bytes_per_second == 0
        {
            return Err(ConfigError::NoBandwidth);
        }
        self.queues().try_for_each(|queue| self.validate_queue(queue))
    }

    fn validate_queue(&self, queue: &WorkQueueInfo) -> Result<(), ConfigError> {
        let wrong = |what| Err(ConfigError::Queue { name: queue.name.clone(), what });
        if queue.size == 0 {
            return wrong("a size of at least 1");
        }
        if !(1..=15).contains(&queue.priority) {
            return wrong("a priority from 1 to 15");
        }
        if queue.mode == QueueMode::Shared && queue.threshold == 0 {
            return wrong("a threshold of at least 1: with 0 it refuses every submission");
        }
        let batch_max = self.capabilities.batch_max().min(BATCH_MAX.into());
        if !queue.batch_max.is_power_of_two() || u64::from(queue.batch_max) > batch_max {
            return wrong("a largest batch that is a power of two up to 1024 and to the device's limit");
        }
        let transfer_max = self.capabilities.transfer_bytes_max().min(TRANSFER_BYTES_MAX.into());
        if !queue.transfer_bytes_max.is_power_of_two() || u64::from(queue.transfer_bytes_max) > transfer_max {
            return wrong("a largest transfer that is a power of two up to 2 GiB and to the device's limit");
        }
        if !queue.operations.is_subset_of(self.operations) || !self.operations.is_subset_of(OPERATIONS) {
            return wrong("only operations that the emulated device has");
        }
        if queue.block_on_fault && !self.capabilities.contains(Capabilities::BLOCK_ON_FAULT) {
            return wrong("block_on_fault off, because the device does not support it");
        }
        Ok(())
    }
}

/// A shared queue with the default limits of Linux and a threshold of its whole size.
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

/// A dedicated queue with the default limits of Linux.
pub fn dedicated_queue(name: &str, size: u32) -> WorkQueueInfo {
    WorkQueueInfo { mode: QueueMode::Dedicated, threshold: 0, ..shared_queue(name, size) }
}

/// An invalid [`DeviceConfig`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Command status 0x14.
    #[error("the work queues have {0} entries together; a device has 128")]
    TooManyEntries(u32),
    /// More of something than the device has.
    #[error("{groups} groups, {engines} engines, {queues} work queues; a device has at most 4, 4 and 8")]
    TooMany {
        /// Requested groups.
        groups: usize,
        /// Requested engines.
        engines: u32,
        /// Requested work queues.
        queues: usize,
    },
    /// Command status 0x15.
    #[error("group {0} has queues but no engine, or engines but no queue: give it both or neither")]
    HalfGroup(usize),
    /// A device without bandwidth would never complete a transfer.
    #[error("the timing has a bandwidth of 0 bytes per second: set bytes_per_second to at least 1")]
    NoBandwidth,
    /// Command statuses 0x22-0x2d.
    #[error("work queue {name} needs {what}")]
    Queue {
        /// The queue.
        name: String,
        /// The missing property.
        what: &'static str,
    },
}
