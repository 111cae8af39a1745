//! A descriptor in an engine: checked first, then executed piece by piece.

use memferry_dsa::{Completion, Descriptor, Flags, Opcode, QueueMode, Status};

use crate::config::Capabilities;
use crate::device::check::check;
use crate::device::interface::Interface;
use crate::memory::Memory;
use crate::ops::{Env, Operation};

/// A descriptor in an engine.
pub(crate) struct Job {
    pub(crate) origin: Origin,
    /// The time at which an engine could begin it.
    pub(crate) arrival_ns: u64,
    state: JobState,
}

/// The origin of a descriptor, for its completion record, the error register and the trace.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) descriptor: Descriptor,
    pub(crate) queue: usize,
    /// The position in the order of dispatch; a member has the one of its batch.
    pub(crate) sequence: u64,
    pub(crate) member: Option<MemberOf>,
}

/// The place of a member in a batch.
#[derive(Clone, Copy)]
pub(crate) struct MemberOf {
    /// The engine whose batch unit processes the batch.
    pub(crate) engine: usize,
    pub(crate) index: u16,
}

enum JobState {
    New,
    /// A drain that waits for earlier descriptors.
    Draining,
    Executing(Operation),
}

/// The result of advancing a job.
pub(crate) enum Advance {
    Continue,
    StartBatch,
    /// A drain has to wait for earlier descriptors; call again with `is_drained`.
    WaitForDrain,
    Complete(Completion),
}

impl Job {
    pub(crate) fn new(origin: Origin, arrival_ns: u64) -> Job {
        Job { origin, arrival_ns, state: JobState::New }
    }

    /// Whether its descriptor is a batch.
    pub(crate) fn is_batch(&self) -> bool {
        self.origin.descriptor.opcode() == Ok(Opcode::Batch)
    }

    /// Whether this is a drain that waits for earlier descriptors.
    pub(crate) fn is_drain(&self) -> bool {
        matches!(self.state, JobState::Draining)
    }

    /// Checks the descriptor on the first call, then executes one piece of it.
    pub(crate) fn advance<M: Memory>(
        &mut self,
        interface: &Interface,
        capabilities: Capabilities,
        is_drained: bool,
        env: &mut Env<'_, M>,
    ) -> Advance {
        let descriptor = &self.origin.descriptor;
        if let JobState::New = self.state {
            let queue = &interface.queues[self.origin.queue].info;
            let opcode = match check(descriptor, queue, capabilities, self.origin.member.is_some()) {
                Ok(opcode) => opcode,
                Err(refusal) => return Advance::Complete(refusal),
            };
            self.state = match Operation::new(opcode, descriptor, env.chance) {
                Some(operation) => JobState::Executing(operation),
                None if opcode == Opcode::Noop => return Advance::Complete(Completion::new(Status::Success)),
                None if opcode == Opcode::Batch => return Advance::StartBatch,
                None => JobState::Draining,
            };
        }
        match &mut self.state {
            JobState::Executing(operation) => {
                operation.advance(env).map_or(Advance::Continue, Advance::Complete)
            }
            JobState::Draining if is_drained => Advance::Complete(read_back(descriptor, env)),
            JobState::New | JobState::Draining => Advance::WaitForDrain,
        }
    }
}

impl Origin {
    /// Whether a drain from `self` waits for `other`, which is still in progress. A drain of a dedicated queue waits
    /// for all earlier descriptors of the queue, a drain of a shared queue for those of the same submitter.
    pub(crate) fn drains(&self, other: &Origin, interface: &Interface) -> bool {
        other.sequence < self.sequence
            && other.queue == self.queue
            && (interface.queues[self.queue].info.mode == QueueMode::Dedicated
                || other.descriptor.pasid() == self.descriptor.pasid())
    }
}

/// Completes a drain: reads the readback addresses, if there are any.
fn read_back<M: Memory>(descriptor: &Descriptor, env: &mut Env<'_, M>) -> Completion {
    for (flag, address) in
        [(Flags::DRAIN_READBACK_1, descriptor.address_1()), (Flags::DRAIN_READBACK_2, descriptor.address_2())]
    {
        if !descriptor.flags().contains(flag) {
            continue;
        }
        let read = env.chance.list_page(env.memory, address.page(), env.counters).and_then(|()| {
            env.memory
                .read(address, &mut [0])
                .map_err(|vanished| crate::device::translation::Fault::vanished(vanished, true))
        });
        if let Err(fault) = read {
            return fault.completion_as(Status::ReadbackFault, 0);
        }
    }
    Completion::new(Status::Success)
}
