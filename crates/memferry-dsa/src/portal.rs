//! Portals: how a descriptor gets into a work queue.
//!
//! On silicon a portal is a page of the device that takes 64 bytes at a time (`ENQCMD`, `MOVDIR64B`), or the
//! `write(2)` of the queue's file; in the emulator it is a ring in memory. All answer the same way.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.2, 5.3 and 9.3.

use crate::descriptor::Descriptor;
use crate::operation::OperationSet;

/// One way to hand 64 bytes to a work queue.
pub trait Portal: Send + Sync {
    /// The queue behind the portal.
    fn work_queue(&self) -> &WorkQueueInfo;

    /// Offers a copy of the descriptor to the queue; neither blocks nor panics, since callers hold locks meanwhile.
    ///
    /// A *shared* queue answers [`Submission::Retry`] when it is full. A *dedicated* queue cannot answer: it loses
    /// what is written while it is full, so its owner keeps at most [`WorkQueueInfo::size`] descriptors in flight.
    ///
    /// # Errors
    /// [`SubmitError::Gone`]: the device takes no more work; nothing was submitted.
    ///
    /// # Safety
    /// If the answer is `Accepted`, then until the descriptor's completion record says that it ended
    /// (for a batch: that of the batch):
    /// - the memory that it names stays valid, also that of the list and of the members of a batch;
    /// - memory that it reads is not written, and memory that it writes is neither read nor written by others.
    ///
    /// Without a completion record, or when the device dies first, that is for ever.
    #[allow(unsafe_code)]
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError>;

    /// Whether the device is known to process nothing any more: what was in flight and has no completion by now will
    /// get none. Also neither blocks nor panics.
    fn is_gone(&self) -> bool;
}

/// The answer of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a descriptor that was not accepted is not going to be processed"]
pub enum Submission {
    /// The queue took the descriptor. (A dedicated queue says so also when it was full and lost it.)
    Accepted,
    /// The queue is full now; nothing happened. Submit again later, or elsewhere.
    Retry,
}

/// The portal cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The device was disabled or died. Nothing was submitted; do not retry here.
    #[error("the device is gone: use another queue, or the CPU")]
    Gone,
}

/// Who may write to a work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueMode {
    /// Many submitters; the queue answers whether it took the descriptor.
    Shared,
    /// One submitter, who counts the free entries himself.
    Dedicated,
}

/// What a submitter must know of a work queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkQueueInfo {
    /// The name, `wq0.1` for queue 1 of device 0.
    pub name: String,
    /// Shared or dedicated.
    pub mode: QueueMode,
    /// Entries of the queue.
    pub size: u32,
    /// Shared queues accept user submissions while fewer entries than this are taken.
    pub threshold: u32,
    /// Weight against the other queues of the group, 1 to 15.
    pub priority: u8,
    /// Whether descriptors may carry [`Flags::BLOCK_ON_FAULT`](crate::Flags::BLOCK_ON_FAULT).
    pub block_on_fault: bool,
    /// Largest size of one descriptor.
    pub transfer_bytes_max: u32,
    /// Most members of one batch.
    pub batch_max: u32,
    /// Operations that the queue accepts.
    pub operations: OperationSet,
    /// The NUMA node of the device, where it is known.
    pub node: Option<u32>,
}
