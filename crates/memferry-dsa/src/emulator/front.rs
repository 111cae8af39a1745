//! The side of a device that submitters and observers see: queues, error register, counters.
//!
//! The [`Device`](super::Device) behind it belongs to one thread; this part is shared.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::config::DeviceConfig;
use super::nasty::{Nasty, Random};
use super::ring::{Refusal, Ring};
use super::timing::Timing;
use crate::address::Address;
use crate::completion::Status;
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::portal::{QueueMode, Submission, SubmitError, WorkQueueInfo};

/// | field | written by | read by |
/// |---|---|---|
/// | `queues` | submitters push, the device pops | both |
/// | `error` | both, under its lock, rarely | observers |
/// | `counters` | the device only | observers |
/// | `is_gone` | the device, as the last thing it does | submitters |
/// | `time` | the device, if it is virtual | submitters |
pub(super) struct Front {
    pub(super) queues: Vec<Queue>,
    pub(super) counters: Counters,
    error: Mutex<Option<SoftwareError>>,
    is_gone: AtomicBool,
    time: Option<Time>,
}

/// The clock that submissions are stamped with, for a device with a timing.
struct Time {
    timing: Timing,
    /// The clock of a device that is stepped by hand, written by it.
    virtual_ns: AtomicU64,
    /// The real clock, for a device in a thread of its own.
    start: Option<Instant>,
}

/// One work queue.
pub(super) struct Queue {
    pub(super) info: WorkQueueInfo,
    pub(super) ring: Ring,
    retries_per_mille: u16,
    seed: u64,
    offered: AtomicU64, // submissions tried; counted only to number the dice of `retries_per_mille`
    retried: AtomicU64,
    dropped: AtomicU64,
}

