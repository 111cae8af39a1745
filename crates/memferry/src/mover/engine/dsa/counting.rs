//! The events of a driver in the statistics of an engine.

use memferry_dsa::internals::driver::{Event, Observer};

use crate::mover::stats::Counters;

impl Observer for Counters {
    fn count(&self, event: Event) {
        match event {
            Event::Submitted(count) => self.descriptors.add(count),
            Event::Batch(members) => {
                self.batches.add(1);
                self.batch_members.add(members);
            }
            Event::Retried(retries) => self.retries.add(retries),
            Event::Full(retries) => self.retries.add(retries + 1),
            Event::Refused | Event::Unavailable => self.refused.add(1),
            Event::QueueLost => self.queues_gone.add(1),
            Event::Completed(bytes) => {
                self.descriptors_done.add(1);
                self.bytes.add(bytes);
            }
            Event::Faulted(bytes) => {
                self.faults_resumed.add(1);
                self.bytes.add(bytes);
            }
            Event::NotTaken | Event::Failed => self.descriptors_failed.add(1),
            Event::HintsRefused => self.hints_dropped.add(1),
            Event::Skipped => self.descriptors_skipped.add(1),
            Event::Lost(count) => self.descriptors_lost.add(count),
            Event::OnCpu(_, bytes) => {
                self.fallbacks.add(1);
                self.fallback_bytes.add(bytes);
            }
            Event::Diverted => self.diverted.add(1),
            Event::Backoff => self.backoffs.add(1),
            // Hints are counted when a device refuses them, faults when they stop a descriptor.
            Event::HintsDropped | Event::Touched | Event::StrangeFault => {}
        }
    }
}
