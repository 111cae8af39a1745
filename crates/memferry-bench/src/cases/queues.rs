//! Cores that share the queues of devices and wait for each copy: their gain by the number of cores.
//!
//! The rules of the devices are those of the emulated one. Each queue has a device of its own, and each copy goes to the
//! next queue. A core works, submits a copy, waits for it, and works again. Copies by cores do not slow each other down.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memferry::internals::Offload;
use memferry::model::ModelError;
use memferry_dsa::DeviceCosts;
use memferry_dsa::internals::device_time::{Bandwidth, EngineTime};

use super::cache_server::Mix;

/// Copies of each core in a run: the first ones, which find empty queues, do not count much.
const COPIES: usize = 500;
/// "beyond": a gain below this part of the gain of one core counts as lower.
const FULL: f64 = 0.95;
const CORES_MAX: usize = 64;

/// Copies per nanosecond of so many cores.
fn copies_per_ns(costs: &DeviceCosts, queues: usize, cores: usize, work_ns: u64, bytes: u64) -> f64 {
    let mut devices = vec![(EngineTime::default(), Bandwidth::default()); queues];
    // When a core submits next. All submissions take equally long, so that they arrive in this order.
    let mut submits: BinaryHeap<Reverse<u64>> = (0..cores as u64).map(Reverse).collect();
    let mut end_ns = 0;
    for copy in 0..COPIES * cores {
        let Some(Reverse(now_ns)) = submits.pop() else { break };
        let (engine, bandwidth) = &mut devices[copy % queues];
        engine.begin(now_ns + costs.submit_shared_ns + costs.dispatch_ns, costs);
        engine.work_until(bandwidth.pass(engine.free_ns(), bytes, costs.bytes_per_second));
        let done_ns = engine.free_ns() + costs.latency_ns;
        end_ns = end_ns.max(done_ns + work_ns);
        submits.push(Reverse(done_ns + work_ns));
    }
    (COPIES * cores) as f64 / end_ns as f64
}

/// The gain of so many cores that serve the publication's mix of values through shared queues, over the same cores without a
/// device.
///
/// # Errors
/// [`ModelError::Unknown`]: the profile lacks the costs of a device.
pub fn gain_by_cores(offload: &Offload, queues: usize, cores: usize) -> Result<f64, ModelError> {
    let costs = offload.costs()?;
    let (bytes, work_ns) = Mix::large_copy(|bytes| offload.core_s(bytes) * 1e9);
    let without_ns = work_ns + offload.core_s(bytes) * 1e9;
    let with = copies_per_ns(&costs, queues, cores, work_ns.round() as u64, bytes.round() as u64);
    Ok(with * without_ns / cores as f64)
}

/// The most cores whose gain is still that of one core, within 5 %.
///
/// # Errors
/// As [`gain_by_cores`].
pub fn full_gain_cores(offload: &Offload, queues: usize) -> Result<usize, ModelError> {
    let one = gain_by_cores(offload, queues, 1)?;
    for cores in 2..=CORES_MAX {
        if gain_by_cores(offload, queues, cores)? < FULL * one {
            return Ok(cores - 1);
        }
    }
    Ok(CORES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: DeviceCosts = DeviceCosts::sapphire_rapids();

    #[test]
    fn cores_gain_until_the_devices_are_busy() {
        let bytes = 300_000;
        let waited_ns = COSTS.submit_shared_ns
            + COSTS.dispatch_ns
            + COSTS.occupancy_ns
            + COSTS.transfer_ns(bytes)
            + COSTS.latency_ns;
        let one = copies_per_ns(&COSTS, 4, 1, 1000, bytes);
        assert!((one * (waited_ns + 1000) as f64 - 1.0).abs() < 1e-2, "{one}");
        let four = copies_per_ns(&COSTS, 4, 4, 1000, bytes);
        assert!((four / one / 4.0 - 1.0).abs() < 0.02, "a device for each: {four}");
        // Four devices move no more than their rates.
        let many = copies_per_ns(&COSTS, 4, 40, 1000, bytes);
        let most = 4.0 / COSTS.transfer_ns(bytes) as f64;
        assert!((0.95..1.0).contains(&(many / most)), "{many} of {most}");
        assert!(copies_per_ns(&COSTS, 8, 40, 1000, bytes) > 1.9 * many, "twice as many");
    }
}
