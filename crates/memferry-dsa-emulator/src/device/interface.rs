//! The side of a device that submitters and observers see: queues, error register, counters.
//!
//! The [`Device`](super::Device) behind it belongs to one thread; this part is shared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memferry_dsa::portal::{QueueMode, Submission, SubmitError, WorkQueueInfo};
use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Descriptor, Status};

use crate::arc_ref::ArcRef;
use crate::config::DeviceConfig;
use crate::config::FaultPlan;
use crate::device::counters::{Counters, DeviceCounters, QueueTotals};
use crate::device::error_register::{ErrorRegister, error_of};
use crate::monotonic::monotonic_ns;
use crate::queue::ring::{ClientId, Head, ONLY, PoppedEntry, Ring};
use crate::queue::{Answer, QueueParts};
use crate::shared::SharedDevice;

/// | field | written by | read by |
/// |---|---|---|
/// | `queues` | submitters push, the device pops | both |
/// | `error` | both, rarely | observers |
/// | `counters` | the device only | observers |
/// | `is_gone` | the device, as the last thing it does | submitters |
/// | `time` | the device, if it is virtual | submitters |
pub(crate) struct Interface {
    pub(crate) queues: Vec<Queue>,
    pub(crate) counters: ArcRef<Counters>,
    /// Whose entries the device takes.
    pub(crate) client: ClientId,
    /// What it has in common with the same device in other processes.
    pub(crate) shared_device: Option<SharedDevice>,
    error: ArcRef<ErrorRegister>,
    is_gone: AtomicBool,
    time: Option<Time>,
}

/// The clock that submissions are stamped with, for a device with a timing.
enum Time {
    /// That of a device that is stepped by hand, written by it.
    Virtual(AtomicU64),
    /// The real clock since then, for a device in a thread of its own.
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
    /// The outside of a device that is this process' own. Its clock runs by itself if `is_real`.
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
            counters: ArcRef::own(Counters::default()),
            client: ONLY,
            shared_device: None,
            error: ArcRef::own(ErrorRegister::new()),
            is_gone: AtomicBool::new(false),
            time: config.timing.map(|_| time),
        }
    }

    /// The outside of a client's part of a device that processes share, with the clock that started at `epoch_ns`.
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

    /// Lets a submitter wait on the real clock until `ns`: what the instruction takes that submits.
    fn spend_until(&self, ns: u64) {
        if matches!(self.time, Some(Time::Since(_))) {
            while self.now_ns() < Some(ns) {
                std::hint::spin_loop();
            }
        }
    }

    /// What ENQCMD does with a shared queue and MOVDIR64B with a dedicated one.
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
        // When the entry is in the queue, on the device's clock.
        let arrives_ns = self.now_ns().map_or(0, |now_ns| now_ns + config.submit_ns());
        let (words, stamp) = (entry.to_words(), arrives_ns.into());
        let answer = order.offer(config, own, info.mode, self.client, &words, stamp);
        self.spend_until(arrives_ns);
        match answer {
            Answer::Accepted => Ok(Submission::Accepted),
            Answer::Retry => Ok(Submission::Retry),
            Answer::Closed => Err(SubmitError::Gone),
            Answer::Lost => {
                self.report(&error_of(Status::QueueOverflow, number, &entry));
                Ok(Submission::Accepted)
            }
        }
    }

    /// Writes the error register, which keeps the first error and remembers that there were more.
    pub(crate) fn report(&self, error: &SoftwareError) {
        self.error.report(error);
    }

    /// Reads the error register and clears it.
    pub(crate) fn take_error(&self) -> Option<SoftwareError> {
        self.error.take()
    }

    /// Takes no more descriptors from now on.
    pub(crate) fn close(&self) {
        for queue in &self.queues {
            queue.parts.order.ring.close();
        }
    }

    /// Says that the device touches no memory any more. Closed queues alone do not: it may be in the middle of a step.
    pub(crate) fn set_gone(&self) {
        // ORDERING: Release pairs with the Acquire in `is_gone`: all that the device wrote is visible to those who
        // know that it is gone.
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `set_gone`.
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether no queue has an entry that this device could take.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues
            .iter()
            .all(|queue| !queue.ring().head().is_some_and(|head| head.is_ready_for(self.client)))
    }

    /// Takes the entry at the head of a queue, which is ready and this client's; `None` if it has not submitted it.
    #[inline]
    pub(crate) fn take(&self, number: usize, head: Head) -> Option<PoppedEntry> {
        let queue = &self.queues[number];
        let Some(shared_device) = &self.shared_device else {
            return queue.ring().pop(&queue.parts.own, head);
        };
        shared_device.taking(number);
        let taken = queue.ring().pop(&queue.parts.own, head);
        shared_device.took(number, taken.is_some());
        taken
    }

    /// Takes an entry of this client that the queue's order has lost, and the queue.
    #[cold]
    pub(crate) fn take_stranded(&self) -> Option<(usize, PoppedEntry)> {
        let shared_device = self.shared_device.as_ref()?;
        self.queues.iter().enumerate().find_map(|(number, queue)| {
            let taken = queue.ring().take_stranded(&queue.parts.own)?;
            shared_device.taking(number);
            Some((number, taken))
        })
    }

    /// A descriptor that was taken from a queue has ended.
    #[inline]
    pub(crate) fn ended(&self, queue: usize) {
        if let Some(shared_device) = &self.shared_device {
            shared_device.ended(queue);
        }
    }

    /// The record of a descriptor that has ended was written, or lost, or is not wanted.
    #[inline]
    pub(crate) fn settled(&self, queue: usize) {
        if let Some(shared_device) = &self.shared_device {
            shared_device.settled(queue);
        }
    }

    pub(crate) fn snapshot(&self) -> DeviceCounters {
        let mut totals = QueueTotals::default();
        self.queues.iter().for_each(|queue| totals.add(&queue.parts.order));
        self.counters.snapshot(&totals)
    }
}
