//! A device that works in a thread of its own, over the memory of this process.
//!
//! An idle worker spins for a moment and then parks; a submission wakes it:
//!
//! ```text
//! submitter: push; if asleep: unpark          worker: asleep = true; fence; if queues are empty: park
//! ```
//!
//! The push, the submitter's load of `asleep` and the fence are sequentially consistent. So either the worker sees the
//! entry, or the submitter sees the sleeping worker.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use memferry_dsa::internals::fork;
use memferry_dsa::internals::portal::{Credits, SubmissionCounters};
use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Portal, QueueMode};

use super::portal::EmulatedPortal;
use crate::config::{ConfigError, DeviceConfig, FaultPlan};
use crate::device::clock::SPIN_NS_MAX;
use crate::device::counters::DeviceCounters;
use crate::device::interface::{Interface, Queue};
use crate::device::{Device, StepOutcome};
use crate::memory::DirectMemory;

/// Idle steps before the worker parks: some ten microseconds. That is several times the reaction time of a submitter to
/// a completion, and little against the cost of a wake-up.
const IDLE_STEPS_MAX: u32 = 500;

const RUN: u8 = 0;
const FINISH: u8 = 1;
const ABORT: u8 = 2;

/// A device that processes descriptors in a thread of its own.
///
/// It lives until the last handle and the last portal are dropped; then it completes the accepted descriptors. With a
/// timing, completions come no earlier than modelled, and the thread sleeps meanwhile. In a forked child, which lacks
/// the thread, the device is gone.
///
/// ```
/// use memferry_dsa::Request;
/// use memferry_dsa::{Client, ClientOptions};
/// use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
///
/// let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?;
/// let client = Client::new(vec![emulator.portal(0)], ClientOptions::default());
/// assert_eq!(client.run(Request::crc(0, b"123456789"))?, 0xe306_9283);
/// assert_eq!(emulator.counters().bytes_done, 9);
///
/// emulator.abort(); // from now on every submission fails, and the client uses the CPU
/// assert_eq!(client.run(Request::crc(0, b"123456789"))?, 0xe306_9283);
/// assert_eq!(emulator.counters().bytes_done, 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Emulator {
    config: DeviceConfig,
    fault_plan: FaultPlan,
    running: Mutex<RunningDevice>,
}

/// A device from its start, or its `enable`, until it is stopped.
struct RunningDevice {
    handle: Arc<DeviceHandle>,
    worker: Option<JoinHandle<()>>,
}

/// The submitters' connection to the worker.
pub(super) struct DeviceHandle {
    pub(super) interface: Arc<Interface>,
    pub(super) accounts: Vec<QueueAccount>,
    control: Arc<WorkerControl>,
    thread: Thread,
    /// The fork generation of the process with the worker: for a forked child the device is gone.
    pub(super) generation: u32,
}

/// The counters that all portals of a queue share.
pub(super) struct QueueAccount {
    pub(super) credits: Credits,
    pub(super) cells: SubmissionCounters,
}

/// The control words of a worker.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `order` | `abort`, `disable`, `drop` | worker, each step |
/// | `is_asleep` | the worker when it parks and resumes, a submitter that wakes it | submitters |
struct WorkerControl {
    order: AtomicU8,
    is_asleep: AtomicBool,
}

