//! The part of a device that submitters and observers share with it: queues, error register, counters.
//!
//! The [`Device`](super::Device) itself belongs to one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Descriptor, QueueMode, Status, Submission, SubmitError, WorkQueueInfo};

use crate::arc_ref::ArcRef;
use crate::config::{DeviceConfig, FaultPlan};
use crate::device::counters::{Counters, DeviceCounters, QueueTotals};
use crate::device::error_register::{ErrorRegister, error_of};
use crate::monotonic::monotonic_ns;
use crate::queue::ring::{CacheLine, ClientId, Head, ONLY, PoppedEntry, Ring};
use crate::queue::{QueueParts, SubmitOutcome};
use crate::shared::SharedDevice;

/// The shared part of a device.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `queues` | submitters push, the device pops | both |
/// | `error` | both, rarely | observers |
/// | `counters` | the device only | observers |
/// | `is_gone` | the device, as its last action | submitters |
/// | `time` | the device, if it is virtual | submitters |
pub(crate) struct Interface {
    pub(crate) queues: Vec<Queue>,
    pub(crate) counters: ArcRef<Counters>,
    /// The client whose entries the device dispatches.
    pub(crate) client: ClientId,
    /// The state that it shares with the same device in other processes.
    pub(crate) shared_device: Option<SharedDevice>,
    error: ArcRef<ErrorRegister>,
    is_gone: AtomicBool,
    time: Option<Time>,
}

/// The clock for stamps of submissions to a device with a timing.
enum Time {
    /// The clock of a device that is stepped by hand, which writes it.
    Virtual(AtomicU64),
    /// The real clock since this time, for a device in a thread of its own.
    Since(u64),
}

/// One work queue.
pub(crate) struct Queue {
    pub(crate) info: WorkQueueInfo,
    pub(crate) parts: QueueParts,
}

impl Queue {
    #[inline]
    pub(crate) fn ring(&self) -> &Ring {
        &self.parts.order.ring
    }
}

impl Interface {
    /// The interface of a device that this process uses alone. Its clock is the real one if `is_real`.
    pub(crate) fn new(config: &DeviceConfig, fault_plan: &FaultPlan, is_real: bool) -> Interface {
        let queue = |(number, info): (usize, &WorkQueueInfo)| {
            let parts = QueueParts::new();
            parts.config.configure(info, number, fault_plan, config.timing.as_ref());
            Queue { info: info.clone(), parts }
        };
        let time = match is_real {
            true => Time::Since(monotonic_ns()),
            false => Time::Virtual(AtomicU64::new(0)),
        };
        Interface {
            queues: config.queues().enumerate().map(queue).collect(),
            counters: ArcRef::part_of(Arc::new(CacheLine(Counters::default())), |line| &line.0),
            client: ONLY,
            shared_device: None,
            error: ArcRef::own(ErrorRegister::new()),
            is_gone: AtomicBool::new(false),
            time: config.timing.map(|_| time),
        }
    }

    /// The interface of a client's part of a shared device, with the clock that started at `epoch_ns`.
    pub(crate) fn shared(
        queues: Vec<Queue>,
        shared_device: SharedDevice,
        epoch_ns: Option<u64>,
    ) -> Interface {
        Interface {
            queues,
            counters: shared_device.counters(),
            client: shared_device.client(),
            error: shared_device.error_register(),
            shared_device: Some(shared_device),
            is_gone: AtomicBool::new(false),
            time: epoch_ns.map(Time::Since),
        }
    }

    /// The time on the device's clock, if it has one.
    pub(crate) fn now_ns(&self) -> Option<u64> {
        self.time.as_ref().map(|time| match time {
            Time::Since(start_ns) => monotonic_ns() - start_ns,
            Time::Virtual(ns) => ns.load(Ordering::Relaxed),
        })
    }

