//! The state of the driver as plain data: devices with their groups, engines and work queues.
//!
//! An attribute that this kernel does not have, or that does not apply, is `None`.

use serde::{Serialize, Serializer};

use super::SystemError;
use super::capability::{self, GeneralCapabilities, Version};
use super::config::Limits;
use super::files::Owner;
use super::id::{DeviceId, EngineId, GroupId, QueueId};
use super::status::{CommandStatus, SoftwareError};
use crate::operation::{Opcode, OperationSet};
use crate::portal::{QueueMode, WorkQueueInfo};

/// The driver's default for the largest transfer of a queue. Source: `WQ_DEFAULT_MAX_XFER`, 2 MiB.
const TRANSFER_BYTES_DEFAULT: u64 = 2 << 20;
/// The driver's default for the largest batch of a queue. Source: `WQ_DEFAULT_MAX_BATCH`.
const BATCH_DEFAULT: u32 = 32;

/// The state of the driver `idxd`, and the rights of this process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SystemState {
    /// Release of the kernel, `6.12.9`.
    pub kernel: Option<String>,
    /// Whether the driver's module is loaded or built in.
    pub module_loaded: bool,
    /// Drivers on the bus: `idxd`, `user`, `dmaengine`, and `dsa` for old scripts.
    pub drivers: Vec<String>,
    /// The devices by number.
    pub devices: Vec<Device>,
    /// Names of other accelerators on the same bus, `iax1`.
    pub others: Vec<String>,
    /// The rights of this process.
    pub process: Process,
}

/// The rights of a process that the kernel checks when a queue is opened. Source: `proc_pid_status(5)`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Process {
    /// Effective user, if known.
    pub user: Option<u32>,
    /// Effective group and supplementary groups.
    pub groups: Vec<u32>,
    /// Bits of the effective capabilities.
    #[serde(skip)]
    pub capabilities: u64,
}

impl Process {
    /// `CAP_DAC_OVERRIDE`: file modes are ignored.
    fn may_ignore_modes(&self) -> bool {
        self.capabilities >> 1 & 1 == 1
    }

    /// `CAP_SYS_RAWIO`, without which kernels since 2024 refuse to map a portal.
    pub(super) fn may_map_portals(&self) -> bool {
        self.capabilities >> 17 & 1 == 1
    }

    /// Whether the mode of a file lets this process read and write it. Ignores access control lists.
    pub(super) fn may_open(&self, file: Owner) -> bool {
        let bits = match () {
            () if self.may_ignore_modes() => return true,
            () if self.user == Some(file.user) => file.mode >> 6,
            () if self.groups.contains(&file.group) => file.mode >> 3,
            () => file.mode,
        };
        bits & 0o6 == 0o6
    }
}

