//! The scheduler of a mover: hands each request to an engine, in the order that the route gives.
//!
//! A request goes to the added engines first, then to the mover's own CPU engines, then to the calling thread
//! ([`Scheduler::start`]). Large copies are split over several engines (`split.rs`).

#[cfg(all(test, memferry_loom))]
#[allow(unsafe_code)]
mod loom_split;
mod policy;
#[allow(unsafe_code)]
mod split;
mod split_engines;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry_dsa::Opcode;
use tracing::debug;

use super::engine::{CpuEngine, CpuOptions, Engine, Refusal, Rejected, StorageEngine, StorageOptions};
use super::error::MoverError;
use super::guidelines::{self, BATCH_LEN_MAX, BATCHED_BYTES_MAX, Guidelines};
use super::request::{CopyOptions, CopyReport, CopyResult, Epoch, Epochs, RawRequest};
use super::stats::{Counter, MoverStats, trace};
use crate::copy_method::CopyMethods;
use crate::route::{Endpoints, EngineKind, EngineSite, Route, SHARE_BYTES_MIN, first_engine};
use crate::topology::{Machine, NodeId};
use split::SplitCounters;

pub(super) use policy::CopyPolicy;
pub use policy::{CopyRequest, EngineShare};

/// Largest copy that the calling thread does if all engines refuse it. At 5 GB/s it takes 50 us, within the 10 to
/// 100 us that asynchronous code may compute between two awaits.
///
/// Source of the limit: Alice Ryhl, "Async: What is blocking?" (2020).
pub const INLINE_BYTES_MAX: usize = 256 << 10;

thread_local! {
    /// Set in the callback of a copy that a mover finishes on the calling thread. A copy that the callback starts goes to a
    /// CPU engine, beyond its limit if all are full: chains of copies would otherwise nest until the stack overflows.
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };
}

/// The engines of a mover and the rules by which they get requests.
///
/// All clones of a mover share it. Everything but `epochs`, `turn` and the counters is constant. `epochs` has its own
/// lock; any thread that starts a request adds to `turn` and the counters (relaxed).
pub(super) struct Scheduler {
    pub(super) machine: Arc<Machine>,
    /// The added engines except those of files, then the mover's own CPU engines: the order of the statistics.
    pub(super) engines: Vec<Arc<dyn Engine>>,
    /// The added engines of files.
    storage: Vec<Arc<dyn Engine>>,
    /// For reads that these refuse. It starts with its first read.
    own_storage: StorageEngine,
    /// Index in `engines` of the first of the mover's own CPU engines; there is at least one.
    cpus_begin: usize,
    cpus: Vec<Arc<CpuEngine>>,
    /// Sites of `engines`.
    sites: Vec<EngineSite>,
    /// For copies by calling threads; the own CPU engines have the same.
    methods: CopyMethods,
    pub(super) route: Route,
    /// Chooses engines in place of the route.
    policy: Option<CopyPolicy>,
    pub(super) guidelines: Guidelines,
    pub(super) epochs: Epochs,
    /// Number of copies offered, for [`Route::RoundRobin`].
    turn: AtomicUsize,
    inline_operations: Counter,
    inline_bytes: Counter,
    overflow_operations: Counter,
    unsupported_operations: Counter,
    split: SplitCounters,
}

