//! The shape of a configuration, written as `8n1d1e1w`.
//!
//! ```text
//! 8n1d1e1w               8 nodes, 1 device on each, 1 engine, 1 work queue
//! 1n1d4e8w-dedicated     one device, one group of 4 engines and 8 queues, which are dedicated (shared otherwise)
//! 1n1d4g1e1w-dedicated   one device, 4 groups, each of 1 engine and 1 queue
//! ```
//!
//! The queues of a device share its 128 entries equally; all other limits have their maximum.
//!
//! Source: the pattern is that of A. C. Fürst, *Data Movement in Heterogeneous Memories with Intel Data Streaming
//! Accelerator*, 2024, section 2.5 (`8n1d1e1w`). The number of groups and the suffix are additions.

use std::fmt;
use std::str::FromStr;

use super::{ConfigError, DeviceSettings, EngineSettings, GroupSettings, Limits, QueueSettings};
use crate::portal::QueueMode;
use crate::system::id::{DeviceId, GroupId, number};
use crate::system::state::{QueueType, SystemState};

/// The numbers of devices, and of groups, engines and queues in each device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    nodes: u32,
    devices_per_node: u32,
    groups: u32,
    engines_per_group: u32,
    queues_per_group: u32,
    mode: QueueMode,
}

/// Priority of queues: in the middle, so that other queues can be above and below. Source: accel-config's profiles.
const PRIORITY: u32 = 10;

impl Shape {
    /// One device with one group; `None` if a 1.0 device does not have that many engines and queues, or for 0.
    pub const fn one_device(engines: u32, queues: u32, mode: QueueMode) -> Option<Shape> {
        let shape = Shape {
            nodes: 1,
            devices_per_node: 1,
            groups: 1,
            engines_per_group: engines,
            queues_per_group: queues,
            mode,
        };
        if shape.is_possible() { Some(shape) } else { None }
    }

    const fn is_possible(&self) -> bool {
        let limits = Limits::dsa_1_0();
        let positive = self.nodes > 0
            && self.devices_per_node > 0
            && self.groups > 0
            && self.engines_per_group > 0
            && self.queues_per_group > 0;
        positive
            && self.nodes <= 1024 // as many as Linux has (MAX_NUMNODES)
            && self.devices_per_node <= 64
            && self.groups <= limits.groups
            && self.engines_per_group <= limits.engines / self.groups
            && self.queues_per_group <= limits.queues / self.groups
    }

    /// Nodes that have devices.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Devices on each node.
    pub fn devices_per_node(&self) -> u32 {
        self.devices_per_node
    }

    /// Groups of each device.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Engines of each device.
    pub fn engines(&self) -> u32 {
        self.groups * self.engines_per_group
    }

    /// Work queues of each device.
    pub fn queues(&self) -> u32 {
        self.groups * self.queues_per_group
    }

    /// Mode of the queues.
    pub fn mode(&self) -> QueueMode {
        self.mode
    }

    /// The usual names of the devices: even numbers, as on a machine with equally many analytics accelerators.
    pub fn usual_devices(&self) -> Vec<DeviceId> {
        (0..self.nodes * self.devices_per_node).map(|number| DeviceId(2 * number)).collect()
    }

    /// Chooses devices of a machine: the first nodes with enough devices, and the first devices of each.
    ///
    /// # Errors
    /// [`ConfigError::TooFewDevices`].
    pub fn devices_of(&self, state: &SystemState) -> Result<Vec<DeviceId>, ConfigError> {
        let mut nodes: Vec<(Option<u32>, Vec<DeviceId>)> = Vec::new();
        for device in &state.devices {
            match nodes.iter_mut().find(|(node, _)| *node == device.node) {
                Some((_, devices)) => devices.push(device.id),
                None => nodes.push((device.node, vec![device.id])),
            }
        }
        nodes.retain(|(_, devices)| devices.len() >= self.devices_per_node as usize);
        if nodes.len() < self.nodes as usize {
            return Err(ConfigError::TooFewDevices { shape: *self, found: nodes.len() });
        }
        let each = self.devices_per_node as usize;
        let chosen = nodes.iter().take(self.nodes as usize).flat_map(|(_, devices)| &devices[..each]);
        let mut chosen: Vec<DeviceId> = chosen.copied().collect();
        chosen.sort_unstable();
        Ok(chosen)
    }