/// Declares an enum of the driver's words that keeps unknown ones.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$of])* $variant,)*
            /// Another word of the driver.
            Other(String),
        }

        impl $name {
            /// The driver's word.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)*
                    $name::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> $name {
                match word {
                    $($word => $name::$variant,)*
                    other => $name::Other(other.to_owned()),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

words! {
    /// The attribute `state` of a device or a queue.
    Activity {
        /// It accepts no descriptors and can be configured.
        Disabled = "disabled",
        /// It accepts descriptors.
        Enabled = "enabled",
        /// The device stopped after an error and must be reset.
        Halted = "halted",
    }
}

words! {
    /// The users of a work queue.
    QueueType {
        /// Not set.
        None = "none",
        /// The kernel, such as its dmaengine.
        Kernel = "kernel",
        /// Programs.
        User = "user",
    }
}

/// A device. Source: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Device {
    /// Its name.
    pub id: DeviceId,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Whether it is enabled.
    pub state: Option<Activity>,
    /// Version of the architecture.
    pub version: Option<Version>,
    /// The NUMA node that it is near.
    pub node: Option<u32>,
    /// Its capabilities.
    pub capabilities: Option<GeneralCapabilities>,
    /// Its operations as the driver shows them: since 2024 it hides Batch of version 1.0 devices.
    #[serde(serialize_with = "capability::serialize_operations")]
    pub operations: Option<OperationSet>,
    /// Whether it may be configured; a guest's device may be preconfigured.
    pub is_configurable: Option<bool>,
    /// Whether it shares address spaces, as shared queues and queues of type user require.
    pub has_pasid: Option<bool>,
    /// Most groups.
    pub groups_max: Option<u32>,
    /// Most engines.
    pub engines_max: Option<u32>,
    /// Most work queues.
    pub queues_max: Option<u32>,
    /// Entries that all its work queues share.
    pub entries_max: Option<u32>,
    /// Largest transfer of a descriptor.
    pub transfer_bytes_max: Option<u64>,
    /// Most members of a batch.
    pub batch_max: Option<u32>,
    /// Read buffers that its groups share.
    pub read_buffers_max: Option<u32>,
    /// Limit of read buffers for groups with `use_read_buffer_limit`; 0 is no limit.
    pub read_buffer_limit: Option<u32>,
    /// Entries of the event log, since version 2.0.
    pub event_log_size: Option<u32>,
    /// Entries of the interrupt message storage, on older kernels.
    pub interrupt_messages_max: Option<u32>,
    /// Major number of its character devices.
    pub major: Option<u32>,
    /// Open files of all its queues.
    pub clients: Option<u32>,
    /// The status of the last command.
    pub command_status: Option<CommandStatus>,
    /// The first error that could not be reported in a completion record.
    pub error: Option<SoftwareError>,
    /// Its groups by number.
    pub groups: Vec<Group>,
    /// Its engines by number.
    pub engines: Vec<Engine>,
    /// Its work queues by number.
    pub queues: Vec<Queue>,
}

/// A group of engines and the queues that they serve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// Its engines, as the driver names them.
    pub engines: Vec<EngineId>,
    /// Its queues, as the driver names them.
    pub queues: Vec<QueueId>,
    /// Whether the device's limit of read buffers applies.
    pub use_read_buffer_limit: Option<bool>,
    /// Read buffers that its engines may use.
    pub read_buffers_allowed: Option<u32>,
    /// Read buffers that are reserved for this group.
    pub read_buffers_reserved: Option<u32>,
    /// First traffic class.
    pub traffic_class_a: Option<u32>,
    /// Second traffic class.
    pub traffic_class_b: Option<u32>,
    /// Descriptors in progress: 0 to 3 for all, 1/2, 1/4, 1/8 of the engines' maximum.
    pub desc_progress_limit: Option<u32>,
    /// Batches in progress, likewise.
    pub batch_progress_limit: Option<u32>,
}

/// A processing engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Engine {
    /// Its name.
    pub id: EngineId,
    /// Number of its group.
    pub group: Option<u32>,
}

/// A work queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Queue {
    /// Its name.
    pub id: QueueId,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Whether it is enabled.
    pub state: Option<Activity>,
    /// Number of its group.
    pub group: Option<u32>,
    /// Shared or dedicated.
    #[serde(serialize_with = "serialize_mode")]
    pub mode: Option<QueueMode>,
    /// Entries.
    pub size: Option<u32>,
    /// Shared queues accept submissions while fewer entries than this are in use.
    pub threshold: Option<u32>,
    /// Weight against the other queues of the group.
    pub priority: Option<u32>,
    /// Whether descriptors may have [`Flags::BLOCK_ON_FAULT`](crate::Flags::BLOCK_ON_FAULT).
    pub block_on_fault: Option<bool>,
    /// Its users.
    #[serde(rename = "type")]
    pub kind: Option<QueueType>,
    /// The name set by its owner.
    pub name: Option<String>,
    /// The driver that may bind it, empty if not set; only kernels since 6.7 have this.
    pub driver_name: Option<String>,
    /// Largest transfer of a descriptor.
    pub transfer_bytes_max: Option<u64>,
    /// Most members of a batch.
    pub batch_max: Option<u32>,
    /// Address translation services are off.
    pub ats_disable: Option<bool>,
    /// Page requests are off.
    pub prs_disable: Option<bool>,
    /// Operations that it accepts, if they are configurable.
    #[serde(serialize_with = "capability::serialize_operations")]
    pub operations: Option<OperationSet>,
    /// Entries in use, if the device counts them.
    pub occupancy: Option<u32>,
    /// How often `write(2)` offers a descriptor to a full queue.
    pub enqcmds_retries: Option<u32>,
    /// Open files of its character device.
    pub clients: Option<u32>,
    /// Minor number of its character device.
    pub minor: Option<u32>,
    /// Its character device, if it has one.
    pub file: Option<QueueFile>,
}

