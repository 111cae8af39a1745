//! The queues that a program can use, and the reasons against the others.
//!
//! The diagnostics are the problems that users of DSA report most: the driver is not loaded, the queue is not enabled, its
//! file belongs to root. Each is a sentence with a remedy.
//!
//! Source: Linux `drivers/dma/idxd` (`cdev.c`: what opening and mapping check; `device.c`: what enabling checks).

use serde::{Serialize, Serializer};

use super::capability::names;
use super::files::Owner;
use super::id::{DeviceId, QueueId};
use super::state::{Activity, Device, Queue, QueueType, SystemState};
use super::status::CommandStatus;
use crate::operation::OperationSet;
use crate::portal::QueueMode;

/// The first kernel that shares address spaces of programs with a device. Source: Linux, arch/x86 (ENQCMD was disabled from
/// 5.13 to 5.17).
const SVA_SINCE: (u32, u32) = (5, 18);

/// Requirements on a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueFilter {
    /// The NUMA node; `None` for any.
    pub node: Option<u32>,
    /// The mode; `None` for any.
    pub mode: Option<QueueMode>,
    /// The operations that the queue must have. Leave out Batch: the driver hides it on devices that have it.
    pub operations: OperationSet,
}

/// The result of [`SystemState::diagnose`].
#[derive(Clone, Debug)]
pub struct Diagnosis<'a> {
    /// The matching queues that this process can open, with their devices.
    pub usable: Vec<(&'a Device, &'a Queue)>,
    /// The reasons against the other queues, and the limits of the usable ones.
    pub diagnostics: Vec<Diagnostic>,
}

/// A reason that prevents or limits the use of a queue, a device, or all devices.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Diagnostic {
    /// There is neither the module nor the bus.
    #[error(
        "the driver idxd is not loaded: if the CPU has a DSA (Xeon since Sapphire Rapids, not every model), run \
         `modprobe idxd`; if there is no such module, the kernel was built without CONFIG_INTEL_IDXD"
    )]
    ModuleNotLoaded,
    /// The bus is empty.
    #[error(
        "the driver found no DSA device{}: the CPU must have one (Xeon since Sapphire Rapids, not every model), the BIOS \
         must enable it, and the kernel must boot with intel_iommu=on,sm_on{}", 
        if *.others == 0 { "" } else { " (only analytics accelerators)" },
        if *.in_virtual_machine_perhaps { "; a virtual machine must be given one" } else { "" }
    )]
    NoDevice {
        /// The number of accelerators on the bus that are not a DSA.
        others: usize,
        /// Nothing else is on the bus, as in a virtual machine.
        in_virtual_machine_perhaps: bool,
    },
    /// A device without shared address spaces, which no program can use.
    #[error(
        "{device} shares no address spaces (pasid_enabled is 0), so programs cannot use it: enable VT-d in the BIOS and boot \
         with intel_iommu=on,sm_on{}",
        if *.is_kernel_old { "; the kernel is too old for it, use Linux 5.18 or newer" } else { "" }
    )]
    NoSharedAddresses {
        /// The device.
        device: DeviceId,
        /// The kernel is older than 5.18, which cannot share address spaces on any machine.
        is_kernel_old: bool,
    },
    /// A device that is not enabled.
    #[error(
        "{device} is disabled{}: configure and enable it, for example with `memferry configure`", last(.status)
    )]
    DeviceDisabled {
        /// The device.
        device: DeviceId,
        /// How its last command ended, if not well.
        status: Option<CommandStatus>,
    },
    /// A device that stopped after an error.
    #[error("{device} is halted after an error{}: see the kernel log, then unload and load idxd", last(.status))]
    DeviceHalted {
        /// The device.
        device: DeviceId,
        /// How its last command ended, if not well.
        status: Option<CommandStatus>,
    },
    /// An enabled device without a configured queue.
    #[error(
        "{device} is enabled and has no configured work queue: disable it, configure queues, enable it again, for example \
         with `memferry configure`"
    )]
    NothingConfigured {
        /// The device.
        device: DeviceId,
    },
    /// A configured queue that is not enabled.
    #[error("{queue} is configured and disabled{}: run `accel-config enable-wq {}/{queue}`", last(.status), .queue.device)]
    QueueDisabled {
        /// The queue.
        queue: QueueId,
        /// How the device's last command ended, if not well.
        status: Option<CommandStatus>,
    },
    /// A queue for the kernel, or without a type.
    #[error("{queue} is of type {}: programs need type user", .kind.as_str())]
    NotForUsers {
        /// The queue.
        queue: QueueId,
        /// Its type.
        kind: QueueType,
    },
    /// A queue without a name.
    #[error("{queue} has no name, so it cannot be enabled: set its name")]
    NoName {
        /// The queue.
        queue: QueueId,
    },
    /// A queue for another driver.
    #[error("{queue} has the driver_name {found:?}: set it to user, or the queue cannot be enabled")]
    OtherDriver {
        /// The queue.
        queue: QueueId,
        /// The driver name; empty if there is none.
        found: String,
    },
    /// A shared queue with threshold 0.
    #[error(
        "{queue} is shared and has threshold 0, so it never accepts a descriptor: set its threshold to its size"
    )]
    NoThreshold {
        /// The queue.
        queue: QueueId,
    },
    /// A queue without a character device.
    #[error(
        "{queue} is enabled but has no file /dev/dsa/{queue}: in a container, pass it in (--device /dev/dsa/{queue}); \
         otherwise check that udev runs"
    )]
    NoFile {
        /// The queue.
        queue: QueueId,
    },
    /// A character device that this process may not open.
    #[error(
        "{path} has mode {:04o} and belongs to {}:{}: run as that user, or `chmod 0666 {path}` or add a udev rule for \
         the subsystem dsa", .owner.mode, .owner.user, .owner.group
    )]
    NoPermission {
        /// The file.
        path: String,
        /// Its owner and mode.
        owner: Owner,
    },
    /// A dedicated queue that another process uses.
    #[error(
        "{queue} is dedicated and in use by another process: wait, use another queue, or configure it as shared"
    )]
    InUse {
        /// The queue.
        queue: QueueId,
    },
    /// A queue without all required operations.
    #[error("{queue} does not have {}: see op_cap and op_config", .missing.join(", "))]
    MissingOperations {
        /// The queue.
        queue: QueueId,
        /// Their names.
        missing: Vec<String>,
    },
    /// No usable queue has the required mode.
    #[error("no usable work queue is {}: configure one, or use one that is {}", .wanted.as_str(), other(*.wanted))]
    NoQueueOfMode {
        /// The required mode.
        wanted: QueueMode,
    },
    /// No usable queue is on the required node.
    #[error(
        "no usable work queue is on node {wanted}, only on {}: enable the device of that node, or use the other (it \
         reaches all memory)", nodes(.found)
    )]
    OtherNode {
        /// The required node.
        wanted: u32,
        /// The nodes of the usable queues; `None` if the device does not report it.
        found: Vec<Option<u32>>,
    },
    /// This process lacks the capability for mapping portals. It can still submit by `write(2)`.
    #[error(
        "this process {} map portals without CAP_SYS_RAWIO (kernels since May 2024, INTEL-SA-01084): it can submit with \
         write(2), at the cost of a system call each; run as root or give the program the capability for more",
        if *.is_certain { "cannot" } else { "perhaps cannot" }
    )]
    NoRawIo {
        /// Whether the driver is known to check this; otherwise the kernel's release suggests it.
        is_certain: bool,
    },
}