    pub(super) fn device(&self, id: DeviceId) -> DeviceSettings {
        DeviceSettings {
            id,
            read_buffer_limit: Some(0),
            groups: (0..self.groups).map(|index| self.group(id.group(index))).collect(),
            ..DeviceSettings::default()
        }
    }

    fn group(&self, id: GroupId) -> GroupSettings {
        let numbers = |each: u32| id.index * each..(id.index + 1) * each;
        GroupSettings {
            id,
            queues: numbers(self.queues_per_group).map(|index| self.queue(id.device, index)).collect(),
            engines: numbers(self.engines_per_group)
                .map(|index| EngineSettings { id: id.device.engine(index), kept: Vec::new() })
                .collect(),
            // The default is all read buffers of the device.
            ..GroupSettings::default()
        }
    }

    fn queue(&self, device: DeviceId, index: u32) -> QueueSettings {
        let limits = Limits::dsa_1_0();
        let size = limits.entries / self.queues();
        QueueSettings {
            id: device.queue(index),
            mode: Some(self.mode),
            size: Some(size),
            priority: Some(PRIORITY),
            // Descriptors may use it, but need not.
            block_on_fault: Some(true),
            batch_max: Some(limits.batch),
            transfer_bytes_max: Some(limits.transfer_bytes),
            kind: Some(QueueType::User),
            name: Some(format!("memferry{}_{index}", device.0)),
            driver_name: Some("user".to_owned()),
            threshold: Some(match self.mode {
                QueueMode::Shared => size,
                QueueMode::Dedicated => 0,
            }),
            ..QueueSettings::default()
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}n{}d", self.nodes, self.devices_per_node)?;
        if self.groups > 1 {
            write!(f, "{}g", self.groups)?;
        }
        write!(f, "{}e{}w", self.engines_per_group, self.queues_per_group)?;
        match self.mode {
            QueueMode::Shared => Ok(()),
            QueueMode::Dedicated => f.write_str("-dedicated"),
        }
    }
}

impl FromStr for Shape {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Shape, ConfigError> {
        let parse = || {
            let (text, mode) = match text.strip_suffix("-dedicated") {
                Some(text) => (text, QueueMode::Dedicated),
                None => (text, QueueMode::Shared),
            };
            let (nodes, rest) = text.split_once('n')?;
            let (devices, rest) = rest.split_once('d')?;
            let (groups, rest) = rest.split_once('g').unwrap_or(("1", rest));
            let (engines, rest) = rest.split_once('e')?;
            let queues = rest.strip_suffix('w')?;
            let shape = Shape {
                nodes: number(nodes)?,
                devices_per_node: number(devices)?,
                groups: number(groups)?,
                engines_per_group: number(engines)?,
                queues_per_group: number(queues)?,
                mode,
            };
            shape.is_possible().then_some(shape)
        };
        parse().ok_or_else(|| ConfigError::BadShape(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_parsed_and_formatted() {
        let shape: Shape = "1n1d4g1e2w-dedicated".parse().unwrap();
        assert_eq!((shape.nodes(), shape.devices_per_node(), shape.groups()), (1, 1, 4));
        assert_eq!((shape.engines(), shape.queues(), shape.mode()), (4, 8, QueueMode::Dedicated));
        for name in ["8n1d1e1w", "1n4d2e3w-dedicated", "1n1d4g1e2w"] {
            assert_eq!(name.parse::<Shape>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for name in [
            "",
            "8n1d1e",
            "8n1d1e1w ",
            "0n1d1e1w",
            "1n1d5e1w",
            "1n1d1e9w",
            "1n1d5g1e1w",
            "1n1d2g3e1w",
            "1n1d1e1w-shared",
            "99999999999n1d1e1w",
            "4294967295n4294967295d1e1w",
            "1n1d0g1e1w",
        ] {
            assert!(name.parse::<Shape>().is_err(), "{name}");
        }
    }
}
