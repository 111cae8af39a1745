//! The rate of several engines together: the minimum of the rates of engines, source and target.
//!
//! A memory's rate is the best that any CPUs reach with it: the link between an engine and a memory does not limit devices
//! (Fürst 2024, section 3.2.3: across sockets they are as fast as within one). Reads and writes of one memory alternate.

use super::{Endpoints, EngineKind, EngineSite};
use crate::topology::{Accelerator, Link, Machine, NodeId};

/// Bytes per second of a copy by these engines; `None` if a rate is unknown.
pub(super) fn bytes_per_s(
    machine: &Machine,
    sites: &[EngineSite],
    engines: &[usize],
    endpoints: Endpoints,
) -> Option<f64> {
    let (source, target) = (endpoints.source_node?, endpoints.target_node?);
    let read = best(machine, source, |link| link.read_bytes_per_s)?;
    let write = best(machine, target, |link| link.write_bytes_per_s)?;
    let memories = if source == target { 1.0 / (1.0 / read + 1.0 / write) } else { read.min(write) };
    let engines: Option<f64> = engines.iter().map(|&engine| engine_bytes_per_s(machine, sites[engine])).sum();
    Some(memories.min(engines?))
}

/// The best rate that any CPUs reach with a memory.
fn best(machine: &Machine, memory: NodeId, rate: impl Fn(Link) -> Option<u64>) -> Option<f64> {
    let rates = machine.nodes().iter().filter_map(|node| rate(machine.link(node.id, memory)));
    rates.max().map(|rate| rate as f64)
}

/// The rate of an engine; unknown for cores, because it depends on their number, which profiles lack.
fn engine_bytes_per_s(machine: &Machine, site: EngineSite) -> Option<f64> {
    let is_it = |device: &&Accelerator| site.node.is_some() && device.node == site.node;
    match site.kind {
        EngineKind::Cpu | EngineKind::Storage => None,
        EngineKind::Dsa => machine.accelerators().iter().find(is_it)?.bytes_per_s_max.map(|rate| rate as f64),
    }
}
