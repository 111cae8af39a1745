//! Copies by the devices of this machine: their rates, and the costs of a core.
//!
//! ```text
//! rate        large copies, many in flight, of memory that no cache holds
//! submitting  small copies, many in flight: time of the core for submissions
//! descriptor  the same without reading the clock: time between two descriptors
//! offload     a small copy at a time, less the time of its bytes
//! ```
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), sections 4.1 and 4.2: 32 in flight, and one engine reaches the rate of its device.

use std::sync::Arc;
use std::time::Instant;

use memferry::internals::{Basis, Fact, Parameter};
use memferry::memory::{Binding, Mapping, MemoryError};
use memferry::topology::{Machine, Node, NodeId};
use memferry_dsa::internals::portal::OpenQueues;
use memferry_dsa::system::QueueFilter;
use memferry_dsa::{Opcode, OperationSet, Portal, QueueMode};

use super::sampling::Sampler;
use super::{fact, parameter};
use crate::dsa::load::{self, Lane, Load, LoadError, LoadOperation, PageState, Placed, prepare, threads};

/// Copies in flight.
const DEPTH: usize = 32;
/// Large: the device spends its time on bytes.
const LARGE_BYTES: u32 = 1 << 20;
/// The size from which Kuper et al. find a device worth waiting for; its bytes take a small part of the time.
const WAITED_BYTES: u32 = 4 << 10;
/// Small: the device spends its time on descriptors.
const SMALL_BYTES: u32 = 256;

/// Sampled values of a device.
pub(super) const FIGURES_COUNT: usize = 4;

/// The rate of a device, and the costs of a core to use it. Times are the minima in seconds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MeasuredCosts {
    /// Name in the kernel, `dsa0`.
    pub device: String,
    /// The queue, and the memories of source and target.
    pub conditions: String,
    /// Whether it is emulated.
    pub is_emulated: bool,
    /// Copies in flight, where that is not 1: 32, or the size of the queue.
    pub depth: usize,
    /// Size of large copies: 1 MiB, or the maximum of the queue.
    pub size_bytes: u32,
    /// Rate of large copies, with `depth` in flight.
    pub bytes_per_s: f64,
    /// Time of a core per submission of small copies, with `depth` in flight.
    pub submit_s: f64,
    /// Time from one small copy to the next, with `depth` in flight.
    pub descriptor_s: f64,
    /// Time of a 4 KiB copy with a waiter.
    pub waited_s: f64,
}

impl MeasuredCosts {
    /// Time of a copy with a waiter beyond its bytes.
    pub fn offload_s(&self) -> f64 {
        (self.waited_s - f64::from(WAITED_BYTES) / self.bytes_per_s).max(0.0)
    }

    fn or_better(self, other: MeasuredCosts) -> MeasuredCosts {
        MeasuredCosts {
            bytes_per_s: self.bytes_per_s.max(other.bytes_per_s),
            submit_s: self.submit_s.min(other.submit_s),
            descriptor_s: self.descriptor_s.min(other.descriptor_s),
            waited_s: self.waited_s.min(other.waited_s),
            ..self
        }
    }

    fn basis(&self) -> Basis {
        if self.is_emulated { Basis::Emulated } else { Basis::Measured }
    }

    /// Measured quantity and conditions, as a source of the measurement `name`.
    fn how(&self, name: &str, size_bytes: u32, depth: usize) -> String {
        let emulated = if self.is_emulated { ", which is emulated" } else { "" };
        let MeasuredCosts { device, conditions, .. } = self;
        format!(
            "{name}: copies of {size_bytes} bytes, {depth} under way, by {device}{emulated}, {conditions}"
        )
    }
}

/// The devices of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Devices {
    /// The measured devices.
    pub costs: Vec<MeasuredCosts>,
    /// One sentence per device, queue or driver that cannot be used, or only in part.
    pub diagnostics: Vec<String>,
}

impl Devices {
    /// Merges two passes. A device that failed in one keeps the values of the other.
    pub(super) fn or_better(mut self, other: Devices) -> Devices {
        for other in other.costs {
            match self.costs.iter().position(|one| one.device == other.device) {
                Some(index) => self.costs[index] = self.costs[index].clone().or_better(other),
                None => self.costs.push(other),
            }
        }
        let new: Vec<_> = other.diagnostics.into_iter().filter(|it| !self.diagnostics.contains(it)).collect();
        self.diagnostics.extend(new);
        self
    }

    /// Bytes per second by the name in the kernel.
    pub(super) fn rates(&self) -> Vec<(String, u64)> {
        self.costs.iter().map(|it| (it.device.clone(), it.bytes_per_s as u64)).collect()
    }

    /// Parameters of the first device, for models of a single device.
    pub(super) fn parameters(&self, name: &str) -> Vec<Parameter> {
        let Some(costs) = self.costs.first() else { return Vec::new() };
        let parameter = |it: &str, seconds: f64, (size_bytes, depth): (u32, usize)| Parameter {
            basis: costs.basis(),
            ..parameter(it, seconds * 1e9, &costs.how(name, size_bytes, depth))
        };
        vec![
            parameter("device_offload_ns", costs.offload_s(), (WAITED_BYTES, 1)),
            parameter("device_descriptor_ns", costs.descriptor_s, (SMALL_BYTES, costs.depth)),
            parameter("submit_ns", costs.submit_s, (SMALL_BYTES, costs.depth)),
        ]
    }

