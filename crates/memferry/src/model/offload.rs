//! Costs of a copy on a device, on several devices, and on a core.
//!
//! ```text
//! core      latency + size / core's rate
//! device    as the emulated device: `memferry_dsa::internals::device_time`
//! ```
//!
//! Source: figures 2 to 4 in Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel
//! 4th Gen Xeon Scalable Processors" (2024).

use memferry_dsa::DeviceCosts;
use memferry_dsa::internals::device_time::{
    AbsentPages, CachePart, DeviceLoad, QueueLoad, SubmitterLoad, SubmitterTime, run,
};

use crate::route::{Endpoints, Route, device_shares};
use crate::topology::{Machine, NodeId};

use super::ModelError;
use super::hardware::{DeviceFigures, Hardware};
use super::traffic::{Fairness, Mover, Traffic};

/// Costs of copies on one device of a machine, and on one of its cores. Times in seconds, rates in bytes per second.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offload {
    singles: DeviceCosts,
    figures: DeviceFigures,
    core_rate: f64,
    core_latency_s: f64,
}

impl Offload {
    /// Of the machine's first device whose rate is known.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn of(hardware: &Hardware) -> Result<Offload, ModelError> {
        let unknown = |what: &str| ModelError::Unknown { what: what.to_owned() };
        let rate = hardware.device_rates.iter().find_map(|rate| *rate);
        Ok(Offload {
            singles: hardware
                .device
                .costs_of_singles(rate.ok_or_else(|| unknown("the rate of a device"))?)?,
            figures: hardware.device,
            core_rate: hardware.core_copy_rate.ok_or_else(|| unknown("the copy rate of a core"))?,
            core_latency_s: (hardware.core_copy_latency_s)
                .ok_or_else(|| unknown("the latency of a copy by a core"))?,
        })
    }

    /// A copy by a core.
    pub fn core_s(&self, bytes: f64) -> f64 {
        self.core_latency_s + bytes / self.core_rate
    }

    /// Rates and costs of the device.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn costs(&self) -> Result<DeviceCosts, ModelError> {
        self.figures.costs(self.device_rate())
    }

    /// The costs of single copies in a dedicated queue, with all pages present; the others are 0.
    pub fn costs_of_singles(&self) -> DeviceCosts {
        self.singles
    }

    /// The costs of a device that writes to the last-level cache, where all devices of the socket together write to
    /// `footprint_bytes` again and again.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn costs_into_cache(&self, footprint_bytes: u64) -> Result<DeviceCosts, ModelError> {
        Ok(self.cache_part()?.apply(self.costs()?, footprint_bytes))
    }

    /// The part of the last-level cache that devices write to.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn cache_part(&self) -> Result<CachePart, ModelError> {
        self.figures.cache_part()
    }

    /// What a submission by write(2) takes of a core.
    ///
    /// # Errors
    /// [`ModelError::Unknown`].
    pub fn submit_write_ns(&self) -> Result<u64, ModelError> {
        self.figures.write_ns()
    }

    /// A copy through a dedicated queue, until it is complete.
    pub fn waited_for_s(&self, bytes: f64) -> f64 {
        elapsed_s(self.singles, bytes, 1, 1, 1)
    }

    /// Rate of a submitter with so many copies in flight in a dedicated queue.
    pub fn rate(&self, bytes: f64, in_flight: usize) -> f64 {
        rate(self.singles, bytes, 1, in_flight)
    }

    /// The same of batches of `batch` copies of `bytes` each.
    ///
    /// # Errors
    /// [`ModelError::Unknown`]: what batches cost.
    pub fn batch_rate(&self, bytes: f64, batch: usize, in_flight: usize) -> Result<f64, ModelError> {
        let costs = if batch > 1 { self.costs()? } else { self.singles };
        Ok(rate(costs, bytes, batch, in_flight))
    }

    /// The rate of `devices` devices with batches that each write to the last-level cache.
    ///
    /// # Errors
    /// [`ModelError::Unknown`]: what batches cost, or the part of the cache that devices write to.
    pub fn batch_rate_into_cache(
        &self,
        bytes: f64,
        batch: usize,
        in_flight: usize,
        devices: usize,
    ) -> Result<f64, ModelError> {
        let footprint = bytes * (batch * in_flight * devices) as f64;
        let costs = self.costs_into_cache(footprint.round() as u64)?;
        Ok(devices as f64 * rate(costs, bytes, batch, in_flight))
    }

    /// Rate of `submitters` submitters that share a queue and an engine, each with `in_flight` batches.
    ///
    /// # Errors
    /// [`ModelError::Unknown`]: what batches and shared queues cost.
    pub fn shared_rate(
        &self,
        bytes: f64,
        batch: usize,
        in_flight: usize,
        submitters: usize,
    ) -> Result<f64, ModelError> {
        let costs = self.costs()?;
        let queue = QueueLoad { group: 0, entries: 128, priority: 1, submit_ns: costs.submit_shared_ns };
        let seconds = |repetitions| {
            let submitter = SubmitterLoad {
                queue: 0,
                bytes: bytes.round() as u64,
                batch: batch as u32,
                depth: in_flight,
                repetitions,
                absent: AbsentPages::None,
            };
            let submitters = &vec![submitter; submitters];
            elapsed_of(&DeviceLoad { costs, groups: &[1], read_buffers: &[], queues: &[queue], submitters })
        };
        let (short, long) = (4 * in_flight, 8 * in_flight);
        let copied = ((long - short) * submitters * batch) as f64 * bytes;
        Ok(copied / (seconds(long) - seconds(short)))
    }

    /// Rate of an engine whose queue is never empty.
    pub fn pipelined_rate(&self, bytes: f64) -> f64 {
        self.device_rate().min(bytes * 1e9 / self.singles.occupancy_ns as f64)
    }

    /// Smallest size for which waiting for the device takes no longer than a core's copy.
    pub fn break_even_waited_bytes(&self) -> f64 {
        smallest(|bytes| self.waited_for_s(bytes) <= self.core_s(bytes))
    }

    /// Smallest size for which the device, always busy, is no slower than a core.
    pub fn break_even_pipelined_bytes(&self) -> f64 {
        smallest(|bytes| bytes / self.pipelined_rate(bytes) <= self.core_s(bytes))
    }

    /// Smallest size at which a busy device reaches its rate.
    pub fn saturation_bytes(&self) -> f64 {
        self.device_rate() * self.singles.occupancy_ns as f64 * 1e-9
    }

    /// Time of a core for one submission.
    pub fn submit_s(&self) -> f64 {
        self.singles.submit_dedicated_ns as f64 * 1e-9
    }

    /// Share of a waited-for copy in which the core may sleep.
    pub fn asleep(&self, bytes: f64) -> f64 {
        1.0 - self.submit_s() / self.waited_for_s(bytes)
    }

    /// Rate of the device.
    pub fn device_rate(&self) -> f64 {
        self.singles.bytes_per_second as f64
    }
}

