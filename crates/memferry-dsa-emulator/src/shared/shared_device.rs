//! The coordination of one process' device with the same device in other processes.
//!
//! ```text
//! before it pops an entry:    count it, so that the server accounts for it if the process dies here
//! after it:                   skip entries of dead clients, wake the owner of the next entry
//! under a timing, before:     acquire a free engine and the turn of the queue
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{ClientDevice, ClientMemory, ClientQueue, DeviceOrder};
use super::memory::Mapping;
use super::{Client, Devices, futex};
use crate::arc_ref::ArcRef;
use crate::device::clock::AHEAD_MAX_NS;
use crate::device::counters::{Counters, count, get};
use crate::device::error_register::ErrorRegister;
use crate::queue::QueueOrder;
use crate::queue::ring::{ClientId, SLOTS};

/// The bit of an engine's word that says that a client has acquired it; the client's number is below. Without the bit
/// the word is the time at which the engine is free, in nanoseconds.
pub(super) const ACQUIRED: u64 = 1 << 63;

/// One client's view of one device.
#[derive(Clone)]
pub(crate) struct SharedDevice {
    devices: Devices,
    own: Arc<Mapping<ClientMemory>>,
    device: usize,
    client: ClientId,
    /// The numbers on the board, by the device's own numbers.
    queues: Vec<usize>,
    engines: Vec<usize>,
    groups: Vec<usize>,
}

impl SharedDevice {
    pub(super) fn new(client: &Client, device: usize, shape: &super::shape::Shape) -> SharedDevice {
        SharedDevice {
            devices: client.devices().clone(),
            own: Arc::clone(client.own()),
            device,
            client: client.id(),
            queues: shape.queues.clone(),
            engines: shape.engines.clone(),
            groups: shape.groups.clone(),
        }
    }

    pub(crate) fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) fn counters(&self) -> ArcRef<Counters> {
        let device = self.device;
        ArcRef::part_of(Arc::clone(&self.own), |own| &own.get().devices[device].counters)
    }

    pub(crate) fn error_register(&self) -> ArcRef<ErrorRegister> {
        let device = self.device;
        self.devices.hold_order(|order| &order.devices[device].error)
    }

    /// The time at which the device's bandwidth is free.
    pub(crate) fn bandwidth(&self) -> ArcRef<AtomicU64> {
        let device = self.device;
        self.devices.hold_order(|order| &order.devices[device].times.0.bandwidth)
    }

    /// The word of a group's arbiter.
    pub(crate) fn arbiter(&self, group: usize) -> ArcRef<AtomicU64> {
        let (device, group) = (self.device, self.groups[group]);
        self.devices.hold_order(|order| &order.devices[device].times.0.arbiters[group])
    }

    /// The queue's number on the board, which the error register reports.
    pub(crate) fn queue_number(&self, queue: usize) -> usize {
        self.queues[queue]
    }

    /// Counts an entry that is about to be popped.
    pub(crate) fn count_dispatch(&self, queue: usize) {
        count(&self.mine(queue).dispatched, 1);
    }

    /// Wakes the owner of the next entry after an entry was popped. `was_there` is false if the entry was removed
    /// because the client had not submitted it.
    #[inline]
    pub(crate) fn after_pop(&self, queue: usize, was_there: bool) {
        let number = self.queues[queue];
        if !was_there {
            let taken = &self.mine(queue).dispatched;
            taken.store(get(taken).wrapping_sub(1), Ordering::Relaxed);
            let counts = &self.order().queues[number].counts.0;
            counts.retired.fetch_add(1, Ordering::Relaxed);
        }
        wake_next_owner(&self.devices, self.device, number, self.client);
    }

    /// Counts a dispatched descriptor as executed.
    pub(crate) fn count_executed(&self, queue: usize) {
        count(&self.mine(queue).executed, 1);
    }

    /// Counts an executed descriptor as completed: its record was written, was lost, or is not wanted.
    pub(crate) fn count_completed(&self, queue: usize) {
        count(&self.mine(queue).completed, 1);
    }

    /// Accounts for dropped descriptors of all queues; returns how many were dispatched and not executed.
    pub(crate) fn drop_dispatched(&self) -> u64 {
        let queues = self.device_own().queues.iter().map(|queue| &queue.0);
        let left = queues.map(|queue| {
            let left = get(&queue.dispatched).saturating_sub(get(&queue.executed));
            count(&queue.executed, left);
            queue.completed.store(get(&queue.dispatched), Ordering::Relaxed);
            left
        });
        left.sum()
    }

    /// Acquires an engine that is free at `now_ns`; returns the time at which it became free.
    pub(crate) fn acquire_engine(&self, engine: usize, now_ns: u64) -> Option<u64> {
        let word = self.engine(engine);
        let before = word.load(Ordering::Relaxed);
        let free_ns = free_at(before, now_ns)?;
        let mine = ACQUIRED | u64::from(self.client);
        // ORDERING: Acquire pairs with the Release in `release_engine`, `reap_client` and `check_stalls`. The Release
        // half needs no partner: an engine has one user at a time, and its word publishes no other memory.
        let taken = free_ns <= now_ns
            && word.compare_exchange(before, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        taken.then_some(free_ns)
    }

    /// Releases an engine, which is free for others at `free_ns`.
    pub(crate) fn release_engine(&self, engine: usize, free_ns: u64) {
        // ORDERING: Release pairs with the Acquire in `acquire_engine`.
        self.engine(engine).store(free_ns & !ACQUIRED, Ordering::Release);
    }

    /// The time at which an engine is free; `None` while a client has acquired it.
    pub(crate) fn engine_free_ns(&self, engine: usize, now_ns: u64) -> Option<u64> {
        free_at(self.engine(engine).load(Ordering::Relaxed), now_ns)
    }

    fn engine(&self, engine: usize) -> &AtomicU64 {
        &self.order().times.0.engines[self.engines[engine]]
    }

    fn order(&self) -> &DeviceOrder {
        self.devices.device_order(self.device)
    }

    fn device_own(&self) -> &ClientDevice {
        &self.own.get().devices[self.device]
    }

    fn mine(&self, queue: usize) -> &ClientQueue {
        &self.device_own().queues[self.queues[queue]].0
    }
}

/// The time at which an engine with this word is free; `None` while a client has acquired it. An impossible time was
/// forged and counts as now.
fn free_at(word: u64, now_ns: u64) -> Option<u64> {
    match word {
        _ if word & ACQUIRED != 0 => None,
        _ if word > now_ns.saturating_add(AHEAD_MAX_NS) => Some(now_ns),
        _ => Some(word),
    }
}

/// Makes sure that the entry at the head of a queue is popped: skips entries of dead clients, and wakes the owner of
/// the next entry unless it is `client`.
pub(super) fn wake_next_owner(devices: &Devices, device: usize, queue: usize, client: ClientId) {
    let QueueOrder { ring, counts } = &devices.device_order(device).queues[queue];
    // At most as many as a ring has, since a hostile client may add entries meanwhile.
    for _ in 0..SLOTS {
        let Some(head) = ring.head().filter(|head| head.client != client) else { return };
        let owner = usize::from(head.client);
        if devices.is_live(owner) {
            if head.is_ready {
                futex::wake(&devices.order().sleepers[owner][device].0);
            }
            return;
        }
        if ring.skip(head) {
            // ORDERING: Release pairs with the Acquire of `retired` in `queue_report`: the head has moved.
            counts.0.retired.fetch_add(1, Ordering::Release);
        }
    }
}
