//! Copies memory while the caller computes.
//!
//! ```text
//!   copy, scope ──▶ Mover ── Route ──▶ one engine, the whole copy: dsa, cpu (faulty, in tests)
//!        ▲                    │   full or gone: the next engine ──▶ a CPU engine ──▶ the calling thread
//!        │                    └─────▶ several engines, each with a share of the copy (split)
//!        └──── Transfer ◀──── the completion callback, called once, on the thread that finished the copy
//!
//!   mod, builder, scope, batch, replicate, ordered    the API: Mover and its handles
//!   schedule    chooses engines, splits copies
//!   engine      the trait Engine; engines of cores, and of faults for tests        dsa   the engine of DSA devices
//!                                                                              storage   the engine of files
//!   stats       counters, latencies, Prometheus, tracing
//!   request     what engines and callers share: RawRequest, its completion, owned buffers, epochs
//! ```
//!
//! **Splitting.** Copies of 2 MiB and more are split if the route has several engines for them, or one engine that works
//! on several copies at once (a CPU engine with several workers, a DSA engine with several queues). A split copy has one
//! transfer and one result. It fails only if no engine is left to do the failed parts again.
//!
//! **Ownership.** A [`Transfer`] owns its buffers and returns them with the result. Dropping or forgetting it neither
//! blocks nor frees: the mover keeps the buffers until the engine is done. Borrowed buffers exist only inside
//! [`Mover::scope`], which waits at its end. If a device is lost that could still write to a buffer, the buffer is
//! leaked, and counted.
//!
//! **Small copies.** Submitting to a worker costs more than a copy of up to [`CpuOptions::inline_bytes_max`] (4 KiB). So
//! a CPU engine does such a copy on the submitting thread.
//!
//! **Back-pressure.** Submitting never blocks. Engines have bounded queues and answer [`Refusal::Full`]. If every engine
//! refuses a small copy, the calling thread does it, which takes tens of microseconds. A large copy waits in a CPU
//! engine's queue beyond the limit: its entry takes a hundred bytes, and its buffers take more than
//! 256 KiB anyway. So does a small one that the callback of such a small one starts: chains would otherwise nest on the
//! stack. Both cases are counted. [`Mover::try_start`] hands such copies back instead.
//!
//! **Other operations** ([`Mover::run`], [`Mover::replicate`]) go the same way to engines that support them, and are not
//! split. [`Mover::drain`] waits for all of them. Small ones are best submitted together ([`Mover::batch`]). The mover's
//! own decisions follow published advice (`guidelines`).
//!
//! **Files.** A read ([`Mover::read`]) is a request whose source is a range of a file. It goes to engines of kind
//! [`EngineKind::Storage`] and to no other, and these get nothing else: routes, splitting and guidelines concern copies only.
//! If none was added, the mover makes its own [`StorageEngine`] with the first read. If all queues are full, the read waits
//! in the own engine beyond its limit, like a large copy.
//!
//! A mover with engines and rules of your own choice:
//!
//! ```
//! # use std::sync::Arc;
//! use memferry::mover::{Consumer, CopyMethods, CopyOptions, CpuEngine, CpuOptions, Guidelines, Ordered, Route};
//! use memferry::{Machine, Mover};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Arc::new(Machine::discover()?);
//! let cores = CpuOptions { workers_count: 2, methods: CopyMethods::default(), ..CpuOptions::default() };
//! let engine = CpuEngine::new(&machine, cores)?;
//! let mover = Mover::builder(machine.clone())
//!     .engine(Arc::new(engine)) // or a DsaEngine
//!     .route(Route::All)
//!     .guidelines(Guidelines { offload_bytes_min: 4096, ..Guidelines::of(&machine) })
//!     .build()?;
//!
//! // Up to 32 copies in flight, returned in the order of submission.
//! let options = CopyOptions { consumer: Consumer::CoresSoon, ..CopyOptions::default() };
//! let mut pipeline = Ordered::new(mover.clone(), 32, options)?;
//! pipeline.submit(vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]).expect("there is room");
//! let (source, target, _) = pipeline.retire_wait().expect("one copy")?;
//! assert_eq!(source, target);
//! assert!(mover.stats().engines.iter().all(|engine| engine.errors == 0));
//! # Ok(())
//! # }
//! ```
//!
//! **Forks.** A mover works in a forked child: its engines start threads and open queues on the child's first copy.
//! Copies in flight at the fork belong to the parent; in the child they complete with [`CopyError::Forked`].

