//! The batch unit of an engine: reads the list and hands out its members.
//!
//! ```text
//! members before the next fence run in any order
//! a fence waits until the records of all earlier members are written
//!     and abandons everything from it on if one of them did not end with Success
//! a list that cannot be read ends the batch after the members that could be
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 3.8 and 8.3.2.

use std::collections::VecDeque;

use super::front::{Counters, count};
use super::memory::Memory;
use super::pages::{Chance, PageFault};
use crate::address::Address;
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;

/// Members that are read ahead, and among which the order is free.
const READ_AHEAD: usize = 64;

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Batch {
    /// The descriptor of the batch itself, and its queue.
    pub(super) descriptor: Descriptor,
    pub(super) queue: usize,
    members: VecDeque<Member>, // read and not yet started
    read: u32,                 // members read from the list
    list_fault: Option<PageFault>,
    ended: u32,
    all_succeeded: bool,
    records_due: u32, // members whose completion record is still to be written
}

/// A member that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) index: u16,
    pub(super) descriptor: Descriptor,
    waits: bool, // carries a fence that is not passed
}

/// What the batch unit does next.
#[derive(Debug)]
pub(super) enum Next {
    Start(Member),
    /// Records of earlier members are still to be written.
    Wait,
    End(Completion),
}

impl Batch {
    pub(super) fn new(descriptor: Descriptor, queue: usize) -> Batch {
        Batch {
            descriptor,
            queue,
            members: VecDeque::new(),
            read: 0,
            list_fault: None,
            ended: 0,
            all_succeeded: true,
            records_due: 0,
        }
    }

    /// A member ended. Its record is still due if `record_due`.
    pub(super) fn member_ended(&mut self, status: Status, record_due: bool) {
        self.ended += 1;
        self.all_succeeded &= status == Status::Success;
        self.records_due += u32::from(record_due);
    }

    /// The record of a member was written, or lost.
    pub(super) fn record_settled(&mut self) {
        self.records_due -= 1;
    }

    /// The next member, once all started ones have ended.
    pub(super) fn next(&mut self, memory: &impl Memory, chance: &mut Chance, counters: &Counters) -> Next {
        if self.members.is_empty() && self.list_fault.is_none() {
            self.read_ahead(memory, chance, counters);
        }
        match self.members.front_mut() {
            Some(first) if first.waits => {
                if self.records_due > 0 {
                    return Next::Wait;
                }
                if !self.all_succeeded {
                    return self.abandon(counters);
                }
                first.waits = false;
            }
            Some(_) => {}
            None if self.records_due > 0 => return Next::Wait,
            None => return Next::End(self.completion()),
        }
        let free = self.members.iter().take_while(|member| !member.waits).count();
        let member =
            self.members.swap_remove_front(chance.pick(free)).expect("the first member does not wait");
        count(&counters.members, 1);
        Next::Start(member)
    }

    fn read_ahead(&mut self, memory: &impl Memory, chance: &mut Chance, counters: &Counters) {
        let mut page_known = None;
        while self.read < self.descriptor.size() && self.members.len() < READ_AHEAD {
            let address = self.address_of(self.read);
            if page_known.replace(address.page()) != Some(address.page())
                && let Err(fault) = chance.list_page(memory, address.page(), counters)
            {
                self.list_fault = Some(fault);
                return;
            }
            let mut bytes = [0; 64];
            memory.read(address, &mut bytes);
            let descriptor = Descriptor::from_bytes(&bytes).owned_by(self.descriptor.pasid());
            let waits = descriptor.flags().contains(Flags::FENCE);
            self.members.push_back(Member { index: self.read as u16, descriptor, waits });
            self.read += 1;
        }
    }

    fn address_of(&self, index: u32) -> Address {
        self.descriptor.address_1().offset(u64::from(index) * size_of::<Descriptor>() as u64)
    }

    fn abandon(&mut self, counters: &Counters) -> Next {
        count(&counters.members_abandoned, u64::from(self.descriptor.size() - self.ended));
        self.members.clear();
        Next::End(self.completion())
    }

    /// How the batch ended. The fault counts only if the batch got as far as that.
    fn completion(&self) -> Completion {
        let processed = Completion { bytes_completed: self.ended, ..Completion::new(Status::Success) };
        match self.list_fault {
            Some(fault) if self.ended == self.read => fault.completion(Status::BatchListFault, self.ended),
            _ if self.all_succeeded && self.ended == self.descriptor.size() => processed,
            _ => Completion { status: Status::BatchFailed, ..processed },
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::emulator::{FakeMemory, Nasty};

    /// Success with a false predicate counts as a failure: for the fence and for the batch.
    #[test]
    fn a_false_predicate_stops_at_the_fence() {
        let (memory, list) = (FakeMemory::new(), Address(0x1_0000));
        memory.map(list, 128);
        memory.store(list.offset(64), &Descriptor::noop().with_flags(Flags::FENCE).to_bytes());
        let (mut chance, counters) = (Chance::new(Nasty::none()), Counters::default());
        let mut batch = Batch::new(Descriptor::batch(list, 2), 0);
        assert!(
            matches!(batch.next(&memory, &mut chance, &counters), Next::Start(first) if first.index == 0)
        );
        batch.member_ended(Status::PredicateFalse, false);
        let Next::End(completion) = batch.next(&memory, &mut chance, &counters) else {
            panic!("not abandoned")
        };
        assert_eq!((completion.status, completion.bytes_completed), (Status::BatchFailed, 1));
    }
}
