//! Moves bytes from one place in memory to another while the caller computes.
//!
//! ```text
//!   copy, scope ──▶ Mover ── Route: who? ──▶ one Engine, whole: dsa, cpu (and faulty, for tests)
//!        ▲                    │   full or gone: the next one ──▶ a CPU engine ──▶ the caller itself
//!        │                    └─────────────▶ several, in pieces: each its share, then what others have left
//!        └──── Transfer ◀─── done: exactly once, on whatever thread finished the copy ───┘
//! ```
//!
//! Copies of 2 MiB and more are split if the route has several engines for them, or one that works on several copies
//! at once (a CPU engine with several workers, a DSA engine with several queues). There is one transfer, and
//! one result. An engine that fails does not fail such a copy as long as another one is left to do its pieces.
//!
//! Ownership is the contract. An asynchronous [`Transfer`] owns its buffers and gives them back with the
//! result; dropping or forgetting it neither blocks nor frees, since the mover keeps the buffers until the
//! engine is done. Borrowed buffers exist only inside [`Mover::scope`], which waits at its end. What a device
//! could still write to after its death is leaked on purpose and counted.
//!
//! A copy of up to [`CpuOptions::inline_bytes_max`] (4 KiB) that a CPU engine gets is done on the spot, by the thread that
//! submits it: to hand it to a worker would take that thread longer.
//!
//! Nobody who submits is ever blocked. Engines have bounded queues and answer [`Refusal::Full`]. A copy that
//! every engine refused is done by the caller's thread if it is small, as back-pressure that costs tens of
//! microseconds. If it is large it waits in a CPU engine's queue beyond the limit: its entry there takes a
//! hundred bytes, against the [`INLINE_BYTES_MAX`] and more that its buffers take already. Both are counted.
//! [`Mover::try_start`] hands such copies back instead.
//!
//! Operations other than copies ([`Mover::run`], [`Mover::replicate`]) go the same way, to engines that have them, and
//! are not split. [`Mover::drain`] waits for all of them. Small ones are best submitted together ([`Mover::batch`]).
//! What the mover decides by itself follows published advice ([`guidelines`]).
//!
//! A mover works in a forked child as well: engines start threads, and open queues, when the child first copies. What
//! was under way at the fork is the parent's alone, and ends in the child with [`CopyError::Forked`].

mod adaptive;
#[allow(unsafe_code)]
mod batch;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod calibration;
mod cpu;
mod crew;
mod done;
mod drain;
mod dsa;
mod engine;
mod error;
mod faulty;
pub mod guidelines;
mod joint;
#[allow(unsafe_code)]
mod kernel;
mod latency;
mod linger;
#[cfg(all(test, memferry_loom))]
mod loom_ordered;
#[cfg(all(test, memferry_loom))]
mod loom_queue;
#[cfg(all(test, memferry_loom))]
#[allow(unsafe_code)]
mod loom_split;
#[cfg(all(test, memferry_loom))]
mod loom_transfer;
mod moment;
#[allow(unsafe_code)]
mod operation;
pub mod ordered;
#[allow(unsafe_code)]
mod owned;
mod prometheus;
mod queue;
#[allow(unsafe_code)]
mod raw;
#[allow(unsafe_code)]
mod replicate;
mod route;
#[allow(unsafe_code)]
mod scope;
mod share;
#[allow(unsafe_code)]
mod split;
mod starting;
mod stats;
mod trace;
#[allow(unsafe_code)]
mod transfer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::topology::Machine;
pub(crate) use drain::{Epoch, Epochs};
use moment::Moment;
use split::SplitCounters;
use stats::Counter;

pub use batch::Batch;
pub use cpu::{CpuEngine, CpuOptions};
pub use dsa::{DsaEngine, DsaOptions};
pub use engine::{Engine, EngineKind, Refusal, Rejected};
pub use error::{CopyError, MoverError};
pub use faulty::{Faults, Faulty};
pub use guidelines::{Consumer, Guidelines, Move};
pub use kernel::{CopyMethod, CopyMethods};
pub use latency::{Latencies, LatencyBucket};
pub use operation::{Finished, Operation};
pub use ordered::Ordered;
pub use owned::OperationError;
pub use raw::RawRequest;
pub use route::{Endpoints, EngineSite, Route};
pub use scope::{Scope, ScopedCopy, ScopedOperation};
pub use share::{SHARE_BYTES_MIN, Share};
pub use stats::{CopyReport, EngineStats, MoverStats};
pub use transfer::{CopyOptions, Outcome, Transfer, TransferError};

