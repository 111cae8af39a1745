//! A client's engine: a device that executes the descriptors of this client only.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry_dsa::internals::wait::{reduce_timer_slack, request_short_slices};

use super::futex::Wakeup;
use super::layout::Command;
use super::linger::Linger;
use super::shared_device::SharedDevice;
use super::{Client, Trace, futex};
use crate::arc_ref::ArcRef;
use crate::config::ConfigError;
use crate::device::clock::SPIN_NS_MAX;
use crate::device::interface::{Interface, Queue};
use crate::device::{Device, StepOutcome, Stepped};
use crate::memory::Memory;
use crate::queue::QueueParts;

/// Pauses in an idle step, 0.1 to 0.4 microseconds together. Each poll takes the cache line of the next entry from the
/// submitter that is about to write it: without the pauses a submission took a tenth longer.
const IDLE_PAUSES: u32 = 8;
/// Steps with work between two calls of `next_check`: some milliseconds.
const STEPS_UNASKED: u32 = 1024;
/// The longest sleep before the first call of `next_check`.
const FIRST_CHECK: Duration = Duration::from_millis(100);

/// Executes a client's descriptors of one device, in the thread that calls [`run`](Self::run).
pub struct ClientEngine {
    client: Client,
    number: usize,
    generation: u64,
    /// `None` while the device has no enabled queue.
    device: Option<Device>,
    /// The trace while there is no device, which owns it otherwise.
    trace: Option<Trace>,
}

impl ClientEngine {
    pub(super) fn new(client: &Client, device: usize) -> ClientEngine {
        assert!(device < super::DEVICES_MAX, "there is no device {device}");
        ClientEngine { client: client.clone(), number: device, generation: 1, device: None, trace: None }
    }

    /// Traces each descriptor and each completion to `file` from now on, as lines of JSON. Each line is one `write(2)`;
    /// a file that several engines write must be open for appending. `failed` gets the error that ends the trace.
    pub fn trace(&mut self, file: File, failed: impl FnMut(io::Error) + Send + 'static) {
        self.trace = Some(Trace::new(&self.client, self.number, file, Box::new(failed)));
    }

    /// Works until `next_check` breaks; descriptors in progress then stay unfinished. Otherwise it returns the time until
    /// its next call, which may be earlier. An idle engine wakes up for these calls only.
    ///
    /// # Errors
    /// [`ConfigError`]: the server has published an invalid configuration.
    pub fn run(
        &mut self,
        memory: &impl Memory,
        mut next_check: impl FnMut() -> ControlFlow<(), Duration>,
    ) -> Result<(), ConfigError> {
        reduce_timer_slack();
        request_short_slices();
        // The time of the first of the steps that waited for a time, and did nothing.
        let mut waiting_since_ns = None;
        let (mut idle_steps, mut steps) = (0, 0u32);
        let (mut linger, mut sleep_max) = (Linger::default(), FIRST_CHECK);
        loop {
            steps = steps.wrapping_add(1);
            let slept = match self.step_now(memory)? {
                StepOutcome::Work => {
                    (idle_steps, waiting_since_ns) = (0, None);
                    Duration::ZERO
                }
                StepOutcome::Nothing if idle_steps < linger.steps_max() => {
                    // No yield: beside another runnable thread it would delay the next wake-up by milliseconds.
                    (idle_steps, waiting_since_ns) = (idle_steps + 1, None);
                    (0..IDLE_PAUSES).for_each(|_| std::hint::spin_loop());
                    Duration::ZERO
                }
                StepOutcome::Nothing => self.sleep(memory, SPIN_NS_MAX, sleep_max, &mut linger)?,
                StepOutcome::WaitUntil(ns) => {
                    let now_ns = self.now_ns();
                    let since_ns = *waiting_since_ns.get_or_insert(now_ns);
                    let is_far = ns >= now_ns + SPIN_NS_MAX;
                    if !is_far && now_ns < since_ns + SPIN_NS_MAX {
                        std::hint::spin_loop();
                        Duration::ZERO
                    } else {
                        // A long wait for a near time is for another process, which may need this CPU.
                        self.sleep(memory, if is_far { SPIN_NS_MAX } else { 0 }, sleep_max, &mut linger)?
                    }
                }
            };
            // A submission that ends a sleep does not wait for the question.
            if slept >= sleep_max || steps.is_multiple_of(STEPS_UNASKED) {
                match next_check() {
                    ControlFlow::Continue(time) => sleep_max = time,
                    ControlFlow::Break(()) => return Ok(()),
                }
            }
        }
    }

