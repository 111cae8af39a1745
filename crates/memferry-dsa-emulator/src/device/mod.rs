//! The device behind its queues: a state machine without threads.
//!
//! ```text
//! step:  write one completion record that is due
//!        each idle engine takes a descriptor from its group's queues, by priority
//!        one engine executes a piece of its work: a member of a batch, or up to some KiB of a transfer
//! ```
//!
//! Delays are counted in steps, and every choice that the specification leaves open is drawn from the seed. A group
//! with one engine writes data in the order of submission to a queue, as the specification promises; completion records
//! may be written in any order, as it allows. With a [`DeviceCosts`](crate::DeviceCosts) the device has a clock, which advances
//! when no work is possible at the current time.
//!
//! Source: Intel DSA Architecture Specification 3.0, chapters 3 and 4.

mod batch;
pub(crate) mod check;
pub(crate) mod clock;
mod completion;
pub(crate) mod counters;
mod engine;
pub(crate) mod error_register;
pub(crate) mod interface;
pub(crate) mod job;
mod shared_engines;
pub(crate) mod translation;
mod work_ahead;

use std::sync::Arc;

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Descriptor, Submission, SubmitError, WorkQueueInfo};

use self::clock::Clock;
use self::completion::DueRecord;
pub use self::counters::DeviceCounters;
use self::counters::count;
use self::engine::Engine;
use self::interface::Interface;
use self::translation::FaultInjector;
use crate::config::{ConfigError, DeviceConfig, FaultPlan};
use crate::memory::Memory;
use crate::ops::Scratch;
use crate::queue::arbiter::Arbiter;
use crate::queue::ring::SLOTS;
use crate::shared::Trace;

/// An emulated device, which works only in calls of [`step`](Self::step).
///
/// [`Deterministic`](crate::Deterministic) steps it in the calling thread, [`Emulator`](crate::Emulator) in a thread of
/// its own.
///
/// ```
/// use memferry_dsa::Submission;
/// use memferry_dsa::Descriptor;
/// use memferry_dsa_emulator::{Device, DeviceConfig, FakeMemory, FaultPlan, Stepped};
///
/// let mut device = Device::new(&DeviceConfig::one_shared_queue(), FaultPlan::none())?;
/// assert_eq!(device.submit(0, &Descriptor::noop(), 1)?, Submission::Accepted);
/// assert_eq!(device.counters().in_flight(), 1);
/// while device.step(&FakeMemory::new()) == Stepped::Busy {}
/// assert_eq!(device.counters().completed_count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Device {
    config: DeviceConfig,
    interface: Arc<Interface>,
    arbiters: Vec<Arbiter>,
    engines: Vec<Engine>,
    records: Vec<DueRecord>,
    chance: FaultInjector,
    scratch: Scratch,
    clock: Clock,
    steps: u64,
    sequence: u64, // descriptors dispatched
    turns: u64,    // the last turn of an engine
    is_disabling: bool,
    is_stale: bool, // dispatches nothing more, because its configuration has changed
    pub(crate) trace: Option<Trace>,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// Work was done, or waits for its delay.
    Busy,
    /// All queues and engines are empty.
    Idle,
}

/// The result of a step at a given time.
pub(crate) enum StepOutcome {
    Work,
    Nothing,
    /// No work is possible before this time.
    WaitUntil(u64),
}

impl Device {
    /// A device with empty queues.
    ///
    /// # Errors
    /// [`ConfigError`]: the device refuses to be enabled with this configuration.
    pub fn new(config: &DeviceConfig, fault_plan: FaultPlan) -> Result<Device, ConfigError> {
        Device::with_clock(config, fault_plan, false)
    }

    /// A device that follows the real clock if it has a timing and `is_real`.
    pub(crate) fn with_clock(
        config: &DeviceConfig,
        fault_plan: FaultPlan,
        is_real: bool,
    ) -> Result<Device, ConfigError> {
        config.validate()?;
        let interface = Interface::new(config, &fault_plan, is_real);
        Ok(Device::with_interface(config, fault_plan, interface))
    }