/// Rate of a submitter with so many submissions in flight.
fn rate(costs: DeviceCosts, bytes: f64, batch: usize, in_flight: usize) -> f64 {
    // The time between two long runs is that of a queue that is never empty. No device has more entries.
    let in_flight = in_flight.clamp(1, 1024);
    let (short, long) = (2 * in_flight, 4 * in_flight);
    let seconds = |count| elapsed_s(costs, bytes, batch, in_flight, count);
    (long - short) as f64 * bytes * batch as f64 / (seconds(long) - seconds(short))
}

fn elapsed_s(costs: DeviceCosts, bytes: f64, batch: usize, depth: usize, repetitions: usize) -> f64 {
    let queue = QueueLoad { group: 0, entries: depth, priority: 1, submit_ns: costs.submit_dedicated_ns };
    let submitter = SubmitterLoad {
        queue: 0,
        bytes: bytes.round() as u64,
        batch: batch as u32,
        depth,
        repetitions,
        absent: AbsentPages::None,
    };
    let load =
        DeviceLoad { costs, groups: &[1], read_buffers: &[], queues: &[queue], submitters: &[submitter] };
    elapsed_of(&load)
}

/// Seconds until the last submitter is done.
fn elapsed_of(load: &DeviceLoad<'_>) -> f64 {
    run(load).iter().map(|time: &SubmitterTime| time.elapsed_ns).max().unwrap_or(0) as f64 * 1e-9
}

/// Smallest size from which on a condition holds; infinite if there is none below 1 GiB.
fn smallest(holds: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, f64::from(1 << 30));
    if !holds(high) {
        return f64::INFINITY;
    }
    while high - low > 1e-3 {
        let middle = (low + high) / 2.0;
        if holds(middle) { high = middle } else { low = middle }
    }
    high
}

/// Time of one copy that the devices of a route share, until the last of them is done.
///
/// # Errors
/// [`ModelError::Unknown`] if the machine has no device or a device's rate is not known, [`Node`](ModelError::Node).
pub fn copy_s(
    machine: &Machine,
    hardware: &Hardware,
    route: Route,
    endpoints: Endpoints,
) -> Result<f64, ModelError> {
    let node = |node: Option<NodeId>| {
        hardware.position(node.ok_or_else(|| ModelError::Unknown { what: "a node of the copy".into() })?)
    };
    let (source, target) = (node(endpoints.source_node)?, node(endpoints.target_node)?);
    let shares = device_shares(route, machine, endpoints);
    if shares.is_empty() || shares.iter().any(|share| hardware.device_rates[share.engine].is_none()) {
        return Err(ModelError::Unknown { what: format!("what the devices of {} copy", machine.name()) });
    }
    let mut traffic = Traffic::new(hardware, Fairness::default());
    for share in &shares {
        traffic.copy(Mover::Device(share.engine), source, target, share.bytes.len() as f64, ());
    }
    while traffic.next().is_some() {}
    Ok(hardware.device.offload_s() + traffic.now_s())
}
