//! The current settings of devices, as `accel-config save-config` saves them.

use super::{Config, DeviceSettings, EngineSettings, GroupSettings, QueueSettings};
use crate::system::state::{Device, Group, Queue, SystemState};

impl Config {
    /// The current settings of all devices that have a configured work queue in a group.
    ///
    /// Leaves out queues and engines without a group, since loading a configuration resets them.
    pub fn of(state: &SystemState) -> Config {
        let is_configured = |queue: &Queue| queue.group.is_some() && queue.size.unwrap_or(0) > 0;
        let devices = state.devices.iter().filter(|device| device.queues.iter().any(is_configured));
        Config { devices: devices.map(device_settings).collect(), others: Vec::new() }
    }
}

fn device_settings(device: &Device) -> DeviceSettings {
    let groups = device.groups.iter().map(|group| group_settings(device, group));
    DeviceSettings {
        id: device.id,
        read_buffer_limit: device.read_buffer_limit,
        event_log_size: device.event_log_size,
        groups: groups.filter(|group| !group.queues.is_empty() || !group.engines.is_empty()).collect(),
        ..DeviceSettings::default()
    }
}

fn group_settings(device: &Device, group: &Group) -> GroupSettings {
    let index = Some(group.id.index);
    let queues = device.queues.iter().filter(|queue| queue.group == index);
    let engines = device.engines.iter().filter(|engine| engine.group == index);
    GroupSettings {
        id: group.id,
        read_buffers_reserved: group.read_buffers_reserved,
        use_read_buffer_limit: group.use_read_buffer_limit,
        read_buffers_allowed: group.read_buffers_allowed,
        traffic_class_a: group.traffic_class_a,
        traffic_class_b: group.traffic_class_b,
        desc_progress_limit: group.desc_progress_limit,
        batch_progress_limit: group.batch_progress_limit,
        queues: queues.map(|queue| queue_settings(device, queue)).collect(),
        engines: engines.map(|engine| EngineSettings { id: engine.id, kept: Vec::new() }).collect(),
        kept: Vec::new(),
    }
}

fn queue_settings(device: &Device, queue: &Queue) -> QueueSettings {
    QueueSettings {
        id: queue.id,
        mode: queue.mode,
        size: queue.size,
        priority: queue.priority,
        block_on_fault: queue.block_on_fault,
        batch_max: queue.batch_max,
        transfer_bytes_max: queue.transfer_bytes_max,
        kind: queue.kind.clone(),
        name: queue.name.clone(),
        driver_name: queue.driver_name.clone().filter(|name| !name.is_empty()),
        threshold: queue.threshold,
        ats_disable: queue.ats_disable,
        prs_disable: queue.prs_disable,
        // Only if they are restricted: the driver may hide Batch, and loading the shown set would then remove it.
        operations: queue.operations.filter(|operations| device.operations != Some(*operations)),
        kept: Vec::new(),
    }
}
