//! The batch unit of an engine: reads the list and hands out its members.
//!
//! ```text
//! members before the next fence run in any order, on one engine or on several engines of the group
//! a fence waits until the completion records of all earlier members are written
//!     and abandons all members from itself on if the status of an earlier one is not Success
//! a fault in the list completes the batch after the members before the fault
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.8 and 8.3.2.

use std::collections::VecDeque;

use memferry_dsa::{Completion, Descriptor, Flags, Status};

use crate::device::counters::{Counters, count};
use crate::device::job::Origin;
use crate::device::translation::{Fault, FaultInjector, bytes_to_page_end};
use crate::memory::Memory;

/// Members that are read ahead and may be reordered: one page of descriptors.
const READ_AHEAD: usize = 64;
/// Bytes of a descriptor.
const BYTES: usize = size_of::<Descriptor>();

/// A batch in flight.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The descriptor of the batch itself, its queue, and its position in the order of dispatch.
    pub(crate) descriptor: Descriptor,
    pub(crate) queue: usize,
    pub(crate) sequence: u64,
    /// Whether other engines of the group execute members.
    pub(crate) is_spread: bool,
    /// The time at which the list has been fetched.
    pub(crate) list_ns: u64,
    /// The time at which the records of all executed members are written: a fence waits for it.
    pub(crate) fence_ns: u64,
    members: VecDeque<Member>, // read and not yet started
    read: u32,                 // members read from the list
    list_fault: Option<Fault>,
    started: u32,
    executed: u32,
    all_succeeded: bool,
    is_abandoned: bool,
    records_due: u32, // members whose completion record is still to be written
}

/// A member that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) index: u16,
    pub(crate) descriptor: Descriptor,
    waits: bool, // carries a fence that is not passed
}

impl Batch {
    pub(crate) fn new(
        descriptor: Descriptor,
        queue: usize,
        sequence: u64,
        is_spread: bool,
        list_ns: u64,
    ) -> Batch {
        Batch {
            descriptor,
            queue,
            sequence,
            is_spread,
            list_ns,
            fence_ns: 0,
            members: VecDeque::new(),
            read: 0,
            list_fault: None,
            started: 0,
            executed: 0,
            all_succeeded: true,
            is_abandoned: false,
            records_due: 0,
        }
    }

    /// The origin of the batch itself.
    pub(crate) fn origin(&self) -> Origin {
        Origin { descriptor: self.descriptor, queue: self.queue, sequence: self.sequence, member: None }
    }

    /// Accounts for an executed member, whose record is written at `fence_ns`. It is not yet written if `record_due`.
    pub(crate) fn member_executed(&mut self, status: Status, record_due: bool, fence_ns: u64) {
        self.executed += 1;
        self.all_succeeded &= status == Status::Success;
        self.records_due += u32::from(record_due);
        self.fence_ns = self.fence_ns.max(fence_ns);
    }

    /// Accounts for a member's completion record that was written or lost.
    pub(crate) fn record_done(&mut self) {
        self.records_due -= 1;
    }

    /// Whether all started members are executed and have their records.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.started == self.executed && self.records_due == 0
    }

    /// Starts and returns a member, if one can start now.
    pub(crate) fn next(
        &mut self,
        now_ns: u64,
        memory: &impl Memory,
        chance: &mut FaultInjector,
        counters: &Counters,
    ) -> Option<Member> {
        if self.members.is_empty() && self.list_fault.is_none() && !self.is_abandoned {
            self.read_ahead(memory, chance, counters);
        }
        let is_quiescent = self.is_quiescent();
        let first = self.members.front_mut()?;
        if first.waits {
            if !is_quiescent || now_ns < self.fence_ns {
                return None;
            }
            if !self.all_succeeded {
                self.abandon(counters);
                return None;
            }
            first.waits = false;
        }
        let free = match chance.fault_plan().reorder {
            true => self.members.iter().take_while(|member| !member.waits).count(),
            false => 1,
        };
        let member = self.members.swap_remove_front(chance.pick(free))?;
        self.started += 1;
        count(&counters.members, 1);
        Some(member)
    }

    /// The completion of the batch, once it is complete.
    pub(crate) fn completion_if_done(&self) -> Option<Completion> {
        let all_read = self.read == self.descriptor.size() || self.list_fault.is_some();
        let nothing_left = self.is_abandoned || all_read && self.members.is_empty();
        (nothing_left && self.is_quiescent()).then(|| self.completion())
    }

    fn read_ahead(&mut self, memory: &impl Memory, chance: &mut FaultInjector, counters: &Counters) {
        let mut bytes = [0; READ_AHEAD * BYTES];
        while self.read < self.descriptor.size() && self.members.len() < READ_AHEAD {
            let address = self.descriptor.address_1().offset(u64::from(self.read) * BYTES as u64);
            if let Err(fault) = chance.list_page(memory, address.page(), counters) {
                self.list_fault = Some(fault);
                return;
            }
            let left = (self.descriptor.size() - self.read) as usize;
            let in_page = bytes_to_page_end(address) as usize / BYTES;
            let bytes = &mut bytes[..BYTES * left.min(in_page).min(READ_AHEAD - self.members.len())];
            if let Err(vanished) = memory.read(address, bytes) {
                // The device requests absent pages of a list, so a page that vanishes counts as refused.
                self.list_fault = Some(Fault::vanished(vanished, true));
                return;
            }
            let (list, _) = bytes.as_chunks::<BYTES>();
            for bytes in list {
                let descriptor = Descriptor::from_bytes(bytes).owned_by(self.descriptor.pasid());
                let waits = descriptor.flags().contains(Flags::FENCE);
                self.members.push_back(Member { index: self.read as u16, descriptor, waits });
                self.read += 1;
            }
        }
    }

    fn abandon(&mut self, counters: &Counters) {
        count(&counters.members_abandoned, u64::from(self.descriptor.size() - self.executed));
        self.members.clear();
        self.is_abandoned = true;
    }

    /// A fault in the list counts only if the members before it were all executed.
    fn completion(&self) -> Completion {
        let processed = Completion { bytes_completed: self.executed, ..Completion::new(Status::Success) };
        match self.list_fault {
            Some(fault) if self.executed == self.read => {
                fault.completion_as(Status::BatchListFault, self.executed)
            }
            _ if self.all_succeeded && self.executed == self.descriptor.size() => processed,
            _ => Completion { status: Status::BatchFailed, ..processed },
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use memferry_dsa::Address;

    use super::*;
    use crate::{FakeMemory, FaultPlan};

    /// Success with a false predicate counts as a failure: for the fence and for the batch.
    #[test]
    fn a_false_predicate_stops_at_the_fence() {
        let (memory, list) = (FakeMemory::new(), Address(0x1_0000));
        memory.map(list, 128);
        memory.store(list.offset(64), &Descriptor::noop().with_flags(Flags::FENCE).to_bytes());
        let (mut chance, counters) = (FaultInjector::new(FaultPlan::none()), Counters::default());
        let mut batch = Batch::new(Descriptor::batch(list, 2), 0, 0, false, 0);
        let mut next = |batch: &mut Batch| batch.next(0, &memory, &mut chance, &counters);
        assert!(next(&mut batch).is_some_and(|first| first.index == 0));
        assert!(
            next(&mut batch).is_none() && batch.completion_if_done().is_none(),
            "the fence waits for the first member"
        );
        batch.member_executed(Status::PredicateFalse, false, 0);
        assert!(next(&mut batch).is_none());
        let completion = batch.completion_if_done().expect("abandoned");
        assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 1));
    }
}
