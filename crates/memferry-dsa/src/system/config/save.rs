//! The settings that devices have now, as `accel-config save-config` would save them.

use super::{Config, DeviceSettings, EngineSettings, GroupSettings, QueueSettings};
use crate::system::state::{Device, Group, Queue, SystemState};

impl Config {
    /// The settings of the devices that have a work queue with entries in a group; of the others there is nothing to load.
    ///
    /// What belongs to no group is left out, since loading takes it out of groups anyway.
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
        ungrouped_queues: Vec::new(),
        ungrouped_engines: Vec::new(),
        kept: Vec::new(),
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
        // A queue that is not restricted stays so. What the driver shows then may lack Batch, which it hides, and loading
        // that would restrict the queue.
        operations: queue.operations.filter(|operations| device.operations != Some(*operations)),
        kept: Vec::new(),
    }
}