/// Up to this size a copy that all engines refuse is done by the caller's own thread. At 5 GB/s that takes 50
/// us, within the 10 to 100 us that asynchronous code may compute between two awaits.
///
/// Source of the limit: Alice Ryhl, "Async: What is blocking?" (2020).
pub const INLINE_BYTES_MAX: usize = 256 << 10;

/// Copies memory with the engines it was built with. Clones are handles to the same mover.
///
/// When the last handle is gone, the engines that nobody else holds finish what they accepted, then end their
/// threads. Transfers under way are finished by that, not cancelled.
#[derive(Clone)]
pub struct Mover {
    inner: Arc<Inner>,
}

struct Inner {
    machine: Arc<Machine>,
    /// The engines that were passed in, then the CPU engines: the order of the statistics.
    engines: Vec<Arc<dyn Engine>>,
    /// Where `engines` begins to be the mover's own CPU engines, of which there is at least one.
    cpus_begin: usize,
    cpus: Vec<Arc<CpuEngine>>,
    /// Sites of `engines`.
    sites: Vec<EngineSite>,
    /// Of the calling threads; its CPU engines have the same.
    methods: CopyMethods,
    route: Route,
    guidelines: Guidelines,
    epochs: Epochs,
    /// Counts copies, for routes that take turns.
    turn: AtomicUsize,
    inline_operations: Counter,
    inline_bytes: Counter,
    overflow_operations: Counter,
    unsupported_operations: Counter,
    split: SplitCounters,
}

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
    /// Adds an engine. The mover asks engines that were added before its own CPU engines: these do what the others refuse,
    /// and no part of a copy that others are split over. Where cores shall take part in those, add a
    /// [`CpuEngine`] as well.
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> MoverBuilder {
        self.engines.push(engine);
        self
    }

    /// Sets how many CPU workers each node with CPUs gets, 1 by default. They sleep when there is nothing to copy; one
    /// that is asked again and again within 200 us looks out for the next copy before it sleeps, unless others want the
    /// CPU.
    pub fn cpu_workers(mut self, workers_count: usize) -> MoverBuilder {
        self.workers_count = workers_count;
        self
    }

    /// Sets how the CPU copies, by its own CPU engines and the calling threads.
    pub fn copy_methods(mut self, methods: CopyMethods) -> MoverBuilder {
        self.methods = methods;
        self
    }

    /// Sets who copies what, [`Route::Single`] by default. Copies whose options name a route
    /// ([`CopyOptions::route`]) follow that.
    pub fn route(mut self, route: Route) -> MoverBuilder {
        self.route = route;
        self
    }

    /// Sets what decides between devices and CPUs, [`Guidelines::of`] the machine by default.
    pub fn guidelines(mut self, guidelines: Guidelines) -> MoverBuilder {
        self.guidelines = guidelines;
        self
    }

    /// Starts the CPU engines.
    ///
    /// # Errors
    /// [`MoverError::NoWorkers`], [`Thread`](MoverError::Thread).
    pub fn build(self) -> Result<Mover, MoverError> {
        let MoverBuilder { machine, mut engines, workers_count, methods, route, guidelines } = self;
        let mut homes: Vec<_> =
            machine.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| Some(node.id)).collect();
        if homes.is_empty() {
            homes.push(None);
        }
        let cpus_begin = engines.len();
        let mut cpus = Vec::new();
        for node in homes {
            let options = CpuOptions { node, workers_count, methods, ..CpuOptions::default() };
            let cpu = Arc::new(CpuEngine::new(&machine, options)?);
            engines.push(cpu.clone());
            cpus.push(cpu);
        }
        let sites =
            engines.iter().map(|engine| EngineSite { kind: engine.kind(), node: engine.node() }).collect();
        Ok(Mover {
            inner: Arc::new(Inner {
                machine,
                engines,
                cpus_begin,
                cpus,
                sites,
                methods,
                route,
                guidelines,
                epochs: Epochs::default(),
                turn: AtomicUsize::new(0),
                inline_operations: Counter::default(),
                inline_bytes: Counter::default(),
                overflow_operations: Counter::default(),
                unsupported_operations: Counter::default(),
                split: SplitCounters::default(),
            }),
        })
    }
}

