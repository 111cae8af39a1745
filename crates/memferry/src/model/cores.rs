//! Times of reads and copies by one or several cores.

use crate::topology::NodeId;

use super::ModelError;
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// Seconds in which each of so many cores of a node reads `size_bytes` of a memory.
///
/// # Errors
/// [`ModelError::Unknown`], [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario) without cores.
pub fn reads_s(
    hardware: &Hardware,
    cpus: NodeId,
    memory: NodeId,
    cores_count: usize,
    size_bytes: f64,
) -> Result<f64, ModelError> {
    let (node, memory) = (hardware.position(cpus)?, hardware.position(memory)?);
    hardware.memory_rate(memory)?;
    let mover = cores(hardware, node, cores_count, f64::INFINITY)?;
    let mut traffic = Traffic::new(hardware, Fairness::default());
    traffic.read(mover, memory, cores_count as f64 * size_bytes, ());
    while traffic.next().is_some() {}
    Ok(traffic.now_s())
}

/// Seconds in which each of so many cores of a node copies `size_bytes` from one memory to another.
///
/// # Errors
/// As [`reads_s`].
pub fn copies_s(
    hardware: &Hardware,
    cpus: NodeId,
    (source, target): (NodeId, NodeId),
    cores_count: usize,
    size_bytes: f64,
) -> Result<f64, ModelError> {
    let position = |node| hardware.position(node);
    let (node, source, target) = (position(cpus)?, position(source)?, position(target)?);
    hardware.memory_rate(source)?;
    hardware.memory_rate(target)?;
    hardware.check_copier(false)?;
    let alone = hardware.thread_copy_rate_between(node, source, target);
    let mover = cores(hardware, node, cores_count, copy_rate(hardware, node, alone, cores_count))?;
    let mut traffic = Traffic::new(hardware, Fairness::default());
    traffic.copy(mover, source, target, cores_count as f64 * size_bytes, ());
    while traffic.next().is_some() {}
    Ok(hardware.core_copy_latency_s.unwrap_or(0.0) + traffic.now_s())
}

/// Seconds of one copy by a sleeping worker of that node, until the caller is woken.
///
/// # Errors
/// As [`reads_s`].
pub fn worker_copy_s(
    hardware: &Hardware,
    cpus: NodeId,
    (source, target): (NodeId, NodeId),
    size_bytes: f64,
) -> Result<f64, ModelError> {
    let warming_s = hardware.worker_warm_s * (size_bytes / WARM_BYTES).min(1.0);
    Ok(hardware.worker_wake_s + warming_s + copies_s(hardware, cpus, (source, target), 1, size_bytes)?)
}

/// Bytes after which a woken worker is as fast as a running one: assumed. On the machine of `results/` its loss grows up
/// to about a megabyte.
const WARM_BYTES: f64 = (1 << 20) as f64;

/// Copy rate of each of so many cores of a node: the more cores, the closer to its part of the rate of all. One has `alone`.
pub(super) fn copy_rate(hardware: &Hardware, node: usize, alone: f64, cores_count: usize) -> f64 {
    let all_count = hardware.memories[node].cpus_count as f64;
    let part = (hardware.cores_copy_rate / all_count).min(alone);
    let share = (cores_count as f64 - 1.0) / (all_count - 1.0).max(1.0);
    alone + share.min(1.0) * (part - alone)
}

