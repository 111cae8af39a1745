//! The validation of configurations, which finds all problems before anything is changed.
//!
//! The rules are those that the device checks when it is enabled (the command errors) and the driver when an attribute is
//! written. Further rules, which neither checks, find useless queues.
//!
//! Sources: Intel DSA Architecture Specification 3.0, sections 3.2-3.4, 5.1 and chapter 9 (CMDSTATUS); Linux
//! `drivers/dma/idxd/sysfs.c`, `device.c`.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::{Config, DeviceSettings, GroupSettings, QueueSettings};
use crate::operation::OperationSet;
use crate::portal::QueueMode;
use crate::system::capability::{Version, names};
use crate::system::state::{QueueType, SystemState};

/// Longest name of a queue. Source: `WQ_NAME_SIZE` in Linux' `drivers/dma/idxd/idxd.h`.
const NAME_BYTES_MAX: usize = 1024;
/// Read buffers that each engine of a group needs. Source: DSA specification, section 5.1.
pub(in crate::system) const READ_BUFFERS_PER_ENGINE: u32 = 4;

/// The limits of a device's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Version of the architecture.
    pub version: Version,
    /// Most groups.
    pub groups: u32,
    /// Most engines of all groups together.
    pub engines: u32,
    /// Most work queues of all groups together.
    pub queues: u32,
    /// Entries that the queues share.
    pub entries: u32,
    /// Read buffers that the groups share.
    pub read_buffers: u32,
    /// Largest batch.
    pub batch: u32,
    /// Largest transfer.
    pub transfer_bytes: u64,
    /// Whether the device can wait for absent pages.
    pub block_on_fault: bool,
    /// Whether it has an event log.
    pub event_log: bool,
    /// Whether it shares address spaces.
    pub pasid: bool,
    /// Its operations, if known.
    pub operations: Option<OperationSet>,
}

impl Limits {
    /// The limits of version 1.0 (Sapphire Rapids, Emerald Rapids, Xeon Max) with the IOMMU enabled.
    ///
    /// Source: listings of `accel-config list` on Sapphire Rapids and Emerald Rapids.
    pub const fn dsa_1_0() -> Limits {
        Limits {
            version: Version::V1_0,
            groups: 4,
            engines: 4,
            queues: 8,
            entries: 128,
            read_buffers: 96,
            batch: 1024,
            transfer_bytes: 1 << 31,
            block_on_fault: true,
            event_log: false,
            pasid: true,
            operations: None,
        }
    }
}

/// All problems of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems(
    /// A sentence for each, with its object and the limit; at least one.
    pub Vec<String>,
);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration cannot work, and nothing was changed:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

impl Config {
    /// Validates each device against the same limits, for example those of version 1.0.
    ///
    /// # Errors
    /// All problems.
    pub fn validate(&self, limits: &Limits) -> Result<(), Problems> {
        self.check(|_| Ok(limits.clone()))
    }

    /// Validates against the devices of a machine.
    ///
    /// # Errors
    /// All problems, including absent devices.
    pub fn validate_on(&self, state: &SystemState) -> Result<(), Problems> {
        self.check(|settings| match state.device(settings.id) {
            None => {
                let known: Vec<_> = state.devices.iter().map(|device| device.id.to_string()).collect();
                Err(match known.is_empty() {
                    true => "this machine has no DSA device".to_owned(),
                    false => format!("there is no such device; there are {}", known.join(", ")),
                })
            }
            Some(device) => Ok(device.limits()),
        })
    }

    fn check(&self, limits: impl Fn(&DeviceSettings) -> Result<Limits, String>) -> Result<(), Problems> {
        let mut found = Findings(Vec::new());
        let mut seen = BTreeSet::new();
        if self.devices.is_empty() {
            found.add("the configuration", "it has no DSA device");
        }
        for device in &self.devices {
            if !seen.insert(device.id) {
                found.add(device.id, "it is configured twice");
            }
            match limits(device) {
                Ok(limits) => check_device(device, &limits, &mut found),
                Err(what) => found.add(device.id, what),
            }
        }
        if found.0.is_empty() { Ok(()) } else { Err(Problems(found.0)) }
    }
}

struct Findings(Vec<String>);

impl Findings {
    fn add(&mut self, object: impl fmt::Display, what: impl fmt::Display) {
        self.0.push(format!("{object}: {what}"));
    }

    /// Checks a setting whose values are a range.
    fn in_range<T: PartialOrd + fmt::Display>(
        &mut self,
        object: impl fmt::Display,
        name: &str,
        value: Option<T>,
        allowed: RangeInclusive<T>,
    ) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.add(
                object,
                format!("{name} is {value}; it can be {} to {}", allowed.start(), allowed.end()),
            );
        }
    }

    /// Checks the number of an object: it is unique and below the limit.
    fn numbered(
        &mut self,
        object: impl fmt::Display,
        index: u32,
        limit: u32,
        what: &str,
        seen: &mut BTreeSet<u32>,
    ) {
        if index >= limit {
            let last = limit.saturating_sub(1);
            self.add(&object, format!("the device has {limit} {what}, numbered 0 to {last}"));
        }
        if !seen.insert(index) {
            self.add(&object, "it is in the configuration twice");
        }
    }
}