#[allow(unsafe_code)]
mod batch;
mod builder;
pub(crate) mod engine;
mod error;
#[allow(unsafe_code)]
mod file_read;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod guidelines;
#[cfg(all(test, memferry_loom))]
mod loom_ordered;
mod ordered;
#[allow(unsafe_code)]
mod replicate;
mod request;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod schedule;
#[allow(unsafe_code)]
mod scope;
mod stats;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use memferry_dsa::{Outcome as Yields, Request};

use crate::moment::Moment;
use crate::storage::StoredFile;
use crate::topology::{Machine, NodeId};
pub(crate) use request::{Demand, Epoch, Epochs, FileSource};
use schedule::Scheduler;

pub use crate::copy_method::CopyMethods;
pub use crate::route::{EngineKind, EngineSite, Route};
pub use batch::Batch;
pub use builder::MoverBuilder;
pub use engine::{
    CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, Refusal, Rejected, StorageEngine, StorageOptions,
};
pub use error::{CopyError, MoverError, ReadError};
pub use file_read::{FileBytes, FileRead};
pub use guidelines::{Consumer, Guidelines};
pub use ordered::Ordered;
pub use request::{CopyOptions, CopyReport, Operation, OperationError, RawRequest, Transfer};
pub use schedule::{CopyRequest, EngineShare};
pub use scope::{Scope, ScopedOperation};
pub use stats::{EngineStats, Latencies, MoverStats};

/// Copies memory with its engines. Clones are handles to the same mover.
///
/// After the last handle is dropped, engines that nobody else holds finish the requests they accepted, then end their
/// threads. Transfers in flight complete; they are not cancelled.
///
/// ```
/// # use std::sync::Arc;
/// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
/// let transfer = mover.copy(vec![7_u8; 1 << 20], vec![0_u8; 1 << 20], CopyOptions::default());
/// // Compute meanwhile, then:
/// let (source, target, report) = transfer.wait()?;
/// assert_eq!((&source, report.bytes()), (&target, 1 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mover {
    scheduler: Arc<Scheduler>,
}

impl Mover {
    /// A mover with CPU engines for `machine` and the engines that are added to the builder. Thresholds and copy methods
    /// come from the machine's figures where it has them.
    pub fn builder(machine: Arc<Machine>) -> MoverBuilder {
        MoverBuilder::new(machine)
    }

    /// Copies `source` to `target`, of equal length. The transfer owns both until it is done.
    ///
    /// Buffers may be anything that gives access to bytes: `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, mappings, blocks.
    /// Cost: one allocation and two locks; for a split copy, one more of each per work item.
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

    /// Runs the operation that `make` builds from the buffers.
    ///
    /// The requests are those of [`memferry_dsa::Request`], with slices, not cells: fill, compare, compare with a
    /// pattern, CRC-32C, copy with CRC, dualcast, delta records, data integrity fields, cache flush, no-op. One engine
    /// does the whole operation; what exceeds the limit of a queue is done in several descriptors.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
    /// use memferry_dsa::Request;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let buffers = (b"123456789".to_vec(), vec![0; 9]);
    /// let copied = mover.run(buffers, |(from, to)| Request::copy_crc(0, &*from, to), CopyOptions::default());
    /// let ((from, to), crc, _) = copied.wait()?;
    /// assert_eq!((to, crc), (from, 0xe306_9283));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The operation completes with [`CopyError::Invalid`] if the request breaks a rule; then nothing was done.
    pub fn run<B, O, M>(&self, buffers: B, make: M, options: CopyOptions) -> Operation<B, O>
    where
        B: Send + 'static,
        O: Yields + Send + 'static,
        M: for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
    {
        let start = |raw| self.start(raw, options.source_node, options.target_node);
        Operation::begin(buffers, make, self.guidelines(), options, start)
    }