/// An error of [`Emulator::start`] or [`Emulator::enable`]: no device was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refuses a thread.
    #[error("cannot start the thread of the emulated device: {0}")]
    Thread(#[source] io::Error),
    /// The operating system refuses the page that detects forks.
    #[error("cannot watch for forks of this process: {0}")]
    Forks(#[source] io::Error),
    /// The device is enabled already.
    #[error("the device is enabled already: disable or abort it first")]
    IsEnabled,
}

impl Emulator {
    /// Starts a device.
    ///
    /// # Errors
    /// [`StartError`]: nothing was started.
    pub fn start(config: &DeviceConfig, fault_plan: FaultPlan) -> Result<Arc<Emulator>, StartError> {
        let running = RunningDevice::start(config, &fault_plan)?;
        Ok(Arc::new(Emulator { config: config.clone(), fault_plan, running: Mutex::new(running) }))
    }

    /// A portal to the work queue with this number. All portals of a dedicated queue count its entries together, and
    /// answer Retry while all are in use: an entry is in use until its descriptor is [`completed`](Portal::completed).
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn portal(self: &Arc<Self>, queue: usize) -> Arc<dyn Portal> {
        self.make_portal(queue, true)
    }

    /// A portal without credits, as MOVDIR64B sees a queue: a dedicated queue accepts everything and drops descriptors
    /// that it has no room for.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn uncounted_portal(self: &Arc<Self>, queue: usize) -> Arc<dyn Portal> {
        self.make_portal(queue, false)
    }

    fn make_portal(self: &Arc<Self>, queue: usize, counts: bool) -> Arc<dyn Portal> {
        assert!(queue < self.queue_count(), "queue {queue} of {}", self.queue_count());
        let handle = self.handle();
        let is_counted = counts && handle.interface.queues[queue].info.mode == QueueMode::Dedicated;
        Arc::new(EmulatedPortal { handle, queue, is_counted, _emulator: Arc::clone(self) })
    }

    /// The number of work queues.
    pub fn queue_count(&self) -> usize {
        self.config.queues().count()
    }

    /// The configuration of the device.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// The injected misbehaviour.
    pub fn fault_plan(&self) -> &FaultPlan {
        &self.fault_plan
    }

    /// The counters since the device was enabled.
    pub fn counters(&self) -> DeviceCounters {
        self.handle().interface.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.handle().interface.take_error()
    }

    /// Stops the device with its work: no descriptor in flight completes, and later submissions return
    /// [`SubmitError::Gone`](memferry_dsa::SubmitError::Gone). After the return the device accesses no memory any more, and its portals report that it
    /// is gone. (Silicon does not promise that.)
    pub fn abort(&self) {
        self.lock().stop(ABORT);
    }

    /// Accepts no more descriptors, completes those in flight, and stops.
    ///
    /// Source: DSA specification 9.2 (Disable Device).
    pub fn disable(&self) {
        self.lock().stop(FINISH);
    }

    /// Starts the device again after [`abort`](Self::abort) or [`disable`](Self::disable). Old portals stay gone, so
    /// that no thread waits for descriptors of before; get new ones.
    ///
    /// # Errors
    /// [`StartError`]: the device is unchanged.
    pub fn enable(&self) -> Result<(), StartError> {
        let mut running = self.lock();
        if !running.handle.is_gone() {
            return Err(StartError::IsEnabled);
        }
        *running = RunningDevice::start(&self.config, &self.fault_plan)?;
        Ok(())
    }

    fn handle(&self) -> Arc<DeviceHandle> {
        Arc::clone(&self.lock().handle)
    }

    fn lock(&self) -> MutexGuard<'_, RunningDevice> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningDevice {
    fn start(config: &DeviceConfig, fault_plan: &FaultPlan) -> Result<RunningDevice, StartError> {
        fork::watch().map_err(StartError::Forks)?;
        let device = Device::with_clock(config, fault_plan.clone(), true)?;
        let interface = Arc::clone(device.interface());
        let control =
            Arc::new(WorkerControl { order: AtomicU8::new(RUN), is_asleep: AtomicBool::new(false) });
        // SAFETY: descriptors reach this device through `EmulatedPortal::submit` only, whose callers keep the
        // contract of `Portal::submit`; the memory itself goes to the device's thread and nowhere else.
        let memory = unsafe { DirectMemory::new() };
        let worker = thread::Builder::new()
            .name("memferry-dsa".to_owned())
            .spawn({
                let control = Arc::clone(&control);
                move || work(device, &memory, &control)
            })
            .map_err(StartError::Thread)?;
        let account = |queue: &Queue| QueueAccount {
            credits: Credits::new(queue.info.size),
            cells: SubmissionCounters::default(),
        };
        let accounts = interface.queues.iter().map(account).collect();
        let (thread, generation) = (worker.thread().clone(), fork::generation());
        let handle = Arc::new(DeviceHandle { interface, accounts, control, thread, generation });
        Ok(RunningDevice { handle, worker: Some(worker) })
    }

    /// Gives the worker its last order and joins it. The caller holds the lock meanwhile, so that a second caller also
    /// returns after that. A forked child has no worker to wait for.
    fn stop(&mut self, order: u8) {
        if !self.handle.is_of_this_process() {
            return std::mem::forget(self.worker.take());
        }
        self.handle.interface.close();
        // ORDERING: Release pairs with the Acquire of `order` in `work`: every submission before the order is visible
        // to the worker's next step.
        self.handle.control.order.store(order, Ordering::Release);
        self.handle.thread.unpark();
        // A worker that panicked has printed the reason, and has marked the device as gone.
        let _ = self.worker.take().map(JoinHandle::join);
    }
}