/// So many cores of a node, each with at most this rate.
pub(super) fn cores(
    hardware: &Hardware,
    node: usize,
    count: usize,
    rate_of_each: f64,
) -> Result<Mover, ModelError> {
    if count == 0 || count > hardware.memories[node].cpus_count {
        let cpus_count = hardware.memories[node].cpus_count;
        let what = format!("{count} cores are to work on a node that has {cpus_count}");
        return Err(ModelError::Scenario { what });
    }
    let threads_count = count as f64;
    Ok(Mover::Cpus { node, threads_count, speed: 1.0, rate_max: threads_count * rate_of_each })
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::topology::Machine;
    use crate::topology::measured::Measured;
    use crate::topology::parameter::{Basis, Parameter};

    /// Two cores that read 10 GB/s each and copy 4 GB/s each, on a memory with these parameters.
    fn hardware(parameters: &[(&str, f64)]) -> Hardware {
        let cores = [("core_mb_per_s", 1e4), ("core_copy_mb_per_s", 4e3), ("core_copy_latency_ns", 1e3)];
        let parameter = |&(name, value): &(&str, f64)| Parameter {
            name: name.to_owned(),
            value,
            basis: Basis::Measured,
            rows: Vec::new(),
            source: "a test".to_owned(),
        };
        let measured = Measured {
            parameters: cores.iter().chain(parameters).map(parameter).collect(),
            ..Measured::default()
        };
        Hardware::of(&Machine::two_tiers().unwrap().with_measured(measured).unwrap()).unwrap()
    }

    const HERE: NodeId = NodeId(0);

    #[test]
    fn a_core_is_what_limits_until_the_memory_does() {
        let wide = hardware(&[("dram_mb_per_s", 1e5)]);
        assert!((reads_s(&wide, HERE, HERE, 1, 1e10).unwrap() - 1.0).abs() < 1e-6);
        assert!((reads_s(&wide, HERE, HERE, 2, 1e10).unwrap() - 1.0).abs() < 1e-6);
        assert!((copies_s(&wide, HERE, (HERE, HERE), 2, 4e9).unwrap() - 1.000_001).abs() < 1e-6);
        let narrow = hardware(&[("dram_mb_per_s", 1e4)]);
        assert!((reads_s(&narrow, HERE, HERE, 2, 1e10).unwrap() - 2.0).abs() < 1e-6);
        // Both copy 4 GB/s, which takes 16 GB/s of a memory that has 10.
        assert!((copies_s(&narrow, HERE, (HERE, HERE), 2, 4e9).unwrap() - 1.600_001).abs() < 1e-6);
    }

    #[test]
    fn cores_that_copy_are_in_each_others_way() {
        let crowded = hardware(&[("dram_mb_per_s", 1e5), ("cores_copy_mb_per_s", 5e3)]);
        let of = |count| copies_s(&crowded, HERE, (HERE, HERE), count, 4e9).unwrap();
        assert!((of(1) - 1.000_001).abs() < 1e-6, "alone it is as fast as ever: {}", of(1));
        assert!((of(2) - 1.600_001).abs() < 1e-6, "both together copy 5 GB/s: {}", of(2));
        let roomy = hardware(&[("dram_mb_per_s", 1e5), ("cores_copy_mb_per_s", 9e3)]);
        assert!((copies_s(&roomy, HERE, (HERE, HERE), 2, 4e9).unwrap() - 1.000_001).abs() < 1e-6);
    }

    /// A core waits longer for lines of another socket, and has as many on their way.
    #[test]
    fn copies_to_another_socket_are_slower() {
        const PROFILE: &str = include_str!("../../machines/xeon-max-9468-2s-flat.json");
        let (here, hbm, there) = (NodeId(0), NodeId(8), NodeId(4));
        let rate = |hardware: &Hardware, source, target, cores| {
            cores as f64 * 1e9 / (copies_s(hardware, here, (source, target), cores, 1e9).unwrap() - 80.35e-9)
        };
        let xeon_max = Hardware::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap();
        let near = rate(&xeon_max, here, hbm, 1);
        assert!((near / 5574.5e6 - 1.0).abs() < 1e-6, "{near}");
        let far = rate(&xeon_max, here, there, 1) / near;
        assert!((far - 2.0 / 2.734).abs() < 1e-3, "{far}");
        assert!((rate(&xeon_max, there, there, 1) / near - 1.0 / 1.734).abs() < 1e-3);
        assert!(rate(&xeon_max, here, there, 12) < 0.8 * rate(&xeon_max, here, hbm, 12));
        // Measured latencies come first.
        let row = |node: usize| -> Vec<f64> {
            (0..16).map(|memory| if (memory % 8 < 4) == (node < 4) { 100.0 } else { 300.0 }).collect()
        };
        let latencies: Vec<Vec<f64>> = (0..16).map(row).collect();
        let text = PROFILE.replace(
            "\"read_latency_ns\": null",
            &format!("\"read_latency_ns\": {{\"value\": {latencies:?}, \"source\": \"Fürst 2024, a test\"}}"),
        );
        let measured = Hardware::of(&Machine::from_profile_text("made up", &text).unwrap()).unwrap();
        assert!((rate(&measured, here, there, 1) / near - 0.5).abs() < 1e-3);
    }

    #[test]
    fn a_worker_has_to_wake() {
        let sleepy = hardware(&[("dram_mb_per_s", 1e5), ("worker_wake_ns", 5e3)]);
        let awake = copies_s(&sleepy, HERE, (HERE, HERE), 1, 1e6).unwrap();
        assert!((worker_copy_s(&sleepy, HERE, (HERE, HERE), 1e6).unwrap() - awake - 5e-6).abs() < 1e-9);
        let cold = hardware(&[("dram_mb_per_s", 1e5), ("worker_warm_ns", 8e3)]);
        for (bytes, warming_s) in [(WARM_BYTES / 4.0, 2e-6), (WARM_BYTES, 8e-6), (1e8, 8e-6)] {
            let warm = copies_s(&cold, HERE, (HERE, HERE), 1, bytes).unwrap();
            let slept = worker_copy_s(&cold, HERE, (HERE, HERE), bytes).unwrap();
            assert!((slept - warm - warming_s).abs() < 1e-9, "{bytes}: {slept} and {warm}");
        }
    }

    #[test]
    fn what_cannot_be_asked() {
        let wide = hardware(&[("dram_mb_per_s", 1e5)]);
        assert!(matches!(reads_s(&wide, HERE, HERE, 3, 1.0), Err(ModelError::Scenario { .. })));
        assert!(matches!(reads_s(&wide, HERE, NodeId(7), 1, 1.0), Err(ModelError::Node { .. })));
        assert!(matches!(reads_s(&hardware(&[]), HERE, HERE, 1, 1.0), Err(ModelError::Unknown { .. })));
    }
}