fn check_device(device: &DeviceSettings, limits: &Limits, found: &mut Findings) {
    let (mut groups, mut engines, mut queues) = Default::default();
    for group in &device.groups {
        found.numbered(group.id, group.id.index, limits.groups, "groups", &mut groups);
        check_group(group, device, limits, found);
    }
    for (_, engine) in device.engines() {
        found.numbered(engine.id, engine.id.index, limits.engines, "engines", &mut engines);
    }
    for (group, queue) in device.queues() {
        found.numbered(queue.id, queue.id.index, limits.queues, "work queues", &mut queues);
        match group {
            Some(_) => check_queue(queue, limits, found),
            None if queue.size.unwrap_or(0) > 0 => {
                found
                    .add(queue.id, "it has a size and is in no group: put it into one, or set its size to 0");
            }
            None => {}
        }
    }
    if device.queues().all(|(group, _)| group.is_none()) {
        found.add(device.id, "it has no work queue in a group, so it cannot be enabled");
    }
    // Command error 0x14.
    let entries: u64 = device.queues().map(|(_, queue)| u64::from(queue.size.unwrap_or(0))).sum();
    if entries > u64::from(limits.entries) {
        found.add(
            device.id,
            format!("its work queues have {entries} entries together; the device has {}", limits.entries),
        );
    }
    if let Some(limit) = device.read_buffer_limit
        && limit > limits.read_buffers
    {
        found.add(
            device.id,
            format!("read_buffer_limit is {limit}; the device has {} read buffers", limits.read_buffers),
        );
    }
    let reserved: u64 =
        device.groups.iter().map(|group| u64::from(group.read_buffers_reserved.unwrap_or(0))).sum();
    if reserved > u64::from(limits.read_buffers) {
        found.add(
            device.id,
            format!("its groups reserve {reserved} read buffers; the device has {}", limits.read_buffers),
        );
    }
    match device.event_log_size {
        Some(_) if !limits.event_log => {
            found.add(device.id, "event_log_size is set, and the device has no event log")
        }
        size => found.in_range(device.id, "event_log_size", size, 64..=65535),
    }
}

fn check_group(group: &GroupSettings, device: &DeviceSettings, limits: &Limits, found: &mut Findings) {
    let engines = u32::try_from(group.engines.len()).unwrap_or(u32::MAX);
    // Command error 0x15.
    match (group.queues.is_empty(), engines == 0) {
        (false, true) => found.add(group.id, "it has work queues and no engine: give it an engine"),
        (true, false) => {
            found.add(group.id, "it has engines and no work queue: give it a queue, or remove the engines")
        }
        _ => {}
    }
    // Command error 0x18.
    let reserved = group.read_buffers_reserved.unwrap_or(0);
    let others: u64 = (device.groups.iter())
        .filter(|other| other.id != group.id)
        .map(|other| u64::from(other.read_buffers_reserved.unwrap_or(0)))
        .sum();
    if let Some(allowed) = group.read_buffers_allowed {
        let least = engines.saturating_mul(READ_BUFFERS_PER_ENGINE).max(reserved);
        let most = u64::from(limits.read_buffers).saturating_sub(others);
        if allowed < least || u64::from(allowed) > most {
            found.add(
                group.id,
                format!(
                    "read_buffers_allowed is {allowed}; with {engines} engines and the reserved buffers it can be {least} \
                     to {most}"
                ),
            );
        }
    }
    if group.use_read_buffer_limit == Some(true) && device.read_buffer_limit.unwrap_or(0) == 0 {
        found.add(group.id, "use_read_buffer_limit is 1, and read_buffer_limit of the device is not set");
    }
    found.in_range(group.id, "traffic_class_a", group.traffic_class_a, 0..=7);
    found.in_range(group.id, "traffic_class_b", group.traffic_class_b, 0..=7);
    // 0 to 3 for all, 1/2, 1/4, 1/8.
    found.in_range(group.id, "desc_progress_limit", group.desc_progress_limit, 0..=3);
    found.in_range(group.id, "batch_progress_limit", group.batch_progress_limit, 0..=3);
}

