//! The side of a device that submitters and observers see: queues, error register, counters.
//!
//! The [`Device`](super::Device) behind it belongs to one thread; this part is shared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memferry_dsa::portal::{QueueMode, Submission, SubmitError, WorkQueueInfo};
use memferry_dsa::{Descriptor, Status};

use crate::config::DeviceConfig;
use crate::counters::{Counters, DeviceCounters, QueueTotals};
use crate::fault_plan::FaultPlan;
use crate::held::Held;
use crate::monotonic::monotonic_ns;
use crate::queue::{Answer, QueueParts};
use crate::register::{ErrorRegister, SoftwareError};
use crate::ring::{ClientId, Head, ONLY, Ring, Taken};
use crate::shared::Common;

/// | field | written by | read by |
/// |---|---|---|
/// | `queues` | submitters push, the device pops | both |
/// | `error` | both, rarely | observers |
/// | `counters` | the device only | observers |
/// | `is_gone` | the device, as the last thing it does | submitters |
/// | `time` | the device, if it is virtual | submitters |
pub(super) struct Front {
    pub(super) queues: Vec<Queue>,
    pub(super) counters: Held<Counters>,
    /// Whose entries the device takes.
    pub(super) client: ClientId,
    /// What it has in common with the same device in other processes.
    pub(super) common: Option<Common>,
    error: Held<ErrorRegister>,
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
pub(super) struct Queue {
    pub(super) info: WorkQueueInfo,
    pub(super) parts: QueueParts,
}

impl Queue {
    #[inline]
    pub(super) fn ring(&self) -> &Ring {
        &self.parts.order.ring
    }
}

impl Front {
    /// The outside of a device that is this process' own. Its clock runs by itself if `is_real`.
    pub(super) fn new(config: &DeviceConfig, nasty: &FaultPlan, is_real: bool) -> Front {
        let queue = |(number, info): (usize, &WorkQueueInfo)| {
            let parts = QueueParts::new();
            parts.config.configure(info, number, nasty, config.timing.as_ref());
            Queue { info: info.clone(), parts }
        };
        let time = match is_real {
            true => Time::Since(monotonic_ns()),
            false => Time::Virtual(AtomicU64::new(0)),
        };
        Front {
            queues: config.queues().enumerate().map(queue).collect(),
            counters: Held::own(Counters::default()),
            client: ONLY,
            common: None,
            error: Held::own(ErrorRegister::new()),
            is_gone: AtomicBool::new(false),
            time: config.timing.map(|_| time),
        }
    }

    /// The outside of a client's part of a device that processes share, with the clock that started at `epoch_ns`.
    pub(super) fn shared(queues: Vec<Queue>, common: Common, epoch_ns: Option<u64>) -> Front {
        Front {
            queues,
            counters: common.counters(),
            client: common.client(),
            error: common.error_register(),
            common: Some(common),
            is_gone: AtomicBool::new(false),
            time: epoch_ns.map(Time::Since),
        }
    }

    /// The time on the device's clock, if it has one.
    pub(super) fn now_ns(&self) -> Option<u64> {
        self.time.as_ref().map(|time| match time {
            Time::Since(start_ns) => monotonic_ns() - start_ns,
            Time::Virtual(ns) => ns.load(Ordering::Relaxed),
        })
    }

    /// Moves the virtual clock.
    pub(super) fn set_now_ns(&self, now_ns: u64) {
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
    pub(super) fn submit(
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
                self.report(&SoftwareError::new(Status::QueueOverflow, number, &entry));
                Ok(Submission::Accepted)
            }
        }
    }

    /// Writes the error register, which keeps the first error and remembers that there were more.
    pub(super) fn report(&self, error: &SoftwareError) {
        self.error.report(error);
    }

    /// Reads the error register and clears it.
    pub(super) fn take_error(&self) -> Option<SoftwareError> {
        self.error.take()
    }

    /// Takes no more descriptors from now on.
    pub(super) fn close(&self) {
        for queue in &self.queues {
            queue.parts.order.ring.close();
        }
    }

    /// Says that the device touches no memory any more. Closed queues alone do not: it may be in the middle of a step.
    pub(super) fn set_gone(&self) {
        // ORDERING: Release pairs with the Acquire in `is_gone`: all that the device wrote is visible to those who
        // know that it is gone.
        self.is_gone.store(true, Ordering::Release);
    }

    pub(super) fn is_gone(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `set_gone`.
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether no queue has an entry that this device could take.
    pub(super) fn is_empty(&self) -> bool {
        self.queues
            .iter()
            .all(|queue| !queue.ring().head().is_some_and(|head| head.is_ready_for(self.client)))
    }

    /// Takes the entry at the head of a queue, which is ready and this client's; `None` if it has not submitted it.
    #[inline]
    pub(super) fn take(&self, number: usize, head: Head) -> Option<Taken> {
        let queue = &self.queues[number];
        let Some(common) = &self.common else { return queue.ring().pop(&queue.parts.own, head) };
        common.taking(number);
        let taken = queue.ring().pop(&queue.parts.own, head);
        common.took(number, taken.is_some());
        taken
    }

    /// Takes an entry of this client that the queue's order has lost, and the queue.
    #[cold]
    pub(super) fn take_stranded(&self) -> Option<(usize, Taken)> {
        let common = self.common.as_ref()?;
        self.queues.iter().enumerate().find_map(|(number, queue)| {
            let taken = queue.ring().take_stranded(&queue.parts.own)?;
            common.taking(number);
            Some((number, taken))
        })
    }

    /// A descriptor that was taken from a queue has ended.
    #[inline]
    pub(super) fn ended(&self, queue: usize) {
        if let Some(common) = &self.common {
            common.ended(queue);
        }
    }

    /// The record of a descriptor that has ended was written, or lost, or is not wanted.
    #[inline]
    pub(super) fn settled(&self, queue: usize) {
        if let Some(common) = &self.common {
            common.settled(queue);
        }
    }

    pub(super) fn snapshot(&self) -> DeviceCounters {
        let mut totals = QueueTotals::default();
        self.queues.iter().for_each(|queue| totals.add(&queue.parts.order));
        self.counters.snapshot(&totals)
    }
}
