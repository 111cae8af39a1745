//! A descriptor in an engine: checked first, then executed piece by piece.

use memferry_dsa::portal::QueueMode;
use memferry_dsa::{Completion, Descriptor, Flags, Opcode, Status};

use crate::config::Capabilities;
use crate::device::check::check;
use crate::device::interface::Interface;
use crate::memory::Memory;
use crate::ops::{Env, Operation};

/// A descriptor in an engine.
pub(crate) struct Job {
    pub(crate) origin: Origin,
    state: State,
}

/// Where a descriptor came from, for records and reports.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) descriptor: Descriptor,
    pub(crate) queue: usize,
    /// Its number among all that the device took; that of its batch for a member.
    pub(crate) sequence: u64,
    pub(crate) member: Option<MemberOf>,
}

/// Which member of which batch.
#[derive(Clone, Copy)]
pub(crate) struct MemberOf {
    /// The engine whose batch unit has the batch.
    pub(crate) engine: usize,
    pub(crate) index: u16,
}

enum State {
    New,
    Drains,
    Executes(Operation),
}

/// What came of advancing a job.
pub(crate) enum Advance {
    Continue,
    StartBatch,
    /// A drain that has to wait for what came before it; ask again with `is_drained`.
    Drains,
    End(Completion),
}

impl Job {
    pub(crate) fn new(origin: Origin) -> Job {
        Job { origin, state: State::New }
    }

    /// Whether it waits for what came before it.
    pub(crate) fn is_drain(&self) -> bool {
        matches!(self.state, State::Drains)
    }

    /// Checks the descriptor the first time; does a piece of its work.
    pub(crate) fn advance<M: Memory>(
        &mut self,
        interface: &Interface,
        capabilities: Capabilities,
        is_drained: bool,
        env: &mut Env<'_, M>,
    ) -> Advance {
        let descriptor = &self.origin.descriptor;
        if let State::New = self.state {
            let queue = &interface.queues[self.origin.queue].info;
            let opcode = match check(descriptor, queue, capabilities, self.origin.member.is_some()) {
                Ok(opcode) => opcode,
                Err(refusal) => return Advance::End(refusal),
            };
            self.state = match Operation::new(opcode, descriptor, env.chance) {
                Some(operation) => State::Executes(operation),
                None if opcode == Opcode::Noop => return Advance::End(Completion::new(Status::Success)),
                None if opcode == Opcode::Batch => return Advance::StartBatch,
                None => State::Drains,
            };
        }
        match &mut self.state {
            State::Executes(operation) => operation.advance(env).map_or(Advance::Continue, Advance::End),
            State::Drains if is_drained => Advance::End(read_back(descriptor, env)),
            State::New | State::Drains => Advance::Drains,
        }
    }
}

impl Origin {
    /// Whether a drain that comes from `self` waits for `other`, which is still in progress: everything that came
    /// earlier through a dedicated queue, what the same submitter put into a shared one.
    pub(crate) fn drains(&self, other: &Origin, interface: &Interface) -> bool {
        other.sequence < self.sequence
            && other.queue == self.queue
            && (interface.queues[self.queue].info.mode == QueueMode::Dedicated
                || other.descriptor.pasid() == self.descriptor.pasid())
    }
}

/// The end of a drain: reads the readback addresses, of which there may be none.
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