impl Drop for RunningDevice {
    fn drop(&mut self) {
        self.stop(FINISH);
    }
}

impl DeviceHandle {
    pub(super) fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(super) fn is_gone(&self) -> bool {
        !self.is_of_this_process() || self.interface.is_gone()
    }

    pub(super) fn wake(&self) {
        // ORDERING: SeqCst, like the push before it (`Ring::publish`), pairs with the fences in `sleep` and
        // `wait_until`: either this load sees the sleeping worker, or the worker sees the entry. The swap needs no
        // order, since `unpark` synchronises with `park`.
        if self.control.is_asleep.load(Ordering::SeqCst)
            && self.control.is_asleep.swap(false, Ordering::Relaxed)
        {
            self.thread.unpark();
        }
    }
}

/// Closes the queues when the worker returns or panics, so that no thread submits to a device without a worker. Then,
/// as the worker's last action, it marks the device as gone.
struct GoneOnDrop(Arc<Interface>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        self.0.close();
        self.0.set_gone();
    }
}

fn work(mut device: Device, memory: &DirectMemory, control: &WorkerControl) {
    let interface = GoneOnDrop(Arc::clone(device.interface()));
    let mut idle_steps = 0;
    loop {
        // The order first: only a step that starts after FINISH knows that the queues stay empty.
        // ORDERING: Acquire pairs with the Release of `order` in `stop`: this step sees all submissions before it.
        let order = control.order.load(Ordering::Acquire);
        if order == ABORT {
            return device.abort();
        }
        match step(&mut device, memory, &interface.0) {
            StepOutcome::Work => idle_steps = 0,
            StepOutcome::Nothing if order == FINISH => return,
            StepOutcome::Nothing if idle_steps < IDLE_STEPS_MAX => {
                idle_steps += 1;
                std::hint::spin_loop();
            }
            StepOutcome::Nothing => sleep(&interface.0, control),
            StepOutcome::WaitUntil(ns) => wait_until(ns, &mut device, memory, &interface.0, control),
        }
    }
}

fn step(device: &mut Device, memory: &DirectMemory, interface: &Interface) -> StepOutcome {
    // Without a timing there is no clock. Reading one would cost as much as the step.
    match interface.now_ns() {
        Some(now_ns) => device.step_at(now_ns, memory),
        None => device.step_at(0, memory),
    }
}

fn sleep(interface: &Interface, control: &WorkerControl) {
    control.is_asleep.store(true, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the SeqCst push and the load of `is_asleep` in `wake`; see the head of this file.
    fence(Ordering::SeqCst);
    if interface.is_empty() {
        // `unpark` for an order that is given before this leaves a token, so that this returns at once.
        thread::park();
    }
    control.is_asleep.store(false, Ordering::Relaxed);
}

/// Waits for a time on the clock, or for a submission: parks while the time is far, spins when it is near.
fn wait_until(
    ns: u64,
    device: &mut Device,
    memory: &DirectMemory,
    interface: &Interface,
    control: &WorkerControl,
) {
    if Some(ns) <= interface.now_ns().map(|now_ns| now_ns + SPIN_NS_MAX) {
        return std::hint::spin_loop();
    }
    control.is_asleep.store(true, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the SeqCst push and the load of `is_asleep` in `wake`: the step below sees an earlier
    // submission, and a later one sees the sleeping worker.
    fence(Ordering::SeqCst);
    if let StepOutcome::WaitUntil(ns) = step(device, memory, interface)
        && let Some(left) = ns.checked_sub(interface.now_ns().unwrap_or(0) + SPIN_NS_MAX)
    {
        thread::park_timeout(Duration::from_nanos(left));
    }
    control.is_asleep.store(false, Ordering::Relaxed);
}
