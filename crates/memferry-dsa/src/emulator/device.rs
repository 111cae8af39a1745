//! The device behind its queues: a state machine without threads and without a clock.
//!
//! ```text
//! step:  write one completion record that is due
//!        each idle engine takes a descriptor from its group's queues, by priority
//!        one engine does a piece of its work: a member of a batch, or up to some KiB of a copy
//! ```
//!
//! Delays are counted in steps, and every choice that the specification leaves open is drawn from the seed.
//! An engine runs one descriptor at a time, so that a group with one engine writes data in the order of
//! submission, as the specification promises; completion records may be written in any order, as it allows.
//!
//! Source: Intel DSA Architecture Specification 3.0, chapters 3 and 4.

use std::sync::Arc;

use super::arbiter::Arbiter;
use super::batch::{Batch, Next};
use super::check::{RECORD_ALIGNMENT, check};
use super::config::{ConfigError, DeviceConfig};
use super::front::{DeviceCounters, Front, SoftwareError, count};
use super::memmove::Memmove;
use super::memory::Memory;
use super::nasty::Nasty;
use super::pages::Chance;
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::{Submission, SubmitError, WorkQueueInfo};

/// An emulated device.
///
/// Nothing happens in it but in [`step`](Self::step). Whoever owns it decides when that is:
/// [`Deterministic`](super::Deterministic) in the calling thread, [`Emulator`](super::Emulator) in one of its own.
pub struct Device {
    front: Arc<Front>,
    arbiters: Vec<Arbiter>,
    engines: Vec<Engine>,
    records: Vec<DueRecord>,
    chance: Chance,
    steps: u64,
    turn: usize, // the engine that is asked first in the next step
}

/// Whether a step had anything to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// Work was done, or is waiting for its delay.
    Busy,
    /// All queues and engines are empty.
    Idle,
}

/// An engine, with its batch unit.
struct Engine {
    group: usize,
    batch: Option<Batch>,
    job: Option<Job>, // a descriptor, or the current member of `batch`
    ready_at: u64,    // the step from which it goes on
}

/// A descriptor in an engine.
struct Job {
    origin: Origin,
    operation: Option<Operation>, // what it does, once it is checked
}

/// Where a descriptor came from, for records and reports.
struct Origin {
    descriptor: Descriptor,
    queue: usize,
    batch_index: Option<u16>,
}

/// An operation that takes more than one step.
enum Operation {
    Memmove(Memmove),
}

/// What came of advancing a job.
enum Advance {
    Continue,
    StartBatch,
    End(Completion),
}

/// A completion record that waits to be written.
struct DueRecord {
    due_at: u64,
    origin: Origin,
    engine: usize,
    completion: Completion,
}

impl Device {
    /// A device with empty queues.
    ///
    /// # Errors
    /// [`ConfigError`]: what the device would refuse when it is enabled.
    pub fn new(config: &DeviceConfig, nasty: Nasty) -> Result<Device, ConfigError> {
        config.validate()?;
        let mut first = 0;
        let mut arbiters = Vec::new();
        let mut engines = Vec::new();
        for (number, group) in config.groups.iter().enumerate() {
            arbiters.push(Arbiter::new(first, &group.queues));
            first += group.queues.len();
            engines.extend((0..group.engines).map(|_| Engine::new(number)));
        }
        let front = Arc::new(Front::new(config, &nasty));
        let chance = Chance::new(nasty);
        Ok(Device { front, arbiters, engines, records: Vec::new(), chance, steps: 0, turn: 0 })
    }