    pub(super) fn facts(&self, name: &str) -> Vec<Fact> {
        let facts = |costs: &MeasuredCosts| {
            let of = |size_bytes| costs.how(name, size_bytes, costs.depth);
            let (copy, submit) = (format!("copy_{}", costs.device), format!("submit_{}", costs.device));
            [
                fact(copy, costs.bytes_per_s / 1e6, "MB/s", &of(costs.size_bytes)),
                fact(submit, costs.submit_s * 1e9, "ns", &of(SMALL_BYTES)),
            ]
        };
        self.costs.iter().flat_map(facts).collect()
    }
}

/// A device, through one of its queues.
pub(super) struct Device {
    pub(super) name: String,
    portal: Arc<dyn Portal>,
    /// The queue, and the way of submission.
    queue: String,
    is_emulated: bool,
}

/// A device that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unmeasured {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Device(#[from] LoadError),
}

/// The usable devices of the machine, each through its first usable queue, and the reasons why others are not usable.
pub(super) fn open(machine: &Machine, are_emulated: bool) -> (Vec<Device>, Vec<String>) {
    let wanted = QueueFilter { operations: OperationSet::of(&[Opcode::Memmove]), ..QueueFilter::default() };
    let OpenQueues { queues, diagnostics } = match OpenQueues::open(&wanted) {
        Ok(usable) => usable,
        Err(error) => return (Vec::new(), vec![error.to_string()]),
    };
    let mut devices: Vec<Device> = Vec::new();
    for it in queues {
        let name = it.device.to_string();
        // A device that appeared after the discovery of the machine; the next calibration measures it.
        let is_known = machine.accelerators().iter().any(|device| device.name == name);
        if !is_known || devices.iter().any(|device| device.name == name) {
            continue;
        }
        let info = it.portal.work_queue();
        let way = match (it.portal.write_reason(), info.mode) {
            (Some(why), _) => format!("write(2), since {why}"),
            (None, QueueMode::Shared) => "ENQCMD".to_owned(),
            (None, QueueMode::Dedicated) => "MOVDIR64B".to_owned(),
        };
        let queue = format!("queue {} by {way}", info.name);
        devices.push(Device { name, queue, is_emulated: are_emulated, portal: it.portal });
    }
    (devices, diagnostics)
}

impl Device {
    /// Measures one pass, with memory near the device, or of `home` if its node is not known.
    pub(super) fn measure(
        &self,
        machine: &Machine,
        home: &Node,
        sampler: &mut Sampler,
    ) -> Result<MeasuredCosts, Unmeasured> {
        let info = self.portal.work_queue();
        let is_of_use = |node: &&Node| node.has_memory() && node.is_allowed;
        let near = info.node.and_then(|node| machine.node(NodeId(node)).ok()).filter(is_of_use);
        let node = near.unwrap_or(home);
        // Between two memories, as in prefetching: within one memory each byte passes twice, and it might be slower.
        let target = machine.nearest_faster(node.id).map_or(node.id, |node| node.id);
        // A queue with room for all copies: otherwise a submission would wait for the device.
        let entries = if info.mode == QueueMode::Shared { info.threshold } else { info.size };
        let depth = DEPTH.min(entries as usize).max(1);
        let size_bytes = LARGE_BYTES.min(info.transfer_bytes_max);
        let (scale, count) = if sampler.effort.is_quick { (1, 64) } else { (2, 4096) };
        let large = Load {
            work: LoadOperation::Copy,
            size_bytes,
            batch: 1,
            depth,
            repetitions: scale * depth,
            pages: PageState::Touched,
        };
        let region = |bytes: usize, node: NodeId| {
            let mut mapping = Mapping::new(machine, bytes, Binding::Bind(node))?;
            prepare(&mut mapping);
            Ok::<_, MemoryError>(mapping)
        };
        let bytes = Lane::<Mapping>::region_bytes(&large);
        let lane = Lane {
            load: large,
            executor: load::Executor::Queue(Arc::clone(&self.portal)),
            cpu: machine.node(node.cpu_node).ok().and_then(|node| node.allowed_cpus.first().copied()),
            times_submissions: false,
            placed: Placed::default(),
            // A copy has no third region.
            regions: [region(bytes, node.id)?, region(bytes, target)?, region(1, node.id)?],
        };
        let (large_s, _, lane) = seconds(lane, sampler)?;
        let small = Load { size_bytes: SMALL_BYTES, repetitions: count, ..large };
        let (small_s, _, lane) = seconds(Lane { load: small, ..lane }, sampler)?;
        let (_, submitting_s, lane) = seconds(Lane { times_submissions: true, ..lane }, sampler)?;
        let waited = Load { size_bytes: WAITED_BYTES, depth: 1, ..small };
        let (waited_s, ..) = seconds(Lane { load: waited, times_submissions: false, ..lane }, sampler)?;
        Ok(MeasuredCosts {
            device: self.name.clone(),
            conditions: format!("{}, from node {} to node {target}", self.queue, node.id),
            is_emulated: self.is_emulated,
            depth,
            size_bytes,
            bytes_per_s: f64::from(size_bytes) / large_s,
            submit_s: (submitting_s - clock_s()).max(0.0),
            descriptor_s: small_s,
            waited_s,
        })
    }
}

