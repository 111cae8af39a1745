//! Batches: items that are submitted together, and the meaning of the batch's completion for each.
//!
//! ```text
//! member with a record     its own completion
//! member without one
//!   list fault             submitted again; after too many such faults alone
//!   batch not supported    submitted again; the queue gets no more batches
//!   success, some records  submitted again: a fence stopped the device before it
//!   otherwise              failed: without a record it may have been executed
//! ```

use super::list::List;
use super::queue::Queue;
use super::work_item::{Limits, Progress, WorkItem};
use super::{Event, Observer};
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;

/// Writes the list of a batch for a queue that admits all of its members. Returns the batch, without a record.
pub(crate) fn write<'i, 'a: 'i>(
    members: impl Iterator<Item = &'i mut WorkItem<'a>>,
    queue: &Queue,
    list: &List,
    observer: &impl Observer,
) -> Descriptor {
    list.write(members.map(|item| item.next(queue, true, observer)))
}

/// The completion of a batch.
pub(crate) struct Completed<'b> {
    /// The completion of the batch itself.
    pub(crate) completion: Completion,
    pub(crate) list: &'b List,
    pub(crate) queue: (usize, &'b Queue),
    /// The failure of members without a record; `None` if they are submitted again.
    failure: Option<Completion>,
}

impl<'b> Completed<'b> {
    /// Interprets the completion of the batch of the first `count` members of `list`: remembers that a device refuses
    /// batches, and touches the page of a list fault.
    pub(crate) fn new(
        completion: Completion,
        list: &'b List,
        count: usize,
        queue: (usize, &'b Queue),
        observer: &impl Observer,
    ) -> Completed<'b> {
        let is_silent = || list.records(count).iter().all(|line| line.0.poll().is_none());
        let failure = match completion.status {
            Status::Success | Status::BatchFailed => is_silent().then_some(completion),
            Status::BatchListFault => {
                let is_touched = list.touch(completion.fault_address);
                observer.count(if is_touched { Event::Touched } else { Event::StrangeFault });
                None
            }
            Status::BadOpcode => {
                queue.1.refuse_batches();
                None
            }
            _ => Some(completion),
        };
        Completed { completion, list, queue, failure }
    }

    /// Whether the members without a record have failed with the batch.
    pub(crate) fn failure(&self) -> Option<Completion> {
        self.failure
    }

    /// Applies the completion of a member, as [`WorkItem::complete`] does, and clears its record.
    ///
    /// # Safety
    /// The batch has completed, and `item` was its member with this index.
    pub(crate) unsafe fn member(
        &self,
        index: usize,
        item: &mut WorkItem<'_>,
        limits: &Limits,
        observer: &impl Observer,
    ) -> (u64, Progress) {
        let record = &self.list.records(index + 1)[index].0;
        if let Some(completion) = record.poll() {
            record.reset();
            // SAFETY: the member's record is written.
            return unsafe { item.complete(&completion, self.queue, true, limits, observer) };
        }
        observer.count(Event::Skipped);
        if let Some(completion) = self.failure {
            return (0, Progress::Failed(completion));
        }
        if self.completion.status == Status::BatchListFault {
            item.skip_by_fault(limits);
        }
        (0, Progress::Submit)
    }
}