    /// A client's part of a device that processes share.
    pub(crate) fn of_client(
        config: &DeviceConfig,
        fault_plan: FaultPlan,
        interface: Interface,
    ) -> Result<Device, ConfigError> {
        config.validate()?;
        let mut device = Device::with_interface(config, fault_plan, interface);
        if let (Some(shared_device), Some(_)) = (&device.interface.shared_device, config.timing) {
            device.clock.share(shared_device.bandwidth());
            let arbiters = device.arbiters.iter_mut().enumerate();
            arbiters.for_each(|(group, arbiter)| arbiter.share(shared_device.arbiter(group)));
        }
        Ok(device)
    }

    fn with_interface(config: &DeviceConfig, fault_plan: FaultPlan, interface: Interface) -> Device {
        let mut first = 0;
        let mut arbiters = Vec::new();
        let mut engines = Vec::new();
        for (number, group) in config.groups.iter().enumerate() {
            arbiters.push(Arbiter::new(first, &group.queues));
            first += group.queues.len();
            engines.extend((0..group.engines).map(|_| Engine::new(number)));
        }
        Device {
            config: config.clone(),
            interface: Arc::new(interface),
            arbiters,
            engines,
            records: Vec::new(),
            chance: FaultInjector::new(fault_plan),
            scratch: Scratch::new(),
            clock: Clock::new(config.timing, &config.read_buffers),
            steps: 0,
            sequence: 0,
            turns: 0,
            is_disabling: false,
            is_stale: false,
            trace: None,
        }
    }

    /// The part that is shared with submitters.
    pub(crate) fn interface(&self) -> &Arc<Interface> {
        &self.interface
    }

    /// The configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// The injected misbehaviour; a failing test prints its seed.
    pub fn fault_plan(&self) -> &FaultPlan {
        self.chance.fault_plan()
    }

