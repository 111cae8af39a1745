//! Costs of a copy on a device, on several devices, and on a core.
//!
//! ```text
//! core          latency + size / core's rate
//! one at a time offload + size / device's rate
//! a batch of n  offload + n x max(size / device's rate, time per descriptor)
//! pipelined     max(size / device's rate, time per descriptor) per descriptor
//! ```
//!
//! Source: the shape of figures 2 to 4 in Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming
//! Accelerator in Intel 4th Gen Xeon Scalable Processors" (2024).

use crate::route::{Endpoints, Route, device_shares};
use crate::topology::{Machine, NodeId};

use super::ModelError;
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// Costs of copies on one device of a machine, and on one of its cores. Times in seconds, rates in bytes per second.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Offload {
    device_rate: f64,
    offload_s: f64,
    descriptor_s: f64,
    submit_s: f64,
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
        Ok(Offload {
            device_rate: (hardware.device_rates.iter().find_map(|rate| *rate))
                .ok_or_else(|| unknown("the rate of a device"))?,
            offload_s: hardware.offload_s,
            descriptor_s: hardware.descriptor_s,
            submit_s: hardware.submit_s,
            core_rate: hardware.core_copy_rate.ok_or_else(|| unknown("the copy rate of a core"))?,
            core_latency_s: (hardware.core_copy_latency_s)
                .ok_or_else(|| unknown("the latency of a copy by a core"))?,
        })
    }

    /// A copy by a core.
    pub fn core_s(&self, bytes: f64) -> f64 {
        self.core_latency_s + bytes / self.core_rate
    }

    /// A submission of `batch` copies of `bytes` each, until the last is complete.
    pub fn waited_for_s(&self, bytes: f64, batch: usize) -> f64 {
        let one = bytes / self.device_rate;
        self.offload_s + if batch <= 1 { one } else { batch as f64 * one.max(self.descriptor_s) }
    }

    /// Rate with so many submissions in flight: entries of the queue, or threads that each wait for theirs.
    pub fn rate(&self, bytes: f64, batch: usize, in_flight: usize) -> f64 {
        let batch_bytes = bytes * batch.max(1) as f64;
        let submitted = in_flight as f64 * batch_bytes / self.waited_for_s(bytes, batch);
        if in_flight <= 1 { submitted } else { submitted.min(self.pipelined_rate(bytes)) }
    }

    /// Rate of a queue that is never empty.
    pub fn pipelined_rate(&self, bytes: f64) -> f64 {
        self.device_rate.min(bytes / self.descriptor_s)
    }

    /// Smallest size for which waiting for the device takes no longer than a core's copy.
    pub fn break_even_waited_bytes(&self) -> f64 {
        smallest(|bytes| self.waited_for_s(bytes, 1) <= self.core_s(bytes))
    }

    /// Smallest size for which the device, always busy, is no slower than a core.
    pub fn break_even_pipelined_bytes(&self) -> f64 {
        smallest(|bytes| bytes / self.pipelined_rate(bytes) <= self.core_s(bytes))
    }

    /// Smallest size at which a busy device reaches its rate.
    pub fn saturation_bytes(&self) -> f64 {
        self.device_rate * self.descriptor_s
    }

    /// Time of a core for one submission.
    pub fn submit_s(&self) -> f64 {
        self.submit_s
    }

    /// Share of a waited-for copy in which the core may sleep.
    pub fn asleep(&self, bytes: f64) -> f64 {
        1.0 - self.submit_s / self.waited_for_s(bytes, 1)
    }

    /// Rate of the device.
    pub fn device_rate(&self) -> f64 {
        self.device_rate
    }
}

/// Smallest size, within a thousandth of a byte, from which on a condition holds; infinite if there is none below 1 GiB.
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
    Ok(hardware.offload_s + traffic.now_s())
}