    /// Runs `body`, which can copy borrowed buffers, and waits for all of its copies.
    ///
    /// It waits also for copies whose handle was dropped or forgotten, and when `body` panics. If a device is lost that
    /// could still write to a borrowed target, the process aborts. Do not fork inside `body`: the child would wait for
    /// the parent's copies.
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

    /// Reads `range` of `file` into memory of its own, outside of every budget.
    ///
    /// For bytes that are read once; [`Cache::read`](crate::Cache::read) keeps them. The engine is the storage engine that
    /// was added to the builder, otherwise one of the mover's own, which starts with the first read.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::Mover, storage::StoredFile, topology::Machine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let path = std::env::current_exe()?;
    /// let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let file = Arc::new(StoredFile::open(&path)?);
    /// let bytes = mover.read(&file, 1..4).wait()?;
    /// assert_eq!(&*bytes, b"ELF");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The read fails with [`ReadError::Storage`] or [`Engine`](ReadError::Engine).
    pub fn read(&self, file: &Arc<StoredFile>, range: Range<u64>) -> FileRead {
        FileRead::begin(&self.scheduler, file, range)
    }

    /// Completes when all requests that this mover or a clone of it started earlier have completed, with or without
    /// success, on any engine. Later requests are not waited for.
    ///
    /// The device operation Drain covers one queue only, which may hold only a part of them.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{mover::{CopyOptions, Mover}, topology::Machine};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    /// let copies: Vec<_> =
    ///     (0..4).map(|byte| mover.copy(vec![byte; 1 << 20], vec![0; 1 << 20], CopyOptions::default())).collect();
    /// mover.drain().wait()?;
    /// assert!(copies.iter().all(|copy| copy.is_done()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self) -> Operation<(), ()> {
        self.scheduler.epochs.drain()
    }

    /// Starts a raw request. Never blocks and never refuses: see the back-pressure in the module documentation.
    ///
    /// The callback may run before this returns, on this thread: hold no lock that it takes.
    pub fn start(&self, copy: RawRequest, source_node: Option<NodeId>, target_node: Option<NodeId>) {
        self.scheduler.start(copy, source_node, target_node);
    }

    /// Starts a raw request, or hands it back if every engine is full: for copies that pay only on an idle engine.
    ///
    /// # Errors
    /// [`Rejected`], with the request in it; no drain waits for it.
    pub fn try_start(
        &self,
        copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        self.scheduler.try_start(copy, source_node, target_node)
    }

    /// Starts several requests; small ones are submitted together.
    fn start_all(&self, copies: Vec<RawRequest>, options: CopyOptions) {
        self.scheduler.start_all(copies, options.source_node, options.target_node);
    }

    /// Applies the hints of `options` to a copy.
    #[inline]
    pub(crate) fn with_hints(&self, copy: RawRequest, options: CopyOptions) -> RawRequest {
        self.scheduler.with_hints(copy, options)
    }

    /// The statistics of the mover and its engines. [`MoverStats::prometheus`] formats them for Prometheus.
    pub fn stats(&self) -> MoverStats {
        self.scheduler.stats()
    }

    /// The rules that decide between devices and CPUs.
    pub fn guidelines(&self) -> &Guidelines {
        &self.scheduler.guidelines
    }

    /// The machine that the mover was built for.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.scheduler.machine
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines: Vec<_> = self.scheduler.all_engines().map(|engine| engine.name()).collect();
        f.debug_struct("Mover")
            .field("engines", &engines)
            .field("route", &self.scheduler.route)
            .finish_non_exhaustive()
    }
}
