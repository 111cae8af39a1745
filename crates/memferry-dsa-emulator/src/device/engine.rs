//! The engines of a device: who takes what, and whose turn it is.

use memferry_dsa::{Completion, Descriptor, Status};

use crate::config::Timing;
use crate::device::Device;
use crate::device::batch::Batch;
use crate::device::counters::{Counters, get};
use crate::device::job::{Advance, Job, MemberOf, Origin};
use crate::device::translation::FaultInjector;
use crate::device::work_ahead::{WorkAhead, WriteBuffer};
use crate::memory::Memory;
use crate::ops::Env;
use crate::queue::ring::PoppedEntry;

/// An engine, with its batch unit.
pub(crate) struct Engine {
    pub(crate) group: usize,
    pub(crate) batch: Option<Batch>,
    pub(crate) job: Option<Job>, // a descriptor, or a member of its own batch or of another engine's
    pub(crate) ahead: Option<Box<WorkAhead>>,
    pub(crate) ready_at: u64,  // the step from which it goes on
    pub(crate) free_ns: u64,   // when it is done with what it has, for the clock
    pub(crate) is_taken: bool, // from those that processes share
    turn: u64,                 // the lower, the longer it has waited
}

/// What an engine with a batch does next.
enum Next {
    Start,
    End,
    /// Members that others execute, or records, are still under way.
    Wait,
}

impl Device {
    /// Gives every idle engine a descriptor, if its group has one, or a member of another engine's batch.
    pub(crate) fn dispatch(&mut self, memory: &impl Memory) {
        if self.is_stale {
            return;
        }
        for number in 0..self.engines.len() {
            if self.engines[number].is_idle() {
                if self.shares_engines() && !self.take_engine(number) {
                    continue;
                }
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
                engine.ahead = Some(Box::new(WorkAhead::new(job, is_held)));
            }
        }
    }

    /// The next descriptor for an engine's group.
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
            trace.taken(&origin, &self.interface.queues[queue].info.name, submitted_ns, taken.by);
        }
        Job::new(origin)
    }

    /// Gives an idle engine an entry whose place in its queue somebody has tampered with; false if there is none.
    pub(crate) fn start_stranded(&mut self) -> bool {
        let Some(number) = self.engines.iter().position(Engine::is_idle).filter(|_| !self.is_stale) else {
            return false;
        };
        let Some((queue, taken)) = self.interface.take_stranded() else { return false };
        let job = self.job(queue, taken, self.clock.now_ns());
        self.start(number, job);
        true
    }

    /// The latest stamp of an entry that can have come to an engine by now.
    pub(crate) fn stamped_max(&self) -> Option<u64> {
        match self.clock.timing() {
            Some(timing) => self.clock.now_ns().checked_sub(timing.dispatch_ns),
            None => Some(u64::MAX),
        }
    }

    /// A member of the batch of another engine of the group, if one lets others help.
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
        self.tell_member(&job.origin);
        Some(job)
    }

    /// Tells the trace that a member of a batch starts.
    fn tell_member(&mut self, origin: &Origin) {
        if let Some(trace) = &mut self.trace {
            trace.member(origin, &self.interface.queues[origin.queue].info.name);
        }
    }

    fn start(&mut self, number: usize, job: Job) {
        let delay = self.chance.delay_steps();
        let engine = &mut self.engines[number];
        engine.job = Some(job);
        engine.ready_at = self.steps + delay;
        self.let_wait(number);
        self.charge(number, |timing| timing.occupancy_ns);
    }

    /// Lets time pass for an engine.
    fn charge(&mut self, number: usize, ns: impl FnOnce(&Timing) -> u64) {
        if let Some(timing) = self.clock.timing() {
            let engine = &mut self.engines[number];
            engine.free_ns = engine.free_ns.max(self.clock.now_ns()) + ns(timing);
        }
    }

    /// The engine that goes on in this step: the one that has waited longest, unless the device is fault_plan. So descriptors
    /// with as much to do end in the order in which they were taken.
    ///
    /// Devices do not promise that, but it is how they behave, and programs have got used to it: the test of DPDK's DMA
    /// devices takes the end of the last copy for that of all.
    pub(crate) fn next_engine(&mut self) -> Option<usize> {
        let count = self.engines.len();
        let can_go_on = |index: &usize| {
            let engine = &self.engines[*index];
            !engine.is_idle() && engine.ready_at <= self.steps && self.clock.may_work(engine.free_ns)
        };
        let engine = if self.chance.fault_plan().reorder {
            let first = self.chance.pick(count);
            (first..count).chain(0..first).find(can_go_on)
        } else {
            (0..count).filter(can_go_on).min_by_key(|index| self.engines[*index].turn)
        }?;
        self.let_wait(engine);
        Some(engine)
    }

    /// Puts an engine behind all others.
    fn let_wait(&mut self, engine: usize) {
        self.turns += 1;
        self.engines[engine].turn = self.turns;
    }

    /// The next time at which something can go on that cannot now.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        let timing = self.clock.timing()?;
        let busy = self.engines.iter().filter(|engine| !engine.is_idle());
        let engines = busy.map(|engine| self.clock.works_at(engine.free_ns));
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

    /// Does a piece of an engine's work; false if it can only wait.
    pub(crate) fn advance(&mut self, number: usize, memory: &impl Memory) -> bool {
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
        let Device { interface, engines, chance, scratch, config, .. } = self;
        let Some(job) = &mut engines[number].job else { return false };
        let mut env = Env { memory, chance, counters: &interface.counters, scratch };
        let advance = job.advance(interface, config.capabilities, is_drained, &mut env);
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
        let Device { interface, engines, chance, .. } = self;
        let Some(batch) = &mut engines[number].batch else { return Next::Wait };
        if let Some(job) = member_job(number, batch, now_ns, memory, chance, &interface.counters) {
            self.tell_member(&job.origin);
            self.engines[number].job = Some(job);
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
        let Device { interface, engines, chance, scratch, config, .. } = self;
        let Some(ahead) = &mut engines[number].ahead else { return false };
        if ahead.is_parked || ahead.ended.is_some() {
            return true; // a step spent in vain
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
        let waits_for = |origin: &Origin| job.origin.drains(origin, &self.interface);
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
            Some(_) => {
                (get(&self.interface.counters.bytes_done), get(&self.interface.counters.page_requests))
            }
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
}

/// The next member of a batch, if one can start.
fn member_job(
    owner: usize,
    batch: &mut Batch,
    now_ns: u64,
    memory: &impl Memory,
    chance: &mut FaultInjector,
    counters: &Counters,
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
    pub(crate) fn new(group: usize) -> Engine {
        Engine {
            group,
            batch: None,
            job: None,
            ahead: None,
            ready_at: 0,
            free_ns: 0,
            is_taken: false,
            turn: 0,
        }
    }

    /// Has nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
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
