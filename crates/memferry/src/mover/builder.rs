//! The builder of a mover.

use std::fmt;
use std::sync::Arc;

use super::engine::Engine;
use super::error::MoverError;
use super::guidelines::Guidelines;
use super::schedule::{CopyPolicy, CopyRequest, EngineShare, Scheduler};
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
    policy: Option<CopyPolicy>,
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
            policy: None,
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

    /// Sets a policy that chooses the engines of each copy, and how much each of them copies.
    ///
    /// It replaces the route and [`Guidelines::offloads`] for copies without a route of their own. If it returns no engine,
    /// or none that supports the operation, these decide. Copies below 2 MiB and other operations go whole to the first
    /// engine that takes them. Larger ones are split by the weights; an engine that is done takes over parts of the others.
    /// If all chosen engines are full, the copy waits as the module documentation says.
    ///
    /// It runs on the thread that starts the copy, once for each: keep it short. A panic in it reaches that thread, and the
    /// copy completes with [`CopyError::Abandoned`](super::CopyError::Abandoned). So does an engine that is not there.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use memferry::mover::{CopyRequest, EngineShare, Route};
    /// use memferry::{Machine, Mover};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let machine = Arc::new(Machine::discover()?);
    /// let mover = Mover::builder(machine)
    ///     .copy_policy(|machine: &Machine, request: &CopyRequest<'_>| {
    ///         let is_at_requester = |it: &usize| request.engines[*it].node == request.requester;
    ///         match (0..request.engines.len()).find(is_at_requester) {
    ///             Some(engine) => vec![EngineShare { engine, weight: 1 }],
    ///             None => request.by_route(machine, Route::PushPull),
    ///         }
    ///     })
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Source: Fürst 2024, section 4.1.1 (policy functions).
    pub fn copy_policy(
        mut self,
        policy: impl Fn(&Machine, &CopyRequest<'_>) -> Vec<EngineShare> + Send + Sync + 'static,
    ) -> MoverBuilder {
        self.policy = Some(Box::new(policy));
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
        let MoverBuilder { machine, engines, workers_count, methods, route, policy, guidelines } = self;
        let scheduler =
            Scheduler::new(machine, engines, workers_count, methods, (route, policy), guidelines)?;
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
