//! A machine in numbers for models: rates of memories, links, CPUs and devices, costs of descriptors.
//!
//! Rates come from the machine's links where it has them, and otherwise from its parameters
//! ([`PARAMETERS`]). A figure that neither has stays unknown: a plan that needs it is an error, not a
//! guess.

use memferry_dsa::DeviceCosts;
use memferry_dsa::internals::device_time::CachePart;

use crate::route::Endpoints;
use crate::topology::parameter::Parameter;
use crate::topology::{Machine, Node, NodeId};

use super::ModelError;

/// The parameters of machines for models, with descriptions.
pub const PARAMETERS: &[(&str, &str)] = &[
    ("dram_mb_per_s", "rate of each DRAM node when many streams use it, reading and writing together"),
    ("hbm_mb_per_s", "the same of each HBM node"),
    ("core_mb_per_s", "read rate of one core"),
    ("core_copy_mb_per_s", "copy rate of one core"),
    ("cores_copy_mb_per_s", "copy rate of all cores of a node together"),
    ("core_copy_latency_ns", "time of a copy by a core beyond its bytes"),
    (
        "worker_wake_ns",
        "what a copy by a thread that slept takes beyond that, until who asked for it is told",
    ),
    ("worker_warm_ns", "what the first megabytes of such a copy take beyond that"),
    ("filter_mb_per_s", "what a core filters at most, in bytes of the filter's columns"),
    ("late_mb_per_s", "what a core takes in at most of columns that are read for rows that passed a filter"),
    ("filter_together_mb_per_s", "the same of each core if all of a node do it"),
    ("late_together_mb_per_s", "the same of each core if all of a node do it"),
    ("new_memory_mb_per_s", "what a core gets of memory that it asks the kernel for"),
    ("query_ns", "what a query takes beyond its columns"),
    ("query_partition_ns", "what each partition of its tables beyond the first adds to that"),
    (
        "device_offload_ns",
        "from the submission of a descriptor to its completion, without the time for its bytes",
    ),
    ("device_descriptor_ns", "least time between two descriptors of an engine"),
    ("device_dispatch_ns", "part of device_offload_ns from a queue to an engine"),
    ("device_batch_ns", "what a device takes to fetch the list of a batch"),
    ("device_member_ns", "what each member adds to that"),
    ("device_page_request_ns", "what a device waits for a page that the operating system brings in"),
    ("device_share", "weight of all devices together against the CPUs of one node, where both use a memory"),
    (
        "thread_skew",
        "spread of the speed of groups of threads: the slowest has 1 - x, the fastest 1 + x of the mean",
    ),
    (
        "submit_ns",
        "what a core works on submitting one descriptor, to a dedicated queue if there is a choice",
    ),
    ("submit_shared_ns", "the same to a shared queue"),
    ("submit_write_ns", "the same by write(2)"),
    ("device_llc_bytes", "part of the last-level cache of a socket that devices may write to"),
    ("device_leaking_mb_per_s", "rate of a device whose writes to the last-level cache exceed that part"),
    (
        "remote_latency_ratio",
        "latency of memory of another socket against the nearest one, where the latencies of links are not known",
    ),
];

/// A machine in numbers. Rates in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// In the order of the machine's nodes.
    pub memories: Vec<NodeMemory>,
    /// `ways[i][j]`: the read rate of the CPUs of node `i` from node `j`; infinite if unknown.
    pub(super) ways: Vec<Vec<f64>>,
    /// The same for writes.
    pub(super) write_ways: Vec<Vec<f64>>,
    /// `None` if unknown; if others are known, such a device does nothing.
    pub(super) device_rates: Vec<Option<f64>>,
    /// Read rate of one core; infinite if unknown.
    pub core_rate: f64,
    pub(super) core_copy_rate: Option<f64>,
    /// Copy rate of all cores of a node together; infinite if unknown.
    pub(super) cores_copy_rate: f64,
    pub(super) core_copy_latency_s: Option<f64>,
    /// `latencies[i][j]`: the latency of memory `j` for the cores of node `i`, relative to the nearest one; 1 if unknown.
    pub(super) latencies: Vec<Vec<f64>>,
    pub(super) worker_wake_s: f64,
    pub(super) worker_warm_s: f64,
    pub(super) device: DeviceFigures,
    /// The weight of all devices together against the CPUs of one node, where both use a memory.
    pub device_share: f64,
    /// The slowest group of threads has 1 - x of the mean speed, the fastest 1 + x.
    pub thread_skew: f64,
}

