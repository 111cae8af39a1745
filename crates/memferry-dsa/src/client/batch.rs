//! A batch from its check to its outcomes, in rounds:
//!
//! ```text
//! the members that have not ended, as far as no fence behind a failed one abandons them
//!   a queue takes batches, and all of these: the batch, with the fences that they have
//!   otherwise: the first of them alone
//! page faults: touched; too many: the CPU
//! ```
//!
//! Fences need no bookkeeping: a round ends when all of its members have, and a member that has ended takes its fence
//! with it, because all before it have ended as well.

use std::ptr;
use std::sync::atomic::Ordering;

use super::error::{ClientError, OnCpu};
use super::flight::{Flight, Memory};
use super::{Client, Queue};
use crate::address::Address;
use crate::completion::{Completion, CompletionRecord, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::request::{Member, MemberError, Step, pending};

/// What a device needs of us for a batch, in memory that can be leaked.
struct List {
    descriptors: Vec<Descriptor>,
    records: Vec<CompletionRecord>, // of the members, and of the batch itself
}

impl Client {
    /// Ends all members.
    pub(super) fn drive_batch(&self, members: &mut [Member<'_>], memory: Memory) -> Result<(), ClientError> {
        let (mut is_unrolled, mut list_faults) = (false, 0);
        loop {
            let pending = pending(members);
            let Some(first) = pending.first() else { return Ok(()) };
            let together = pending.iter().take_while(|index| !members[**index].is_loner).count();
            if together > 1 && list_faults <= self.options.faults_max {
                let round = self.batch_round(members, &pending[..together], memory)?;
                if let Some(has_list_fault) = round {
                    list_faults += u32::from(has_list_fault);
                    continue;
                }
                if !is_unrolled {
                    self.stats.batches_unrolled.add(1);
                    is_unrolled = true;
                }
            }
            let member = &mut members[*first];
            match self.drive(&mut member.work, memory) {
                Ok(end) => member.ended = Some(Ok(end)),
                Err(ClientError::Failed { completion, .. }) => {
                    member.ended = Some(Err(MemberError::Failed(completion)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Submits the members as a batch, and takes in how they ended. Whether its list met a page fault; `None` if no
    /// queue takes it.
    fn batch_round(
        &self,
        members: &mut [Member<'_>],
        pending: &[usize],
        memory: Memory,
    ) -> Result<Option<bool>, ClientError> {
        for index in self.turns() {
            let queue = &self.queues[index];
            let info = queue.portal.work_queue();
            let takes_batches = queue.portal.supports_batch()
                && !queue.is_lost()
                && !queue.refuses_batches.load(Ordering::Relaxed);
            let count = pending.len().min(info.batch_max as usize);
            let fits = |index: &usize| members[*index].work.fits(info, self.options.version, false).is_ok();
            if !takes_batches || count < 2 || !pending[..count].iter().all(fits) {
                continue;
            }
            let list = self.list(members, &pending[..count], queue);
            // SAFETY: the requests were checked and borrow their memory; list and records live on below, or are leaked.
            let Ok(entered) = (unsafe { self.submit(queue, &list.descriptor(), count as u64 + 1) }) else {
                continue;
            };
            self.stats.batches.add(1);
            self.stats.submitted.add(count as u64);
            let (of_members, record) = (&list.records[..count], &list.records[count]);
            let flight = Flight::new(&*queue.portal, &queue.traffic, &entered, record, of_members);
            let landed = flight.land(self.options.wait, self.options.timeout, memory);
            let completion = match self.landed(queue, landed, count as u64) {
                Ok(completion) => completion,
                Err(error) => {
                    self.stats.leaked_bytes.add(list.bytes());
                    std::mem::forget(list);
                    return Err(error);
                }
            };
            for (&index, record) in pending.iter().zip(&list.records[..count]) {
                match record.poll() {
                    Some(completion) => self.member_ended(&mut members[index], queue, &completion),
                    None => self.stats.skipped.add(1),
                }
            }
            return self.batch_ended(queue, &list, &completion);
        }
        Ok(None)
    }

    /// Whether the list met a page fault; `None` if the queue does not take batches after all.
    fn batch_ended(
        &self,
        queue: &Queue,
        list: &List,
        completion: &Completion,
    ) -> Result<Option<bool>, ClientError> {
        match completion.status {
            Status::Success | Status::BatchFailed => {
                let records = &list.records[..list.descriptors.len()];
                let is_silent = records.iter().all(|record| record.poll().is_none());
                // Nothing was done and nothing is said about it: there is no use in trying again.
                if is_silent { self.batch_failed(queue, completion) } else { Ok(Some(false)) }
            }
            Status::BatchListFault => {
                let page = completion.fault_address.page();
                let is_there = |member: &&Descriptor| Address::from(ptr::from_ref(*member)).page() == page;
                match list.descriptors.iter().find(is_there) {
                    Some(member) => {
                        // SAFETY: it is a reference; volatile, since the access is meant and not its value.
                        let _ = unsafe { ptr::from_ref(member).read_volatile() };
                        self.stats.pages_touched.add(1);
                    }
                    None => self.stats.strange_faults.add(1),
                }
                Ok(Some(true))
            }
            Status::BadOpcode => {
                queue.refuses_batches.store(true, Ordering::Relaxed);
                Ok(None)
            }
            _ => self.batch_failed(queue, completion),
        }
    }

    fn batch_failed(&self, queue: &Queue, completion: &Completion) -> Result<Option<bool>, ClientError> {
        Err(ClientError::Failed { queue: queue.name(), completion: *completion })
    }

    /// The descriptors of these members.
    fn list(&self, members: &mut [Member<'_>], pending: &[usize], queue: &Queue) -> List {
        let records: Vec<_> = (0..=pending.len()).map(|_| CompletionRecord::new()).collect();
        let descriptor = |(&index, record): (&usize, &CompletionRecord)| {
            let Member { work, has_fence, .. } = &mut members[index];
            self.drop_hints(work, queue);
            let next = work.next(u32::MAX);
            next.with_completion(record).with_flags(if *has_fence { Flags::FENCE } else { Flags::NONE })
        };
        let descriptors = pending.iter().zip(&records).map(descriptor).collect();
        List { descriptors, records }
    }

    /// Takes in how a member ended. Its fence is passed, so that the CPU may do its rest.
    fn member_ended(&self, member: &mut Member<'_>, queue: &Queue, completion: &Completion) {
        // SAFETY: the batch has completed, so the member has, with what `next` returned to `list`.
        let step = unsafe { member.work.absorb(completion) };
        self.count(&step);
        match step {
            Step::Ended(end) => member.ended = Some(Ok(end)),
            Step::Fault => {
                self.touch(&member.work, completion);
                member.faults += 1;
                let info = queue.portal.work_queue();
                let unfit = member.work.fits(info, self.options.version, false).err().map(OnCpu::from);
                let too_many = (member.faults > self.options.faults_max).then_some(OnCpu::Faults);
                if let Some(why) = unfit.or(too_many) {
                    member.is_loner = true;
                    member.ended = self.finish_on_cpu(&mut member.work, why).ok().map(Ok);
                }
            }
            Step::NotTaken(flags) => member.is_loner = !self.learn(&mut member.work, queue, flags),
            Step::Next => {}
            Step::Failed => member.ended = Some(Err(MemberError::Failed(*completion))),
        }
    }
}

impl List {
    fn descriptor(&self) -> Descriptor {
        let count = self.descriptors.len();
        Descriptor::batch(self.descriptors.as_ptr(), count as u32).with_completion(&self.records[count])
    }

    fn bytes(&self) -> u64 {
        (size_of_val(&self.descriptors[..]) + size_of_val(&self.records[..])) as u64
    }
}