impl Front {
    /// A device's outside. Its clock runs by itself if `is_real`.
    pub(super) fn new(config: &DeviceConfig, nasty: &Nasty, is_real: bool) -> Front {
        let queue = |(number, info): (usize, &WorkQueueInfo)| Queue {
            info: info.clone(),
            ring: Ring::new(info.size),
            retries_per_mille: nasty.retries_per_mille,
            seed: nasty.seed ^ (number as u64 + 1) << 56,
            offered: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        Front {
            queues: config.queues().enumerate().map(queue).collect(),
            counters: Counters::default(),
            error: Mutex::new(None),
            is_gone: AtomicBool::new(false),
            time: config.timing.map(|timing| Time {
                timing,
                virtual_ns: AtomicU64::new(0),
                start: is_real.then(Instant::now),
            }),
        }
    }

    /// The time on the device's clock, if it has one.
    pub(super) fn now_ns(&self) -> Option<u64> {
        self.time.as_ref().map(|time| match time.start {
            Some(start) => start.elapsed().as_nanos() as u64,
            None => time.virtual_ns.load(Ordering::Relaxed),
        })
    }

    /// Moves the virtual clock.
    pub(super) fn set_now_ns(&self, ns: u64) {
        if let Some(time) = &self.time {
            time.virtual_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Lets a submitter wait on the real clock until `ns`: what the instruction takes that submits.
    fn spend_until(&self, ns: u64) {
        if self.time.as_ref().is_some_and(|time| time.start.is_some()) {
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
        let queue = &self.queues[number];
        let (entry, limit) = match queue.info.mode {
            QueueMode::Shared => {
                if !self.is_gone() && queue.retries_out_of_spite() {
                    queue.retried.fetch_add(1, Ordering::Relaxed);
                    return Ok(Submission::Retry);
                }
                (descriptor.submitted_by(pasid), queue.info.threshold.min(queue.info.size))
            }
            QueueMode::Dedicated => (descriptor.owned_by(pasid), queue.info.size),
        };
        // When the entry is in the queue, on the device's clock.
        let arrives_ns = self.time.as_ref().map_or(0, |time| {
            let cost_ns = match queue.info.mode {
                QueueMode::Shared => time.timing.submit_shared_ns,
                QueueMode::Dedicated => time.timing.submit_dedicated_ns,
            };
            self.now_ns().unwrap_or(0) + cost_ns
        });
        let pushed = queue.ring.push(entry.to_words(), arrives_ns, limit);
        self.spend_until(arrives_ns);
        match (pushed, queue.info.mode) {
            (Ok(()), _) => Ok(Submission::Accepted),
            (Err(Refusal::Closed), _) => Err(SubmitError::Gone),
            (Err(Refusal::Full), QueueMode::Shared) => {
                queue.retried.fetch_add(1, Ordering::Relaxed);
                Ok(Submission::Retry)
            }
            (Err(Refusal::Full), QueueMode::Dedicated) => {
                queue.dropped.fetch_add(1, Ordering::Relaxed);
                self.report(SoftwareError::new(Status::QueueOverflow, number, &entry));
                Ok(Submission::Accepted)
            }
        }
    }

    /// Writes the error register, which keeps the first error and remembers that there were more.
    pub(super) fn report(&self, error: SoftwareError) {
        let mut register = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *register {
            Some(first) => first.overflow = true,
            None => *register = Some(error),
        }
    }

    /// Reads the error register and clears it.
    pub(super) fn take_error(&self) -> Option<SoftwareError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes no more descriptors from now on.
    pub(super) fn close(&self) {
        for queue in &self.queues {
            queue.ring.close();
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

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.ring.is_empty())
    }

    pub(super) fn snapshot(&self) -> DeviceCounters {
        let sum = |count: fn(&Queue) -> u64| self.queues.iter().map(count).sum();
        let counters = &self.counters;
        let ended = counters.ended.iter().enumerate().filter(|(_, count)| get(count) > 0);
        DeviceCounters {
            accepted: sum(|queue| queue.ring.pushed()),
            retried: sum(|queue| queue.retried.load(Ordering::Relaxed)),
            dropped: sum(|queue| queue.dropped.load(Ordering::Relaxed)),
            dispatched: sum(|queue| queue.ring.popped()),
            members: get(&counters.members),
            members_abandoned: get(&counters.members_abandoned),
            ended: ended.map(|(code, count)| (Status::from_code(code as u8), get(count))).collect(),
            aborted: get(&counters.aborted),
            bytes_copied: get(&counters.bytes_copied),
            bytes_done: get(&counters.bytes_done),
            page_faults: get(&counters.page_faults),
            page_requests: get(&counters.page_requests),
            records_written: get(&counters.records_written),
            records_lost: get(&counters.records_lost),
        }
    }
}

impl Queue {
    fn retries_out_of_spite(&self) -> bool {
        if self.retries_per_mille == 0 {
            return false;
        }
        let number = self.offered.fetch_add(1, Ordering::Relaxed);
        Random::new(self.seed.wrapping_add(number)).chance(self.retries_per_mille)
    }
}

/// What the device counts. Only its thread writes.
pub(super) struct Counters {
    pub(super) members: AtomicU64,
    pub(super) members_abandoned: AtomicU64,
    pub(super) ended: [AtomicU64; 64], // by status code
    pub(super) aborted: AtomicU64,
    pub(super) bytes_copied: AtomicU64,
    pub(super) bytes_done: AtomicU64,
    pub(super) page_faults: AtomicU64,
    pub(super) page_requests: AtomicU64,
    pub(super) records_written: AtomicU64,
    pub(super) records_lost: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        let zero = || AtomicU64::new(0);
        Counters {
            members: zero(),
            members_abandoned: zero(),
            ended: std::array::from_fn(|_| zero()),
            aborted: zero(),
            bytes_copied: zero(),
            bytes_done: zero(),
            page_faults: zero(),
            page_requests: zero(),
            records_written: zero(),
            records_lost: zero(),
        }
    }
}

/// Adds to a counter that only this thread writes, without a locked instruction.
pub(super) fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// A counter, for the thread that writes it.
pub(super) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// What a device has done since it was enabled.
///
/// Every descriptor is accounted for: `accepted + members` is the number that
/// [`ended_count`](Self::ended_count), plus `aborted`, plus those [`in_flight`](Self::in_flight).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCounters {
    /// Descriptors that queues took.
    pub accepted: u64,
    /// Times that a shared queue answered Retry.
    pub retried: u64,
    /// Descriptors lost because a dedicated queue was full.
    pub dropped: u64,
    /// Descriptors that left their queue.
    pub dispatched: u64,
    /// Members of batches that were started.
    pub members: u64,
    /// Members of batches that a fence after a failure kept from starting.
    pub members_abandoned: u64,
    /// Descriptors and members that ended, by how.
    pub ended: BTreeMap<Status, u64>,
    /// Descriptors and members that were in flight when the device was aborted.
    pub aborted: u64,
    /// Bytes that Memory Move wrote.
    pub bytes_copied: u64,
    /// Bytes of all operations' transfers: the source's, or what there is in its place.
    pub bytes_done: u64,
    /// Page faults that stopped an operation.
    pub page_faults: u64,
    /// Page faults that the operating system served while the operation waited.
    pub page_requests: u64,
    /// Completion records written.
    pub records_written: u64,
    /// Completion records that could not be written, or were not when the device was aborted.
    pub records_lost: u64,
}

impl DeviceCounters {
    /// Descriptors and members that ended in whatever way.
    pub fn ended_count(&self) -> u64 {
        self.ended.values().sum()
    }

    /// Descriptors and members that are in a queue or an engine; exact while nobody submits and the device rests.
    pub fn in_flight(&self) -> u64 {
        (self.accepted + self.members).saturating_sub(self.ended_count() + self.aborted)
    }
}

/// The error register: an error that no completion record could tell.
///
/// Source: DSA specification 5.8 and 9.2 (SWERROR).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareError {
    /// What went wrong.
    pub status: Status,
    /// More errors followed this one.
    pub overflow: bool,
    /// The work queue.
    pub queue: usize,
    /// The operation's code.
    pub operation: u8,
    /// Whose descriptor it was.
    pub pasid: u32,
    /// The index in its batch, for a member.
    pub batch_index: Option<u16>,
    /// Page faults: the access was a write.
    pub write_fault: bool,
    /// [`Status::InvalidFlags`]: which.
    pub invalid_flags: Flags,
    /// Page faults: the address.
    pub fault_address: Address,
}

impl SoftwareError {
    pub(super) fn new(status: Status, queue: usize, descriptor: &Descriptor) -> SoftwareError {
        SoftwareError {
            status,
            overflow: false,
            queue,
            operation: descriptor.operation_code(),
            pasid: descriptor.pasid(),
            batch_index: None,
            write_fault: false,
            invalid_flags: Flags::NONE,
            fault_address: Address(0),
        }
    }
}