/// The parameters of devices; `None` if unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeviceFigures {
    offload_ns: Option<f64>,
    descriptor_ns: Option<f64>,
    dispatch_ns: Option<f64>,
    batch_ns: Option<f64>,
    member_ns: Option<f64>,
    page_request_ns: Option<f64>,
    submit_ns: Option<f64>,
    submit_shared_ns: Option<f64>,
    submit_write_ns: Option<f64>,
    llc_bytes: Option<f64>,
    leaking_rate: Option<f64>,
}

impl DeviceFigures {
    /// Seconds from a submission to its completion, without the bytes; 0 if unknown.
    pub(super) fn offload_s(&self) -> f64 {
        self.offload_ns.unwrap_or(0.0) * 1e-9
    }

    /// Least seconds between two descriptors of an engine; 0 if unknown.
    pub(super) fn descriptor_s(&self) -> f64 {
        self.descriptor_ns.unwrap_or(0.0) * 1e-9
    }

    /// The costs of a device that copies at `rate`, for single descriptors in a dedicated queue on present pages. All other
    /// costs are 0, and the time of the dispatch is part of the latency: in such a queue nobody sees the difference.
    pub(super) fn costs_of_singles(&self, rate: f64) -> Result<DeviceCosts, ModelError> {
        let (submit_dedicated_ns, occupancy_ns) =
            (known("submit_ns", self.submit_ns)?, known("device_descriptor_ns", self.descriptor_ns)?);
        let offload_ns = known("device_offload_ns", self.offload_ns)?;
        Ok(DeviceCosts {
            submit_shared_ns: 0,
            submit_dedicated_ns,
            dispatch_ns: 0,
            occupancy_ns,
            latency_ns: offload_ns.saturating_sub(submit_dedicated_ns + occupancy_ns),
            batch_fetch_ns: 0,
            batch_member_ns: 0,
            bytes_per_second: (rate as u64).max(1),
            page_request_ns: 0,
        })
    }

    /// What a submission by write(2) takes of a core.
    pub(super) fn write_ns(&self) -> Result<u64, ModelError> {
        known("submit_write_ns", self.submit_write_ns)
    }

    /// The part of the last-level cache that devices write to.
    pub(super) fn cache_part(&self) -> Result<CachePart, ModelError> {
        Ok(CachePart {
            bytes: known("device_llc_bytes", self.llc_bytes)?,
            leaking_bytes_per_second: known("device_leaking_mb_per_s", self.leaking_rate)?,
        })
    }

    /// All costs of a device that copies at `rate`.
    pub(super) fn costs(&self, rate: f64) -> Result<DeviceCosts, ModelError> {
        let singles = self.costs_of_singles(rate)?;
        let dispatch_ns = known("device_dispatch_ns", self.dispatch_ns)?;
        Ok(DeviceCosts {
            submit_shared_ns: known("submit_shared_ns", self.submit_shared_ns)?,
            dispatch_ns,
            latency_ns: singles.latency_ns.saturating_sub(dispatch_ns),
            batch_fetch_ns: known("device_batch_ns", self.batch_ns)?,
            batch_member_ns: known("device_member_ns", self.member_ns)?,
            page_request_ns: known("device_page_request_ns", self.page_request_ns)?,
            ..singles
        })
    }
}

/// A parameter in whole units, such as nanoseconds, as devices count.
fn known(name: &str, value: Option<f64>) -> Result<u64, ModelError> {
    value
        .map(|value| value.round() as u64)
        .ok_or_else(|| ModelError::Unknown { what: format!("the parameter {name}") })
}

/// The memory of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMemory {
    /// The node.
    pub node: NodeId,
    /// CPUs of the node.
    pub cpus_count: usize,
    /// Rate of many streams together, reads and writes; `None` if unknown.
    pub rate: Option<f64>,
}

