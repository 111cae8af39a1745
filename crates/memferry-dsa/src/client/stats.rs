//! What a client has done, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Event, Observer, OnCpu};

/// Lists the counters once, for the atomics and for the snapshot.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident)*) => {
        /// What a client has done so far.
        ///
        /// Descriptors add up: `submitted` is `succeeded` + `partial` + `not_taken` + `failed` + `skipped` + `lost`
        /// when no call is under way.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct ClientStats {
            $($(#[$about])* pub $name: u64,)*
            /// Requests that the CPU did or finished, by why: in the order of [`OnCpu::ALL`].
            pub on_cpu: [u64; OnCpu::ALL.len()],
        }

        /// The counters where they are counted.
        #[derive(Default)]
        #[repr(align(128))]
        pub(super) struct Cells {
            $(pub(super) $name: Count,)*
            on_cpu: [Count; OnCpu::ALL.len()],
        }

        impl Cells {
            pub(super) fn snapshot(&self) -> ClientStats {
                ClientStats {
                    $($name: self.$name.get(),)*
                    on_cpu: std::array::from_fn(|reason| self.on_cpu[reason].get()),
                }
            }
        }
    };
}

counters! {
    /// Calls of the client, batches included.
    calls
    /// Calls that ended with an error.
    errors
    /// Descriptors that queues took: alone, or as members of batches.
    submitted
    /// Of these, how many did their work, data errors and results other than expected included.
    succeeded
    /// Of these, how many were stopped by a page fault.
    partial
    /// Of these, how many the device refused for an operation or a flag, and were done otherwise.
    not_taken
    /// Of these, how many failed in a way that the caller was told.
    failed
    /// Of these, how many were in a batch that did not come to them.
    skipped
    /// Of these, how many were in a device that has gone or fallen silent.
    lost
    /// Batches that queues took.
    batches
    /// Batches of callers whose members were submitted one by one, at least in part, because no queue takes batches or
    /// the like.
    batches_unrolled
    /// Pauses because a queue was full.
    retries
    /// Times that a queue stayed full, so that the next one, or the CPU, was asked.
    queues_full
    /// Times that a portal refused a descriptor.
    portal_refusals
    /// Pages that were touched after a fault.
    pages_touched
    /// Page faults outside the memory of the request, which nothing could be done about but try again.
    strange_faults
    /// Requests without a hint that they asked for: the queue does not allow block on fault, the device knows no cache
    /// control.
    hints_dropped
    /// Queues that are not used any more because their device has gone or fallen silent.
    queues_lost
    /// Bytes of buffers, lists and records that a lost device may still access, and which are therefore never freed.
    leaked_bytes
}

impl ClientStats {
    /// Requests that the CPU did or finished for this reason.
    pub fn on_cpu(&self, why: OnCpu) -> u64 {
        self.on_cpu[why as usize]
    }

    /// Requests that the CPU did or finished.
    pub fn on_cpu_total(&self) -> u64 {
        self.on_cpu.iter().sum()
    }

    /// Whether every descriptor is accounted for; true when no call is under way.
    pub fn adds_up(&self) -> bool {
        let ended = self.succeeded + self.partial + self.not_taken + self.failed + self.skipped + self.lost;
        self.submitted == ended
    }
}

impl Observer for Cells {
    fn count(&self, event: Event) {
        match event {
            Event::Submitted(count) => self.submitted.add(count),
            Event::Batch(_) => self.batches.add(1),
            Event::Retried(retries) => self.retries.add(retries),
            Event::Full(retries) => {
                self.retries.add(retries);
                self.queues_full.add(1);
            }
            Event::Refused => self.portal_refusals.add(1),
            Event::QueueLost => self.queues_lost.add(1),
            Event::Completed(_) => self.succeeded.add(1),
            Event::Faulted(_) => self.partial.add(1),
            Event::NotTaken => self.not_taken.add(1),
            Event::HintsRefused | Event::HintsDropped => self.hints_dropped.add(1),
            Event::Failed => self.failed.add(1),
            Event::Skipped => self.skipped.add(1),
            Event::Lost(count) => self.lost.add(count),
            Event::Touched => self.pages_touched.add(1),
            Event::StrangeFault => self.strange_faults.add(1),
            Event::OnCpu(why, _) => self.on_cpu[why as usize].add(1),
            // A queue that is lost is counted; the others are of drivers.
            Event::Unavailable | Event::Diverted | Event::Backoff => {}
        }
    }
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
