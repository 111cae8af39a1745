//! A queue and the facts that its submitters share.

use std::sync::Arc;
use std::time::Duration;

use super::facts::Facts;
use super::in_flight::InFlight;
use super::traffic::Traffic;
use super::{Event, Observer, OnCpu};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::portal::{Backoff, BackoffError, Portal, Refused, SubmitError, submit_with_backoff};

/// A queue of any number of submitters in this process.
pub(crate) struct Queue {
    portal: Arc<dyn Portal>,
    facts: Facts,
    traffic: Traffic,
}

impl Queue {
    pub(crate) fn new(portal: Arc<dyn Portal>) -> Queue {
        Queue { portal, facts: Facts::new(), traffic: Traffic::new() }
    }

    #[inline]
    pub(crate) fn portal(&self) -> &dyn Portal {
        &*self.portal
    }

    pub(crate) fn shared_portal(&self) -> &Arc<dyn Portal> {
        &self.portal
    }

    pub(crate) fn name(&self) -> String {
        self.portal.work_queue().name.clone()
    }

    #[inline]
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    #[inline]
    pub(crate) fn takes_batches(&self) -> bool {
        self.portal.supports_batch() && !self.facts.is_lost() && !self.facts.refuses_batches()
    }

    /// Hints that descriptors for this queue must not have.
    #[inline]
    pub(crate) fn lacking_hints(&self) -> Flags {
        let lacks_block = !self.portal.work_queue().block_on_fault;
        self.facts.refused_hints() | if lacks_block { Flags::BLOCK_ON_FAULT } else { Flags::NONE }
    }

    /// The device refused these hints.
    pub(super) fn refuse_hints(&self, hints: Flags) {
        self.facts.refuse_hints(hints);
    }

    /// The device refused a batch.
    pub(super) fn refuse_batches(&self) {
        self.facts.refuse_batches();
    }

    /// The queue gets no more work.
    pub(crate) fn lose(&self, observer: &impl Observer) {
        if self.facts.lose() {
            observer.count(Event::QueueLost);
        }
    }

    /// Asks the portal whether the device is gone, and remembers it. It may read sysfs: do not call it under a lock.
    pub(crate) fn ask(&self, observer: &impl Observer) {
        if !self.facts.is_gone() && self.portal.is_gone() && self.facts.lose_gone() {
            observer.count(Event::QueueLost);
        }
    }

    /// Counts completions. Returns their total.
    #[inline]
    pub(super) fn progress(&self, count: u64) -> u64 {
        self.traffic.progress(count)
    }

    /// Submits, with the pauses of `backoff` while the queue is full. `count` descriptors: one, or the members of a batch
    /// and the batch itself. `time` is the owner's attended time.
    ///
    /// # Errors
    /// The reason why nothing was submitted.
    ///
    /// # Safety
    /// As [`Portal::submit`] if the answer is `Ok`.
    pub(crate) unsafe fn submit(
        &self,
        descriptor: &Descriptor,
        count: u64,
        mut backoff: Backoff,
        time: Duration,
        observer: &impl Observer,
    ) -> Result<InFlight, OnCpu> {
        backoff.reset();
        let entered = self.traffic.enter(count);
        // SAFETY: passed on to the caller.
        let error = match unsafe { submit_with_backoff(self.portal(), descriptor, backoff) } {
            Ok(retries) => {
                if retries > 0 {
                    observer.count(Event::Retried(retries.into()));
                }
                return Ok(InFlight::new(self.traffic.accept(entered), time));
            }
            Err(error) => error,
        };
        self.traffic.leave(entered);
        match error {
            BackoffError::Exhausted { retries } => {
                observer.count(Event::Full(retries.into()));
                Err(OnCpu::QueueFull)
            }
            // The kernel refuses this descriptor, and perhaps no other.
            BackoffError::Portal(SubmitError::Refused(refused)) => {
                if refused == Refused::Batch {
                    self.facts.refuse_batches();
                }
                observer.count(Event::Refused);
                Err(OnCpu::Refused)
            }
            BackoffError::Portal(SubmitError::Gone | SubmitError::NotReopened(_)) => {
                observer.count(Event::Unavailable);
                self.lose(observer);
                Err(OnCpu::Gone)
            }
        }
    }
}
