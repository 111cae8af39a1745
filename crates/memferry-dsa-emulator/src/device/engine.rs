//! The engines of a device: dispatch of descriptors, and the choice of the engine that runs next.

use memferry_dsa::internals::device_time::EngineTime;
use memferry_dsa::{Completion, Descriptor, Flags, Status};

use crate::device::Device;
use crate::device::batch::Batch;
use crate::device::counters::{Counters, get};
use crate::device::job::{Advance, Job, MemberOf, Origin};
use crate::device::translation::FaultInjector;
use crate::device::work_ahead::{WorkAhead, WriteBuffer};
use crate::memory::Memory;
use crate::ops::Env;
use crate::queue::ring::PoppedEntry;

/// An engine, with its batch unit. It has cache lines of its own: otherwise a submitter may wait for a line that it reads
/// because an engine has written it.
#[repr(align(128))] // `CacheLine`'s
pub(crate) struct Engine {
    pub(crate) group: usize,
    pub(crate) batch: Option<Batch>,
    pub(crate) job: Option<Job>, // a descriptor, or a member of its own batch or of another engine's
    pub(crate) ahead: Option<Box<WorkAhead>>,
    pub(crate) ready_at: u64, // the first step in which it may run again
    pub(crate) time: EngineTime,
    pub(crate) is_acquired: bool, // acquired from the engines that processes share
    turn: u64,                    // the lower, the longer it has waited
}

/// The next action of an engine with a batch.
enum NextMember {
    Started,
    BatchComplete,
    /// Members on other engines, or completion records, are still in flight.
    Blocked,
}

impl Device {
    /// Gives each idle engine a descriptor from its group's queues, or a member of another engine's batch.
    pub(crate) fn dispatch(&mut self, memory: &impl Memory) {
        if self.is_stale {
            return;
        }
        for number in 0..self.engines.len() {
            if self.engines[number].is_idle() {
                if self.is_other_free_before(number) {
                    continue;
                }
                if self.shares_engines() && !self.acquire_engine(number) {
                    continue;
                }
                if let Some(job) = self.take(number).or_else(|| self.help(number, memory)) {
                    self.start(number, job);
                }
            } else if self.engines[number].may_work_ahead()
                && self.chance.draws(|plan| plan.work_ahead_per_mille)
                && let Some(job) = self.take(number)
            {
                let engine = &mut self.engines[number];
                let at_hand = engine.job.as_ref().map(|job| job.origin.queue);
                let is_held = at_hand == Some(job.origin.queue);
                engine.ahead = Some(Box::new(WorkAhead::new(job, is_held)));
            }
        }
    }

    /// Whether another idle engine of the group has executed its work before this one. Only a timing tells them apart.
    fn is_other_free_before(&self, number: usize) -> bool {
        if self.clock.timing().is_none() || self.shares_engines() {
            return false;
        }
        let Engine { group, time, .. } = &self.engines[number];
        let is_before =
            |it: &Engine| it.group == *group && it.is_idle() && it.time.free_ns() < time.free_ns();
        self.engines.iter().any(is_before)
    }

    /// Pops the next descriptor for an engine's group.
    fn take(&mut self, engine: usize) -> Option<Job> {
        let stamped_max = self.stamped_max()?;
        let group = self.engines[engine].group;
        let Device { arbiters, interface, .. } = self;
        let (queue, head) = arbiters[group].take(&interface.queues, interface.client, stamped_max)?;
        let taken = interface.take(queue, head)?;
        Some(self.job(queue, taken, head.stamp))
    }

    fn job(&mut self, queue: usize, taken: PoppedEntry, submitted_ns: u64) -> Job {
        self.sequence += 1;
        let descriptor = Descriptor::from_words(taken.words);
        let origin = Origin { descriptor, queue, sequence: self.sequence, member: None };
        if let Some(trace) = &mut self.trace {
            trace.submission(&origin, &self.interface.queues[queue].info.name, submitted_ns, taken.by);
        }
        // No stamp of an honest client is later; without a timing all times are 0.
        let dispatch_ns = self.clock.timing().map_or(0, |timing| timing.dispatch_ns);
        let arrival_ns = submitted_ns.saturating_add(dispatch_ns).min(self.clock.now_ns());
        Job::new(origin, arrival_ns)
    }

