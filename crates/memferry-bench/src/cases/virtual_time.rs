//! Virtual time: a core of a profile, and an emulated device that it waits for.
//!
//! A submission runs the device until it is idle. The core's clock then advances to the time of the completion record, so
//! that the ordinary [`Client`] of `memferry-dsa` works in virtual time: its wait finds a complete record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry::internals::Offload;
use memferry_dsa::{
    Client, ClientOptions, Descriptor, DeviceCosts, Opcode, Portal, PortalCounters, PortalKind, Submission,
    SubmitError, WorkQueueInfo,
};
use memferry_dsa_emulator::{
    BATCH_MAX, ConfigError, Deterministic, DeviceConfig, DirectMemory, FaultPlan, GroupConfig, Stepped,
    TRANSFER_BYTES_MAX, dedicated_queue,
};

use super::CaseError;
use super::movers::{Copies, Core, Mover};
use crate::mover::DESCRIPTOR_NS;

/// Entries of the queue. Kuper et al. (2024), figure 4, find 32 sufficient.
const QUEUE_LEN: u32 = 32;

/// The clock of a core.
#[derive(Debug, Default)]
pub(super) struct VirtualTime(Mutex<Times>);

#[derive(Copy, Clone, Debug, Default)]
struct Times {
    now_ns: f64,
    waited_ns: f64,
}

impl VirtualTime {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_ns(&self) -> f64 {
        self.lock().now_ns
    }

    /// The part in which the core waited.
    pub(super) fn waited_ns(&self) -> f64 {
        self.lock().waited_ns
    }

    /// The core works so long.
    pub(super) fn work(&self, ns: f64) {
        self.lock().now_ns += ns;
    }

    /// The core waits until then.
    fn wait_until(&self, ns: f64) {
        let mut times = self.lock();
        let waited_ns = (ns - times.now_ns).max(0.0);
        times.now_ns += waited_ns;
        times.waited_ns += waited_ns;
    }
}

/// A core of a profile.
///
/// A copy takes what it takes in the model. It passes each byte twice, a digest or a fill passes it once: assumed to take
/// as long as a copy of half as many bytes.
pub(super) struct VirtualCore {
    offload: Offload,
    time: Arc<VirtualTime>,
}

impl VirtualCore {
    pub(super) fn new(offload: Offload, time: Arc<VirtualTime>) -> VirtualCore {
        VirtualCore { offload, time }
    }

    fn passes(&self, sizes_bytes: impl Iterator<Item = f64>) {
        sizes_bytes.for_each(|bytes| self.time.work(self.offload.core_s(bytes) * 1e9));
    }
}

impl Mover for VirtualCore {
    fn copy(&self, copies: Copies<'_>) -> Result<(), CaseError> {
        self.passes(copies.iter().map(|(source, _)| source.len() as f64));
        Core.copy(copies)
    }

    fn digest(&self, data: &[&[u8]]) -> Result<Vec<u32>, CaseError> {
        self.passes(data.iter().map(|data| data.len() as f64 / 2.0));
        Core.digest(data)
    }

    fn zero(&self, targets: Vec<&mut [u8]>) -> Result<(), CaseError> {
        self.passes(targets.iter().map(|target| target.len() as f64 / 2.0));
        Core.zero(targets)
    }
}

/// A client of an emulated device with four engines and a dedicated queue.
pub(super) fn client(
    costs: DeviceCosts,
    faults: FaultPlan,
    time: Arc<VirtualTime>,
) -> Result<Client, ConfigError> {
    let queue = WorkQueueInfo {
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        batch_max: BATCH_MAX,
        ..dedicated_queue("wq0.0", QUEUE_LEN)
    };
    let groups = vec![GroupConfig { engines: 4, queues: vec![queue.clone()] }];
    // SAFETY: the only descriptors are those of `submit`, whose callers keep the contract of `Portal::submit`; no other code
    // calls the methods of `Memory`.
    let memory = unsafe { DirectMemory::new() };
    let run = Deterministic::new(&DeviceConfig::new(groups).with_timing(costs), faults, memory)?;
    let counters = Mutex::default();
    let portal =
        VirtualPortal { queue, run: Mutex::new(run), submit_ns: costs.submit_dedicated_ns, time, counters };
    // The core would work in no time.
    let options = ClientOptions { may_use_cpu: false, faults_max: u32::MAX, ..ClientOptions::default() };
    Ok(Client::new(vec![Arc::new(portal)], options))
}

/// The queue of a device in virtual time. It is empty between two submissions.
struct VirtualPortal {
    queue: WorkQueueInfo,
    run: Mutex<Deterministic<DirectMemory>>,
    submit_ns: u64,
    time: Arc<VirtualTime>,
    counters: Mutex<PortalCounters>,
}

// SAFETY: the device executes descriptors as they were submitted and writes their records last. It runs in `submit` only,
// until it is idle: afterwards it accesses no memory.
unsafe impl Portal for VirtualPortal {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.queue
    }

    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let members = if descriptor.opcode() == Ok(Opcode::Batch) { descriptor.size() } else { 1 };
        self.time.work(DESCRIPTOR_NS * f64::from(members));
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let Deterministic { device, memory } = &mut *run;
        while device.step_until(self.time.now_ns() as u64, &*memory) == Stepped::Busy {}
        // The device adds the time of the instruction to the descriptor's arrival.
        let answer = device.submit(0, descriptor, 1);
        self.time.work(self.submit_ns as f64);
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        match &answer {
            Ok(Submission::Accepted) => {
                counters.accepted += 1;
                run.run_until_idle();
                self.time.wait_until(run.device.now_ns() as f64);
            }
            Ok(Submission::Retry) => counters.retries += 1,
            Err(_) => counters.refused += 1,
        }
        answer
    }

    /// Nothing is in flight after a submission.
    fn completed(&self, _count: u32) {}

    fn is_gone(&self) -> bool {
        false
    }

    fn counters(&self) -> PortalCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa::Request;

    use super::*;

    /// One copy that is waited for takes what the model says, with the making of its descriptor.
    #[test]
    fn a_copy_takes_its_time() {
        let costs = DeviceCosts::sapphire_rapids();
        let time = Arc::new(VirtualTime::default());
        let client = client(costs, FaultPlan::none(), time.clone()).unwrap();
        let (source, mut target) = (vec![7; 4096], vec![0; 4096]);
        client.run(Request::copy(&source, &mut target)).unwrap();
        assert_eq!(source, target);
        let busy_ns = DESCRIPTOR_NS + costs.submit_dedicated_ns as f64;
        let device_ns = costs.dispatch_ns + costs.occupancy_ns + costs.transfer_ns(4096) + costs.latency_ns;
        assert!((time.waited_ns() - device_ns as f64).abs() <= 1.0, "{time:?}");
        assert!((time.now_ns() - time.waited_ns() - busy_ns).abs() < 1e-6, "{time:?}");
    }
}
