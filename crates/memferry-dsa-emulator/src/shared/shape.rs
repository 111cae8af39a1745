//! The configuration of a device, as read from the board.

use std::sync::atomic::{AtomicU32, Ordering};

use memferry_dsa::OperationSet;

use super::Devices;
use super::layout::ENGINES;
use crate::config::{Capabilities, DeviceConfig, GROUPS_MAX, GroupConfig, QUEUES_MAX};

/// A device's configuration, and the numbers of its parts on the board. Groups without an enabled queue are left out.
pub(super) struct Shape {
    pub(super) config: DeviceConfig,
    pub(super) groups: Vec<usize>,
    /// By the numbers in `config`.
    pub(super) engines: Vec<usize>,
    /// By the numbers in `config`.
    pub(super) queues: Vec<usize>,
}

impl Devices {
    /// The current configuration and its generation.
    pub(super) fn shape(&self, device: usize) -> (u64, Shape) {
        loop {
            // ORDERING: Acquire pairs with the Release of `generation` in `reconfigure`: the words are of this
            // generation or later ...
            let generation = self.device(device).generation.load(Ordering::Acquire);
            let shape = self.shape_now(device);
            // ... and not later if the generation is unchanged. ORDERING: this Acquire fence keeps the loads of the
            // words before the load of the generation; it pairs with the Release fence in `reconfigure`.
            std::sync::atomic::fence(Ordering::Acquire);
            if generation.is_multiple_of(2)
                && self.device(device).generation.load(Ordering::Relaxed) == generation
            {
                return (generation, shape);
            }
            std::thread::yield_now();
        }
    }

    /// The current configuration, for the thread that configures the device.
    pub(super) fn shape_now(&self, device: usize) -> Shape {
        let state = self.device(device);
        let operations = std::array::from_fn(|index| state.operations[index].load(Ordering::Relaxed));
        let mut shape = Shape {
            config: DeviceConfig {
                groups: Vec::new(),
                operations: OperationSet::from_words(operations),
                capabilities: Capabilities::from_bits(state.capabilities.load(Ordering::Relaxed)),
                timing: self.timing(),
                read_buffers: Vec::new(), // the processes share the whole device
            },
            groups: Vec::new(),
            engines: Vec::new(),
            queues: Vec::new(),
        };
        let members = |words: &[AtomicU32], group: usize| -> Vec<usize> {
            let is_member = |index: &usize| words[*index].load(Ordering::Relaxed) == group as u32 + 1;
            (0..words.len()).filter(is_member).collect()
        };
        debug_assert!(state.engine_groups.len() == ENGINES && state.queue_groups.len() == QUEUES_MAX);
        for group in 0..GROUPS_MAX {
            let engines = members(&state.engine_groups, group);
            let named = |queue: usize| {
                let info = state.queues[queue].info(self.queue_name(device, queue))?;
                Some((queue, info))
            };
            let queues: Vec<_> = members(&state.queue_groups, group).into_iter().filter_map(named).collect();
            if queues.is_empty() {
                continue;
            }
            shape.groups.push(group);
            shape.engines.extend(&engines);
            let (numbers, queues): (Vec<_>, Vec<_>) = queues.into_iter().unzip();
            shape.queues.extend(numbers);
            shape.config.groups.push(GroupConfig { engines: engines.len() as u32, queues });
        }
        shape
    }
}
