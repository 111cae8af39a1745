//! A descriptor that a queue has accepted: its position in the queue, and when it counts as lost.

use std::time::Duration;

use super::list::RecordLine;
use super::queue::Queue;
use super::traffic::Accepted;
use crate::wait::Patience;

/// The reason why a descriptor gets no completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The portal reports that the device has stopped: nothing accesses the memory.
    Gone,
    /// The queue made no progress for the time-out: the device may still access the memory.
    Silent,
}

/// An accepted descriptor, or a batch of them.
#[derive(Debug)]
#[must_use = "call `complete`, or `loss` until it is lost"]
pub(crate) struct InFlight {
    /// Descriptors, with the members of a batch.
    count: u64,
    /// How many of them are counted as completed.
    counted: u64,
    patience: Patience,
}

impl InFlight {
    /// `time` is the owner's attended time.
    #[inline]
    pub(super) fn new(accepted: Accepted, time: Duration) -> InFlight {
        let Accepted { count, ahead, completed } = accepted;
        InFlight { count, counted: 0, patience: Patience::new(ahead, completed, time) }
    }

    /// Counts its completion: the record is written.
    #[inline]
    pub(crate) fn complete(self, queue: &Queue) {
        queue.progress(self.count - self.counted);
        queue.portal().completed(1);
    }

    /// Returns the loss of a descriptor whose record is not written, if it counts as lost. `members` are the records of a
    /// batch.
    ///
    /// `was_gone` is what [`Facts::is_gone`](super::facts::Facts::is_gone) returned before the record was read: then the
    /// record has its last content.
    pub(crate) fn loss(
        &mut self,
        was_gone: bool,
        queue: &Queue,
        members: &[RecordLine],
        time: Duration,
        timeout: Duration,
    ) -> Option<Loss> {
        if was_gone {
            return Some(Loss::Gone);
        }
        let members = members.iter().filter(|line| line.0.poll().is_some()).count() as u64;
        let completed = queue.progress(members.saturating_sub(self.counted));
        self.counted = self.counted.max(members);
        let is_over = self.patience.is_over(completed, time, queue.portal().work_queue(), timeout);
        is_over.then_some(Loss::Silent)
    }
}