    /// Gives an idle engine a stranded entry: its slot in the ring was overwritten by a hostile client. Returns false
    /// if there is none.
    pub(crate) fn start_stranded(&mut self) -> bool {
        let Some(number) = self.engines.iter().position(Engine::is_idle).filter(|_| !self.is_stale) else {
            return false;
        };
        let Some((queue, taken)) = self.interface.take_stranded() else { return false };
        let job = self.job(queue, taken, self.clock.now_ns());
        self.start(number, job);
        true
    }

    /// The latest stamp of an entry that can have reached an engine by now.
    pub(crate) fn stamped_max(&self) -> Option<u64> {
        match self.clock.timing() {
            Some(timing) => self.clock.now_ns().checked_sub(timing.dispatch_ns),
            None => Some(u64::MAX),
        }
    }

    /// A member of another engine's batch, if a batch of the group is spread over engines.
    fn help(&mut self, number: usize, memory: &impl Memory) -> Option<Job> {
        if self.chance.fault_plan().spread_batches_per_mille == 0 {
            return None;
        }
        let (group, now_ns) = (self.engines[number].group, self.clock.now_ns());
        let Device { engines, chance, interface, .. } = self;
        let job = engines.iter_mut().enumerate().filter(|(_, engine)| engine.group == group).find_map(
            |(owner, engine)| {
                let batch = engine.batch.as_mut().filter(|batch| batch.is_spread)?;
                member_job(owner, batch, now_ns, memory, chance, &interface.counters)
            },
        )?;
        self.trace_member(&job.origin);
        Some(job)
    }

    /// Traces the start of a member of a batch.
    fn trace_member(&mut self, origin: &Origin) {
        if let Some(trace) = &mut self.trace {
            trace.member(origin, &self.interface.queues[origin.queue].info.name);
        }
    }

    fn start(&mut self, number: usize, job: Job) {
        let delay = self.chance.delay_steps();
        let engine = &mut self.engines[number];
        engine.job = Some(job);
        engine.ready_at = self.steps + delay;
        self.move_to_back(number);
        // The batch unit prepares a batch when it fetches the list.
        if self.engines[number].job.as_ref().is_some_and(|job| !job.is_batch()) {
            self.begin(number);
        }
    }

    /// Accounts for the preparation of an engine's job.
    fn begin(&mut self, number: usize) {
        let Engine { time, job, .. } = &mut self.engines[number];
        if let (Some(timing), Some(job)) = (self.clock.timing(), job) {
            time.begin(job.arrival_ns, timing);
        }
    }

    /// The engine that runs in this step: the one that has waited longest, unless the fault plan reorders. Descriptors
    /// with equal work therefore complete in the order of dispatch.
    ///
    /// No device promises this order, but programs rely on it: DPDK's test of DMA devices takes the completion of the
    /// last copy for the completion of all.
    pub(crate) fn next_engine(&mut self) -> Option<usize> {
        let count = self.engines.len();
        let can_go_on = |index: &usize| {
            let engine = &self.engines[*index];
            !engine.is_idle() && engine.ready_at <= self.steps && self.clock.may_work(engine.time.free_ns())
        };
        let engine = if self.chance.fault_plan().reorder {
            let first = self.chance.pick(count);
            (first..count).chain(0..first).find(can_go_on)
        } else {
            (0..count).filter(can_go_on).min_by_key(|index| self.engines[*index].turn)
        }?;
        self.move_to_back(engine);
        Some(engine)
    }

    /// Moves an engine behind all others.
    fn move_to_back(&mut self, engine: usize) {
        self.turns += 1;
        self.engines[engine].turn = self.turns;
    }

