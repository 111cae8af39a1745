//! A batch from its check to its outcomes, in rounds:
//!
//! ```text
//! the members in progress that no fence behind a failed one abandons
//!   if a queue takes batches and admits them all: the batch, with its fences
//!   otherwise: the first of them alone
//! ```
//!
//! Fences need no bookkeeping: a round ends when all of its members have, and a member that has ended takes its fence
//! with it, because all before it have ended as well.

use super::error::ClientError;
use super::waiting::{Memory, Waiting};
use super::{Client, SUBMITTED};
use crate::driver::batch::{self, Completed};
use crate::driver::work_item::{Progress, WorkItem};
use crate::driver::{Event, List, Observer, RecordLine};
use crate::request::{Ended, MemberError, Work};

/// A member in progress.
pub(super) struct Member<'a> {
    item: WorkItem<'a>,
    ended: Option<Result<Ended, MemberError>>,
}

impl<'a> Member<'a> {
    pub(super) fn new((work, has_fence): (Work<'a>, bool)) -> Member<'a> {
        Member { item: WorkItem::new(work).with_fence(has_fence), ended: None }
    }

    /// Its outcome; a member without one was abandoned.
    pub(super) fn into_end(self) -> Result<Ended, MemberError> {
        self.ended.unwrap_or(Err(MemberError::Abandoned))
    }

    /// Whether its outcome stops the members behind a fence.
    fn has_failed(&self) -> bool {
        match &self.ended {
            Some(Ok(end)) => !end.is_success(self.item.work().expected()),
            Some(Err(_)) => true,
            None => false,
        }
    }
}

/// The members in progress, in order. Members behind a fence that is never passed are abandoned here.
fn pending<'m, 'a>(members: &'m mut [Member<'a>]) -> Vec<&'m mut Member<'a>> {
    let (mut pending, mut has_failure, mut is_abandoned) = (Vec::new(), false, false);
    for member in members {
        // All that comes behind an abandoned member is behind its fence, too.
        is_abandoned |= member.ended.is_none() && has_failure && member.item.has_fence();
        if is_abandoned {
            member.ended.get_or_insert(Err(MemberError::Abandoned));
        }
        has_failure |= member.has_failed();
        if member.ended.is_none() {
            pending.push(member);
        }
    }
    pending
}

impl Client {
    /// Ends all members.
    pub(super) fn drive_batch(&self, members: &mut [Member<'_>], memory: Memory) -> Result<(), ClientError> {
        let mut is_unrolled = false;
        loop {
            let mut pending = pending(members);
            let together = pending.iter().take_while(|member| member.item.may_join()).count();
            if together > 1 {
                if self.batch_round(&mut pending[..together], memory)? {
                    continue;
                }
                if !is_unrolled {
                    self.stats.batches_unrolled.add(1);
                    is_unrolled = true;
                }
            }
            let Some(member) = pending.first_mut() else { return Ok(()) };
            match self.drive(&mut member.item, memory) {
                Ok(end) => member.ended = Some(Ok(end)),
                Err(ClientError::Failed { completion, .. }) => {
                    member.ended = Some(Err(MemberError::Failed(completion)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Submits the members as a batch, as many as a queue takes, and applies their completions. Returns whether a queue
    /// took it.
    fn batch_round(&self, members: &mut [&mut Member<'_>], memory: Memory) -> Result<bool, ClientError> {
        let limits = self.limits();
        for number in self.turns() {
            let queue = &self.queues[number];
            let count = members.len().min(queue.portal().work_queue().batch_max as usize);
            let members = &mut members[..count];
            let admits = |member: &&mut Member<'_>| member.item.admits(number, queue, true, &limits).is_ok();
            if !queue.takes_batches() || count < 2 || !members.iter().all(admits) {
                continue;
            }
            let (list, line) = (List::new(count), Box::<RecordLine>::default());
            let items = members.iter_mut().map(|member| &mut member.item);
            let batch = batch::write(items, queue, &list, &self.stats).with_completion(&line.0);
            // SAFETY: the requests were checked and borrow their memory; list and record live on below, or are leaked.
            let submitted = unsafe {
                queue.submit(&batch, count as u64 + 1, self.options.backoff, SUBMITTED, &self.stats)
            };
            let Ok(in_flight) = submitted else { continue };
            self.stats.count(Event::Batch(count as u64));
            self.stats.count(Event::Submitted(count as u64));
            let waiting = Waiting::new(in_flight, queue, &line.0, list.records(count));
            let completion = match waiting.wait(self.options.wait, self.options.timeout, memory, &self.stats)
            {
                Ok(completion) => completion,
                Err(loss) => {
                    // The device may still write to them.
                    self.stats.leaked_bytes.add(list.bytes() + size_of_val(&*line) as u64);
                    std::mem::forget((list, line));
                    return Err(self.lost(queue, loss, count as u64));
                }
            };
            let completed = Completed::new(completion, &list, count, (number, queue), &self.stats);
            for (index, member) in members.iter_mut().enumerate() {
                // SAFETY: the batch has completed, and these are its members in order.
                let (_, progress) =
                    unsafe { completed.member(index, &mut member.item, &limits, &self.stats) };
                match progress {
                    Progress::Ended(end) => member.ended = Some(Ok(end)),
                    Progress::Submit => {}
                    // SAFETY: the device has stopped at the fault, and nothing was submitted since.
                    Progress::Fault(fault) => unsafe { member.item.touch(&fault, &self.stats) },
                    Progress::Failed(failure) => member.ended = Some(Err(MemberError::Failed(failure))),
                }
            }
            return match completed.failure() {
                Some(completion) => Err(ClientError::Failed { queue: queue.name(), completion }),
                None => Ok(true),
            };
        }
        Ok(false)
    }
}