impl Scheduler {
    /// Starts a CPU engine of `workers_count` workers for each node with CPUs.
    pub(super) fn new(
        machine: Arc<Machine>,
        added: Vec<Arc<dyn Engine>>,
        workers_count: usize,
        methods: CopyMethods,
        (route, policy): (Route, Option<CopyPolicy>),
        guidelines: Guidelines,
    ) -> Result<Scheduler, MoverError> {
        let mut nodes: Vec<_> =
            machine.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| Some(node.id)).collect();
        if nodes.is_empty() {
            nodes.push(None);
        }
        let (storage, mut engines): (Vec<_>, Vec<_>) =
            added.into_iter().partition(|engine| engine.kind() == EngineKind::Storage);
        let cpus_begin = engines.len();
        let mut cpus = Vec::new();
        for node in nodes {
            let options = CpuOptions { node, workers_count, methods, ..CpuOptions::default() };
            let cpu = Arc::new(CpuEngine::new(&machine, options)?);
            engines.push(cpu.clone());
            cpus.push(cpu);
        }
        let sites =
            engines.iter().map(|engine| EngineSite { kind: engine.kind(), node: engine.node() }).collect();
        Ok(Scheduler {
            machine,
            engines,
            storage,
            own_storage: StorageEngine::lazy(StorageOptions::default()),
            cpus_begin,
            cpus,
            sites,
            methods,
            route,
            policy,
            guidelines,
            epochs: Epochs::default(),
            turn: AtomicUsize::new(0),
            inline_operations: Counter::default(),
            inline_bytes: Counter::default(),
            overflow_operations: Counter::default(),
            unsupported_operations: Counter::default(),
            split: SplitCounters::default(),
        })
    }

    /// Starts a request. Never blocks and never refuses.
    pub(super) fn start(
        self: &Arc<Self>,
        mut copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) {
        if copy.is_read() {
            return self.start_read(copy);
        }
        self.join_epoch(&mut copy, || self.epochs.current());
        let Err(Rejected { mut copy, .. }) = self.offer(copy, source_node, target_node) else { return };
        if copy.size_bytes() > INLINE_BYTES_MAX || IS_INLINE.get() {
            let size_bytes = copy.size_bytes();
            match self.nearest_cpu(source_node, target_node).submit_beyond_limit(copy) {
                Ok(()) => {
                    self.overflow_operations.add(1);
                    return trace::safely(
                        || debug!(target: "memferry::mover", size_bytes, "queued beyond the limit"),
                    );
                }
                Err(rejected) => copy = rejected.copy,
            }
        }
        self.copy_inline(copy);
    }

    /// Starts a request, or hands it back if every engine refuses it.
    pub(super) fn try_start(
        self: &Arc<Self>,
        mut copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        let is_first = copy.join_epoch(|| self.epochs.current());
        let unsupported = if is_first && !copy.is_read() { self.unsupported(&copy) } else { None };
        let offered =
            if copy.is_read() { self.offer_read(copy) } else { self.offer(copy, source_node, target_node) };
        offered.map_err(|mut rejected| {
            if is_first {
                rejected.copy.leave_epoch();
            }
            rejected
        })?;
        if let Some(opcode) = unsupported {
            self.count_unsupported(opcode);
        }
        Ok(())
    }

    /// Starts a read of a file. Never blocks and never refuses, unless no thread can be started: then it reads here.
    fn start_read(&self, mut read: RawRequest) {
        read.join_epoch(|| self.epochs.current());
        let Err(Rejected { copy, .. }) = self.offer_read(read) else { return };
        let size_bytes = copy.size_bytes();
        match self.own_storage.submit_beyond_limit(copy) {
            Ok(()) => {
                self.overflow_operations.add(1);
                trace::safely(|| debug!(target: "memferry::mover", size_bytes, "queued beyond the limit"));
            }
            Err(Rejected { copy, .. }) => {
                self.inline_operations.add(1);
                self.inline_bytes.add(size_bytes as u64);
                trace::safely(|| debug!(target: "memferry::mover", size_bytes, "done by the caller"));
                self.own_storage.read_here(copy);
            }
        }
    }

    /// Whether each read that completes with success has written all its bytes. The own engine, which has no faults,
    /// does; added ones are safe code that may not.
    pub(super) fn fills_reads(&self) -> bool {
        self.storage.is_empty()
    }

    /// Offers a read to the added engines of files, or to the own one if none was added.
    fn offer_read(&self, mut read: RawRequest) -> Result<(), Rejected> {
        if self.storage.is_empty() {
            return self.own_storage.submit(read);
        }
        let mut why = Refusal::Gone;
        for engine in &self.storage {
            let Err(rejected) = engine.submit(read) else { return Ok(()) };
            read = rejected.copy;
            if rejected.why == Refusal::Full {
                why = Refusal::Full;
            }
        }
        Err(Rejected { copy: read, why })
    }

    /// Starts several requests; small ones are submitted together.
    pub(super) fn start_all(
        self: &Arc<Self>,
        copies: Vec<RawRequest>,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) {
        let mut batches: Vec<Vec<RawRequest>> = self.engines.iter().map(|_| Vec::new()).collect();
        // A run of like requests asks for its engine once, unless engines take turns or a policy may change its mind.
        let mut last = None;
        let mut left_count = copies.len();
        let epoch = self.epochs.current();
        for mut copy in copies {
            self.join_epoch(&mut copy, || epoch.clone());
            let alike = (copy.size_bytes(), copy.opcode(), copy.is_operation(), copy.route(), copy.waits());
            let engine = match last {
                Some((last, engine)) if last == alike && self.is_constant(&copy) => engine,
                _ => self.engine_for_small(&copy, source_node, target_node),
            };
            last = Some((alike, engine));
            match engine {
                Some(engine) => {
                    if batches[engine].is_empty() {
                        batches[engine].reserve_exact(left_count);
                    }
                    batches[engine].push(copy);
                }
                None => self.start(copy, source_node, target_node),
            }
            left_count -= 1;
        }
        for (engine, copies) in self.engines.iter().zip(batches).filter(|(_, copies)| !copies.is_empty()) {
            for Rejected { copy, .. } in engine.submit_all(copies) {
                self.start(copy, source_node, target_node);
            }
        }
    }

    /// The statistics of the mover and its engines.
    pub(super) fn stats(&self) -> MoverStats {
        MoverStats {
            engines: self.all_engines().map(|engine| engine.stats()).collect(),
            inline_operations: self.inline_operations.get(),
            inline_bytes: self.inline_bytes.get(),
            overflow_operations: self.overflow_operations.get(),
            unsupported_operations: self.unsupported_operations.get(),
            split_operations: self.split.operations.get(),
            split_redone: self.split.redone.get(),
            split_taken_over: self.split.taken_over.get(),
            split_leaked_bytes: self.split.leaked_bytes.get(),
        }
    }

    /// All engines; the own storage engine if it has started.
    pub(super) fn all_engines(&self) -> impl Iterator<Item = &dyn Engine> {
        let own_storage: Option<&dyn Engine> =
            if self.own_storage.has_started() { Some(&self.own_storage) } else { None };
        self.engines.iter().chain(&self.storage).map(|engine| &**engine).chain(own_storage)
    }

    /// Applies the hints of `options` to a copy.
    #[inline]
    pub(super) fn with_hints(&self, copy: RawRequest, options: CopyOptions) -> RawRequest {
        let into_cache = self.guidelines.into_cache(options.consumer, copy.size_bytes());
        let copy = copy.with_block_on_fault(options.block_on_fault).with_cache_control(into_cache);
        copy.with_choice(options)
    }

    /// Whether one of the added engines supports the operation.
    pub(super) fn accelerates(&self, opcode: Opcode) -> bool {
        self.engines[..self.cpus_begin].iter().any(|engine| engine.supports(opcode))
    }

    /// Joins the epoch. On the first call, counts a request that only the mover's own CPU engines support.
    fn join_epoch(&self, copy: &mut RawRequest, epoch: impl FnOnce() -> Arc<Epoch>) {
        if copy.join_epoch(epoch)
            && let Some(opcode) = self.unsupported(copy)
        {
            self.count_unsupported(opcode);
        }
    }

    /// The operation, if only the mover's own CPU engines support it.
    fn unsupported(&self, copy: &RawRequest) -> Option<Opcode> {
        let is = !is_nothing(copy) && self.cpus_begin > 0 && !self.accelerates(copy.opcode());
        is.then_some(copy.opcode())
    }

    fn count_unsupported(&self, opcode: Opcode) {
        self.unsupported_operations.add(1);
        trace::safely(|| debug!(target: "memferry::mover", operation = opcode.name(), "not supported"));
    }

    /// Offers a request to the added engines, then to the mover's own CPU engines.
    fn offer(
        self: &Arc<Self>,
        copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        if is_nothing(&copy) {
            let copy = match IS_INLINE.get() {
                true => match self.nearest_cpu(source_node, target_node).submit_beyond_limit(copy) {
                    Ok(()) => return Ok(()),
                    Err(rejected) => rejected.copy,
                },
                false => copy,
            };
            finish_inline(copy, Ok(CopyReport::default()));
            return Ok(());
        }
        let endpoints =
            Endpoints { source_node, target_node, size_bytes: copy.size_bytes(), turn: self.next_turn() };
        if let Some(shares) = policy::chosen(self, &copy, endpoints) {
            return policy::try_chosen(self, copy, endpoints, &shares);
        }
        self.try_engines(0..self.cpus_begin, copy, endpoints).or_else(|Rejected { copy, .. }| {
            self.try_engines(self.cpus_begin..self.engines.len(), copy, endpoints)
        })
    }

    /// Splits the copy if the route has several engines for it; otherwise asks each engine in `range` once, in the
    /// order of the route.
    fn try_engines(
        self: &Arc<Self>,
        range: Range<usize>,
        copy: RawRequest,
        endpoints: Endpoints,
    ) -> Result<(), Rejected> {
        let Rejected { copy, why } = match split_engines::try_split(self, range.clone(), copy, endpoints) {
            Ok(()) => return Ok(()),
            Err(rejected) => rejected,
        };
        let candidates = self.candidates(range, &copy, endpoints);
        submit_to_any(&self.engines, candidates, copy).map_err(|rejected| match why {
            Refusal::Full => Rejected { why, ..rejected },
            _ => rejected,
        })
    }

    /// Whether a second request like this one would get the same engine.
    fn is_constant(&self, copy: &RawRequest) -> bool {
        let is_by_route = self.policy.is_none() || copy.route().is_some();
        is_by_route && self.route_of(copy) != Route::RoundRobin
    }

    /// The first engine for a request of a batch; `None` for copies that may be split or have no bytes, or if no engine
    /// supports it.
    fn engine_for_small(
        &self,
        copy: &RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Option<usize> {
        let size_bytes = copy.size_bytes();
        if size_bytes >= 2 * SHARE_BYTES_MIN || is_nothing(copy) {
            return None;
        }
        let endpoints = Endpoints { source_node, target_node, size_bytes, turn: self.next_turn() };
        if let Some(shares) = policy::chosen(self, copy, endpoints) {
            return shares.first().map(|share| share.engine);
        }
        let first = |range| self.candidates(range, copy, endpoints).next();
        first(0..self.cpus_begin).or_else(|| first(self.cpus_begin..self.engines.len()))
    }

    /// The engines in `range` that support the request and should do it, in the order in which they are asked.
    ///
    /// The first is the calling thread's engine at the site that the route names, or one there with less load.
    fn candidates(
        &self,
        range: Range<usize>,
        copy: &RawRequest,
        endpoints: Endpoints,
    ) -> impl Iterator<Item = usize> + use<'_> {
        let (engines, sites) = (&self.engines[range.clone()], &self.sites[range.clone()]);
        let route = self.route_of(copy);
        let mut first = first_engine(route, &self.machine, sites, endpoints).unwrap_or(0);
        if route != Route::RoundRobin && sites.len() > 1 {
            let at = sites[first];
            let is_equal = |index: &usize| sites[*index] == at;
            let equals_count = (0..sites.len()).filter(is_equal).count();
            first = (0..sites.len()).filter(is_equal).nth(guidelines::home(equals_count)).unwrap_or(first);
            // A small copy leaves its thread's engine only for one that has a whole batch less to do.
            let unit = if endpoints.size_bytes <= BATCHED_BYTES_MAX { BATCH_LEN_MAX } else { 1 };
            first = guidelines::least_loaded(first, sites.len(), |index| {
                is_equal(&index).then(|| (engines[index].load() / unit, engines[index].width()))
            });
        }
        let suits = self.suits(copy);
        let order = (0..engines.len()).map(move |step| range.start + (first + step) % engines.len());
        order.filter(move |&index| suits(index))
    }

    /// Whether the engine of an index supports the request and should do it.
    fn suits(&self, copy: &RawRequest) -> impl Fn(usize) -> bool + use<'_> {
        let opcode = copy.opcode();
        // A no-op has no bytes, so its size is no reason to prefer a CPU.
        let offloads = opcode == Opcode::Noop || self.guidelines.offloads(copy.size_bytes(), copy.waits());
        move |index| {
            let engine = &self.engines[index];
            engine.supports(opcode) && (offloads || engine.kind() == EngineKind::Cpu)
        }
    }

    /// The route in the options of the request, or the mover's.
    fn route_of(&self, copy: &RawRequest) -> Route {
        copy.route().unwrap_or(self.route)
    }

    fn next_turn(&self) -> usize {
        // ORDERING: Relaxed: turns only have to differ.
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Copies on the calling thread.
    fn copy_inline(&self, copy: RawRequest) {
        let result = copy.copy_on_this_cpu(&self.methods);
        let size_bytes = result.map_or(0, |report| report.cpu_bytes);
        self.inline_operations.add(1);
        self.inline_bytes.add(size_bytes);
        trace::safely(|| debug!(target: "memferry::mover", size_bytes, "done by the caller"));
        finish_inline(copy, result);
    }

    fn nearest_cpu(&self, source_node: Option<NodeId>, target_node: Option<NodeId>) -> &CpuEngine {
        let endpoints = Endpoints { source_node, target_node, ..Endpoints::default() };
        let nearest = first_engine(Route::Single, &self.machine, &self.sites[self.cpus_begin..], endpoints);
        &self.cpus[nearest.unwrap_or(0)]
    }
}

/// Whether it is a copy of no bytes.
fn is_nothing(copy: &RawRequest) -> bool {
    copy.size_bytes() == 0 && !copy.is_operation()
}

/// Finishes a request on the calling thread: see [`IS_INLINE`].
fn finish_inline(copy: RawRequest, result: CopyResult) {
    let was_inline = IS_INLINE.replace(true);
    copy.finish(result);
    IS_INLINE.set(was_inline);
}

/// Submits a request to the first of these engines that takes it.
///
/// # Errors
/// [`Rejected`], if none does; the refusal is `Full` if one of them was full.
fn submit_to_any(
    engines: &[Arc<dyn Engine>],
    order: impl Iterator<Item = usize>,
    mut copy: RawRequest,
) -> Result<(), Rejected> {
    let mut why = Refusal::Gone;
    for index in order {
        let Err(rejected) = engines[index].submit(copy) else { return Ok(()) };
        copy = rejected.copy;
        if rejected.why == Refusal::Full {
            why = Refusal::Full;
        }
    }
    Err(Rejected { copy, why })
}