    /// The earliest later time at which blocked work becomes possible.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        let timing = self.clock.timing()?;
        let busy = self.engines.iter().filter(|engine| !engine.is_idle());
        let engines = busy.map(|engine| self.clock.works_at(engine.time.free_ns()));
        let fences =
            self.engines.iter().filter_map(|engine| engine.batch.as_ref()).map(|batch| batch.fence_ns);
        let records = self.records.iter().map(|record| record.due_ns);
        let groups = self.arbiters.iter().enumerate();
        let queues = groups.filter_map(|(group, arbiter)| {
            let dispatch_ns =
                arbiter.earliest(&self.interface.queues, self.interface.client)? + timing.dispatch_ns;
            Some(if self.shares_engines() { self.engine_free_ns(group, dispatch_ns) } else { dispatch_ns })
        });
        let all = engines.chain(fences).chain(records).chain(queues);
        all.filter(|ns| *ns > self.clock.now_ns()).min()
    }

    /// Executes one piece of an engine's work; false if the engine has to wait.
    pub(crate) fn advance(&mut self, number: usize, memory: &impl Memory) -> bool {
        if self.engines[number].ahead.is_some() && self.chance.flips() {
            return self.advance_ahead(number, memory);
        }
        if self.engines[number].job.is_none() {
            match self.next_member(number, memory) {
                NextMember::Started => {}
                NextMember::BatchComplete => return true,
                NextMember::Blocked => return false,
            }
        }
        let is_drained = self.is_drained(number);
        let before = self.spent();
        let Device { interface, engines, chance, scratch, config, .. } = self;
        let Some(job) = &mut engines[number].job else { return false };
        let mut env = Env { memory, chance, counters: &interface.counters, scratch };
        let advance = job.advance(interface, config.capabilities, is_drained, &mut env);
        self.work(number, before);
        match advance {
            Advance::Complete(completion) => {
                self.finish(number, completion, memory);
                self.promote(number, memory);
            }
            Advance::StartBatch => self.start_batch(number),
            Advance::WaitForDrain => return false,
            Advance::Continue => self.engines[number].ready_at = self.steps + self.chance.delay_steps(),
        }
        true
    }

    /// Completes the current job.
    fn finish(&mut self, number: usize, completion: Completion, memory: &impl Memory) {
        if let Some(job) = self.engines[number].job.take() {
            self.end(number, job.origin, completion, memory);
        }
    }

    fn start_batch(&mut self, number: usize) {
        let is_spread = self.chance.draws(|plan| plan.spread_batches_per_mille);
        let engine = &mut self.engines[number];
        let Some(Job { origin, arrival_ns, .. }) = engine.job.take() else { return };
        let members = u64::from(origin.descriptor.size());
        let list_ns = self.clock.timing().map_or(0, |timing| engine.time.fetch(arrival_ns, members, timing));
        engine.batch = Some(Batch::new(origin.descriptor, origin.queue, origin.sequence, is_spread, list_ns));
    }

    /// Gives an engine without a job the next member of its batch, or completes the batch.
    fn next_member(&mut self, number: usize, memory: &impl Memory) -> NextMember {
        let now_ns = self.clock.now_ns();
        let Device { interface, engines, chance, .. } = self;
        let Some(batch) = &mut engines[number].batch else { return NextMember::Blocked };
        if let Some(job) = member_job(number, batch, now_ns, memory, chance, &interface.counters) {
            self.trace_member(&job.origin);
            self.engines[number].job = Some(job);
            self.begin(number);
            return NextMember::Started;
        }
        let Some(completion) = batch.completion_if_done() else { return NextMember::Blocked };
        let Batch { descriptor, queue, sequence, .. } = *batch;
        engines[number].batch = None;
        self.end(number, Origin { descriptor, queue, sequence, member: None }, completion, memory);
        self.promote(number, memory);
        NextMember::BatchComplete
    }

    /// Executes one piece of the descriptor that the engine works on ahead of its turn.
    fn advance_ahead(&mut self, number: usize, memory: &impl Memory) -> bool {
        let before = self.spent();
        let Device { interface, engines, chance, scratch, config, .. } = self;
        let Some(ahead) = &mut engines[number].ahead else { return false };
        if ahead.is_parked || ahead.completion.is_some() {
            return true; // nothing to execute in this step
        }
        let counters = &interface.counters;
        let advance = if ahead.is_held {
            let held = WriteBuffer { memory, writes: &ahead.writes };
            let mut env = Env { memory: &held, chance, counters, scratch };
            ahead.job.advance(interface, config.capabilities, false, &mut env)
        } else {
            let mut env = Env { memory, chance, counters, scratch };
            ahead.job.advance(interface, config.capabilities, false, &mut env)
        };
        match advance {
            Advance::Complete(completion) if ahead.is_held => ahead.completion = Some(completion),
            Advance::Complete(completion) => {
                if let Some(ahead) = engines[number].ahead.take() {
                    self.end(number, ahead.job.origin, completion, memory);
                }
            }
            Advance::StartBatch | Advance::WaitForDrain => ahead.is_parked = true,
            Advance::Continue => {}
        }
        self.work(number, before);
        true
    }

    /// Makes the work ahead the current job: releases its writes, then completes or continues it.
    fn promote(&mut self, number: usize, memory: &impl Memory) {
        let engine = &mut self.engines[number];
        if !engine.is_free() {
            return;
        }
        let Some(mut ahead) = engine.ahead.take() else { return };
        let released = ahead.release(memory);
        let completion = match (released, ahead.completion) {
            (Err(_), _) => Some(Completion::new(Status::HardwareWrite)),
            (Ok(()), completion) => completion,
        };
        match completion {
            Some(completion) => self.end(number, ahead.job.origin, completion, memory),
            None => self.start(number, ahead.job),
        }
    }

    /// Whether the current job is a drain and all earlier descriptors are complete.
    fn is_drained(&self, number: usize) -> bool {
        let Some(job) = self.engines[number].job.as_ref().filter(|job| job.is_drain()) else { return false };
        let waits_for = |origin: &Origin| job.origin.drains(origin, &self.interface);
        let engines_done = self.engines.iter().all(|engine| {
            let jobs = engine.job.iter().chain(engine.ahead.iter().map(|ahead| &ahead.job));
            let batch = engine.batch.as_ref().map(Batch::origin);
            !jobs.map(|job| &job.origin).chain(&batch).any(waits_for)
        });
        engines_done && !self.records.iter().any(|record| waits_for(&record.origin))
    }

    /// Bytes and page requests so far; zero without a timing, which alone needs them.
    fn spent(&self) -> (u64, u64) {
        match self.clock.timing() {
            Some(_) => {
                (get(&self.interface.counters.bytes_done), get(&self.interface.counters.page_requests))
            }
            None => (0, 0),
        }
    }

    /// Adds the time of the bytes and page requests since `before` to an engine.
    fn work(&mut self, number: usize, before: (u64, u64)) {
        if self.clock.timing().is_some() {
            let (bytes, requests) = self.spent();
            let engine = &mut self.engines[number];
            let end_ns =
                self.clock.work(engine.group, engine.time.free_ns(), bytes - before.0, requests - before.1);
            engine.time.work_until(end_ns);
        }
    }
}

