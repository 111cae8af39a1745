//! The builder of a mover.

use std::fmt;
use std::sync::Arc;

use super::engine::Engine;
use super::error::MoverError;
use super::guidelines::Guidelines;
use super::schedule::Scheduler;
use super::{Mover, Route};
use crate::copy_method::CopyMethods;
use crate::topology::Machine;

/// Builds a [`Mover`].
pub struct MoverBuilder {
    machine: Arc<Machine>,
    engines: Vec<Arc<dyn Engine>>,
    workers_count: usize,
    methods: CopyMethods,
    route: Route,
    guidelines: Guidelines,
}

impl MoverBuilder {
    pub(super) fn new(machine: Arc<Machine>) -> MoverBuilder {
        let guidelines = Guidelines::of(&machine);
        let methods = machine.copy_methods().unwrap_or_default();
        MoverBuilder {
            machine,
            engines: Vec::new(),
            workers_count: 1,
            methods,
            route: Route::default(),
            guidelines,
        }
    }

    /// Adds an engine, which the mover asks before its own CPU engines.
    ///
    /// The own CPU engines get only what the added engines refuse, and take no part in split copies. To let cores take
    /// part, add a [`CpuEngine`](super::CpuEngine) as well.
    ///
    /// An engine of kind [`Storage`](super::EngineKind::Storage) gets the reads of files and nothing else.
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> MoverBuilder {
        self.engines.push(engine);
        self
    }

    /// Sets the number of CPU workers of each node with CPUs, 1 by default.
    ///
    /// Idle workers sleep. A worker that gets copies less than 200 us apart polls for the next one before it sleeps,
    /// unless another thread wants the CPU.
    pub fn cpu_workers(mut self, workers_count: usize) -> MoverBuilder {
        self.workers_count = workers_count;
        self
    }

    /// Sets the copy methods of the own CPU engines and of the calling threads.
    pub fn copy_methods(mut self, methods: CopyMethods) -> MoverBuilder {
        self.methods = methods;
        self
    }

    /// Sets the route, [`Route::Single`] by default. A copy with a route in its options
    /// ([`CopyOptions::route`](super::CopyOptions::route)) follows that.
    pub fn route(mut self, route: Route) -> MoverBuilder {
        self.route = route;
        self
    }

    /// Sets the rules that decide between devices and CPUs, [`Guidelines::of`] the machine by default.
    pub fn guidelines(mut self, guidelines: Guidelines) -> MoverBuilder {
        self.guidelines = guidelines;
        self
    }

    /// Starts the CPU engines.
    ///
    /// # Errors
    /// [`MoverError::NoWorkers`], [`Thread`](MoverError::Thread).
    pub fn build(self) -> Result<Mover, MoverError> {
        let MoverBuilder { machine, engines, workers_count, methods, route, guidelines } = self;
        let scheduler = Scheduler::new(machine, engines, workers_count, methods, route, guidelines)?;
        Ok(Mover { scheduler: Arc::new(scheduler) })
    }
}

impl fmt::Debug for MoverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoverBuilder").field("route", &self.route).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::copy_method::CopyMethod;
    use crate::topology::measured::Measured;

    #[test]
    fn a_mover_uses_the_measured_copy_methods_of_its_machine() {
        let methods = CopyMethods::only(CopyMethod::RepMovsb);
        let measured = Measured { copy_methods: Some(methods), ..Measured::default() };
        let machine = Machine::two_tiers().unwrap();
        assert_eq!(Mover::builder(Arc::new(machine.clone())).methods, CopyMethods::default());
        let machine = machine.with_measured(measured).unwrap();
        assert_eq!(Mover::builder(Arc::new(machine)).methods, methods);
    }
}