impl Diagnostic {
    /// The device or queue that it concerns, if it concerns a single one.
    pub fn object(&self) -> Option<String> {
        match self {
            Diagnostic::NoSharedAddresses { device, .. }
            | Diagnostic::DeviceDisabled { device, .. }
            | Diagnostic::DeviceHalted { device, .. }
            | Diagnostic::NothingConfigured { device } => Some(device.to_string()),
            Diagnostic::QueueDisabled { queue, .. }
            | Diagnostic::NotForUsers { queue, .. }
            | Diagnostic::NoName { queue }
            | Diagnostic::OtherDriver { queue, .. }
            | Diagnostic::NoThreshold { queue }
            | Diagnostic::NoFile { queue }
            | Diagnostic::InUse { queue }
            | Diagnostic::MissingOperations { queue, .. } => Some(queue.to_string()),
            Diagnostic::NoPermission { path, .. } => path.rsplit('/').next().map(str::to_owned),
            Diagnostic::ModuleNotLoaded
            | Diagnostic::NoDevice { .. }
            | Diagnostic::NoQueueOfMode { .. }
            | Diagnostic::OtherNode { .. }
            | Diagnostic::NoRawIo { .. } => None,
        }
    }

    /// Whether it prevents the use, rather than limits it.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Diagnostic::NoRawIo { .. })
    }
}

impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn last(status: &Option<CommandStatus>) -> String {
    status.map_or(String::new(), |status| format!(" (last command: {status})"))
}

fn other(mode: QueueMode) -> &'static str {
    match mode {
        QueueMode::Shared => QueueMode::Dedicated.as_str(),
        QueueMode::Dedicated => QueueMode::Shared.as_str(),
    }
}

fn nodes(found: &[Option<u32>]) -> String {
    let words =
        found.iter().map(|node| node.map_or("an unknown node".to_owned(), |node| format!("node {node}")));
    words.collect::<Vec<_>>().join(", ")
}

