//! Engines that processes share: under a timing, one that works for one process is busy for the others.

use crate::device::Device;

/// When a client looks again that waits for others: their engine, or their entry at the head of a queue.
const LOOK_AGAIN_NS: u64 = 20_000;

impl Device {
    /// Whether engines are to be taken before they are used.
    pub(crate) fn shares_engines(&self) -> bool {
        self.interface.shared_device.is_some() && self.clock.timing().is_some()
    }

    /// Takes an engine if it is free now, and if the next descriptor of its group is this client's.
    pub(crate) fn take_engine(&mut self, number: usize) -> bool {
        let Some(stamped_max) = self.stamped_max() else { return false };
        let Device { interface, engines, arbiters, clock, .. } = self;
        let engine = &mut engines[number];
        let Some(shared_device) = &interface.shared_device else { return false };
        if !engine.is_taken
            && arbiters[engine.group].would_take(&interface.queues, interface.client, stamped_max)
            && let Some(free_ns) = shared_device.take_engine(number, clock.now_ns())
        {
            (engine.free_ns, engine.is_taken) = (free_ns, true);
        }
        engine.is_taken
    }

    /// Leaves the engines that have nothing more to do to the others, from when they are free.
    pub(crate) fn leave_idle_engines(&mut self) {
        let Some(shared_device) = &self.interface.shared_device else { return };
        for (number, engine) in self.engines.iter_mut().enumerate() {
            if engine.is_taken && engine.is_idle() {
                shared_device.leave_engine(number, engine.free_ns);
                engine.is_taken = false;
            }
        }
    }

    /// When the group's next entry, which is this client's and can be dispatched at `dispatch_ns`, may get an engine.
    pub(crate) fn engine_free_ns(&self, group: usize, dispatch_ns: u64) -> u64 {
        let now_ns = self.clock.now_ns();
        let Some(shared_device) = &self.interface.shared_device else { return dispatch_ns };
        if dispatch_ns > now_ns {
            return dispatch_ns;
        }
        let engines = (0..self.engines.len()).filter(|number| self.engines[*number].group == group);
        let free_ns = engines.filter_map(|number| shared_device.engine_free_ns(number, now_ns)).min();
        match free_ns {
            Some(free_ns) if free_ns > now_ns => free_ns,
            // Another process has them all, or it is another's turn.
            _ => now_ns + LOOK_AGAIN_NS,
        }
    }
}
