//! An engine in virtual time: the emulated device with a timing, and the core that submits to it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use memferry::mover::{
    CopyError, CopyReport, Engine, EngineKind, EngineStats, RawRequest, Refusal, Rejected,
};
use memferry::topology::NodeId;
use memferry_dsa::internals::driver::{BATCH_LEN_MAX, batch_len};
use memferry_dsa::{Completion, CompletionRecord, Descriptor, Status, Submission};
use memferry_dsa_emulator::{
    Deterministic, DeviceConfig, DeviceCosts, DirectMemory, FaultPlan, GroupConfig, Stepped, dedicated_queue,
};

/// Entries of the queue. Kuper et al. (2024), figure 4, find 32 sufficient.
const QUEUE_LEN: usize = 32;

/// An engine over an emulated device in virtual time. Time advances only when the caller lets the core
/// [work](VirtualDevice::work) or [wait](VirtualDevice::wait); [`poll`](VirtualDevice::poll) completes copies.
pub(super) struct VirtualDevice {
    simulation: Mutex<Simulation>,
    timing: DeviceCosts,
    /// Time of the core per descriptor, beside the instruction that submits a batch.
    descriptor_ns: f64,
}

struct Simulation {
    run: Deterministic<DirectMemory>,
    /// The core is free from this time on.
    core_ns: f64,
    in_flight: Vec<Submitted>,
}

/// A batch in flight, or a single copy. The boxes keep their addresses.
struct Submitted {
    copies: Vec<RawRequest>,
    /// The members of the batch, which the device reads.
    _list: Box<[Descriptor]>,
    record: Box<CompletionRecord>,
}

impl VirtualDevice {
    /// A device with four engines and a dedicated queue.
    pub(super) fn new(
        timing: DeviceCosts,
        descriptor_ns: f64,
    ) -> Result<VirtualDevice, Box<dyn std::error::Error>> {
        let queue = dedicated_queue("wq0.0", QUEUE_LEN as u32);
        let config =
            DeviceConfig::new(vec![GroupConfig { engines: 4, queues: vec![queue] }]).with_timing(timing);
        // SAFETY: descriptors are those of `enter`, whose copies, lists and records live in `in_flight` until they have
        // completed; no other code calls the methods of `Memory`.
        let memory = unsafe { DirectMemory::new() };
        let run = Deterministic::new(&config, FaultPlan::none(), memory)?;
        let simulation = Mutex::new(Simulation { run, core_ns: 0.0, in_flight: Vec::new() });
        Ok(VirtualDevice { simulation, timing, descriptor_ns })
    }

    /// Advances the core's clock by other work.
    pub(super) fn work(&self, ns: f64) {
        self.lock().core_ns += ns;
    }

    /// The core's clock.
    pub(super) fn now_ns(&self) -> f64 {
        self.lock().core_ns
    }

    /// Finishes the copies that are complete at the core's time.
    pub(super) fn poll(&self) {
        let mut simulation = self.lock();
        let now_ns = simulation.core_ns as u64;
        simulation.step_until(now_ns);
        self.finish(simulation.completed());
    }

    /// Advances the core's clock until a copy completes; returns at once if none is in flight.
    pub(super) fn wait(&self) {
        let mut simulation = self.lock();
        let mut completed = simulation.completed();
        while completed.is_empty() && simulation.run.step() == Stepped::Busy {
            completed = simulation.completed();
        }
        simulation.core_ns = simulation.core_ns.max(simulation.run.device.now_ns() as f64);
        drop(simulation);
        self.finish(completed);
    }

    fn finish(&self, completed: Vec<(RawRequest, Completion)>) {
        for (copy, completion) in completed {
            let report = CopyReport { cpu_bytes: 0, dsa_bytes: copy.size_bytes() as u64, file_bytes: 0 };
            copy.finish(match completion.status {
                Status::Success => Ok(report),
                status => Err(CopyError::Device { status: status.code() }),
            });
        }
    }

    /// Submits copies as one batch; returns them if the queue is full.
    fn enter(&self, copies: Vec<RawRequest>) -> Result<(), Vec<RawRequest>> {
        let mut simulation = self.lock();
        simulation.core_ns +=
            self.descriptor_ns * copies.len() as f64 + self.timing.submit_dedicated_ns as f64;
        let now_ns = simulation.core_ns as u64;
        simulation.step_until(now_ns);
        let memmove =
            |copy: &RawRequest| Descriptor::memmove(copy.source(), copy.target(), copy.size_bytes() as u32);
        let list: Box<[Descriptor]> = copies.iter().map(memmove).collect();
        let record = Box::new(CompletionRecord::new());
        let descriptor = match *list {
            [copy] => copy,
            _ => Descriptor::batch(list.as_ptr(), list.len() as u32),
        };
        let submission = match simulation.in_flight.len() {
            // A full dedicated queue loses descriptors.
            QUEUE_LEN => Ok(Submission::Retry),
            _ => simulation.run.device.submit(0, &descriptor.with_completion(&record), 1),
        };
        if submission != Ok(Submission::Accepted) {
            return Err(copies);
        }
        simulation.in_flight.push(Submitted { copies, _list: list, record });
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Simulation> {
        self.simulation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Simulation {
    /// Advances the device to `ns`.
    fn step_until(&mut self, ns: u64) {
        let Simulation { run, .. } = self;
        while run.device.step_until(ns, &run.memory) == Stepped::Busy {}
    }

    /// Removes and returns the completed copies.
    fn completed(&mut self) -> Vec<(RawRequest, Completion)> {
        let mut completed = Vec::new();
        for submitted in &mut self.in_flight {
            if let Some(completion) = submitted.record.poll() {
                completed.extend(submitted.copies.drain(..).map(|copy| (copy, completion)));
            }
        }
        self.in_flight.retain(|submitted| !submitted.copies.is_empty());
        completed
    }
}

impl Engine for VirtualDevice {
    fn name(&self) -> &str {
        "virtual"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Dsa
    }

    fn node(&self) -> Option<NodeId> {
        None
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        let Err(copies) = self.enter(vec![copy]) else { return Ok(()) };
        copies.into_iter().try_for_each(|copy| Err(Rejected { copy, why: Refusal::Full }))
    }

    fn submit_all(&self, mut copies: Vec<RawRequest>) -> Vec<Rejected> {
        let mut refused = Vec::new();
        while !copies.is_empty() {
            let len = batch_len(copies.len(), BATCH_LEN_MAX).unwrap_or(1);
            let rest = copies.split_off(len);
            refused.extend(self.enter(std::mem::replace(&mut copies, rest)).err().into_iter().flatten());
        }
        refused.into_iter().map(|copy| Rejected { copy, why: Refusal::Full }).collect()
    }

    /// Empty: transfers report their engine.
    fn stats(&self) -> EngineStats {
        EngineStats::new(self.name(), self.kind(), self.node())
    }
}

impl fmt::Debug for VirtualDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualDevice").field("timing", &self.timing).finish_non_exhaustive()
    }
}