    /// Moves the virtual clock.
    pub(crate) fn set_now_ns(&self, now_ns: u64) {
        if let Some(Time::Virtual(ns)) = &self.time {
            ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Spins until `ns` on the real clock: the duration of the submitting instruction.
    fn spend_until(&self, ns: u64) {
        if matches!(self.time, Some(Time::Since(_))) {
            while self.now_ns() < Some(ns) {
                std::hint::spin_loop();
            }
        }
    }

    /// Submits as ENQCMD does to a shared queue, and MOVDIR64B to a dedicated one.
    pub(crate) fn submit(
        &self,
        number: usize,
        descriptor: &Descriptor,
        pasid: u32,
    ) -> Result<Submission, SubmitError> {
        let Queue { info, parts } = &self.queues[number];
        let QueueParts { config, order, own } = parts;
        if self.is_gone() {
            return Err(SubmitError::Gone);
        }
        let entry = match info.mode {
            QueueMode::Shared => descriptor.submitted_by(pasid),
            QueueMode::Dedicated => descriptor.owned_by(pasid),
        };
        // The time at which the entry is in the queue, on the device's clock.
        let arrives_ns = self.now_ns().map_or(0, |now_ns| now_ns + config.submit_ns());
        let (words, stamp) = (entry.to_words(), arrives_ns.into());
        let answer = order.submit(config, own, info.mode, self.client, &words, stamp);
        self.spend_until(arrives_ns);
        match answer {
            SubmitOutcome::Accepted => Ok(Submission::Accepted),
            SubmitOutcome::Retry => Ok(Submission::Retry),
            SubmitOutcome::Closed => Err(SubmitError::Gone),
            SubmitOutcome::Lost => {
                self.report(&error_of(Status::QueueOverflow, number, &entry));
                Ok(Submission::Accepted)
            }
        }
    }

    /// Writes the error register, which keeps the first error and counts the others as an overflow.
    pub(crate) fn report(&self, error: &SoftwareError) {
        self.error.report(error);
    }

    /// Reads the error register and clears it.
    pub(crate) fn take_error(&self) -> Option<SoftwareError> {
        self.error.take()
    }

    /// Closes all queues.
    pub(crate) fn close(&self) {
        for queue in &self.queues {
            queue.parts.order.ring.close();
        }
    }

    /// Announces that the device accesses no memory any more. Closed queues do not imply that: the device may be in the
    /// middle of a step.
    pub(crate) fn set_gone(&self) {
        // ORDERING: Release pairs with the Acquire in `is_gone`: a thread that sees the device gone sees all its
        // writes.
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `set_gone`: the device's writes are visible.
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether no queue has an entry that this device could dispatch.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues
            .iter()
            .all(|queue| !queue.ring().head().is_some_and(|head| head.is_ready_for(self.client)))
    }

    /// Pops the entry at the head of a queue, which is ready and this client's; `None` if the client has not submitted
    /// it.
    #[inline]
    pub(crate) fn take(&self, number: usize, head: Head) -> Option<PoppedEntry> {
        let queue = &self.queues[number];
        let Some(shared_device) = &self.shared_device else {
            return queue.ring().pop(&queue.parts.own, head);
        };
        shared_device.count_dispatch(number);
        let taken = queue.ring().pop(&queue.parts.own, head);
        shared_device.after_pop(number, taken.is_some());
        taken
    }

    /// Takes an entry of this client that has lost its place in the order, with the number of its queue.
    #[cold]
    pub(crate) fn take_stranded(&self) -> Option<(usize, PoppedEntry)> {
        let shared_device = self.shared_device.as_ref()?;
        self.queues.iter().enumerate().find_map(|(number, queue)| {
            let taken = queue.ring().take_stranded(&queue.parts.own)?;
            shared_device.count_dispatch(number);
            Some((number, taken))
        })
    }

    /// Counts a dispatched descriptor as executed.
    #[inline]
    pub(crate) fn count_executed(&self, queue: usize) {
        if let Some(shared_device) = &self.shared_device {
            shared_device.count_executed(queue);
        }
    }

    /// Counts an executed descriptor as completed: its record was written, was lost, or is not wanted.
    #[inline]
    pub(crate) fn count_completed(&self, queue: usize) {
        if let Some(shared_device) = &self.shared_device {
            shared_device.count_completed(queue);
        }
    }

    pub(crate) fn snapshot(&self) -> DeviceCounters {
        let mut totals = QueueTotals::default();
        self.queues.iter().for_each(|queue| totals.add(&queue.parts.order));
        self.counters.snapshot(&totals)
    }
}