impl Mover {
    /// A mover with the CPU engines of `machine`, and the engines that are added. Thresholds and copy methods are those of
    /// the machine's figures where it has them, otherwise defaults.
    pub fn builder(machine: Arc<Machine>) -> MoverBuilder {
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

    /// Copies `source` to `target`, of equal length, both owned by the transfer until it is done.
    ///
    /// Anything that gives out its bytes will do: `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, mappings and blocks.
    /// Cost: one allocation and two locks, and if it is split, one more of each for each piece; the bytes are copied
    /// by engines.
    /// Cancel: see [`Transfer`].
    pub fn copy<S, T>(&self, source: S, target: T, options: CopyOptions) -> Transfer<S, T>
    where
        S: AsRef<[u8]> + Send + 'static,
        T: AsMut<[u8]> + Send + 'static,
    {
        Transfer::begin(source, target, Moment::now(), |copy| {
            self.start(self.with_hints(copy, options), options.source_node, options.target_node);
        })
    }

    /// Runs `body`, in which borrowed buffers can be copied, and waits for all of these copies: also for those
    /// whose handle was dropped or forgotten, and also when `body` panics.
    ///
    /// If a device dies while it could still write to a borrowed target, the process is aborted. Do not fork inside
    /// `body`: the child would wait for the parent's copies.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::Mover, topology::Machine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let source = [7_u8; 100];
    /// let (mut left, mut right) = ([0_u8; 100], [0_u8; 100]);
    /// mover.scope(|scope| {
    ///     scope.copy(&source, &mut left);
    ///     scope.copy(&source, &mut right);
    /// })?;
    /// assert_eq!((left, right), (source, source));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the first copy that failed.
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R, CopyError> {
        scope::run(self, body)
    }

    /// What the mover and its engines did so far.
    ///
    /// [`MoverStats::prometheus`] writes it for Prometheus.
    pub fn stats(&self) -> MoverStats {
        MoverStats {
            engines: self.inner.engines.iter().map(|engine| engine.stats()).collect(),
            inline_operations: self.inner.inline_operations.get(),
            inline_bytes: self.inner.inline_bytes.get(),
            overflow_operations: self.inner.overflow_operations.get(),
            unsupported_operations: self.inner.unsupported_operations.get(),
            split_operations: self.inner.split.operations.get(),
            split_redone: self.inner.split.redone.get(),
            split_taken_over: self.inner.split.taken_over.get(),
            split_leaked_bytes: self.inner.split.leaked_bytes.get(),
        }
    }

    /// What decides between devices and CPUs.
    pub fn guidelines(&self) -> &Guidelines {
        &self.inner.guidelines
    }

    /// The machine it was built for.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.inner.machine
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines: Vec<_> = self.inner.engines.iter().map(|engine| engine.name()).collect();
        f.debug_struct("Mover")
            .field("engines", &engines)
            .field("route", &self.inner.route)
            .finish_non_exhaustive()
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
    use crate::topology::Measured;

    #[test]
    fn a_mover_copies_as_its_machine_does_best() {
        let methods = CopyMethods::only(CopyMethod::RepMovsb);
        let measured = Measured { copy_methods: Some(methods), ..Measured::default() };
        let machine = Machine::two_tiers().unwrap();
        assert_eq!(Mover::builder(Arc::new(machine.clone())).methods, CopyMethods::default());
        let machine = machine.with_measured(measured).unwrap();
        assert_eq!(Mover::builder(Arc::new(machine)).methods, methods);
    }
}