fn check_queue(queue: &QueueSettings, limits: &Limits, found: &mut Findings) {
    let id = queue.id;
    // Command errors 0x22 and 0x23. Disabling a device sets both to 0, so a file must contain them.
    match queue.size {
        None => found.add(id, "it has no size: set 1 or more"),
        Some(0) => found.add(id, "its size is 0: set 1 or more, or remove it from the group"),
        Some(_) => {}
    }
    match queue.priority {
        None => found.add(id, "it has no priority: set 1 to 15"),
        priority => found.in_range(id, "its priority", priority, 1..=15),
    }
    check_mode(queue, limits, found);
    check_owner(queue, limits, found);
    // Command errors 0x27 and 0x28. The driver would round up silently.
    if let Some(batch) = queue.batch_max {
        check_power(id, "max_batch_size", batch.into(), limits.batch.into(), found);
    }
    if let Some(transfer) = queue.transfer_bytes_max {
        check_power(id, "max_transfer_size", transfer, limits.transfer_bytes, found);
    }
    // Command errors 0x25 and 0x2e.
    if queue.block_on_fault == Some(true) && !limits.block_on_fault {
        found.add(id, "block_on_fault is 1, and the device cannot block on faults");
    }
    if queue.prs_disable == Some(true) {
        if queue.block_on_fault == Some(true) {
            found.add(id, "block_on_fault and prs_disable are both 1; they exclude each other");
        }
        if !limits.event_log {
            found.add(id, "prs_disable is 1, which needs an event log, and the device has none");
        }
    }
    // Command error 0x2d.
    if let (Some(wanted), Some(has)) = (queue.operations, limits.operations)
        && !wanted.is_subset_of(has)
    {
        let has = names(has);
        let missing: Vec<_> = names(wanted).into_iter().filter(|name| !has.contains(name)).collect();
        found.add(id, format!("op_config has operations that the device lacks: {}", missing.join(", ")));
    }
}

fn check_mode(queue: &QueueSettings, limits: &Limits, found: &mut Findings) {
    let id = queue.id;
    let size = queue.size.unwrap_or(0);
    match (queue.mode, queue.threshold) {
        (None, _) => found.add(id, "it has no mode: set shared or dedicated"),
        (Some(QueueMode::Shared), None) => {
            found.add(id, "it is shared and has no threshold: set 1 to its size");
        }
        (Some(QueueMode::Shared), Some(threshold)) if threshold == 0 || threshold > size => {
            found.add(
                id,
                format!("its threshold is {threshold}; that of a shared queue can be 1 to its size, {size}"),
            );
        }
        (Some(QueueMode::Dedicated), Some(threshold)) if threshold != 0 => {
            found.add(id, format!("its threshold is {threshold}; a dedicated queue has none: set 0"));
        }
        _ => {}
    }
    // Command error 0x26, driver's code 0x8005_0000.
    if queue.mode == Some(QueueMode::Shared) && !limits.pasid {
        found.add(
            id,
            "it is shared, and the device shares no address spaces (pasid_enabled is 0): boot with \
             intel_iommu=on,sm_on, or make it dedicated",
        );
    }
}

fn check_owner(queue: &QueueSettings, limits: &Limits, found: &mut Findings) {
    let id = queue.id;
    match &queue.kind {
        None | Some(QueueType::None | QueueType::Other(_)) => {
            found.add(id, "it has no type: set user, or kernel");
        }
        Some(QueueType::User) => {
            if let Some(driver) = queue.driver_name.as_deref().filter(|driver| *driver != "user") {
                found.add(
                    id,
                    format!("its driver_name is {driver:?}; that of a queue of type user is \"user\""),
                );
            }
            // The driver's code 0x8011_0000.
            if queue.mode == Some(QueueMode::Dedicated) && !limits.pasid {
                found.add(
                    id,
                    "it is of type user, and the device shares no address spaces (pasid_enabled is 0): boot with \
                     intel_iommu=on,sm_on",
                );
            }
        }
        Some(QueueType::Kernel) => {
            if queue.driver_name.as_deref() == Some("user") {
                found.add(id, "its driver_name is \"user\"; that of a queue of type kernel is for example \"dmaengine\"");
            }
        }
    }
    match queue.name.as_deref() {
        None | Some("") => found.add(id, "it has no name, so it cannot be enabled: set its name"),
        Some(name) if name.len() > NAME_BYTES_MAX => {
            found.add(id, format!("its name has {} bytes; it can have at most {NAME_BYTES_MAX}", name.len()));
        }
        Some(name) if name.trim() != name || name.contains(char::is_control) => {
            found.add(
                id,
                "its name begins or ends with a blank or has a control character, which the driver drops: remove it",
            );
        }
        Some(_) => {}
    }
}

fn check_power(object: impl fmt::Display, name: &str, value: u64, limit: u64, found: &mut Findings) {
    if value == 0 || value > limit {
        found.add(object, format!("{name} is {value}; it can be 1 to {limit}"));
    } else if !value.is_power_of_two() {
        let next = value.next_power_of_two();
        found.add(
            object,
            format!("{name} is {value}, not a power of two; the driver would use {next}: set that"),
        );
    }
}
