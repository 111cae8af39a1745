//! How a copy is split over the devices of a machine. Pure functions of the machine, for machine and model alike.

use std::ops::Range;

use crate::model;
use crate::topology::{Machine, NodeId};

use super::route::distance;
use super::{Journey, Route};

/// No share is smaller: below 1 MiB the cost of a submission shows.
///
/// Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), section 3.3.
pub const SHARE_BYTES_MIN: usize = 1 << 20;

/// Shares begin on pages, so that no two devices write to the same one.
const PAGE_BYTES: usize = 4096;

/// A part of a copy and who does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index in [`Machine::accelerators`].
    pub device: usize,
    /// The bytes of the copy.
    pub bytes: Range<usize>,
}

impl Route {
    /// The devices that take part in a copy, the nearest to its source first, each with its bytes.
    ///
    /// The shares follow each other without a gap and differ by less than a page, but for the last one. A copy
    /// is divided among fewer devices if a share would be below [`SHARE_BYTES_MIN`]. Empty if no device's node
    /// is known: then CPUs copy.
    ///
    /// Nodes that the machine does not have count as unknown; a copy with one known end counts as one inside
    /// that node, and one with none starts at the first device.
    pub fn devices(self, machine: &Machine, journey: Journey) -> Vec<Share> {
        let mut devices = Devices::near(machine, journey).of(self, journey);
        let shares_max = (journey.size_bytes / SHARE_BYTES_MIN).max(1);
        if self == Route::Smart && shares_max == 1 && devices.len() > 1 {
            devices = Devices::near(machine, Journey { source_node: journey.target_node, ..journey })
                .of(Route::Single, journey);
        }
        devices.truncate(shares_max);
        split(journey.size_bytes, &devices)
    }
}

/// Even shares in whole pages; what is left over goes to the last one.
fn split(size_bytes: usize, devices: &[usize]) -> Vec<Share> {
    let Some(last) = devices.len().checked_sub(1) else { return Vec::new() };
    let even = size_bytes / devices.len() / PAGE_BYTES * PAGE_BYTES;
    let share = |(index, &device): (usize, &usize)| {
        let end = if index == last { size_bytes } else { (index + 1) * even };
        Share { device, bytes: index * even..end }
    };
    devices.iter().enumerate().map(share).collect()
}

/// The devices of a machine as one copy sees them.
struct Devices<'a> {
    machine: &'a Machine,
    /// Indices in the machine's accelerators, nearest to the source first.
    order: Vec<usize>,
    /// Nodes with the CPUs of the source's and the target's memory.
    source: Option<NodeId>,
    target: Option<NodeId>,
}

impl<'a> Devices<'a> {
    fn near(machine: &'a Machine, journey: Journey) -> Devices<'a> {
        let home = |node: Option<NodeId>| Some(machine.node(node?).ok()?.cpu_node);
        let (source, target) = (home(journey.source_node), home(journey.target_node));
        let (source, target) = (source.or(target), target.or(source));
        let mut devices = Devices { machine, order: Vec::new(), source, target };
        devices.order = devices.nearest_to(source);
        devices
    }

    fn nearest_to(&self, home: Option<NodeId>) -> Vec<usize> {
        let known = self.machine.accelerators().iter().enumerate();
        let mut order: Vec<usize> =
            known.filter(|(_, device)| device.node.is_some()).map(|(index, _)| index).collect();
        order.sort_by_key(|&index| distance(self.machine, self.node(index), home));
        order
    }

    fn node(&self, device: usize) -> Option<NodeId> {
        self.machine.accelerators()[device].node
    }

    fn socket(&self, node: Option<NodeId>) -> Option<u32> {
        self.machine.node(node?).ok()?.socket
    }

    fn of(&self, route: Route, journey: Journey) -> Vec<usize> {
        let single = || self.order.iter().copied().take(1).collect();
        match route {
            Route::Single => single(),
            Route::RoundRobin => {
                // In the machine's order, so that turns visit all devices whatever the copies' ends are.
                let known: Vec<usize> =
                    (0..self.machine.accelerators().len()).filter(|&i| self.node(i).is_some()).collect();
                known.get(journey.turn % known.len().max(1)).copied().into_iter().collect()
            }
            Route::PushPull => self.push_pull(),
            Route::Socket if self.is_within_socket() => self.on_socket(self.source),
            Route::Socket => self.half_of_each(),
            Route::Smart if self.is_within_socket() => self.on_socket(self.source),
            Route::Smart => self.push_pull(),
            Route::All => self.order.clone(),
            Route::Adaptive => self.adaptive(journey),
        }
    }

    /// Within one node: the on-node device and one off-node (the same caption).
    fn push_pull(&self) -> Vec<usize> {
        let Some(&pull) = self.order.first() else { return Vec::new() };
        let push = match self.source == self.target {
            true => self.order.iter().copied().find(|&device| self.node(device) != self.node(pull)),
            false => self.nearest_to(self.target).into_iter().find(|&device| device != pull),
        };
        // All devices on one node: then a second one there.
        let push = push.or_else(|| self.order.get(1).copied());
        [pull].into_iter().chain(push).collect()
    }

    /// Nobody says where the sockets are: then there is one.
    fn is_within_socket(&self) -> bool {
        let (source, target) = (self.socket(self.source), self.socket(self.target));
        source.is_none() || target.is_none() || source == target
    }

    fn on_socket(&self, node: Option<NodeId>) -> Vec<usize> {
        let socket = self.socket(node);
        let devices = self.nearest_to(node).into_iter();
        devices.filter(|&device| socket.is_none() || self.socket(self.node(device)) == socket).collect()
    }

    fn half_of_each(&self) -> Vec<usize> {
        let half = |devices: Vec<usize>| {
            let count = devices.len().div_ceil(2);
            devices.into_iter().take(count)
        };
        half(self.on_socket(self.source)).chain(half(self.on_socket(self.target))).collect()
    }

    fn adaptive(&self, journey: Journey) -> Vec<usize> {
        const GOOD_ENOUGH: f64 = 0.95;
        let candidates = [Route::Single, Route::PushPull, Route::Socket, Route::All];
        let rate = |route: Route| model::copy_rate(self.machine, &self.of(route, journey), journey);
        let Some(rates) = candidates.into_iter().map(rate).collect::<Option<Vec<f64>>>() else {
            return self.push_pull();
        };
        let best = rates.iter().copied().fold(0.0, f64::max);
        let chosen = rates.iter().position(|&rate| rate >= GOOD_ENOUGH * best);
        chosen.map_or_else(|| self.push_pull(), |index| self.of(candidates[index], journey))
    }
}
