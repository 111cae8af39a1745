//! Portals: how a descriptor gets into a work queue.
//!
//! ```text
//!                 shared queue             dedicated queue
//! page mapped     ENQCMD, which answers    MOVDIR64B, which does not: Credits count the free entries
//! page refused    write(2): the kernel submits, one descriptor a call, no batches on DSA 1.0
//! no device       the emulator's ring
//! ```
//!
//! All are a [`Portal`] and answer the same way. [`DevicePortal::open`] chooses for a queue of Linux, by the queue's
//! mode, the process' rights and the CPU's instructions, and chooses again in a forked child.
//!
//! Device and driver are behind [`Platform`], so that the same code runs on machines without them.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.2, 5.3 and 9.3; Linux' `drivers/dma/idxd/cdev.c`.

mod backoff;
mod batch;
mod counters;
mod credits;
mod entry;
mod error;
#[allow(unsafe_code)]
mod file;
#[allow(unsafe_code)]
mod mapped;
mod open;
mod openings;
mod options;
mod platform;
mod states;
mod usable;

pub use backoff::{Backoff, BackoffError, Exhausted, submit_with_backoff};
pub use batch::{BatchProbe, probe_batch};
pub use counters::{PortalCounters, SubmissionCounters};
pub use credits::Credits;
pub use entry::{Entry, Offer, submit_held};
pub use error::{OpenError, Refused, SubmitError};
pub use mapped::Slots;
pub use open::DevicePortal;
pub use options::{OpenOptions, SubmitMethod, WriteReason};
pub use platform::{Linux, Platform};
pub use states::StateFiles;
pub use usable::{OpenQueue, OpenQueues};

use crate::descriptor::Descriptor;
use crate::operation::{Opcode, OperationSet};

/// One way to hand 64 bytes to a work queue.
///
/// The entries of a *dedicated* queue are counted by its portal, since the queue itself loses what is too much: an
/// accepted descriptor holds one until [`completed`](Portal::completed) says that it ended. Whoever forgets that is
/// answered `Retry` once all entries are taken, and loses nothing. [`submit_held`] cannot forget it.
///
/// # Safety
/// On an implementation's word callers give memory back to its owner. It promises:
/// - Only what was `Accepted` is processed, as it was submitted, and no memory is accessed but what it names.
/// - The completion record of a descriptor is the last that is written for it; afterwards nothing accesses its memory.
/// - Once [`is_gone`](Portal::is_gone) was true, it stays so, and nothing accesses the memory of any descriptor.
#[allow(unsafe_code)]
pub unsafe trait Portal: Send + Sync {
    /// The queue behind the portal.
    fn work_queue(&self) -> &WorkQueueInfo;

    /// How descriptors get into the queue.
    fn kind(&self) -> PortalKind;

    /// Whether the queue takes batches this way. If not, submit the members one by one.
    fn supports_batch(&self) -> bool {
        self.work_queue().operations.contains(Opcode::Batch)
    }

    /// Offers a copy of the descriptor to the queue; neither waits nor panics, since callers hold locks meanwhile.
    ///
    /// Cost: one instruction of some hundred nanoseconds, or one system call ([`PortalKind`]). The first submission
    /// in a forked child also opens the queue again.
    ///
    /// # Errors
    /// Nothing was submitted.
    /// [`SubmitError::Gone`]: the device takes no more work.
    /// [`SubmitError::Refused`]: this descriptor cannot be submitted this way; others can.
    /// [`SubmitError::NotReopened`]: this process is a fork, and could not open the queue.
    ///
    /// # Safety
    /// If the answer is `Accepted`, then until the descriptor's completion record says that it ended
    /// (for a batch: that of the batch):
    /// - the memory that it names stays valid, also that of the list and of the members of a batch;
    /// - memory that it reads is not written, and memory that it writes is neither read nor written by others.
    ///
    /// Without a completion record, or when the device dies first and [`is_gone`](Portal::is_gone) does not know, that
    /// is for ever.
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError>;

    /// Says that `count` descriptors, which this process submitted here and were accepted, have ended: their
    /// completion records are written, so their entries are free. Once for each; not for those that were given up,
    /// whose entries may never become free. Shared queues count for themselves and ignore it.
    fn completed(&self, count: u32);

    /// Whether the device is known to process nothing any more: what was in flight and has no completion by now will
    /// get none. Also neither waits nor panics.
    ///
    /// For queues of Linux these cases mean "gone", each by an attribute that was opened with the queue:
    /// - the queue is `disabled`, which the driver says after it has drained or reset the queue;
    /// - its device is `disabled`, or `halted`;
    /// - the driver has removed the device (reading its attribute fails with ENODEV), after all queues.
    ///
    /// Anything else is "not known": an attribute that cannot be opened or read, as in a process without `/sys`, an error
    /// of a submission ([`SubmitError::Gone`]), a queue that was opened again after the kernel had refused its file.
    ///
    /// Cost: a look into sysfs for queues of Linux, at most every 50 ms; ask after some time without completions, not
    /// in every round of a loop.
    fn is_gone(&self) -> bool;

    /// What became of the submissions so far.
    fn counters(&self) -> PortalCounters;
}

/// How a portal puts descriptors into its queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortalKind {
    /// A mapped page of a shared queue. Some hundred nanoseconds; the queue answers.
    Enqcmd,
    /// A mapped page of a dedicated queue. Some ten nanoseconds; entries are counted here.
    Movdir64b,
    /// The `write(2)` of the queue's file: a system call for each descriptor.
    Write,
    /// An emulated device.
    Emulated,
}

/// The answer of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a descriptor that was not accepted is not going to be processed"]
pub enum Submission {
    /// The queue took the descriptor.
    Accepted,
    /// The queue is full now; nothing happened. Submit again later, or elsewhere.
    Retry,
}

/// Who may write to a work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueMode {
    /// Many submitters; the queue answers whether it took the descriptor.
    Shared,
    /// One submitter, who counts the free entries himself.
    Dedicated,
}

impl QueueMode {
    /// The driver's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            QueueMode::Shared => "shared",
            QueueMode::Dedicated => "dedicated",
        }
    }

    /// The mode of a word of the driver's, if it is one.
    pub fn from_word(word: &str) -> Option<QueueMode> {
        [QueueMode::Shared, QueueMode::Dedicated].into_iter().find(|mode| mode.as_str() == word)
    }
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
    /// Operations that the queue accepts. Linux hides Batch of devices of version 1.0
    /// ([`Portal::supports_batch`] knows).
    pub operations: OperationSet,
    /// The NUMA node of the device, where it is known.
    pub node: Option<u32>,
}
