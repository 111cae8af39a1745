//! The device behind its queues: a state machine without threads.
//!
//! ```text
//! step:  write one completion record that is due
//!        each idle engine takes a descriptor from its group's queues, by priority
//!        one engine does a piece of its work: a member of a batch, or up to some KiB of a transfer
//! ```
//!
//! Delays are counted in steps, and every choice that the specification leaves open is drawn from the seed. A group
//! with one engine writes data in the order of submission to a queue, as the specification promises; completion records
//! may be written in any order, as it allows. With a timing there is a clock as well ([`timing`](super::Timing)), which
//! goes on when nothing can be done at once.
//!
//! Source: Intel DSA Architecture Specification 3.0, chapters 3 and 4.

use std::sync::Arc;

use super::ahead::{Ahead, Held};
use super::arbiter::Arbiter;
use super::batch::Batch;
use super::check::RECORD_ALIGNMENT;
use super::config::{ConfigError, DeviceConfig};
use super::front::{DeviceCounters, Front, SoftwareError, count, get};
use super::job::{Advance, Job, MemberOf, Origin};
use super::memory::Memory;
use super::nasty::Nasty;
use super::ops::{Env, Scratch};
use super::pages::{Chance, Fault};
use super::timing::Clock;
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::portal::{Submission, SubmitError, WorkQueueInfo};

/// An emulated device.
///
/// Nothing happens in it but in [`step`](Self::step). Whoever owns it decides when that is:
/// [`Deterministic`](super::Deterministic) in the calling thread, [`Emulator`](super::Emulator) in one of its own.
pub struct Device {
    config: DeviceConfig,
    front: Arc<Front>,
    arbiters: Vec<Arbiter>,
    engines: Vec<Engine>,
    records: Vec<DueRecord>,
    chance: Chance,
    scratch: Scratch,
    clock: Clock,
    steps: u64,
    sequence: u64, // descriptors taken from queues
    turn: usize,   // the engine that is asked first in the next step
    is_disabling: bool,
}

/// Whether a step had anything to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// Work was done, or is waiting for its delay.
    Busy,
    /// All queues and engines are empty.
    Idle,
}

/// What a step at a given time did.
pub(super) enum Did {
    Work,
    Nothing,
    /// Nothing, but there is something to do at this time.
    WaitUntil(u64),
}

/// An engine, with its batch unit.
struct Engine {
    group: usize,
    batch: Option<Batch>,
    job: Option<Job>, // a descriptor, or a member of a batch: its own or, as a helper, another engine's
    ahead: Option<Box<Ahead>>,
    ready_at: u64, // the step from which it goes on
    free_ns: u64,  // when it is done with what it has, for the clock
}

/// What an engine with a batch does next.
enum Next {
    Start,
    End,
    /// Members that others execute, or records, are still under way.
    Wait,
}

/// A completion record that waits to be written.
struct DueRecord {
    due_at: u64,
    due_ns: u64,
    origin: Origin,
    completion: Completion,
}

impl Device {
    /// A device with empty queues.
    ///
    /// # Errors
    /// [`ConfigError`]: what the device would refuse when it is enabled.
    pub fn new(config: &DeviceConfig, nasty: Nasty) -> Result<Device, ConfigError> {
        Device::with_clock(config, nasty, false)
    }

    /// A device whose clock, if it has a timing, is real.
    pub(super) fn in_real_time(config: &DeviceConfig, nasty: Nasty) -> Result<Device, ConfigError> {
        Device::with_clock(config, nasty, true)
    }

    fn with_clock(config: &DeviceConfig, nasty: Nasty, is_real: bool) -> Result<Device, ConfigError> {
        config.validate()?;
        let mut first = 0;
        let mut arbiters = Vec::new();
        let mut engines = Vec::new();
        for (number, group) in config.groups.iter().enumerate() {
            arbiters.push(Arbiter::new(first, &group.queues));
            first += group.queues.len();
            engines.extend((0..group.engines).map(|_| Engine::new(number)));
        }
        Ok(Device {
            config: config.clone(),
            front: Arc::new(Front::new(config, &nasty, is_real)),
            arbiters,
            engines,
            records: Vec::new(),
            chance: Chance::new(nasty),
            scratch: Scratch::new(),
            clock: Clock::new(config.timing),
            steps: 0,
            sequence: 0,
            turn: 0,
            is_disabling: false,
        })
    }