/// Undisturbed seconds per descriptor of a load, and per submission if that is timed; and the lane, for the next load.
fn seconds(lane: Lane<Mapping>, sampler: &mut Sampler) -> Result<(f64, f64, Lane<Mapping>), LoadError> {
    let repetitions = lane.load.repetitions as f64;
    let (first, lanes) = threads(vec![lane], 1)?;
    let more = sampler.more(first[0][0].elapsed_ns * 1e-9);
    let (others, mut lanes) = threads(lanes, more)?;
    let seen = || first.iter().chain(&others).flatten();
    let least = |ns: &mut dyn Iterator<Item = f64>| ns.fold(f64::INFINITY, f64::min) * 1e-9 / repetitions;
    let elapsed_s = least(&mut seen().map(|seen| seen.elapsed_ns));
    let submitting_s = least(&mut seen().filter_map(|seen| seen.submitting_ns));
    Ok((elapsed_s, submitting_s, lanes.remove(0)))
}

/// Time of two readings of the clock, which is part of each timed submission.
fn clock_s() -> f64 {
    let look = |_| {
        let begin = Instant::now();
        begin.elapsed().as_secs_f64()
    };
    (0..1000).map(look).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{SamplingPlan, home};
    use super::*;
    use crate::dsa::device;

    fn costs(bytes_per_s: f64, seconds: f64) -> MeasuredCosts {
        MeasuredCosts {
            device: "dsa0".to_owned(),
            conditions: "queue wq0.0 by ENQCMD, from node 0 to node 0".to_owned(),
            is_emulated: false,
            depth: 32,
            size_bytes: 1 << 20,
            bytes_per_s,
            submit_s: seconds,
            descriptor_s: seconds,
            waited_s: seconds,
        }
    }

    #[test]
    fn a_device_is_measured_or_says_why_not() {
        let machine = Machine::discover().unwrap();
        let emulator = device::emulated().unwrap();
        let device = Device {
            name: "dsa0".to_owned(),
            portal: emulator.portal(0),
            queue: "queue wq0.0".to_owned(),
            is_emulated: true,
        };
        let home = home(&machine).unwrap();
        // Enough time for all samples on a slow machine.
        let effort = SamplingPlan { limit: Duration::MAX, ..SamplingPlan::QUICK };
        let mut sampler = Sampler::new(effort, FIGURES_COUNT);
        let costs = device.measure(&machine, home, &mut sampler).unwrap();
        assert!(costs.bytes_per_s > 0.0 && costs.descriptor_s > 0.0 && costs.waited_s > 0.0, "{costs:?}");
        assert!(costs.submit_s.is_finite(), "{costs:?}");
        // Of each of four figures two samples.
        let per_figure = [DEPTH, 64, 64, 64].map(|count| 2 * count as u64);
        assert_eq!(emulator.counters().completed_count(), per_figure.iter().sum::<u64>());

        let devices = Devices { costs: vec![costs], diagnostics: Vec::new() };
        let parameters = devices.parameters("a test");
        assert_eq!(
            parameters.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            ["device_offload_ns", "device_descriptor_ns", "submit_ns"]
        );
        for it in &parameters {
            assert!(it.basis == Basis::Emulated && it.source.contains("emulated, queue wq0.0"), "{it:?}");
        }
        emulator.abort();
        let why = device.measure(&machine, home, &mut sampler).unwrap_err();
        assert!(matches!(why, Unmeasured::Device(_)), "{why}");
    }

    #[test]
    fn the_better_of_two_passes() {
        let one = Devices { costs: vec![costs(20e9, 2e-6)], diagnostics: vec!["a".to_owned()] };
        let gone = Devices { costs: Vec::new(), diagnostics: vec!["a".to_owned(), "b".to_owned()] };
        let both = one.or_better(gone.clone()).or_better(Devices { costs: vec![costs(10e9, 1e-6)], ..gone });
        assert_eq!((both.costs.as_slice(), both.diagnostics.len()), (&[costs(20e9, 1e-6)][..], 2));
        assert_eq!(both.rates(), [("dsa0".to_owned(), 20_000_000_000)]);
        assert!((both.costs[0].offload_s() - (1e-6 - 4096.0 / 20e9)).abs() < 1e-12);
        assert_eq!(costs(1e9, 1e-6).offload_s(), 0.0, "the bytes take longer");
        assert!(both.parameters("x").iter().all(|it| it.basis == Basis::Measured));
        assert_eq!(Devices::default().parameters("x"), []);
    }
}
