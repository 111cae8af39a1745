//! An engine in virtual time: the emulated device with a timing, and the core that submits to it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use memferry::internals::{BATCH_LEN_MAX, batch_len};
use memferry::mover::{
    CopyError, CopyReport, Engine, EngineKind, EngineStats, RawRequest, Refusal, Rejected,
};
use memferry::topology::NodeId;
use memferry_dsa::{Completion, CompletionRecord, Descriptor, Status, Submission};
use memferry_dsa_emulator::{
    Deterministic, DeviceConfig, DirectMemory, FaultPlan, GroupConfig, Stepped, Timing, dedicated_queue,
};

/// Entries of the queue. Kuper et al. (2024), figure 4, find 32 sufficient.
const QUEUE_LEN: usize = 32;

/// Copies with an emulated device, which works while the core's clock goes on. Nothing happens by itself: whoever
/// drives it lets the core [work](VirtualDevice::work), and finishes copies by [`look`](VirtualDevice::look).
pub(super) struct VirtualDevice {
    state: Mutex<State>,
    timing: Timing,
    /// What the core works on one descriptor, besides the instruction that submits a batch.
    descriptor_ns: f64,
}

struct State {
    run: Deterministic<DirectMemory>,
    /// When the core is free.
    core_ns: f64,
    flights: Vec<Flight>,
}

/// A batch in the device, or a single copy. The boxes keep their addresses.
struct Flight {
    copies: Vec<RawRequest>,
    /// The members, which the device reads.
    _list: Box<[Descriptor]>,
    record: Box<CompletionRecord>,
}

impl VirtualDevice {
    /// A device with four engines and a dedicated queue.
    pub(super) fn new(
        timing: Timing,
        descriptor_ns: f64,
    ) -> Result<VirtualDevice, Box<dyn std::error::Error>> {
        let queue = dedicated_queue("wq0.0", QUEUE_LEN as u32);
        let config =
            DeviceConfig::new(vec![GroupConfig { engines: 4, queues: vec![queue] }]).with_timing(timing);
        // SAFETY: descriptors are those of `enter`, whose copies, lists and records live in `flights` until they have
        // completed; nobody else calls the methods of `Memory`.
        let memory = unsafe { DirectMemory::new() };
        let run = Deterministic::new(&config, FaultPlan::none(), memory)?;
        let state = Mutex::new(State { run, core_ns: 0.0, flights: Vec::new() });
        Ok(VirtualDevice { state, timing, descriptor_ns })
    }

    /// The core works on something else.
    pub(super) fn work(&self, ns: f64) {
        self.lock().core_ns += ns;
    }

    /// What the core's clock shows.
    pub(super) fn now_ns(&self) -> f64 {
        self.lock().core_ns
    }

    /// Finishes what is complete by now.
    pub(super) fn look(&self) {
        let mut state = self.lock();
        let now_ns = state.core_ns as u64;
        state.step_until(now_ns);
        self.finish(state.completed());
    }

    /// The core waits until something completes. Nothing does if nothing is under way.
    pub(super) fn wait(&self) {
        let mut state = self.lock();
        let mut completed = state.completed();
        while completed.is_empty() && state.run.step() == Stepped::Busy {
            completed = state.completed();
        }
        state.core_ns = state.core_ns.max(state.run.device.now_ns() as f64);
        drop(state);
        self.finish(completed);
    }

    fn finish(&self, completed: Vec<(RawRequest, Completion)>) {
        for (copy, completion) in completed {
            let report = CopyReport { cpu_bytes: 0, dsa_bytes: copy.size_bytes() as u64 };
            copy.finish(match completion.status {
                Status::Success => Ok(report),
                status => Err(CopyError::Device { status: status.code() }),
            });
        }
    }

    /// Submits as many as a batch takes, if the queue has room.
    fn enter(&self, copies: Vec<RawRequest>) -> Result<(), Vec<RawRequest>> {
        let mut state = self.lock();
        state.core_ns += self.descriptor_ns * copies.len() as f64 + self.timing.submit_dedicated_ns as f64;
        let now_ns = state.core_ns as u64;
        state.step_until(now_ns);
        let memmove =
            |copy: &RawRequest| Descriptor::memmove(copy.source(), copy.target(), copy.size_bytes() as u32);
        let list: Box<[Descriptor]> = copies.iter().map(memmove).collect();
        let record = Box::new(CompletionRecord::new());
        let descriptor = match *list {
            [copy] => copy,
            _ => Descriptor::batch(list.as_ptr(), list.len() as u32),
        };
        let submission = match state.flights.len() {
            // A dedicated queue loses what it has no room for.
            QUEUE_LEN => Ok(Submission::Retry),
            _ => state.run.device.submit(0, &descriptor.with_completion(&record), 1),
        };
        if submission != Ok(Submission::Accepted) {
            return Err(copies);
        }
        state.flights.push(Flight { copies, _list: list, record });
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The device goes on until `ns`.
    fn step_until(&mut self, ns: u64) {
        let State { run, .. } = self;
        while run.device.step_until(ns, &run.memory) == Stepped::Busy {}
    }

    /// Takes what is complete.
    fn completed(&mut self) -> Vec<(RawRequest, Completion)> {
        let mut completed = Vec::new();
        for flight in &mut self.flights {
            if let Some(completion) = flight.record.poll() {
                completed.extend(flight.copies.drain(..).map(|copy| (copy, completion)));
            }
        }
        self.flights.retain(|flight| !flight.copies.is_empty());
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

    /// It counts nothing: transfers report who copied.
    fn stats(&self) -> EngineStats {
        EngineStats::new(self.name(), self.kind(), self.node())
    }
}

impl fmt::Debug for VirtualDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualDevice").field("timing", &self.timing).finish_non_exhaustive()
    }
}
