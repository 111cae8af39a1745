//! Drives a device in a thread of its own, over the memory of this process.
//!
//! The thread spins for a moment when there is nothing to do and then parks; a submission wakes it:
//!
//! ```text
//! submitter: push; if asleep: unpark          worker: asleep = true; fence; if queues are empty: park
//! ```
//!
//! All of the submitter's and the fence are sequentially consistent, so that either the worker sees the entry or the
//! submitter sees the sleeper.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use memferry_dsa::portal::{
    Credits, Portal, PortalCounters, PortalKind, QueueMode, Submission, SubmissionCounters, SubmitError,
    WorkQueueInfo,
};
use memferry_dsa::{Descriptor, fork};

use crate::config::{ConfigError, DeviceConfig};
use crate::counters::DeviceCounters;
use crate::device::{Device, Did};
use crate::fault_plan::FaultPlan;
use crate::front::{Front, Queue};
use crate::memory::DirectMemory;
use crate::register::SoftwareError;

/// Idle steps before the thread parks: some ten microseconds, several times what a submitter takes to react to a
/// completion, and nothing against the cost of being woken.
const IDLE_STEPS_MAX: u32 = 500;

/// What is left to spin of a wait for the clock: Linux wakes a sleeper up to 50 us late (prctl(2), PR_SET_TIMERSLACK).
const SPIN_NS_MAX: u64 = 60_000;

/// The one address space that descriptors of this process belong to.
const PASID: u32 = 1;

const RUN: u8 = 0;
const FINISH: u8 = 1;
const ABORT: u8 = 2;

/// A device that processes descriptors by itself.
///
/// It lives until the last handle and the last portal are dropped; then it finishes what it has accepted. With a
/// timing in its configuration, completions come no earlier than that says, and the thread sleeps meanwhile. In a
/// forked child, which has no such thread, it is gone.
pub struct Emulator {
    config: DeviceConfig,
    nasty: FaultPlan,
    life: Mutex<Life>,
}

/// A device from its start, or from being enabled again, to its end.
struct Life {
    line: Arc<Line>,
    worker: Option<JoinHandle<()>>,
}

/// What leads to the worker.
struct Line {
    front: Arc<Front>,
    accounts: Vec<Account>,
    orders: Arc<Orders>,
    thread: Thread,
    /// The process with the device's thread: for a forked child the device is gone.
    generation: u32,
}

/// What all portals of a queue count together.
struct Account {
    credits: Credits,
    cells: SubmissionCounters,
}

/// What the worker is told, and tells.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `order` | `abort`, `disable`, `drop` | worker, each step |
/// | `is_asleep` | worker before it parks, whoever wakes it | submitters |
struct Orders {
    order: AtomicU8,
    is_asleep: AtomicBool,
}

