//! Portals: the submission of descriptors to work queues.
//!
//! ```text
//!                 shared queue                   dedicated queue
//! page mapped     ENQCMD: the queue answers      MOVDIR64B: no answer, so Credits count the free entries
//! page refused    write(2): the kernel submits, one descriptor a call, no batches on DSA 1.0
//! no device       the emulator's ring
//! ```
//!
//! All of them implement [`Portal`] and give the same answers. [`DevicePortal::open`] chooses the method for a queue of
//! Linux by the queue's mode, the process' rights and the CPU's instructions, and chooses again in a forked child.
//!
//! [`Platform`] is the seam to device and driver: with a fake of it the same code runs on machines without them.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.2, 5.3 and 9.3; Linux' `drivers/dma/idxd/cdev.c`.

mod backoff;
mod batch;
mod counters;
mod credits;
mod error;
#[allow(unsafe_code)]
mod mapped;
mod open;
mod open_queues;
mod openings;
mod options;
mod platform;
mod states;
#[allow(unsafe_code)]
mod write;

pub use backoff::{Backoff, BackoffError, submit_with_backoff};
pub use batch::executes_batches;
pub use counters::{PortalCounters, SubmissionCounters};
pub use credits::Credits;
pub use error::{OpenError, Refused, SubmitError};
pub use mapped::Slots;
pub use open::DevicePortal;
pub use open_queues::{OpenQueue, OpenQueues};
pub use options::{OpenOptions, SubmitMethod, WriteReason};
pub use platform::{Linux, Platform};
pub use states::StateFiles;

use crate::descriptor::Descriptor;
use crate::operation::{Opcode, OperationSet};

/// A method of submission to one work queue.
///
/// A full *dedicated* queue loses descriptors, so its portal counts the entries: an accepted descriptor holds one until
/// [`completed`](Portal::completed) gives it back. Without that call the portal answers `Retry` once all entries are in
/// use, and nothing is lost.
///
/// # Safety
/// Callers give memory back to its owner because of an implementation's answers. It promises:
/// - Only `Accepted` descriptors are processed, as they were submitted, and only the memory that they name is accessed.
/// - The completion record of a descriptor is the last that is written for it; afterwards nothing accesses its memory.
/// - Once [`is_gone`](Portal::is_gone) was true, it stays so, and nothing accesses the memory of any descriptor.
#[allow(unsafe_code)]
pub unsafe trait Portal: Send + Sync {
    /// The queue behind the portal.
    fn work_queue(&self) -> &WorkQueueInfo;

    /// The method of submission.
    fn kind(&self) -> PortalKind;

    /// Whether this portal accepts batches. If not, submit the members one by one.
    fn supports_batch(&self) -> bool {
        self.work_queue().operations.contains(Opcode::Batch)
    }

    /// Offers a copy of the descriptor to the queue. Never waits or panics: callers may hold locks.
    ///
    /// Cost: one instruction of some hundred nanoseconds, or one system call ([`PortalKind`]). The first submission
    /// in a forked child also reopens the queue.
    ///
    /// # Errors
    /// Nothing was submitted.
    /// [`SubmitError::Gone`]: the device takes no more work.
    /// [`SubmitError::Refused`]: the portal cannot submit this descriptor; it can submit others.
    /// [`SubmitError::NotReopened`]: this process is a fork, and could not reopen the queue.
    ///
    /// # Safety
    /// If the answer is `Accepted`, then until the descriptor's completion record is written
    /// (for a batch: that of the batch):
    /// - the memory that it names stays valid, also that of the list and of the members of a batch;
    /// - memory that it reads is not written, and memory that it writes is neither read nor written by others.
    ///
    /// Without a completion record, or if the device dies first and [`is_gone`](Portal::is_gone) stays false, this holds
    /// for ever.
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError>;

    /// Gives back the entries of `count` completed descriptors, which this process submitted here.
    ///
    /// Call it once for each descriptor, after its completion record is written; never for a descriptor that timed out,
    /// whose entry may stay in use. Shared queues count for themselves and ignore it.
    fn completed(&self, count: u32);

    /// Whether the device is known to have stopped: descriptors in flight without a completion will not complete. Never
    /// waits or panics.
    ///
    /// For queues of Linux these cases mean "gone", each by an attribute that was opened with the queue:
    /// - the queue is `disabled`, which the driver writes after it has drained or reset the queue;
    /// - its device is `disabled`, or `halted`;
    /// - the driver has removed the device (reading its attribute fails with ENODEV), after all queues.
    ///
    /// Anything else is "not known": an attribute that cannot be opened or read, as in a process without `/sys`; an error
    /// of a submission ([`SubmitError::Gone`]); a queue that was reopened after the kernel had refused its file.
    ///
    /// Cost: a read of sysfs for queues of Linux, at most every 50 ms. Call it after some time without completions, not
    /// in every iteration of a loop.
    fn is_gone(&self) -> bool;

    /// The counts of submissions so far.
    fn counters(&self) -> PortalCounters;
}

/// The method by which a portal submits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortalKind {
    /// ENQCMD to the mapped page of a shared queue. Some hundred nanoseconds; the queue answers.
    Enqcmd,
    /// MOVDIR64B to the mapped page of a dedicated queue. Some ten nanoseconds; the portal counts entries.
    Movdir64b,
    /// `write(2)` to the queue's file: a system call for each descriptor.
    Write,
    /// An emulated device.
    Emulated,
}

/// The answer of a queue to a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the device processes only accepted descriptors"]
pub enum Submission {
    /// The queue accepted the descriptor.
    Accepted,
    /// The queue is full; nothing was submitted. Submit again later, or to another queue.
    Retry,
}

/// The mode of a work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueMode {
    /// Many submitters; the queue answers whether it accepted the descriptor.
    Shared,
    /// One submitter, which counts the free entries.
    Dedicated,
}

impl QueueMode {
    /// The driver's name of the mode.
    pub const fn as_str(self) -> &'static str {
        match self {
            QueueMode::Shared => "shared",
            QueueMode::Dedicated => "dedicated",
        }
    }

    /// The mode with this name of the driver.
    pub fn from_word(word: &str) -> Option<QueueMode> {
        [QueueMode::Shared, QueueMode::Dedicated].into_iter().find(|mode| mode.as_str() == word)
    }
}

/// The description of a work queue for its submitters.
///
/// ```
/// use memferry_dsa::{Opcode, Portal, PortalKind, QueueMode};
/// use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
///
/// let portal = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?.portal(0);
/// let queue = portal.work_queue();
/// assert_eq!((queue.mode, portal.kind()), (QueueMode::Shared, PortalKind::Emulated));
/// assert!(queue.operations.contains(Opcode::Memmove));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkQueueInfo {
    /// The name, `wq0.1` for queue 1 of device 0.
    pub name: String,
    /// Shared or dedicated.
    pub mode: QueueMode,
    /// Entries of the queue.
    pub size: u32,
    /// Shared queues accept user submissions while fewer entries than this are in use.
    pub threshold: u32,
    /// Weight against the other queues of the group, 1 to 15.
    pub priority: u8,
    /// Whether descriptors may carry [`Flags::BLOCK_ON_FAULT`](crate::Flags::BLOCK_ON_FAULT).
    pub block_on_fault: bool,
    /// Largest size of one descriptor.
    pub transfer_bytes_max: u32,
    /// Most members of one batch.
    pub batch_max: u32,
    /// Operations that the queue accepts. Linux hides Batch of devices of version 1.0; see
    /// [`Portal::supports_batch`].
    pub operations: OperationSet,
    /// The NUMA node of the device, if known.
    pub node: Option<u32>,
}