/// The character device of a queue of type user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct QueueFile {
    /// `/dev/dsa/wq0.0`, below the root of the tree.
    pub path: String,
    /// Its owner and mode.
    #[serde(skip)]
    pub owner: Owner,
}

fn serialize_mode<S: Serializer>(mode: &Option<QueueMode>, serializer: S) -> Result<S::Ok, S::Error> {
    mode.map(QueueMode::as_str).serialize(serializer)
}

impl SystemState {
    /// The device with this name.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id)
    }

    /// The queue with this name.
    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.device(id.device)?.queue(id)
    }

    /// All queues with their devices.
    pub fn queues(&self) -> impl Iterator<Item = (&Device, &Queue)> {
        self.devices.iter().flat_map(|device| device.queues.iter().map(move |queue| (device, queue)))
    }
}

impl Device {
    /// Whether it is enabled.
    pub fn is_enabled(&self) -> bool {
        self.state == Some(Activity::Enabled)
    }

    /// The queue with this name.
    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.id == id)
    }

    /// The group with this name.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// Whether the driver hides Batch, as it does for version 1.0 since INTEL-SA-01084 (2024); since then `CAP_SYS_RAWIO` is
    /// needed to map a portal. `None` for other versions.
    pub fn hides_batch(&self) -> Option<bool> {
        match (self.version?, self.operations?) {
            (Version::V1_0, operations) => Some(!operations.contains(Opcode::Batch)),
            _ => None,
        }
    }

    /// The limits of a configuration of this device; unknown ones are those of DSA 1.0.
    pub fn limits(&self) -> Limits {
        let usual = Limits::dsa_1_0();
        Limits {
            version: self.version.unwrap_or(usual.version),
            groups: self.groups_max.unwrap_or(usual.groups),
            engines: self.engines_max.unwrap_or(usual.engines),
            queues: self.queues_max.unwrap_or(usual.queues),
            entries: self.entries_max.unwrap_or(usual.entries),
            read_buffers: self.read_buffers_max.unwrap_or(usual.read_buffers),
            batch: self.batch_max.unwrap_or(usual.batch),
            transfer_bytes: self.transfer_bytes_max.unwrap_or(usual.transfer_bytes),
            block_on_fault: self.capabilities.map_or(usual.block_on_fault, |can| can.block_on_fault()),
            event_log: (self.capabilities)
                .map_or(usual.event_log, |can| can.event_log_entry_bytes().is_some()),
            pasid: self.has_pasid.unwrap_or(usual.pasid),
            operations: self.operations,
        }
    }
}

impl Queue {
    /// Whether it is enabled.
    pub fn is_enabled(&self) -> bool {
        self.state == Some(Activity::Enabled)
    }

    /// Whether it has a size or a group.
    pub fn is_configured(&self) -> bool {
        self.size.unwrap_or(0) > 0 || self.group.is_some()
    }

    /// The description of this queue of `device` for its submitters. Attributes that older kernels lack have the driver's
    /// defaults.
    ///
    /// # Errors
    /// [`SystemError::Missing`]: its mode or size is missing.
    pub fn info(&self, device: &Device) -> Result<WorkQueueInfo, SystemError> {
        let missing = |attribute| SystemError::Missing { queue: self.id, attribute };
        let mode = self.mode.ok_or_else(|| missing("mode"))?;
        let size = self.size.ok_or_else(|| missing("size"))?;
        let threshold = match mode {
            QueueMode::Shared => self.threshold.unwrap_or(size),
            QueueMode::Dedicated => 0,
        };
        let known = self.operations.or(device.operations);
        Ok(WorkQueueInfo {
            name: self.id.to_string(),
            mode,
            size,
            threshold,
            priority: self.priority.and_then(|priority| u8::try_from(priority).ok()).unwrap_or(0),
            block_on_fault: self.block_on_fault.unwrap_or(false),
            // A size is 32 bits in a descriptor.
            transfer_bytes_max: u32::try_from(self.transfer_bytes_max.unwrap_or(TRANSFER_BYTES_DEFAULT))
                .unwrap_or(u32::MAX),
            batch_max: self.batch_max.unwrap_or(BATCH_DEFAULT),
            operations: known.unwrap_or(OperationSet::of(&[Opcode::Noop, Opcode::Drain, Opcode::Memmove])),
            node: device.node,
        })
    }
}