impl Hardware {
    /// The numbers of a machine.
    ///
    /// # Errors
    /// [`ModelError::Parameter`]: no model knows the parameter. [`ParameterValue`](ModelError::ParameterValue): the value is
    /// out of range.
    pub fn of(machine: &Machine) -> Result<Hardware, ModelError> {
        for parameter in &machine.parameters {
            if !PARAMETERS.iter().any(|(known, _)| *known == parameter.name) {
                return Err(ModelError::Parameter {
                    machine: machine.name().to_owned(),
                    name: parameter.name.clone(),
                });
            }
            let Parameter { name, value, .. } = parameter;
            let wanted = match name.as_str() {
                "device_share" if *value <= 0.0 => "above 0",
                "remote_latency_ratio" if *value < 1.0 => {
                    "at least 1: far memory is not nearer than near memory"
                }
                "thread_skew" if *value >= 1.0 => "below 1: the slowest threads would stand still",
                rate if rate.ends_with("_mb_per_s") && *value <= 0.0 => "above 0",
                _ => continue,
            };
            let machine = machine.name().to_owned();
            return Err(ModelError::ParameterValue { machine, name: name.clone(), value: *value, wanted });
        }
        let parameter = |name: &str| machine.parameter(name);
        let rate = |name: &str| parameter(name).map(|mb_per_s| mb_per_s * 1e6);
        let seconds = |name: &str| parameter(name).map(|ns| ns * 1e-9);
        let nodes = machine.nodes();
        let read = |cpus: NodeId, memory: NodeId| {
            machine.link(cpus, memory).read_bytes_per_s.map(|rate| rate as f64)
        };
        let write = |cpus: NodeId, memory: NodeId| {
            machine.link(cpus, memory).write_bytes_per_s.map(|rate| rate as f64)
        };
        let memories = nodes.iter().map(|node| NodeMemory {
            node: node.id,
            cpus_count: node.cpus.len(),
            rate: machine.memory_bytes_per_s(node.id).map(|rate| rate as f64),
        });
        let ways = |rate: &dyn Fn(NodeId, NodeId) -> Option<f64>| -> Vec<Vec<f64>> {
            let of =
                |cpus: NodeId| nodes.iter().map(move |memory| rate(cpus, memory.id).unwrap_or(f64::INFINITY));
            nodes.iter().map(|cpus| of(cpus.id).collect()).collect()
        };
        Ok(Hardware {
            memories: memories.collect(),
            ways: ways(&read),
            write_ways: ways(&write),
            device_rates: (machine.accelerators().iter())
                .map(|device| device.bytes_per_s_max.map(|rate| rate as f64))
                .collect(),
            core_rate: rate("core_mb_per_s").unwrap_or(f64::INFINITY),
            core_copy_rate: rate("core_copy_mb_per_s"),
            cores_copy_rate: rate("cores_copy_mb_per_s").unwrap_or(f64::INFINITY),
            core_copy_latency_s: seconds("core_copy_latency_ns"),
            worker_wake_s: seconds("worker_wake_ns").unwrap_or(0.0),
            worker_warm_s: seconds("worker_warm_ns").unwrap_or(0.0),
            device: DeviceFigures {
                offload_ns: parameter("device_offload_ns"),
                descriptor_ns: parameter("device_descriptor_ns"),
                dispatch_ns: parameter("device_dispatch_ns"),
                batch_ns: parameter("device_batch_ns"),
                member_ns: parameter("device_member_ns"),
                page_request_ns: parameter("device_page_request_ns"),
                submit_ns: parameter("submit_ns"),
                submit_shared_ns: parameter("submit_shared_ns"),
                submit_write_ns: parameter("submit_write_ns"),
                llc_bytes: parameter("device_llc_bytes"),
                leaking_rate: rate("device_leaking_mb_per_s"),
            },
            latencies: latencies(machine),
            device_share: parameter("device_share").unwrap_or(1.0),
            thread_skew: parameter("thread_skew").unwrap_or(0.0),
        })
    }

