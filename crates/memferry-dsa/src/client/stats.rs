//! The counters of a client.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Event, Observer, OnCpu};

/// Lists the counters once, for the atomics and for the snapshot.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident)*) => {
        /// The counters of a client.
        ///
        /// Descriptors add up: `submitted` is `succeeded` + `partial` + `not_taken` + `failed` + `skipped` + `lost`
        /// when no call is in progress.
        ///
        /// ```
        /// use memferry_dsa::{Client, ClientOptions, Request};
        ///
        /// let client = Client::new(Vec::new(), ClientOptions::default());
        /// client.run(Request::fill(7, &mut [0u8; 100]))?;
        /// let stats = client.stats();
        /// assert_eq!((stats.calls, stats.on_cpu_total(), stats.submitted), (1, 1, 0));
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct ClientStats {
            $($(#[$about])* pub $name: u64,)*
            /// Requests that the CPU executed in whole or in part, by reason: in the order of [`OnCpu::ALL`].
            pub on_cpu: [u64; OnCpu::ALL.len()],
        }

        /// The live counters. Every call adds to them (Relaxed), `snapshot` reads them.
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
    /// Descriptors that queues accepted: alone, or as members of batches.
    submitted
    /// Of these, the completed ones, with data errors and unexpected results.
    succeeded
    /// Of these, those that a page fault stopped.
    partial
    /// Of these, those that the device refused for an operation or a flag. They were executed in another way.
    not_taken
    /// Of these, the failed ones, which the caller got as errors.
    failed
    /// Of these, members that a batch did not reach.
    skipped
    /// Of these, those in a device that is gone or silent.
    lost
    /// Batches that queues accepted.
    batches
    /// Batches of callers whose members were submitted one by one, at least in part, for example because no queue accepts
    /// batches.
    batches_unrolled
    /// Pauses because a queue was full.
    retries
    /// Times that a queue stayed full, so that the next queue or the CPU got the request.
    queues_full
    /// Times that a portal refused a descriptor.
    portal_refusals
    /// Pages that were touched after a fault.
    pages_touched
    /// Page faults outside the memory of the request, which was submitted again.
    strange_faults
    /// Requests that lost a hint: the queue does not allow block on fault, or the device has no cache control.
    hints_dropped
    /// Queues that are no longer used because their device is gone or silent.
    queues_lost
    /// Bytes of buffers, lists and records that a lost device may still access, and which are therefore never freed.
    leaked_bytes
}

impl ClientStats {
    /// Requests that the CPU executed in whole or in part for this reason.
    pub fn on_cpu(&self, why: OnCpu) -> u64 {
        self.on_cpu[why as usize]
    }

    /// Requests that the CPU executed in whole or in part.
    pub fn on_cpu_total(&self) -> u64 {
        self.on_cpu.iter().sum()
    }

    /// Whether the counts of descriptors add up; true when no call is in progress.
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
            // `QueueLost` counts the first; the others are events of `Driver`.
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
