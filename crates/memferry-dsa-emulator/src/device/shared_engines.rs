//! Engines that processes share. Under a timing, an engine that works for one process is busy for the others.

use memferry_dsa::internals::device_time::EngineTime;

use crate::device::Device;

/// The polling interval of a client that waits for others: for their engine, or for their entry at the head of a queue.
const LOOK_AGAIN_NS: u64 = 20_000;

impl Device {
    /// Whether an engine must be acquired before it is used.
    pub(crate) fn shares_engines(&self) -> bool {
        self.interface.shared_device.is_some() && self.clock.timing().is_some()
    }

    /// Acquires an engine if it is free and the next descriptor of its group is this client's.
    pub(crate) fn acquire_engine(&mut self, number: usize) -> bool {
        let Some(stamped_max) = self.stamped_max() else { return false };
        let Device { interface, engines, arbiters, clock, .. } = self;
        let engine = &mut engines[number];
        let Some(shared_device) = &interface.shared_device else { return false };
        if !engine.is_acquired
            && arbiters[engine.group].would_take(&interface.queues, interface.client, stamped_max)
            && let Some(free_ns) = shared_device.acquire_engine(number, clock.now_ns())
        {
            // Unless another client used it meanwhile, its stages are where they were.
            if engine.time.free_ns() != free_ns {
                engine.time = EngineTime::free_at(free_ns);
            }
            engine.is_acquired = true;
        }
        engine.is_acquired
    }

    /// Releases the idle engines to the other clients, from the time at which they are free.
    pub(crate) fn release_idle_engines(&mut self) {
        let Some(shared_device) = &self.interface.shared_device else { return };
        for (number, engine) in self.engines.iter_mut().enumerate() {
            if engine.is_acquired && engine.is_idle() {
                shared_device.release_engine(number, engine.time.free_ns());
                engine.is_acquired = false;
            }
        }
    }

    /// The time at which the group's next entry may get an engine. The entry is this client's and can be dispatched at
    /// `dispatch_ns`.
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
            // Other processes have all engines, or the next entry is theirs.
            _ => now_ns + LOOK_AGAIN_NS,
        }
    }
}
