//! The events that a driver's owner counts.

use super::OnCpu;

/// A change that a driver reports where it happens.
///
/// Descriptors add up: `Submitted` is `Completed` + `Faulted` + `NotTaken` + `Failed` + `Skipped` + `Lost` when nothing
/// is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A queue accepted so many descriptors: one, or the members of a batch.
    Submitted(u64),
    /// A queue accepted a batch of so many members.
    Batch(u64),
    /// A queue accepted a descriptor after so many retries.
    Retried(u64),
    /// A queue stayed full during so many retries.
    Full(u64),
    /// A portal refused one descriptor.
    Refused,
    /// A portal submits nothing any more: its device is gone, or a forked child could not open the queue.
    Unavailable,
    /// A queue gets no more work. Once for each queue.
    QueueLost,
    /// A descriptor completed so many bytes, all of its own.
    Completed(u64),
    /// A page fault stopped a descriptor after so many bytes.
    Faulted(u64),
    /// A device does not execute an operation, or not with these flags.
    NotTaken,
    /// A device refused hints that a request had, which are now known.
    HintsRefused,
    /// A request lost hints that a queue is known not to have.
    HintsDropped,
    /// A descriptor failed.
    Failed,
    /// A batch ended without a completion of this member.
    Skipped,
    /// So many descriptors will get no completion.
    Lost(u64),
    /// The page of a fault was touched.
    Touched,
    /// A page fault was at an address outside the memory of its request.
    StrangeFault,
    /// The CPU executes a request, or what is left of it: so many bytes.
    OnCpu(OnCpu, u64),
    /// A queue accepted a descriptor after another one had no slot or did not take it.
    Diverted,
    /// All queues were full, and the driver waits before it asks again.
    Backoff,
}

/// A consumer of events.
pub trait Observer {
    /// Counts an event.
    fn count(&self, event: Event);
}