impl SystemState {
    /// Finds the queues that match `wanted` and that this process can use, and the reasons against the others.
    pub fn diagnose(&self, wanted: &QueueFilter) -> Diagnosis<'_> {
        let mut diagnostics = Vec::new();
        if self.devices.is_empty() {
            diagnostics.push(match self.module_loaded {
                false => Diagnostic::ModuleNotLoaded,
                true => Diagnostic::NoDevice {
                    others: self.others.len(),
                    in_virtual_machine_perhaps: self.others.is_empty(),
                },
            });
        }
        let mut usable = Vec::new();
        let is_kernel_old = self.release().is_some_and(|release| release < SVA_SINCE);
        for device in &self.devices {
            let is_shut = device.has_pasid == Some(false);
            if is_shut {
                diagnostics.push(Diagnostic::NoSharedAddresses { device: device.id, is_kernel_old });
            }
            if let Some(diagnostic) = unusable(device) {
                diagnostics.push(diagnostic);
                continue;
            }
            for queue in device.queues.iter().filter(|queue| queue.is_configured()) {
                let found = self.diagnostics_of(device, queue, wanted);
                if found.is_empty() && !is_shut {
                    usable.push((device, queue));
                }
                diagnostics.extend(found);
            }
        }
        select(&mut usable, &mut diagnostics, wanted);
        if let Some(diagnostic) = self.limited(&usable) {
            diagnostics.push(diagnostic);
        }
        Diagnosis { usable, diagnostics }
    }

    fn diagnostics_of(&self, device: &Device, queue: &Queue, wanted: &QueueFilter) -> Vec<Diagnostic> {
        let id = queue.id;
        let mut found = Vec::new();
        let kind = queue.kind.clone().unwrap_or(QueueType::None);
        if kind != QueueType::User {
            return vec![Diagnostic::NotForUsers { queue: id, kind }];
        }
        if !queue.is_enabled() {
            if queue.name.is_none() {
                found.push(Diagnostic::NoName { queue: id });
            }
            if let Some(name) = queue.driver_name.as_ref().filter(|name| *name != "user") {
                found.push(Diagnostic::OtherDriver { queue: id, found: name.clone() });
            }
            found.push(Diagnostic::QueueDisabled { queue: id, status: failed(device) });
            return found;
        }
        if queue.mode == Some(QueueMode::Shared) && queue.threshold == Some(0) {
            found.push(Diagnostic::NoThreshold { queue: id });
        }
        match &queue.file {
            None => found.push(Diagnostic::NoFile { queue: id }),
            Some(file) if !self.process.may_open(file.owner) => {
                found.push(Diagnostic::NoPermission { path: file.path.clone(), owner: file.owner });
            }
            Some(_) => {}
        }
        if queue.mode == Some(QueueMode::Dedicated) && queue.clients.unwrap_or(0) > 0 {
            found.push(Diagnostic::InUse { queue: id });
        }
        if let Some(operations) = queue.operations.or(device.operations)
            && !wanted.operations.is_subset_of(operations)
        {
            let mut missing = names(wanted.operations);
            let has = names(operations);
            missing.retain(|name| !has.contains(name));
            found.push(Diagnostic::MissingOperations { queue: id, missing });
        }
        found
    }

    /// The limit of the usable queues, if there is one.
    fn limited(&self, usable: &[(&Device, &Queue)]) -> Option<Diagnostic> {
        if usable.is_empty() || self.process.may_map_portals() {
            return None;
        }
        let hides_batch = usable.iter().find_map(|(device, _)| device.hides_batch());
        match hides_batch {
            Some(true) => Some(Diagnostic::NoRawIo { is_certain: true }),
            // A driver that shows Batch on a device of version 1.0 is older than the check.
            Some(false) => None,
            // The check came with 6.10, and with many earlier stable releases.
            None => self
                .release()
                .is_some_and(|release| release >= (6, 10))
                .then_some(Diagnostic::NoRawIo { is_certain: false }),
        }
    }

    /// The first two numbers of the kernel's release.
    fn release(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.as_ref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// Keeps the queues of the required mode and node. If none is left, adds a diagnostic with the alternatives.
fn select(usable: &mut Vec<(&Device, &Queue)>, diagnostics: &mut Vec<Diagnostic>, wanted: &QueueFilter) {
    if let Some(mode) = wanted.mode
        && !usable.is_empty()
    {
        usable.retain(|(_, queue)| queue.mode == Some(mode));
        if usable.is_empty() {
            diagnostics.push(Diagnostic::NoQueueOfMode { wanted: mode });
        }
    }
    if let Some(node) = wanted.node
        && !usable.is_empty()
    {
        let mut found: Vec<_> = usable.iter().map(|(device, _)| device.node).collect();
        usable.retain(|(device, _)| device.node == Some(node));
        if usable.is_empty() {
            found.sort_unstable();
            found.dedup();
            diagnostics.push(Diagnostic::OtherNode { wanted: node, found });
        }
    }
}

/// The reason that prevents the use of all queues of a device, if there is one.
fn unusable(device: &Device) -> Option<Diagnostic> {
    let status = failed(device);
    match &device.state {
        Some(Activity::Enabled) if !device.queues.iter().any(Queue::is_configured) => {
            Some(Diagnostic::NothingConfigured { device: device.id })
        }
        Some(Activity::Enabled) => None,
        Some(Activity::Halted) => Some(Diagnostic::DeviceHalted { device: device.id, status }),
        _ => Some(Diagnostic::DeviceDisabled { device: device.id, status }),
    }
}

fn failed(device: &Device) -> Option<CommandStatus> {
    device.command_status.filter(|status| status.is_error())
}
