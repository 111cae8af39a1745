//! What a device in one process does about the others.
//!
//! ```text
//! before it takes an entry:   count it, so that it is missed if the process dies here
//! after it:                   skip what belongs to the dead, wake the owner of what is at the head then
//! under a timing, before:     have an engine that is free, and the turn of the queue
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{ClientDevice, DeviceState, Life};
use super::{State, futex};
use crate::emulator::counters::{Counters, count, get};
use crate::emulator::held::Held;
use crate::emulator::queue::QueueState;
use crate::emulator::register::ErrorRegister;
use crate::emulator::ring::ClientId;

/// An engine's word: who has it. Otherwise when it is free, in nanoseconds.
pub(super) const TAKEN: u64 = 1 << 63;

/// One client's view of one device.
#[derive(Clone)]
pub(in crate::emulator) struct Common {
    state: State,
    device: usize,
    client: ClientId,
    /// The numbers in the file of what the device has numbered through.
    queues: Vec<usize>,
    engines: Vec<usize>,
    groups: Vec<usize>,
}

impl Common {
    pub(super) fn new(state: State, device: usize, client: ClientId, shape: &super::shape::Shape) -> Common {
        Common {
            state,
            device,
            client,
            queues: shape.queues.clone(),
            engines: shape.engines.clone(),
            groups: shape.groups.clone(),
        }
    }

    pub(in crate::emulator) fn client(&self) -> ClientId {
        self.client
    }

    pub(in crate::emulator) fn counters(&self) -> Held<Counters> {
        let Common { device, client, .. } = *self;
        self.state.hold(|file| &file.clients[usize::from(client)].devices[device].counters)
    }

    pub(in crate::emulator) fn error_register(&self) -> Held<ErrorRegister> {
        let device = self.device;
        self.state.hold(|file| &file.devices[device].error)
    }

    /// When the device's bandwidth is free.
    pub(in crate::emulator) fn bandwidth(&self) -> Held<AtomicU64> {
        let device = self.device;
        self.state.hold(|file| &file.devices[device].times.0.bandwidth)
    }

    /// The arbiter's word of each group.
    pub(in crate::emulator) fn arbiter(&self, group: usize) -> Held<AtomicU64> {
        let (device, group) = (self.device, self.groups[group]);
        self.state.hold(|file| &file.devices[device].times.0.arbiters[group])
    }

    /// The queue's number in the device, as the error register tells it.
    pub(in crate::emulator) fn queue_number(&self, queue: usize) -> usize {
        self.queues[queue]
    }

    /// An entry is about to be taken.
    pub(in crate::emulator) fn taking(&self, queue: usize) {
        count(&self.mine().queues[self.queues[queue]].taken, 1);
    }

    /// An entry was taken: it is the turn of the next one, whose owner may sleep.
    #[inline]
    pub(in crate::emulator) fn took(&self, queue: usize) {
        pass_on(&self.state, self.device, self.queues[queue], self.client);
    }

    /// A descriptor that was taken has ended.
    pub(in crate::emulator) fn ended(&self, queue: usize) {
        count(&self.mine().queues[self.queues[queue]].ended, 1);
    }

    /// The record of a descriptor that has ended was written, or lost, or is not wanted.
    pub(in crate::emulator) fn settled(&self, queue: usize) {
        count(&self.mine().queues[self.queues[queue]].settled, 1);
    }

    /// What was taken of any queue has been dropped; how many of these had not ended.
    pub(in crate::emulator) fn drop_taken(&self) -> u64 {
        let queues = self.mine().queues.iter();
        let left = queues.map(|queue| {
            let left = get(&queue.taken) - get(&queue.ended);
            count(&queue.ended, left);
            count(&queue.settled, get(&queue.taken) - get(&queue.settled));
            left
        });
        left.sum()
    }

    /// Takes an engine that is free at `now_ns`; when it became free.
    pub(in crate::emulator) fn take_engine(&self, engine: usize, now_ns: u64) -> Option<u64> {
        let word = self.engine(engine);
        let free_ns = word.load(Ordering::Relaxed);
        let is_free = free_ns & TAKEN == 0 && free_ns <= now_ns;
        let mine = TAKEN | u64::from(self.client);
        // ORDERING: AcqRel pairs with the Release in `leave_engine`; one engine has one user.
        let taken =
            is_free && word.compare_exchange(free_ns, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        taken.then_some(free_ns)
    }

    /// Leaves an engine, which is free for others at `free_ns`.
    pub(in crate::emulator) fn leave_engine(&self, engine: usize, free_ns: u64) {
        self.engine(engine).store(free_ns & !TAKEN, Ordering::Release);
    }

    /// When an engine is free; `None` while somebody has it.
    pub(in crate::emulator) fn engine_free_ns(&self, engine: usize) -> Option<u64> {
        let free_ns = self.engine(engine).load(Ordering::Relaxed);
        (free_ns & TAKEN == 0).then_some(free_ns)
    }

    fn engine(&self, engine: usize) -> &AtomicU64 {
        &self.device().times.0.engines[self.engines[engine]]
    }

    fn device(&self) -> &DeviceState {
        self.state.device(self.device)
    }

    fn mine(&self) -> &ClientDevice {
        &self.state.file().clients[usize::from(self.client)].devices[self.device]
    }
}

/// Sees to it that somebody takes the entry at the head of a queue: skips those of the dead, and wakes the owner unless
/// it is `client`.
pub(super) fn pass_on(state: &State, device: usize, queue: usize, client: ClientId) {
    let QueueState { ring, counts, .. } = &state.device(device).queues[queue];
    while let Some(head) = ring.head() {
        if head.client == client {
            return;
        }
        let owner = usize::from(head.client);
        // ORDERING: see `Place::process`: who is dead takes nothing any more.
        let Some(place) = state.file().places.get(owner) else { return };
        if place.process(Life::Dead).is_none() {
            if head.is_ready {
                futex::wake(&state.file().clients[owner].devices[device].asleep.0);
            }
            return;
        }
        if ring.skip(head) {
            counts.0.retired.fetch_add(1, Ordering::Release);
            state.device(device).retired.aborted.fetch_add(1, Ordering::Relaxed);
        }
    }
}
