//! One request in progress: its next descriptor, and the meaning of a completion for it.
//!
//! ```text
//! admits ── no queue ─────────────────────────────────────────▶ finish on the CPU
//!   │ a queue                                                        ▲
//!   ▼                                                                │
//! next ──▶ device ──▶ complete ─▶ Ended                              │
//!   ▲                    ├──────▶ Submit   the next part, or without refused hints, or on another queue
//!   └────────────────────┴──────▶ Fault    touch the page ── too many: no queue any more
//! ```

use super::queue::Queue;
use super::{Event, Observer, OnCpu};
use crate::completion::Completion;
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::request::{Ended, HINTS, Step, Work};
use crate::system::Version;

/// The limits that an owner sets to its items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Page faults of an item after which it is submitted again.
    pub(crate) faults_max: u32,
    /// The version of the devices.
    pub(crate) version: Version,
}

/// A request in progress.
pub(crate) struct WorkItem<'a> {
    work: Work<'a>,
    /// Page faults that stopped it so far.
    faults_count: u32,
    /// Batches whose list faulted before the device came to it.
    list_faults_count: u32,
    /// Queues whose devices do not execute it: see [`bit`].
    excluded: u64,
    /// No queue gets it any more.
    only_cpu: Option<OnCpu>,
    /// It is submitted alone, not in batches.
    is_alone: bool,
    /// As a member of a batch, it waits for the members before it.
    has_fence: bool,
}

/// The next step of an item.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Progress {
    /// Nothing: it has ended.
    Ended(Ended),
    /// Another submission.
    Submit,
    /// [`WorkItem::touch`] the page, then another submission.
    Fault(Completion),
    /// Nothing: a device failed.
    Failed(Completion),
}

impl<'a> WorkItem<'a> {
    #[inline]
    pub(crate) fn new(work: Work<'a>) -> WorkItem<'a> {
        WorkItem {
            work,
            faults_count: 0,
            list_faults_count: 0,
            excluded: 0,
            only_cpu: None,
            is_alone: false,
            has_fence: false,
        }
    }

    /// With a fence before it, if it is a member of a batch.
    pub(crate) fn with_fence(self, has_fence: bool) -> WorkItem<'a> {
        WorkItem { has_fence, ..self }
    }

    #[inline]
    pub(crate) fn work(&self) -> &Work<'a> {
        &self.work
    }

    pub(super) fn work_mut(&mut self) -> &mut Work<'a> {
        &mut self.work
    }

    pub(crate) fn has_fence(&self) -> bool {
        self.has_fence
    }

    /// Whether it may be a member of a batch.
    #[inline]
    pub(crate) fn may_join(&self) -> bool {
        !self.is_alone && self.only_cpu.is_none()
    }

    #[inline]
    pub(super) fn only_cpu(&self) -> Option<OnCpu> {
        self.only_cpu
    }

    /// Whether the queue with this number may get it: in parts, or whole as a member of a batch.
    ///
    /// # Errors
    /// The reason for the refusal.
    #[inline]
    pub(crate) fn admits(
        &self,
        number: usize,
        queue: &Queue,
        is_member: bool,
        limits: &Limits,
    ) -> Result<(), OnCpu> {
        if let Some(why) = self.only_cpu {
            return Err(why);
        }
        if self.excluded & bit(number) != 0 {
            return Err(OnCpu::Operation);
        }
        if queue.facts().is_lost() {
            return Err(OnCpu::Gone);
        }
        self.work.fits(queue.portal().work_queue(), limits.version, !is_member)
    }

    /// Its next descriptor for this queue, which admits it: without a record, and without hints that the queue lacks.
    pub(crate) fn next(&mut self, queue: &Queue, is_member: bool, observer: &impl Observer) -> Descriptor {
        let lacking = queue.lacking_hints();
        if self.work.has_any(lacking) {
            observer.count(Event::HintsDropped);
            self.work.drop_flags(lacking);
        }
        if !is_member {
            return self.work.next(queue.portal().work_queue().transfer_bytes_max);
        }
        let next = self.work.next(u32::MAX);
        if self.has_fence { next.with_flags(Flags::FENCE) } else { next }
    }

    /// Applies the completion of the descriptor that [`next`](Self::next) returned for this queue. Returns the completed
    /// bytes of the item, and its next step.
    ///
    /// # Safety
    /// `completion` is that of a device that executed that descriptor and does not access its memory any more.
    pub(crate) unsafe fn complete(
        &mut self,
        completion: &Completion,
        (number, queue): (usize, &Queue),
        is_member: bool,
        limits: &Limits,
        observer: &impl Observer,
    ) -> (u64, Progress) {
        let before = u64::from(self.work.left_bytes());
        // SAFETY: passed on to the caller.
        let step = unsafe { self.work.absorb(completion) };
        let bytes = match step {
            Step::Ended(_) => before,
            _ => before.saturating_sub(self.work.left_bytes().into()),
        };
        match step {
            Step::Ended(end) => {
                observer.count(Event::Completed(bytes));
                (bytes, Progress::Ended(end))
            }
            Step::Next => {
                observer.count(Event::Completed(bytes));
                (bytes, Progress::Submit)
            }
            Step::Fault => {
                observer.count(Event::Faulted(bytes));
                self.faults_count += 1;
                if self.faults_count > limits.faults_max {
                    self.only_cpu = Some(OnCpu::Faults);
                }
                // Its rest may be less than a batch can have.
                let fits = self.work.fits(queue.portal().work_queue(), limits.version, false);
                self.is_alone |= is_member && fits.is_err();
                (bytes, Progress::Fault(*completion))
            }
            Step::NotTaken(flags) => {
                observer.count(Event::NotTaken);
                let hints = Flags::from_bits(flags.bits() & HINTS.bits());
                if self.work.has_any(hints) {
                    observer.count(Event::HintsRefused);
                    queue.refuse_hints(hints);
                    self.work.drop_flags(hints);
                } else if is_member {
                    // Perhaps the device executes it alone.
                    self.is_alone = true;
                } else {
                    self.excluded |= bit(number);
                }
                (0, Progress::Submit)
            }
            Step::Failed => {
                observer.count(Event::Failed);
                (0, Progress::Failed(*completion))
            }
        }
    }

    /// Notes that the list of its batch faulted before the device reached it.
    pub(super) fn skip_by_fault(&mut self, limits: &Limits) {
        self.list_faults_count += 1;
        self.is_alone |= self.list_faults_count > limits.faults_max;
    }

    /// Touches the page of a fault as the owner of the memory would. A page outside of the request is left alone; the item
    /// will fault again, until the CPU executes it.
    ///
    /// # Safety
    /// No device has the item.
    pub(crate) unsafe fn touch(&self, completion: &Completion, observer: &impl Observer) {
        // SAFETY: passed on to the caller.
        let is_touched = unsafe { self.work.touch(completion) };
        observer.count(if is_touched { Event::Touched } else { Event::StrangeFault });
    }

    /// Executes the rest of it on the CPU.
    ///
    /// # Errors
    /// A completion with the error of the operation. Checked requests have none.
    ///
    /// # Safety
    /// No device has the item.
    pub(crate) unsafe fn finish(&mut self) -> Result<Ended, Completion> {
        // SAFETY: passed on to the caller.
        unsafe { self.work.finish() }
    }
}

/// The bit of a queue in a set of queues. Queues from number 63 on share one bit, so that a set is a word: if one of them
/// does not execute an item, the others do not get it.
fn bit(number: usize) -> u64 {
    1 << number.min(63)
}