/// No device was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system gives no thread.
    #[error("no thread for the emulated device: {0}")]
    Thread(#[source] io::Error),
    /// The operating system gives no page by which forks are noticed.
    #[error("forks of this process could not be noticed: {0}")]
    Forks(#[source] io::Error),
}

/// No device was enabled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnableError {
    /// The device is at work.
    #[error("the device is enabled already: disable or abort it first")]
    IsEnabled,
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl Emulator {
    /// Starts a device.
    ///
    /// # Errors
    /// [`StartError`]: nothing was started.
    pub fn start(config: &DeviceConfig, nasty: FaultPlan) -> Result<Arc<Emulator>, StartError> {
        let life = Life::start(config, &nasty)?;
        Ok(Arc::new(Emulator { config: config.clone(), nasty, life: Mutex::new(life) }))
    }

    /// A portal to the work queue with this number. All portals of a dedicated queue count its entries together, and
    /// answer Retry while all are taken: also after the descriptors have ended, until they are
    /// [`completed`](Portal::completed).
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn portal(self: &Arc<Self>, queue: usize) -> Arc<dyn Portal> {
        self.portal_that(queue, true)
    }

    /// The bare queue, as MOVDIR64B finds it: a dedicated one accepts everything, and loses what is too much.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn uncounted_portal(self: &Arc<Self>, queue: usize) -> Arc<dyn Portal> {
        self.portal_that(queue, false)
    }

    fn portal_that(self: &Arc<Self>, queue: usize, counts: bool) -> Arc<dyn Portal> {
        assert!(queue < self.queue_count(), "queue {queue} of {}", self.queue_count());
        let line = self.line();
        let is_counted = counts && line.front.queues[queue].info.mode == QueueMode::Dedicated;
        Arc::new(EmulatedPortal { line, queue, is_counted, _emulator: Arc::clone(self) })
    }

    /// The number of work queues.
    pub fn queue_count(&self) -> usize {
        self.config.queues().count()
    }

    /// What the device consists of.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// How badly it behaves.
    pub fn nasty(&self) -> &FaultPlan {
        &self.nasty
    }

    /// What the device has done since it was enabled.
    pub fn counters(&self) -> DeviceCounters {
        self.line().front.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.line().front.take_error()
    }

    /// Makes the device die with its work in it: nothing in flight completes, later submissions answer
    /// [`SubmitError::Gone`]. After the return the device touches no memory any more, and portals know that it is
    /// gone. (Silicon does not promise that.)
    pub fn abort(&self) {
        self.lock().stop(ABORT);
    }

    /// Takes no more descriptors, completes those that it has, and is gone.
    ///
    /// Source: DSA specification 9.2 (Disable Device).
    pub fn disable(&self) {
        self.lock().stop(FINISH);
    }

    /// Starts the device anew after [`abort`](Self::abort) or [`disable`](Self::disable). Portals from before stay
    /// gone, so that nobody waits for what was in flight; take new ones.
    ///
    /// # Errors
    /// [`EnableError`]: nothing has changed.
    pub fn enable(&self) -> Result<(), EnableError> {
        let mut life = self.lock();
        if !life.line.is_gone() {
            return Err(EnableError::IsEnabled);
        }
        *life = Life::start(&self.config, &self.nasty)?;
        Ok(())
    }

    fn line(&self) -> Arc<Line> {
        Arc::clone(&self.lock().line)
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Life {
    fn start(config: &DeviceConfig, nasty: &FaultPlan) -> Result<Life, StartError> {
        fork::watch().map_err(StartError::Forks)?;
        let device = Device::in_real_time(config, nasty.clone())?;
        let front = Arc::clone(device.front());
        let orders = Arc::new(Orders { order: AtomicU8::new(RUN), is_asleep: AtomicBool::new(false) });
        // SAFETY: descriptors reach this device through `EmulatedPortal::submit` only, whose callers keep the
        // contract of `Portal::submit`; the memory itself goes to the device's thread and nowhere else.
        let memory = unsafe { DirectMemory::new() };
        let worker = thread::Builder::new()
            .name("memferry-dsa".to_owned())
            .spawn({
                let orders = Arc::clone(&orders);
                move || work(device, &memory, &orders)
            })
            .map_err(StartError::Thread)?;
        let account = |queue: &Queue| Account {
            credits: Credits::new(queue.info.size),
            cells: SubmissionCounters::default(),
        };
        let accounts = front.queues.iter().map(account).collect();
        let (thread, generation) = (worker.thread().clone(), fork::generation());
        let line = Arc::new(Line { front, accounts, orders, thread, generation });
        Ok(Life { line, worker: Some(worker) })
    }

    /// Gives the worker its last order and waits for its end. The caller holds the lock meanwhile, so that a second
    /// one also returns after that. In a forked child there is no worker to wait for.
    fn stop(&mut self, order: u8) {
        if !self.line.is_of_this_process() {
            return std::mem::forget(self.worker.take());
        }
        self.line.front.close();
        // ORDERING: Release pairs with the Acquire in `work`: every submission that came before the order is
        // visible to the step that follows the order.
        self.line.orders.order.store(order, Ordering::Release);
        self.line.thread.unpark();
        // A worker that panicked has printed why, and has said that the device is gone.
        let _ = self.worker.take().map(JoinHandle::join);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.stop(FINISH);
    }
}

impl Line {
    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    fn is_gone(&self) -> bool {
        !self.is_of_this_process() || self.front.is_gone()
    }

    fn wake(&self) {
        // ORDERING: SeqCst, as is the push before it, pairs with the fence in `sleep`; see the head of this file.
        if self.orders.is_asleep.load(Ordering::SeqCst)
            && self.orders.is_asleep.swap(false, Ordering::Relaxed)
        {
            self.thread.unpark();
        }
    }
}

/// A portal that keeps its device alive.
struct EmulatedPortal {
    line: Arc<Line>,
    queue: usize,
    is_counted: bool,
    _emulator: Arc<Emulator>,
}

impl EmulatedPortal {
    fn account(&self) -> &Account {
        &self.line.accounts[self.queue]
    }
}

// SAFETY: the device does what the specification says, writes records last, and touches nothing after it has said, as its
// worker's last act, that it is gone. It has no part in a forked child, whose memory it does not reach.
unsafe impl Portal for EmulatedPortal {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.line.front.queues[self.queue].info
    }

    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let Account { credits, cells } = self.account();
        let generation = self.line.generation;
        if !self.line.is_of_this_process() {
            return cells.count(Err(SubmitError::Gone));
        }
        if self.is_counted && !self.is_gone() && !credits.take(generation) {
            return cells.count(Ok(Submission::Retry));
        }
        let answer = self.line.front.submit(self.queue, descriptor, PASID);
        if answer == Ok(Submission::Accepted) {
            self.line.wake();
        } else if self.is_counted {
            credits.release(generation, 1);
        }
        cells.count(answer)
    }

    fn completed(&self, count: u32) {
        if self.is_counted && self.line.is_of_this_process() {
            self.account().credits.release(self.line.generation, count);
        }
    }

    fn is_gone(&self) -> bool {
        self.line.is_gone()
    }

    fn counters(&self) -> PortalCounters {
        let Account { credits, cells } = self.account();
        cells.snapshot(credits.taken(fork::generation()))
    }
}