    /// The work queue with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn work_queue(&self, queue: usize) -> &WorkQueueInfo {
        &self.interface.queues[queue].info
    }

    /// Submits a descriptor to a work queue for the address space `pasid`.
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
        self.interface.submit(queue, descriptor, pasid)
    }

    /// Executes the next piece of work. With a timing, the clock advances to the next work if none is possible now.
    pub fn step(&mut self, memory: &impl Memory) -> Stepped {
        match self.step_now(memory) {
            StepOutcome::Work => Stepped::Busy,
            StepOutcome::Nothing => Stepped::Idle,
            StepOutcome::WaitUntil(ns) => {
                self.clock.advance_to(ns);
                self.interface.set_now_ns(self.clock.now_ns());
                Stepped::Busy
            }
        }
    }

    /// Executes the next piece of work up to the time `until_ns`. Without such work it advances the clock to `until_ns`
    /// and returns [`Stepped::Idle`]. For callers that act themselves at that time.
    pub fn step_until(&mut self, until_ns: u64, memory: &impl Memory) -> Stepped {
        let (ns, stepped) = match self.step_now(memory) {
            StepOutcome::Work => return Stepped::Busy,
            StepOutcome::WaitUntil(ns) if ns <= until_ns => (ns, Stepped::Busy),
            _ => (until_ns, Stepped::Idle),
        };
        self.clock.advance_to(ns);
        self.interface.set_now_ns(self.clock.now_ns());
        stepped
    }

    /// Executes the next piece of work that is possible at `now_ns` of a real clock.
    pub(crate) fn step_at(&mut self, now_ns: u64, memory: &impl Memory) -> StepOutcome {
        self.clock.follow(now_ns);
        self.step_now(memory)
    }

    fn step_now(&mut self, memory: &impl Memory) -> StepOutcome {
        let did = self.step_once(memory);
        if self.shares_engines() {
            self.release_idle_engines();
        }
        did
    }

    fn step_once(&mut self, memory: &impl Memory) -> StepOutcome {
        self.steps += 1;
        let wrote = !self.records.is_empty() && self.write_due_record(memory);
        self.dispatch(memory);
        let mut is_waiting = false;
        for _ in 0..self.engines.len() {
            let Some(engine) = self.next_engine() else { break };
            if self.advance(engine, memory) {
                return StepOutcome::Work;
            }
            is_waiting = true; // a drain or a fence
        }
        if wrote {
            return StepOutcome::Work;
        }
        if !is_waiting && self.is_idle() {
            if self.is_disabling {
                self.interface.set_gone();
            }
            return StepOutcome::Nothing;
        }
        match self.next_event_ns() {
            Some(ns) if !self.waits_for_steps() => StepOutcome::WaitUntil(ns),
            _ => StepOutcome::Work,
        }
    }

    /// Whether some work becomes possible after more steps at the same time.
    fn waits_for_steps(&self) -> bool {
        self.engines.iter().any(|engine| !engine.is_idle() && engine.ready_at > self.steps)
            || self.records.iter().any(|record| record.due_at > self.steps)
    }

    /// Whether all queues and engines are empty.
    pub fn is_idle(&self) -> bool {
        self.records.is_empty() && self.engines.iter().all(Engine::is_idle) && self.interface.is_empty()
    }

    /// The time on the virtual clock; without a timing it does not advance.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Advances the virtual clock without work, as between two submissions.
    pub fn pass_time(&mut self, ns: u64) {
        self.clock.advance_to(self.clock.now_ns().saturating_add(ns));
        self.interface.set_now_ns(self.clock.now_ns());
    }

    /// Stops as a device that is reset or lost: descriptors in flight never complete.
    pub fn abort(&mut self) {
        self.interface.close();
        self.drop_all();
        let counters = self.interface.snapshot();
        count(&self.interface.counters.aborted, counters.in_flight());
        self.interface.set_gone();
    }

    /// Drops all work and all entries that it could dispatch; returns the number of members that were in progress.
    fn drop_all(&mut self) -> u64 {
        let mut members = 0;
        for engine in &mut self.engines {
            let jobs = engine.job.take().into_iter().chain(engine.ahead.take().map(|ahead| ahead.job));
            members += jobs.filter(|job| job.origin.member.is_some()).count() as u64;
            engine.batch = None;
        }
        count(&self.interface.counters.records_lost, self.records.len() as u64);
        self.records.clear();
        for (number, queue) in self.interface.queues.iter().enumerate() {
            // At most as many as a ring has, since a hostile client may add entries meanwhile.
            let head = || queue.ring().head().filter(|head| head.is_ready_for(self.interface.client));
            for head in (0..SLOTS).map_while(|_| head()) {
                self.interface.take(number, head);
            }
        }
        members
    }

    /// [`abort`](Self::abort) for a client's part of a shared device. The caller repeats it until the command is
    /// revoked, since entries come to the head of a queue when other clients have dropped theirs.
    pub(crate) fn abort_part(&mut self) {
        let members = self.drop_all();
        if let Some(shared_device) = &self.interface.shared_device {
            count(&self.interface.counters.aborted, members + shared_device.drop_dispatched());
        }
        self.release_idle_engines();
    }

    /// Stops the dispatch; true once all dispatched work is complete.
    pub(crate) fn finish_part(&mut self) -> bool {
        self.is_stale = true;
        self.records.is_empty() && self.engines.iter().all(Engine::is_idle)
    }

    /// Accepts no more descriptors. Those in flight complete in the following steps; then the device is gone.
    ///
    /// Source: DSA specification 9.2 (Disable Device).
    pub fn disable(&mut self) {
        self.interface.close();
        self.is_disabling = true;
    }

    /// Whether it is stopped, after [`abort`](Self::abort) or after a finished [`disable`](Self::disable).
    pub fn is_gone(&self) -> bool {
        self.interface.is_gone()
    }

    /// Accepts descriptors again, with empty queues, an empty error register and counters at zero.
    ///
    /// Returns false, and does nothing, unless the device [`is_gone`](Self::is_gone).
    pub fn enable(&mut self) -> bool {
        if !self.is_gone() {
            return false;
        }
        self.interface = Arc::new(Interface::new(&self.config, self.chance.fault_plan(), false));
        self.interface.set_now_ns(self.clock.now_ns());
        self.is_disabling = false;
        true
    }

    /// The counters since the device was enabled.
    pub fn counters(&self) -> DeviceCounters {
        self.interface.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.interface.take_error()
    }
}
