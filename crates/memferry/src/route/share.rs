//! The division of a copy among engines. Pure functions of the machine.

use std::ops::Range;

use super::{Endpoints, EngineKind, EngineSite, Route, adaptive, distance, first_engine, home, socket};
use crate::topology::{Machine, NodeId};

/// No share is smaller: below 1 MiB the cost of a submission shows.
///
/// Source: Fürst 2024, section 3.3.
pub const SHARE_BYTES_MIN: usize = 1 << 20;

/// A part of a copy, and the engine that starts with it.
///
/// The shares of a copy are equal, like in the papers. Engines that are done steal from the shares of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the engine, in the list that was passed in.
    pub engine: usize,
    /// The range of the copy.
    pub bytes: Range<usize>,
}

/// The engines that take part in a copy, the one at the source first, each with its bytes.
///
/// The shares are contiguous. If a share would be below [`SHARE_BYTES_MIN`], only the first engines get one. Empty only
/// if `sites` is.
///
/// Nodes that the machine does not have count as unknown. A copy with one known node counts as one within that node;
/// without known nodes every engine is equally near. A machine without known sockets counts as one socket.
pub fn engine_shares(
    route: Route,
    machine: &Machine,
    sites: &[EngineSite],
    endpoints: Endpoints,
) -> Vec<Share> {
    let shares_max = endpoints.size_bytes / SHARE_BYTES_MIN;
    let engines = if shares_max < 2 || matches!(route, Route::Single | Route::RoundRobin) {
        first_engine(route, machine, sites, endpoints).into_iter().collect()
    } else {
        let mut engines = Sites::new(machine, sites, endpoints).of(route, endpoints);
        engines.truncate(shares_max);
        engines
    };
    split(endpoints.size_bytes, &engines)
}

/// The [`engine_shares`] of a machine's accelerators, for plans. Indices are those of
/// [`Machine::accelerators`].
///
/// If the rates of some are known, those of unknown rate take no part: a calibration could not use them.
pub fn device_shares(route: Route, machine: &Machine, endpoints: Endpoints) -> Vec<Share> {
    let devices = machine.accelerators();
    let is_any_known = devices.iter().any(|device| device.bytes_per_s_max.is_some());
    let indices = (0..devices.len())
        .filter(|&index| !is_any_known || devices[index].bytes_per_s_max.is_some())
        .collect::<Vec<_>>();
    let site = |&index: &usize| EngineSite { kind: EngineKind::Dsa, node: devices[index].node };
    let sites: Vec<_> = indices.iter().map(site).collect();
    let shares = engine_shares(route, machine, &sites, endpoints).into_iter();
    shares.map(|share| Share { engine: indices[share.engine], ..share }).collect()
}

/// Divides a copy into equal shares.
fn split(size_bytes: usize, engines: &[usize]) -> Vec<Share> {
    let (even, over) = (size_bytes / engines.len().max(1), size_bytes % engines.len().max(1));
    let begin = |index: usize| index * even + index.min(over);
    let share = |(index, &engine)| Share { engine, bytes: begin(index)..begin(index + 1) };
    engines.iter().enumerate().map(share).collect()
}

/// Engines as one copy sees them.
struct Sites<'a> {
    machine: &'a Machine,
    sites: &'a [EngineSite],
    /// CPU nodes of source and target; if one is unknown, the other stands in.
    source: Option<NodeId>,
    target: Option<NodeId>,
}

impl<'a> Sites<'a> {
    fn new(machine: &'a Machine, sites: &'a [EngineSite], endpoints: Endpoints) -> Sites<'a> {
        let (source, target) = (home(machine, endpoints.source_node), home(machine, endpoints.target_node));
        Sites { machine, sites, source: source.or(target), target: target.or(source) }
    }

    fn of(&self, route: Route, endpoints: Endpoints) -> Vec<usize> {
        match route {
            Route::Single | Route::RoundRobin => {
                first_engine(route, self.machine, self.sites, endpoints).into_iter().collect()
            }
            Route::PushPull => self.push_pull(),
            Route::Smart if !self.is_within_socket() => self.push_pull(),
            Route::Socket | Route::Smart => self.on_sockets(),
            Route::All => self.nearest_to(self.source),
            Route::Adaptive => self.adaptive(endpoints),
        }
    }

    /// All engines, nearest first; equally near ones in order, starting with those on the node.
    fn nearest_to(&self, home: Option<NodeId>) -> Vec<usize> {
        let count = self.sites.len();
        let begin = self.sites.iter().position(|site| site.node == home).unwrap_or(0);
        let mut order: Vec<usize> = (begin..count).chain(0..begin).collect();
        order.sort_by_key(|&index| distance(self.machine, self.sites[index].node, home));
        order
    }

    fn push_pull(&self) -> Vec<usize> {
        let near_source = self.nearest_to(self.source);
        let Some(&pull) = near_source.first() else { return Vec::new() };
        let off_node = |&index: &usize| self.sites[index].node != self.sites[pull].node;
        let push = match self.source == self.target {
            true => near_source.iter().copied().find(off_node),
            false => self.nearest_to(self.target).into_iter().find(|&index| index != pull),
        };
        // If all engines are on one node: a second one there.
        let push = push.or_else(|| near_source.get(1).copied());
        [pull].into_iter().chain(push).collect()
    }

    fn is_within_socket(&self) -> bool {
        let (source, target) = (socket(self.machine, self.source), socket(self.machine, self.target));
        source.is_none() || target.is_none() || source == target
    }

    /// The engines on the socket of a node, nearest first; perhaps none.
    fn on_socket(&self, node: Option<NodeId>) -> Vec<usize> {
        let wanted = socket(self.machine, node);
        let mut engines = self.nearest_to(node);
        engines.retain(|&index| wanted.is_none() || socket(self.machine, self.sites[index].node) == wanted);
        engines
    }

    /// All engines of the source's socket, or half of each socket; all of the other one if one socket has none.
    fn on_sockets(&self) -> Vec<usize> {
        let mut engines = self.on_socket(self.source);
        if !self.is_within_socket() {
            let mut others = self.on_socket(self.target);
            if !engines.is_empty() && !others.is_empty() {
                engines.truncate(engines.len().div_ceil(2));
                others.truncate(others.len().div_ceil(2));
            }
            engines.extend(others);
        }
        if engines.is_empty() {
            engines.extend(self.nearest_to(self.source).first());
        }
        engines
    }

    fn adaptive(&self, endpoints: Endpoints) -> Vec<usize> {
        /// Sufficient part of the best rate: rates of equal devices differ by as much.
        const GOOD_ENOUGH: f64 = 0.95;
        let candidates = [Route::Single, Route::PushPull, Route::Socket, Route::All]
            .map(|route| self.of(route, endpoints));
        let rate = |engines: &Vec<usize>| adaptive::bytes_per_s(self.machine, self.sites, engines, endpoints);
        let Some(rates) = candidates.iter().map(rate).collect::<Option<Vec<f64>>>() else {
            return self.push_pull();
        };
        let best = rates.iter().copied().fold(0.0, f64::max);
        let chosen = rates.iter().position(|&rate| rate >= GOOD_ENOUGH * best);
        chosen.map_or_else(|| self.push_pull(), |index| candidates[index].clone())
    }
}