/// A job for the next member of a batch, if one can start.
fn member_job(
    owner: usize,
    batch: &mut Batch,
    now_ns: u64,
    memory: &impl Memory,
    chance: &mut FaultInjector,
    counters: &Counters,
) -> Option<Job> {
    let member = batch.next(now_ns, memory, chance, counters)?;
    let origin = Origin {
        descriptor: member.descriptor,
        queue: batch.queue,
        sequence: batch.sequence,
        member: Some(MemberOf { engine: owner, index: member.index }),
    };
    let is_fenced = member.descriptor.flags().contains(Flags::FENCE);
    Some(Job::new(origin, if is_fenced { now_ns } else { batch.list_ns }))
}

impl Engine {
    pub(crate) fn new(group: usize) -> Engine {
        Engine {
            group,
            batch: None,
            job: None,
            ahead: None,
            ready_at: 0,
            time: EngineTime::default(),
            is_acquired: false,
            turn: 0,
        }
    }

    /// Whether it has no work, not even ahead of its turn.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_free() && self.ahead.is_none()
    }

    /// Whether it has neither a current job nor a batch.
    fn is_free(&self) -> bool {
        self.job.is_none() && self.batch.is_none()
    }

    /// Whether its current job is a descriptor from a queue, and no work ahead exists yet.
    fn may_work_ahead(&self) -> bool {
        self.ahead.is_none()
            && self.batch.is_none()
            && self.job.as_ref().is_some_and(|job| job.origin.member.is_none())
    }
}
