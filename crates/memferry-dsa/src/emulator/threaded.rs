//! Drives a device in a thread of its own, over the memory of this process.
//!
//! The thread spins for a moment when there is nothing to do and then parks; a submission wakes it:
//!
//! ```text
//! submitter: push; fence; if asleep: unpark          worker: asleep = true; fence; if queues are empty: park
//! ```
//!
//! One of the two fences comes first, so that either the worker sees the entry or the submitter sees the sleeper.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

use super::config::{ConfigError, DeviceConfig};
use super::device::{Device, Stepped};
use super::front::{DeviceCounters, Front, Queue, SoftwareError};
use super::memory::DirectMemory;
use super::nasty::Nasty;
use crate::descriptor::Descriptor;
use crate::portal::credits::Credits;
use crate::portal::{
    Cells, Portal, PortalCounters, PortalKind, QueueMode, Submission, SubmitError, WorkQueueInfo,
};

/// Idle steps before the thread parks: some ten microseconds, several times what a submitter takes to react to a
/// completion, and nothing against the cost of being woken.
const IDLE_STEPS_MAX: u32 = 500;

/// The one address space that descriptors of this process belong to.
const PASID: u32 = 1;

/// Entries are counted in one process: the device's thread does not exist in a forked child.
const GENERATION: u32 = 1;

const RUN: u8 = 0;
const FINISH: u8 = 1;
const ABORT: u8 = 2;

/// A device that processes descriptors by itself.
///
/// It lives until the last handle and the last portal are dropped; then it finishes what it has accepted.
pub struct Emulator {
    front: Arc<Front>,
    accounts: Vec<Account>,
    orders: Arc<Orders>,
    thread: Thread,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// What all portals of a queue count together.
struct Account {
    credits: Credits,
    cells: Cells,
}

/// What the worker is told, and tells.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `order` | `abort`, `drop` | worker, each step |
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
}

impl Emulator {
    /// Starts a device.
    ///
    /// # Errors
    /// [`StartError`]: nothing was started.
    pub fn start(config: &DeviceConfig, nasty: Nasty) -> Result<Arc<Emulator>, StartError> {
        let device = Device::new(config, nasty)?;
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
        let account =
            |queue: &Queue| Account { credits: Credits::new(queue.info.size), cells: Cells::default() };
        let accounts = front.queues.iter().map(account).collect();
        Ok(Arc::new(Emulator {
            front,
            accounts,
            orders,
            thread: worker.thread().clone(),
            worker: Mutex::new(Some(worker)),
        }))
    }

    /// A portal to the work queue with this number. All portals of a dedicated queue count its entries together.
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
        let is_counted = counts && self.front.queues[queue].info.mode == QueueMode::Dedicated;
        Arc::new(EmulatedPortal { emulator: Arc::clone(self), queue, is_counted })
    }

    /// The number of work queues.
    pub fn queue_count(&self) -> usize {
        self.front.queues.len()
    }

    /// What the device has done so far.
    pub fn counters(&self) -> DeviceCounters {
        self.front.snapshot()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self) -> Option<SoftwareError> {
        self.front.take_error()
    }

    /// Makes the device die with its work in it: nothing in flight completes, later submissions answer
    /// [`SubmitError::Gone`]. After the return the device touches no memory any more, and portals know that it is
    /// gone. (Silicon does not promise that.)
    pub fn abort(&self) {
        self.front.close();
        self.stop(ABORT);
    }

    fn stop(&self, order: u8) {
        // ORDERING: Release pairs with the Acquire in `work`: every submission that came before the order is
        // visible to the step that follows the order.
        self.orders.order.store(order, Ordering::Release);
        self.thread.unpark();
        // The lock is held until the worker has ended, so that a second caller also returns after that.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        // A worker that panicked has printed why, and has said that the device is gone.
        let _ = worker.take().map(JoinHandle::join);
    }

    fn wake(&self) {
        // ORDERING: SeqCst pairs with the fence in `sleep`; see the head of this file.
        fence(Ordering::SeqCst);
        if self.orders.is_asleep.load(Ordering::Relaxed)
            && self.orders.is_asleep.swap(false, Ordering::Relaxed)
        {
            self.thread.unpark();
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop(FINISH);
    }
}

/// A portal that keeps its device alive.
struct EmulatedPortal {
    emulator: Arc<Emulator>,
    queue: usize,
    is_counted: bool,
}

impl EmulatedPortal {
    fn account(&self) -> &Account {
        &self.emulator.accounts[self.queue]
    }
}

impl Portal for EmulatedPortal {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.emulator.front.queues[self.queue].info
    }

    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let Account { credits, cells } = self.account();
        if self.is_counted && !self.is_gone() && !credits.take(GENERATION) {
            return cells.count(Ok(Submission::Retry));
        }
        let answer = self.emulator.front.submit(self.queue, descriptor, PASID);
        if answer == Ok(Submission::Accepted) {
            self.emulator.wake();
        } else if self.is_counted {
            credits.settle(GENERATION, 1);
        }
        cells.count(answer)
    }

    fn settled(&self, count: u32) {
        if self.is_counted {
            self.account().credits.settle(GENERATION, count);
        }
    }

    fn is_gone(&self) -> bool {
        self.emulator.front.is_gone()
    }

    fn counters(&self) -> PortalCounters {
        let Account { credits, cells } = self.account();
        cells.snapshot(credits.taken(GENERATION))
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
        match (order, device.step(memory)) {
            (FINISH, Stepped::Idle) => return,
            (_, Stepped::Busy) => idle_steps = 0,
            (_, Stepped::Idle) if idle_steps < IDLE_STEPS_MAX => {
                idle_steps += 1;
                std::hint::spin_loop();
            }
            (_, Stepped::Idle) => sleep(&front.0, orders),
        }
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