    /// The side that is shared with submitters.
    pub(super) fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// The work queue with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn work_queue(&self, queue: usize) -> &WorkQueueInfo {
        &self.front.queues[queue].info
    }

    /// Offers a descriptor to a work queue in the name of the address space `pasid`.
    ///
    /// # Errors
    /// [`SubmitError::Gone`] after [`abort`](Self::abort).
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn submit(
        &self,
        queue: usize,
        descriptor: &Descriptor,
        pasid: u32,
    ) -> Result<Submission, SubmitError> {
        self.front.submit(queue, descriptor, pasid)
    }

    /// Does the next piece of work.
    pub fn step(&mut self, memory: &impl Memory) -> Stepped {
        self.steps += 1;
        let wrote = self.write_due_record(memory);
        self.dispatch();
        match self.next_engine() {
            Some(engine) => self.advance(engine, memory),
            None if !wrote && self.is_idle() => return Stepped::Idle,
            None => {}
        }
        Stepped::Busy
    }

    /// Whether all queues and engines are empty.
    pub fn is_idle(&self) -> bool {
        self.records.is_empty() && self.engines.iter().all(Engine::is_idle) && self.front.is_empty()
    }

    /// Stops for good, as a device that is reset or lost: what is in flight never completes.
    pub fn abort(&mut self) {
        self.front.close();
        self.engines.iter_mut().for_each(|engine| {
            engine.batch = None;
            engine.job = None;
        });
        count(&self.front.counters.records_lost, self.records.len() as u64);
        self.records.clear();
        while self.arbiters.iter_mut().any(|arbiter| arbiter.take(&self.front.queues).is_some()) {}
        let counters = self.front.snapshot();
        count(&self.front.counters.aborted, counters.in_flight());
        self.front.set_gone();
    }

    /// What the device has done so far.
    pub fn counters(&self) -> DeviceCounters {
        self.front.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.front.take_error()
    }

    fn write_due_record(&mut self, memory: &impl Memory) -> bool {
        let due = self.records.iter().position(|record| record.due_at <= self.steps);
        let Some(index) = due else { return false };
        let record = self.records.swap_remove(index);
        self.write_record(&record, memory);
        if record.origin.batch_index.is_some()
            && let Some(batch) = &mut self.engines[record.engine].batch
        {
            batch.record_settled();
        }
        true
    }

    fn write_record(&mut self, record: &DueRecord, memory: &impl Memory) {
        let counters = &self.front.counters;
        let address = record.origin.descriptor.completion_address();
        match self.chance.record_page(memory, address.page(), counters) {
            Ok(()) => {
                memory.publish(address, &record.completion);
                count(&counters.records_written, 1);
            }
            Err(fault) => {
                count(&counters.records_lost, 1);
                self.report(&record.origin, &fault.completion(Status::CompletionFault, 0));
            }
        }
    }

    /// Gives every idle engine a descriptor, if its group has one.
    fn dispatch(&mut self) {
        for engine in self.engines.iter_mut().filter(|engine| engine.is_idle()) {
            let Some((queue, words)) = self.arbiters[engine.group].take(&self.front.queues) else { continue };
            let descriptor = Descriptor::from_words(words);
            engine.job =
                Some(Job { origin: Origin { descriptor, queue, batch_index: None }, operation: None });
            engine.ready_at = self.steps + self.chance.delay_steps();
        }
    }

    /// The engine that goes on in this step.
    fn next_engine(&mut self) -> Option<usize> {
        let count = self.engines.len();
        let first = self.turn + self.chance.pick(count);
        let engine = (0..count)
            .map(|index| (first + index) % count)
            .find(|index| !self.engines[*index].is_idle() && self.engines[*index].ready_at <= self.steps)?;
        self.turn = engine + 1;
        Some(engine)
    }

    fn advance(&mut self, number: usize, memory: &impl Memory) {
        let counters = &self.front.counters;
        let engine = &mut self.engines[number];
        let mut job = match (engine.job.take(), &mut engine.batch) {
            (Some(job), _) => job,
            (None, Some(batch)) => match batch.next(memory, &mut self.chance, counters) {
                Next::Wait => return,
                Next::Start(member) => Job {
                    origin: Origin {
                        descriptor: member.descriptor,
                        queue: batch.queue,
                        batch_index: Some(member.index),
                    },
                    operation: None,
                },
                Next::End(completion) => {
                    let origin =
                        Origin { descriptor: batch.descriptor, queue: batch.queue, batch_index: None };
                    engine.batch = None;
                    return self.end(number, origin, completion, memory);
                }
            },
            (None, None) => return,
        };
        let queue = &self.front.queues[job.origin.queue].info;
        match job.advance(queue, memory, &mut self.chance, &self.front) {
            Advance::End(completion) => self.end(number, job.origin, completion, memory),
            Advance::StartBatch => engine.batch = Some(Batch::new(job.origin.descriptor, job.origin.queue)),
            Advance::Continue => {
                engine.job = Some(job);
                engine.ready_at = self.steps + self.chance.delay_steps();
            }
        }
    }

    /// Accounts for a descriptor that ended, and tells its submitter.
    fn end(&mut self, engine: usize, origin: Origin, completion: Completion, memory: &impl Memory) {
        let status = completion.status;
        count(&self.front.counters.ended[usize::from(status.code())], 1);
        let flags = origin.descriptor.flags();
        let has_record = flags.contains(Flags::COMPLETION_ADDRESS_VALID)
            && origin.descriptor.completion_address().is_aligned_to(RECORD_ALIGNMENT)
            && status != Status::NotPrivileged;
        let wants_record = has_record && (!status.is_quiet() || flags.contains(Flags::REQUEST_COMPLETION));
        if !has_record && !status.is_quiet() {
            self.report(&origin, &completion);
        }
        let delay = if wants_record { self.chance.delay_steps() } else { 0 };
        if origin.batch_index.is_some()
            && let Some(batch) = &mut self.engines[engine].batch
        {
            batch.member_ended(status, delay > 0);
        }
        if wants_record {
            let record = DueRecord { due_at: self.steps + delay, origin, engine, completion };
            if delay == 0 {
                self.write_record(&record, memory);
            } else {
                self.records.push(record);
            }
        }
    }

    /// Writes the error register.
    fn report(&self, origin: &Origin, completion: &Completion) {
        self.front.report(SoftwareError {
            batch_index: origin.batch_index,
            write_fault: completion.write_fault,
            invalid_flags: completion.invalid_flags(),
            fault_address: completion.fault_address,
            ..SoftwareError::new(completion.status, origin.queue, &origin.descriptor)
        });
    }
}

impl Engine {
    fn new(group: usize) -> Engine {
        Engine { group, batch: None, job: None, ready_at: 0 }
    }

    fn is_idle(&self) -> bool {
        self.job.is_none() && self.batch.is_none()
    }
}

impl Job {
    /// Checks the descriptor the first time; does a piece of its work.
    fn advance(
        &mut self,
        queue: &WorkQueueInfo,
        memory: &impl Memory,
        chance: &mut Chance,
        front: &Front,
    ) -> Advance {
        let descriptor = &self.origin.descriptor;
        let operation = match &mut self.operation {
            Some(operation) => operation,
            None => match check(descriptor, queue, self.origin.batch_index.is_some()) {
                Ok(Opcode::Noop) => return Advance::End(Completion::new(Status::Success)),
                Ok(Opcode::Batch) => return Advance::StartBatch,
                Ok(Opcode::Memmove) => {
                    self.operation.insert(Operation::Memmove(Memmove::new(descriptor, chance)))
                }
                Ok(_) => return Advance::End(Completion::new(Status::BadOpcode)),
                Err(refusal) => return Advance::End(refusal),
            },
        };
        let ended = match operation {
            Operation::Memmove(copy) => copy.advance(memory, chance, &front.counters),
        };
        ended.map_or(Advance::Continue, Advance::End)
    }
}