    /// The side that is shared with submitters.
    pub(super) fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// What the device consists of.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// How badly it behaves; its seed is what a failing test prints.
    pub fn nasty(&self) -> &Nasty {
        self.chance.nasty()
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
    /// [`SubmitError::Gone`] after [`abort`](Self::abort) or [`disable`](Self::disable).
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

    /// Does the next piece of work. With a timing, time goes on if there is none now but will be.
    pub fn step(&mut self, memory: &impl Memory) -> Stepped {
        match self.step_now(memory) {
            Did::Work => Stepped::Busy,
            Did::Nothing => Stepped::Idle,
            Did::WaitUntil(ns) => {
                self.clock.advance_to(ns);
                self.front.set_now_ns(self.clock.now_ns());
                Stepped::Busy
            }
        }
    }

    /// Does the next piece of work that can be done at `now_ns` of a real clock.
    pub(super) fn step_at(&mut self, now_ns: u64, memory: &impl Memory) -> Did {
        self.clock.follow(now_ns);
        self.step_now(memory)
    }

    fn step_now(&mut self, memory: &impl Memory) -> Did {
        self.steps += 1;
        let wrote = !self.records.is_empty() && self.write_due_record(memory);
        self.dispatch(memory);
        let mut is_waiting = false;
        for _ in 0..self.engines.len() {
            let Some(engine) = self.next_engine() else { break };
            if self.advance(engine, memory) {
                return Did::Work;
            }
            is_waiting = true; // for others: a drain, or a fence
        }
        if wrote {
            return Did::Work;
        }
        if !is_waiting && self.is_idle() {
            if self.is_disabling {
                self.front.set_gone();
            }
            return Did::Nothing;
        }
        match self.next_event_ns() {
            Some(ns) if !self.waits_for_steps() => Did::WaitUntil(ns),
            _ => Did::Work,
        }
    }

    /// Whether something goes on after some more steps, without any time.
    fn waits_for_steps(&self) -> bool {
        self.engines.iter().any(|engine| !engine.is_idle() && engine.ready_at > self.steps)
            || self.records.iter().any(|record| record.due_at > self.steps)
    }

    /// Whether all queues and engines are empty.
    pub fn is_idle(&self) -> bool {
        self.records.is_empty() && self.engines.iter().all(Engine::is_idle) && self.front.is_empty()
    }

    /// The time on the virtual clock, which stands still without a timing.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Time goes on without anything to do, as between two submissions.
    pub fn pass_time(&mut self, ns: u64) {
        self.clock.advance_to(self.clock.now_ns().saturating_add(ns));
        self.front.set_now_ns(self.clock.now_ns());
    }

    /// Stops for good, as a device that is reset or lost: what is in flight never completes.
    pub fn abort(&mut self) {
        self.front.close();
        self.engines.iter_mut().for_each(|engine| {
            engine.batch = None;
            engine.job = None;
            engine.ahead = None;
        });
        count(&self.front.counters.records_lost, self.records.len() as u64);
        self.records.clear();
        while self.arbiters.iter_mut().any(|arbiter| arbiter.take(&self.front.queues, u64::MAX).is_some()) {}
        let counters = self.front.snapshot();
        count(&self.front.counters.aborted, counters.in_flight());
        self.front.set_gone();
    }

    /// Takes no more descriptors; those that it has complete in the following steps, and then it is gone.
    ///
    /// Source: DSA specification 9.2 (Disable Device).
    pub fn disable(&mut self) {
        self.front.close();
        self.is_disabling = true;
    }

    /// Whether it processes nothing any more, after [`abort`](Self::abort) or the end of a [`disable`](Self::disable).
    pub fn is_gone(&self) -> bool {
        self.front.is_gone()
    }

    /// Takes descriptors again, with empty queues, an empty error register and counters at zero.
    ///
    /// Returns false, and does nothing, unless the device [`is_gone`](Self::is_gone).
    pub fn enable(&mut self) -> bool {
        if !self.is_gone() {
            return false;
        }
        self.front = Arc::new(Front::new(&self.config, self.chance.nasty(), false));
        self.front.set_now_ns(self.clock.now_ns());
        self.is_disabling = false;
        true
    }

    /// What the device has done since it was enabled.
    pub fn counters(&self) -> DeviceCounters {
        self.front.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.front.take_error()
    }

    fn write_due_record(&mut self, memory: &impl Memory) -> bool {
        let is_due = |record: &DueRecord| record.due_at <= self.steps && self.clock.is_due(record.due_ns);
        let Some(index) = self.records.iter().position(is_due) else { return false };
        let record = self.records.swap_remove(index);
        self.write_record(&record.origin, &record.completion, memory);
        if let Some(member) = record.origin.member
            && let Some(batch) = &mut self.engines[member.engine].batch
        {
            batch.record_settled();
        }
        true
    }

    fn write_record(&mut self, origin: &Origin, completion: &Completion, memory: &impl Memory) {
        let counters = &self.front.counters;
        let address = origin.descriptor.completion_address();
        let written = self.chance.record_page(memory, address.page(), counters).and_then(|()| {
            memory.publish(address, completion).map_err(|vanished| Fault::vanished(vanished, true))
        });
        match written {
            Ok(()) => count(&counters.records_written, 1),
            Err(fault) => {
                count(&counters.records_lost, 1);
                self.report(origin, &fault.completion_as(Status::CompletionFault, 0));
            }
        }
    }

    /// Gives every idle engine a descriptor, if its group has one, or a member of another engine's batch.
    fn dispatch(&mut self, memory: &impl Memory) {
        for number in 0..self.engines.len() {
            if self.engines[number].is_idle() {
                if let Some(job) = self.take(number).or_else(|| self.help(number, memory)) {
                    self.start(number, job);
                }
            } else if self.engines[number].may_work_ahead()
                && self.chance.works_ahead()
                && let Some(job) = self.take(number)
            {
                let engine = &mut self.engines[number];
                let at_hand = engine.job.as_ref().map(|job| job.origin.queue);
                let is_held = at_hand == Some(job.origin.queue);
                engine.ahead = Some(Box::new(Ahead::new(job, is_held)));
            }
        }
    }

    /// The next descriptor for an engine's group.
    fn take(&mut self, engine: usize) -> Option<Job> {
        let stamped_max = match self.clock.timing() {
            Some(timing) => self.clock.now_ns().checked_sub(timing.dispatch_ns)?,
            None => u64::MAX,
        };
        let group = self.engines[engine].group;
        let (queue, words) = self.arbiters[group].take(&self.front.queues, stamped_max)?;
        self.sequence += 1;
        let descriptor = Descriptor::from_words(words);
        Some(Job::new(Origin { descriptor, queue, sequence: self.sequence, member: None }))
    }

    /// A member of the batch of another engine of the group, if one lets others help.
    fn help(&mut self, helper: usize, memory: &impl Memory) -> Option<Job> {
        if self.chance.nasty().spread_batches_per_mille == 0 {
            return None;
        }
        let (group, now_ns) = (self.engines[helper].group, self.clock.now_ns());
        let Device { engines, chance, front, .. } = self;
        engines.iter_mut().enumerate().filter(|(_, engine)| engine.group == group).find_map(
            |(owner, engine)| {
                let batch = engine.batch.as_mut().filter(|batch| batch.is_spread)?;
                member_job(owner, batch, now_ns, memory, chance, &front.counters)
            },
        )
    }

    fn start(&mut self, number: usize, job: Job) {
        let delay = self.chance.delay_steps();
        let engine = &mut self.engines[number];
        engine.job = Some(job);
        engine.ready_at = self.steps + delay;
        self.charge(number, |timing| timing.occupancy_ns);
    }

    /// Lets time pass for an engine.
    fn charge(&mut self, number: usize, ns: impl FnOnce(&super::timing::Timing) -> u64) {
        if let Some(timing) = self.clock.timing() {
            let engine = &mut self.engines[number];
            engine.free_ns = engine.free_ns.max(self.clock.now_ns()) + ns(timing);
        }
    }

    /// The engine that goes on in this step.
    fn next_engine(&mut self) -> Option<usize> {
        let count = self.engines.len();
        let first = match self.turn + self.chance.pick(count) {
            first if first >= count => first % count.max(1),
            first => first,
        };
        let engine = (first..count).chain(0..first).find(|index| {
            let engine = &self.engines[*index];
            !engine.is_idle() && engine.ready_at <= self.steps && self.clock.may_work(engine.free_ns)
        })?;
        self.turn = engine + 1;
        Some(engine)
    }

    /// The next time at which something can go on that cannot now.
    fn next_event_ns(&self) -> Option<u64> {
        let timing = self.clock.timing()?;
        let busy = self.engines.iter().filter(|engine| !engine.is_idle());
        let engines = busy.map(|engine| self.clock.works_at(engine.free_ns));
        let fences =
            self.engines.iter().filter_map(|engine| engine.batch.as_ref()).map(|batch| batch.settled_ns);
        let records = self.records.iter().map(|record| record.due_ns);
        let queues = self.arbiters.iter().filter_map(|arbiter| arbiter.earliest(&self.front.queues));
        let queues = queues.map(|stamp| stamp + timing.dispatch_ns);
        let all = engines.chain(fences).chain(records).chain(queues);
        all.filter(|ns| *ns > self.clock.now_ns()).min()
    }

    /// Does a piece of an engine's work; false if it can only wait.
    fn advance(&mut self, number: usize, memory: &impl Memory) -> bool {
        if self.engines[number].ahead.is_some() && self.chance.flips() {
            return self.advance_ahead(number, memory);
        }
        if self.engines[number].job.is_none() {
            match self.next_member(number, memory) {
                Next::Start => {}
                Next::End => return true,
                Next::Wait => return false,
            }
        }
        let is_drained = self.is_drained(number);
        let before = self.spent();
        let Device { front, engines, chance, scratch, config, .. } = self;
        let Some(job) = &mut engines[number].job else { return false };
        let mut env = Env { memory, chance, counters: &front.counters, scratch };
        let advance = job.advance(front, config.capabilities, is_drained, &mut env);
        self.work(number, before);
        match advance {
            Advance::End(completion) => {
                self.finish(number, completion, memory);
                self.promote(number, memory);
            }
            Advance::StartBatch => self.start_batch(number),
            Advance::Drains => return false,
            Advance::Continue => self.engines[number].ready_at = self.steps + self.chance.delay_steps(),
        }
        true
    }

    /// The job at hand has ended.
    fn finish(&mut self, number: usize, completion: Completion, memory: &impl Memory) {
        if let Some(job) = self.engines[number].job.take() {
            self.end(number, job.origin, completion, memory);
        }
    }

    fn start_batch(&mut self, number: usize) {
        let is_spread = self.chance.spreads_batch();
        let engine = &mut self.engines[number];
        let Some(Job { origin, .. }) = engine.job.take() else { return };
        engine.batch = Some(Batch::new(origin.descriptor, origin.queue, origin.sequence, is_spread));
        let members = u64::from(origin.descriptor.size());
        self.charge(number, |timing| timing.batch_fetch_ns + members * timing.batch_member_ns);
    }

    /// Gives an engine without a job the next member of its batch, or ends the batch.
    fn next_member(&mut self, number: usize, memory: &impl Memory) -> Next {
        let now_ns = self.clock.now_ns();
        let Device { front, engines, chance, .. } = self;
        let Some(batch) = &mut engines[number].batch else { return Next::Wait };
        if let Some(job) = member_job(number, batch, now_ns, memory, chance, &front.counters) {
            engines[number].job = Some(job);
            self.charge(number, |timing| timing.occupancy_ns);
            return Next::Start;
        }
        let Some(completion) = batch.ended() else { return Next::Wait };
        let Batch { descriptor, queue, sequence, .. } = *batch;
        engines[number].batch = None;
        self.end(number, Origin { descriptor, queue, sequence, member: None }, completion, memory);
        self.promote(number, memory);
        Next::End
    }

    /// Work that the engine does ahead of its turn.
    fn advance_ahead(&mut self, number: usize, memory: &impl Memory) -> bool {
        let before = self.spent();
        let Device { front, engines, chance, scratch, config, .. } = self;
        let Some(ahead) = &mut engines[number].ahead else { return false };
        if ahead.is_parked || ahead.ended.is_some() {
            return true; // a step spent in vain
        }
        let counters = &front.counters;
        let advance = if ahead.is_held {
            let held = Held { memory, writes: &ahead.writes };
            let mut env = Env { memory: &held, chance, counters, scratch };
            ahead.job.advance(front, config.capabilities, false, &mut env)
        } else {
            let mut env = Env { memory, chance, counters, scratch };
            ahead.job.advance(front, config.capabilities, false, &mut env)
        };
        match advance {
            Advance::End(completion) if ahead.is_held => ahead.ended = Some(completion),
            Advance::End(completion) => {
                if let Some(ahead) = engines[number].ahead.take() {
                    self.end(number, ahead.job.origin, completion, memory);
                }
            }
            Advance::StartBatch | Advance::Drains => ahead.is_parked = true,
            Advance::Continue => {}
        }
        self.work(number, before);
        true
    }

    /// It is the turn of what was done ahead.
    fn promote(&mut self, number: usize, memory: &impl Memory) {
        let engine = &mut self.engines[number];
        if !engine.is_free() {
            return;
        }
        let Some(mut ahead) = engine.ahead.take() else { return };
        let released = ahead.release(memory);
        let ended = match (released, ahead.ended) {
            (Err(_), _) => Some(Completion::new(Status::HardwareWrite)),
            (Ok(()), ended) => ended,
        };
        match ended {
            Some(completion) => self.end(number, ahead.job.origin, completion, memory),
            None => self.start(number, ahead.job),
        }
    }

    /// Whether the job at hand, if it is a drain, has nothing left to wait for.
    fn is_drained(&self, number: usize) -> bool {
        let Some(job) = self.engines[number].job.as_ref().filter(|job| job.is_drain()) else { return false };
        let waits_for = |origin: &Origin| job.origin.drains(origin, &self.front);
        let engines_done = self.engines.iter().all(|engine| {
            let jobs = engine.job.iter().chain(engine.ahead.iter().map(|ahead| &ahead.job));
            let batch = engine.batch.as_ref().map(Batch::origin);
            !jobs.map(|job| &job.origin).chain(&batch).any(waits_for)
        });
        engines_done && !self.records.iter().any(|record| waits_for(&record.origin))
    }

    /// Bytes and page requests so far, as far as the clock needs them.
    fn spent(&self) -> (u64, u64) {
        match self.clock.timing() {
            Some(_) => (get(&self.front.counters.bytes_done), get(&self.front.counters.page_requests)),
            None => (0, 0),
        }
    }

    /// Time passes for an engine as its work since `before` takes it.
    fn work(&mut self, number: usize, before: (u64, u64)) {
        if self.clock.timing().is_some() {
            let (bytes, requests) = self.spent();
            let engine = &mut self.engines[number];
            engine.free_ns = self.clock.work(engine.free_ns, bytes - before.0, requests - before.1);
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
        let due_ns = self.clock.timing().map_or(0, |timing| self.engines[engine].free_ns + timing.latency_ns);
        let is_late = wants_record && (delay > 0 || !self.clock.is_due(due_ns));
        if let Some(member) = origin.member
            && let Some(batch) = &mut self.engines[member.engine].batch
        {
            batch.member_ended(status, is_late, due_ns);
        }
        if is_late {
            self.records.push(DueRecord { due_at: self.steps + delay, due_ns, origin, completion });
        } else if wants_record {
            self.write_record(&origin, &completion, memory);
        }
    }

    /// Writes the error register.
    fn report(&self, origin: &Origin, completion: &Completion) {
        let invalid_flags = match completion.status {
            Status::InvalidFlags => completion.invalid_flags(),
            _ => Flags::NONE,
        };
        self.front.report(SoftwareError {
            batch_index: origin.member.map(|member| member.index),
            write_fault: completion.write_fault,
            invalid_flags,
            fault_address: completion.fault_address,
            ..SoftwareError::new(completion.status, origin.queue, &origin.descriptor)
        });
    }
}

/// The next member of a batch, if one can start.
fn member_job(
    owner: usize,
    batch: &mut Batch,
    now_ns: u64,
    memory: &impl Memory,
    chance: &mut Chance,
    counters: &super::front::Counters,
) -> Option<Job> {
    let member = batch.next(now_ns, memory, chance, counters)?;
    Some(Job::new(Origin {
        descriptor: member.descriptor,
        queue: batch.queue,
        sequence: batch.sequence,
        member: Some(MemberOf { engine: owner, index: member.index }),
    }))
}

impl Engine {
    fn new(group: usize) -> Engine {
        Engine { group, batch: None, job: None, ahead: None, ready_at: 0, free_ns: 0 }
    }

    /// Has nothing to do.
    fn is_idle(&self) -> bool {
        self.is_free() && self.ahead.is_none()
    }

    /// Has nothing at hand.
    fn is_free(&self) -> bool {
        self.job.is_none() && self.batch.is_none()
    }

    /// Has a descriptor of its own at hand, and nothing ahead of it.
    fn may_work_ahead(&self) -> bool {
        self.ahead.is_none()
            && self.batch.is_none()
            && self.job.as_ref().is_some_and(|job| job.origin.member.is_none())
    }
}