    /// Sleeps until the client submits, its entry reaches the head of a queue, or `spin_ns` before the time of the next
    /// work, at most for `sleep_max`. Returns how long it slept.
    fn sleep(
        &mut self,
        memory: &impl Memory,
        spin_ns: u64,
        sleep_max: Duration,
        linger: &mut Linger,
    ) -> Result<Duration, ConfigError> {
        let client = self.client.clone();
        let asleep = client.asleep(self.number);
        futex::announce(asleep);
        // This step sees entries from before the announcement; submitters of later entries see the sleeping engine.
        let time = match self.step_now(memory)? {
            StepOutcome::Work => Duration::ZERO,
            StepOutcome::Nothing => sleep_max,
            StepOutcome::WaitUntil(ns) => Duration::from_nanos(ns.saturating_sub(self.now_ns() + spin_ns)),
        };
        let begin = Instant::now();
        if time > Duration::ZERO {
            futex::sleep(asleep, time.min(sleep_max));
        }
        let wakeup = futex::awake(asleep);
        let slept = begin.elapsed();
        linger.slept(slept, wakeup, futex::current_cpu);
        if wakeup == Wakeup::Unasked {
            self.start_stranded();
        }
        Ok(slept)
    }

    /// Executes the next piece of work that is possible now, for callers that do not want a thread in
    /// [`run`](Self::run). [`Stepped::Busy`] includes work that waits for its time.
    ///
    /// # Errors
    /// [`ConfigError`]: the server has published an invalid configuration.
    pub fn step(&mut self, memory: &impl Memory) -> Result<Stepped, ConfigError> {
        let is_idle = match self.step_now(memory)? {
            StepOutcome::Work => false,
            StepOutcome::Nothing => !self.start_stranded(),
            StepOutcome::WaitUntil(_) => {
                self.start_stranded();
                false
            }
        };
        Ok(if is_idle { Stepped::Idle } else { Stepped::Busy })
    }

    /// Starts an entry that has lost its place in the order, which hostile clients can write.
    fn start_stranded(&mut self) -> bool {
        self.device.as_mut().is_some_and(Device::start_stranded)
    }

    fn step_now(&mut self, memory: &impl Memory) -> Result<StepOutcome, ConfigError> {
        let devices = self.client.devices();
        // ORDERING: Acquire pairs with the Release of `generation` in `reconfigure`. `build` reads the words again
        // under the sequence lock.
        let is_stale = devices.device(self.number).generation.load(Ordering::Acquire) != self.generation;
        if is_stale && self.device.as_mut().is_none_or(Device::finish_part) {
            self.trace = self.device.take().and_then(|device| device.trace).or(self.trace.take());
            (self.generation, self.device) = self.build()?;
            if let Some(device) = &mut self.device {
                device.trace = self.trace.take();
            }
        }
        // ORDERING: Acquire pairs with the Release of `command` in `abort_device`: the queues are closed.
        let command = self.client.devices().device(self.number).command.load(Ordering::Acquire);
        let is_aborted = command == Command::Abort as u32;
        let now_ns = self.now_ns();
        let Some(device) = &mut self.device else { return Ok(StepOutcome::Nothing) };
        if is_aborted {
            device.abort_part();
            return Ok(StepOutcome::Nothing);
        }
        Ok(device.step_at(now_ns, memory))
    }

    /// Builds the device from the current configuration.
    fn build(&self) -> Result<(u64, Option<Device>), ConfigError> {
        let devices = self.client.devices();
        let (generation, shape) = devices.shape(self.number);
        if shape.queues.is_empty() {
            return Ok((generation, None));
        }
        let infos = shape.config.queues().zip(&shape.queues);
        let queue = |(info, number): (&memferry_dsa::WorkQueueInfo, &usize)| Queue {
            info: info.clone(),
            parts: QueueParts {
                config: devices.hold_board(|board| &board.devices[self.number].queues[*number]),
                order: devices.hold_order(|order| &order.devices[self.number].queues[*number]),
                own: ArcRef::part_of(Arc::clone(self.client.own()), |own| {
                    &own.get().devices[self.number].entries[*number]
                }),
            },
        };
        let queues = infos.map(queue).collect();
        let shared_device = SharedDevice::new(&self.client, self.number, &shape);
        let epoch_ns = devices.timing().map(|_| devices.epoch_ns());
        let device = Device::of_client(
            &shape.config,
            devices.fault_plan(),
            Interface::shared(queues, shared_device, epoch_ns),
        )?;
        Ok((generation, Some(device)))
    }

    /// The time on the device's clock; 0 without a timing, since reading a clock would cost as much as a step.
    fn now_ns(&self) -> u64 {
        self.device.as_ref().and_then(|device| device.interface().now_ns()).unwrap_or(0)
    }
}