/// Closes the queues when the worker ends, also by a panic, so that nobody submits to a device without a worker;
/// and then, as the worker's last act, says that the device is gone.
struct GoneAtEnd(Arc<Front>);

impl Drop for GoneAtEnd {
    fn drop(&mut self) {
        self.0.close();
        self.0.set_gone();
    }
}

fn work(mut device: Device, memory: &DirectMemory, orders: &Orders) {
    let front = GoneAtEnd(Arc::clone(device.front()));
    let mut idle_steps = 0;
    loop {
        // The order first: only a step that began after FINISH knows that the queues stay empty.
        // ORDERING: Acquire pairs with the Release in `stop`: what was submitted before it is seen by this step.
        let order = orders.order.load(Ordering::Acquire);
        if order == ABORT {
            return device.abort();
        }
        match step(&mut device, memory, &front.0) {
            Did::Work => idle_steps = 0,
            Did::Nothing if order == FINISH => return,
            Did::Nothing if idle_steps < IDLE_STEPS_MAX => {
                idle_steps += 1;
                std::hint::spin_loop();
            }
            Did::Nothing => sleep(&front.0, orders),
            Did::WaitUntil(ns) => wait_until(ns, &mut device, memory, &front.0, orders),
        }
    }
}

fn step(device: &mut Device, memory: &DirectMemory, front: &Front) -> Did {
    // Without a timing there is no clock, and looking at one would cost as much as the step.
    match front.now_ns() {
        Some(now_ns) => device.step_at(now_ns, memory),
        None => device.step_at(0, memory),
    }
}

fn sleep(front: &Front, orders: &Orders) {
    orders.is_asleep.store(true, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the fence in `wake`; see the head of this file.
    fence(Ordering::SeqCst);
    if front.is_empty() {
        // An order that comes now leaves its token in `unpark`, so that this returns at once.
        thread::park();
    }
    orders.is_asleep.store(false, Ordering::Relaxed);
}

/// Waits for a time on the clock, or for a submission: parked while it is far, spinning when it is near.
fn wait_until(ns: u64, device: &mut Device, memory: &DirectMemory, front: &Front, orders: &Orders) {
    if Some(ns) <= front.now_ns().map(|now_ns| now_ns + SPIN_NS_MAX) {
        return std::hint::spin_loop();
    }
    orders.is_asleep.store(true, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the fence in `wake`: a submission from before is seen by the step, one from after
    // sees the sleeper.
    fence(Ordering::SeqCst);
    if let Did::WaitUntil(ns) = step(device, memory, front)
        && let Some(left) = ns.checked_sub(front.now_ns().unwrap_or(0) + SPIN_NS_MAX)
    {
        thread::park_timeout(Duration::from_nanos(left));
    }
    orders.is_asleep.store(false, Ordering::Relaxed);
}