    pub(super) fn position(&self, node: NodeId) -> Result<usize, ModelError> {
        let found = self.memories.iter().position(|memory| memory.node == node);
        found.ok_or_else(|| ModelError::Node {
            node,
            known: self.memories.iter().map(|memory| memory.node).collect(),
        })
    }

    /// The rate of the memory of the machine's node at this position.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn memory_rate(&self, position: usize) -> Result<f64, ModelError> {
        let NodeMemory { node, rate, .. } = self.memories[position];
        rate.ok_or_else(|| ModelError::Unknown { what: format!("the rate of the memory of node {node}") })
    }

    /// What the CPUs of one node get from a memory at most.
    pub(super) fn read_rate(&self, cpus: usize, memory: usize) -> Result<f64, ModelError> {
        let cores = self.core_rate * self.memories[cpus].cpus_count as f64;
        Ok(self.memory_rate(memory)?.min(self.ways[cpus][memory]).min(cores))
    }

    /// Whether it is known what any device copies, or, without devices, a thread.
    pub(super) fn check_copier(&self, is_by_devices: bool) -> Result<(), ModelError> {
        let unknown = |what: &str| Err(ModelError::Unknown { what: what.to_owned() });
        match self.device_rates.is_empty() || !is_by_devices {
            true if self.thread_copy_rate().is_infinite() => unknown("what a core copies"),
            false if self.device_rates.iter().all(Option::is_none) => unknown("the rate of a device"),
            _ => Ok(()),
        }
    }

    /// Copy rate of a thread: half of its read rate, unless it is known.
    pub(super) fn thread_copy_rate(&self) -> f64 {
        self.core_copy_rate.unwrap_or(self.core_rate / 2.0)
    }

    /// Copy rate of a thread of node `cpus` between two memories, by their positions. A core has a fixed number of cache
    /// lines on their way, so that its rate falls as the latencies rise; a device has enough of them for far memory (Kuper
    /// et al. 2024, section 4.2).
    pub(super) fn thread_copy_rate_between(&self, cpus: usize, source: usize, target: usize) -> f64 {
        let latencies = &self.latencies[cpus];
        self.thread_copy_rate() * 2.0 / (latencies[source] + latencies[target])
    }

    /// Rate of these devices together on a long copy, limited by the memories with known rates. Devices of unknown rate do
    /// nothing, as in [`device_shares`](crate::route::device_shares); `None` if
    /// there are no others.
    pub fn copy_rate(&self, devices: &[usize], endpoints: Endpoints) -> Option<f64> {
        let rates = devices.iter().filter_map(|&device| *self.device_rates.get(device)?);
        let devices_rate = rates.reduce(|all, rate| all + rate)?;
        let position = |node: Option<NodeId>| node.and_then(|node| self.position(node).ok());
        let (source, target) = (position(endpoints.source_node), position(endpoints.target_node));
        // Inside one memory each byte passes twice.
        let passes = if source.is_some() && source == target { 2.0 } else { 1.0 };
        let memory_rates = [source, target].into_iter().flatten().filter_map(|node| self.memories[node].rate);
        Some(memory_rates.map(|rate| rate / passes).fold(devices_rate, f64::min))
    }
}

/// The latency of each memory for the cores of each node, relative to the memory that is nearest to them.
fn latencies(machine: &Machine) -> Vec<Vec<f64>> {
    let nodes = machine.nodes();
    let ratio = machine.parameter("remote_latency_ratio").unwrap_or(1.0);
    let of = |cpus: &Node| -> Vec<f64> {
        let latency = |memory: &Node| machine.link(cpus.id, memory.id).read_latency_ns;
        let nearest = nodes.iter().filter_map(latency).reduce(f64::min);
        let relative = |memory: &Node| match (latency(memory), nearest) {
            (Some(latency), Some(nearest)) => latency / nearest,
            _ if cpus.socket.is_some() && memory.socket.is_some() && cpus.socket != memory.socket => ratio,
            _ => 1.0,
        };
        nodes.iter().map(relative).collect()
    };
    nodes.iter().map(of).collect()
}
