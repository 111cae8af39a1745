//! The server's configuration of devices and queues.

use std::sync::atomic::Ordering;

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{OperationSet, WorkQueueInfo};

use super::layout::{Command, DeviceBoard};
use super::{QueueAt, Server, futex};
use crate::config::{Capabilities, ConfigError, GROUPS_MAX, QUEUES_MAX};
use crate::queue::ring::Ring;

/// The configuration of a device when it is enabled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSetup {
    /// The number in its name: 2 for `dsa2`.
    pub number: u32,
    /// Its register OPCAP.
    pub operations: OperationSet,
    /// Its register GENCAP.
    pub capabilities: Capabilities,
    /// The group of each engine.
    pub engine_groups: [Option<usize>; 4],
}

impl Server {
    /// Enables a device without queues. The device is disabled or new.
    ///
    /// # Panics
    /// If there is no such device or group.
    pub fn enable_device(&self, device: usize, setup: &DeviceSetup) {
        let order = self.devices().device_order(device);
        self.reconfigure(device, |state| {
            state.number.store(setup.number, Ordering::Relaxed);
            state.capabilities.store(setup.capabilities.bits(), Ordering::Relaxed);
            for (word, value) in state.operations.iter().zip(setup.operations.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
            for (word, group) in state.engine_groups.iter().zip(setup.engine_groups) {
                assert!(group.is_none_or(|group| group < GROUPS_MAX), "no such group: {group:?}");
                word.store(group.map_or(0, |group| group as u32 + 1), Ordering::Relaxed);
            }
            state.command.store(Command::Run as u32, Ordering::Relaxed);
            order.error.clear();
        });
    }

    /// Enables a queue of an enabled device. The queue is disabled or new.
    ///
    /// # Errors
    /// [`ConfigError`]: the device refuses the queue beside its other queues; nothing has changed.
    ///
    /// # Panics
    /// If there is no such queue or group.
    pub fn enable_queue(&self, at: QueueAt, group: usize, info: &WorkQueueInfo) -> Result<(), ConfigError> {
        assert!(group < GROUPS_MAX, "no such group: {group}");
        let state = self.devices().device(at.device);
        let (queue, queue_group) = (&state.queues[at.queue], &state.queue_groups[at.queue]);
        let options = self.options().clone();
        let mut refused = Ok(());
        self.reconfigure(at.device, |_| {
            queue.configure(info, at.queue, &options.fault_plan, options.timing.as_ref());
            queue_group.store(group as u32 + 1, Ordering::Relaxed);
            refused = self.devices().shape_now(at.device).config.validate();
            if refused.is_err() {
                queue_group.store(0, Ordering::Relaxed);
                queue.unconfigure();
            }
        });
        if refused.is_ok() {
            let _stood = self.lock_stalls();
            queue.set_closed(false);
            self.ring(at).open();
        }
        refused
    }

    /// Closes a queue: it refuses submissions, and its entries are processed. [`is_drained`](Self::is_drained) reports
    /// when all are complete.
    pub fn close_queue(&self, at: QueueAt) {
        // The lock excludes the server's maintenance, which would open the ring again.
        let _stood = self.lock_stalls();
        self.devices().device(at.device).queues[at.queue].set_closed(true);
        self.ring(at).close();
    }

    /// Closes all queues of a device and drops the descriptors in flight, which never complete. The queues are drained
    /// when all processes have seen the command, and can be disabled then.
    pub fn abort_device(&self, device: usize) {
        (0..QUEUES_MAX).for_each(|queue| self.close_queue(QueueAt { device, queue }));
        // ORDERING: Release pairs with the Acquire of `command` in `ClientEngine::step_now`: the queues are closed.
        self.devices().device(device).command.store(Command::Abort as u32, Ordering::Release);
        self.wake_all(device);
    }

    /// Whether all descriptors that a closed queue has accepted are complete.
    pub fn is_drained(&self, at: QueueAt) -> bool {
        let report = self.queue_report(at);
        report.occupancy == 0 && report.in_progress == 0
    }

    /// Disables a closed and drained queue. Returns false, and changes nothing, if the queue is not drained yet: then
    /// call [`reap`](Self::reap), wait for a moment, and try again. A stopped process may take long.
    pub fn disable_queue(&self, at: QueueAt) -> bool {
        if !self.is_drained(at) {
            return false;
        }
        self.unconfigure(at);
        true
    }

    fn unconfigure(&self, at: QueueAt) {
        self.reconfigure(at.device, |state| {
            state.queues[at.queue].unconfigure();
            state.queue_groups[at.queue].store(0, Ordering::Relaxed);
        });
    }

    /// Disables a closed queue that is not drained in time: its descriptors are lost, as with a device that is reset.
    pub fn discard_queue(&self, at: QueueAt) {
        let order = &self.devices().device_order(at.device).queues[at.queue];
        order.ring.discard();
        let completed = self.completed(at);
        // ORDERING: Release pairs with the Acquire of `retired` in `queue_report`.
        order.counts.0.retired.store(order.ring.popped().saturating_sub(completed), Ordering::Release);
        // Not `disable_queue`: a client may falsify the counts on which `is_drained` relies.
        self.unconfigure(at);
    }

    /// Sets the file of a queue, by `st_dev` and `st_ino`.
    pub fn set_portal(&self, at: QueueAt, file_device: u64, inode: u64) {
        let portal = &self.devices().device(at.device).portals[at.queue];
        portal.device.store(file_device, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of `inode` in `queue_of`: `device` is set.
        portal.inode.store(inode, Ordering::Release);
    }

    /// The 32 bytes of the error register as four words, all zero without an error.
    pub fn error_words(&self, device: usize) -> [u64; 4] {
        self.devices().device_order(device).error.words()
    }

    /// Reads the error register and clears it.
    pub fn take_error(&self, device: usize) -> Option<SoftwareError> {
        self.devices().device_order(device).error.take()
    }

    /// Changes a device's configuration. Processes adopt it once their descriptors in progress are complete.
    fn reconfigure(&self, device: usize, change: impl FnOnce(&DeviceBoard)) {
        let state = self.devices().device(device);
        let generation = state.generation.load(Ordering::Relaxed);
        state.generation.store(generation + 1, Ordering::Relaxed);
        // ORDERING: a sequence lock. The Release fence keeps the changes after the odd number, the Release store keeps
        // them before the even one. They pair with the Acquire fence and the Acquire load in `Devices::shape`; the
        // store also pairs with the Acquire in `ClientEngine::step_now` and `was_configured`.
        std::sync::atomic::fence(Ordering::Release);
        change(state);
        state.generation.store(generation + 2, Ordering::Release);
    }

    /// Wakes all engines of a device. The words of clients that have not joined stay untouched: they have no pages.
    pub(super) fn wake_all(&self, device: usize) {
        let sleepers = self.devices().order().sleepers.iter().enumerate();
        let live = sleepers.filter(|(client, _)| self.devices().is_live(*client));
        live.for_each(|(_, devices)| futex::wake(&devices[device].0));
    }

    fn ring(&self, at: QueueAt) -> &Ring {
        &self.devices().device_order(at.device).queues[at.queue].ring
    }
}
