//! A client's engine: the device, as far as this client's descriptors are concerned.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::layout::Command;
use super::shared_device::SharedDevice;
use super::{Client, Trace, futex};
use crate::arc_ref::ArcRef;
use crate::config::ConfigError;
use crate::device::interface::{Interface, Queue};
use crate::device::{Device, StepOutcome};
use crate::memory::Memory;
use crate::queue::QueueParts;

/// Idle steps before the thread sleeps: some 50 microseconds, several times what a submission takes that traps. To wake
/// it costs the submitter more than to submit.
const IDLE_STEPS_MAX: u32 = 400;
/// Pauses in an idle step, which take 0.1 to 0.4 microseconds together. Each look takes the cache line of the next entry
/// from who is about to write it: without them a submission took a tenth longer.
const IDLE_PAUSES: u32 = 8;
/// Steps without work and without letting others run: the submitter, say, where processors are scarce.
const STEPS_WITHOUT_YIELD: u32 = 8;
/// Steps without asking whether to stop, while there is work: some milliseconds.
const STEPS_UNASKED: u32 = 1024;
/// A sleep ends after this in any case: the configuration may have changed, or it may be time to stop.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// What is left to spin of a wait for the clock: Linux wakes a sleeper up to 50 us late (prctl(2), PR_SET_TIMERSLACK).
const SPIN_NS_MAX: u64 = 60_000;

/// Executes what a client has submitted to a device, in the thread that calls [`run`](Self::run).
pub struct ClientEngine {
    client: Client,
    number: usize,
    generation: u64,
    /// `None` while the device has no queue that is enabled.
    device: Option<Device>,
    /// Until there is a device, which has it then.
    trace: Option<Trace>,
}

impl ClientEngine {
    pub(super) fn new(client: &Client, device: usize) -> ClientEngine {
        assert!(device < super::DEVICES_MAX, "there is no device {device}");
        ClientEngine { client: client.clone(), number: device, generation: 1, device: None, trace: None }
    }

    /// Appends each descriptor and each completion to `file` from now on, as lines of JSON, each by one `write(2)`:
    /// files that several engines write are opened for appending. `failed` is told why it ends, if it must.
    pub fn trace(&mut self, file: File, failed: impl FnMut(io::Error) + Send + 'static) {
        self.trace = Some(Trace::new(&self.client, self.number, file, Box::new(failed)));
    }

    /// Works until `should_stop` says so, which is asked at least every 100 ms; what is in progress then is left.
    ///
    /// # Errors
    /// [`ConfigError`]: the server has made a configuration that no device has.
    pub fn run(
        &mut self,
        memory: &impl Memory,
        mut should_stop: impl FnMut() -> bool,
    ) -> Result<(), ConfigError> {
        let (mut idle_steps, mut steps) = (0, 0u32);
        loop {
            steps = steps.wrapping_add(1);
            let asks = match self.step(memory)? {
                StepOutcome::Work => {
                    idle_steps = 0;
                    false
                }
                StepOutcome::WaitUntil(ns) if ns < self.now_ns() + SPIN_NS_MAX => {
                    // It may be another process that is waited for, which needs a processor to go on.
                    match steps % STEPS_WITHOUT_YIELD {
                        0 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                    false
                }
                StepOutcome::Nothing if idle_steps < IDLE_STEPS_MAX => {
                    idle_steps += 1;
                    match idle_steps % STEPS_WITHOUT_YIELD {
                        0 => std::thread::yield_now(),
                        _ => (0..IDLE_PAUSES).for_each(|_| std::hint::spin_loop()),
                    }
                    false
                }
                StepOutcome::Nothing | StepOutcome::WaitUntil(_) => {
                    self.sleep(memory)?;
                    true
                }
            };
            if (asks || steps.is_multiple_of(STEPS_UNASKED)) && should_stop() {
                return Ok(());
            }
        }
    }

    /// Sleeps until somebody submits, the head of a queue comes to this client, or it is time.
    fn sleep(&mut self, memory: &impl Memory) -> Result<(), ConfigError> {
        let client = self.client.clone();
        let asleep = client.asleep(self.number);
        futex::announce(asleep);
        // What came before the announcement is seen by this step, what comes later sees the sleeper.
        let time = match self.step(memory)? {
            StepOutcome::Work => Duration::ZERO,
            StepOutcome::Nothing => SLEEP_MAX,
            StepOutcome::WaitUntil(ns) => {
                Duration::from_nanos(ns.saturating_sub(self.now_ns() + SPIN_NS_MAX))
            }
        };
        if time > Duration::ZERO {
            futex::sleep(asleep, time.min(SLEEP_MAX));
        }
        let was_woken = asleep.swap(0, Ordering::Relaxed) == 0;
        if !was_woken {
            self.start_stranded();
        }
        Ok(())
    }

    /// Somebody may have tampered with the order, so that an entry of this client has lost its place.
    pub(crate) fn start_stranded(&mut self) -> bool {
        self.device.as_mut().is_some_and(Device::start_stranded)
    }

    pub(crate) fn step(&mut self, memory: &impl Memory) -> Result<StepOutcome, ConfigError> {
        let devices = self.client.devices();
        // ORDERING: Acquire pairs with the Release in `reconfigure`.
        let is_stale = devices.device(self.number).generation.load(Ordering::Acquire) != self.generation;
        if is_stale && self.device.as_mut().is_none_or(Device::finish_part) {
            self.trace = self.device.take().and_then(|device| device.trace).or(self.trace.take());
            (self.generation, self.device) = self.build()?;
            if let Some(device) = &mut self.device {
                device.trace = self.trace.take();
            }
        }
        // ORDERING: Acquire pairs with the Release in `abort_device`.
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

    /// The device as it is configured now.
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

    /// The device's clock; without a timing there is none, and looking at one would cost as much as a step.
    fn now_ns(&self) -> u64 {
        self.device.as_ref().and_then(|device| device.interface().now_ns()).unwrap_or(0)
    }
}
