//! How copies and operations get to engines.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memferry_dsa::Opcode;
use tracing::debug;

use super::drain::{Epoch, Epochs};
use super::guidelines::{BATCH_LEN_MAX, BATCHED_BYTES_MAX};
use super::{
    CopyOptions, CopyReport, CpuEngine, Endpoints, EngineKind, INLINE_BYTES_MAX, Inner, Mover, RawRequest,
    Refusal, Rejected, Route, SHARE_BYTES_MIN, crew, guidelines, trace,
};
use crate::topology::NodeId;

impl Mover {
    /// Starts a copy given as raw parts. Never blocks; never refuses either: see the head of this module.
    ///
    /// The copy's `done` may run before this returns, on this thread: hold no lock that it needs.
    pub fn start(&self, mut copy: RawRequest, source_node: Option<NodeId>, target_node: Option<NodeId>) {
        self.begin(&mut copy, || self.inner.epochs.current());
        let Err(Rejected { mut copy, .. }) = self.offer(copy, source_node, target_node) else { return };
        if copy.size_bytes() > INLINE_BYTES_MAX {
            let size_bytes = copy.size_bytes();
            match self.inner.nearest_cpu(source_node, target_node).submit_beyond_limit(copy) {
                Ok(()) => {
                    self.inner.overflow_operations.add(1);
                    return trace::safely(
                        || debug!(target: "memferry::mover", size_bytes, "queued beyond the limit"),
                    );
                }
                Err(rejected) => copy = rejected.copy,
            }
        }
        self.inner.copy_inline(copy);
    }

    /// As [`start`](Mover::start), but hands the copy back when every engine is full: for copies that are worth
    /// making only if somebody has the time.
    ///
    /// # Errors
    /// [`Rejected`], with the copy in it, for which no drain waits.
    pub fn try_start(
        &self,
        mut copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        let begins = copy.begin_in(|| self.inner.epochs.current());
        let unsupported = if begins { self.unsupported(&copy) } else { None };
        self.offer(copy, source_node, target_node).map_err(|mut rejected| {
            if begins {
                rejected.copy.leave_epoch();
            }
            rejected
        })?;
        if let Some(opcode) = unsupported {
            self.count_unsupported(opcode);
        }
        Ok(())
    }

    /// Joins the epoch. On the first call, counts a copy that only the mover's own CPU engines support.
    fn begin(&self, copy: &mut RawRequest, epoch: impl FnOnce() -> Arc<Epoch>) {
        if copy.begin_in(epoch)
            && let Some(opcode) = self.unsupported(copy)
        {
            self.count_unsupported(opcode);
        }
    }

    /// The operation, if only the mover's own CPU engines support it.
    fn unsupported(&self, copy: &RawRequest) -> Option<Opcode> {
        let is_nothing = copy.size_bytes() == 0 && !copy.is_operation();
        let is = !is_nothing && self.inner.cpus_begin > 0 && !self.accelerates(copy.opcode());
        is.then_some(copy.opcode())
    }

    fn count_unsupported(&self, opcode: Opcode) {
        self.inner.unsupported_operations.add(1);
        trace::safely(|| debug!(target: "memferry::mover", operation = opcode.name(), "not supported"));
    }

    /// To whichever engine takes it.
    fn offer(
        &self,
        copy: RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        if copy.size_bytes() == 0 && !copy.is_operation() {
            copy.finish(Ok(CopyReport::default()));
            return Ok(());
        }
        let inner = &self.inner;
        let endpoints =
            Endpoints { source_node, target_node, size_bytes: copy.size_bytes(), turn: inner.turn() };
        // The engines that were passed in come first; with none, the mover's own CPU engines are what there is.
        let own = inner.cpus_begin;
        let passed_in = inner.try_engines(0..own, copy, endpoints);
        passed_in
            .or_else(|Rejected { copy, .. }| inner.try_engines(own..inner.engines.len(), copy, endpoints))
    }

    /// Starts several, as if each was started, but small ones together.
    pub(super) fn start_all(
        &self,
        copies: Vec<RawRequest>,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) {
        let inner = &self.inner;
        let mut together: Vec<Vec<RawRequest>> = inner.engines.iter().map(|_| Vec::new()).collect();
        // Of those that are alike only the first asks who does it, unless engines take turns.
        let mut last = None;
        let mut left_count = copies.len();
        let epoch = inner.epochs.current();
        for mut copy in copies {
            self.begin(&mut copy, || epoch.clone());
            let alike = (copy.size_bytes(), copy.opcode(), copy.is_operation(), copy.route());
            let engine = match last {
                Some((last, engine)) if last == alike && inner.route_of(&copy) != Route::RoundRobin => engine,
                _ => inner.engine_of_one(&copy, source_node, target_node),
            };
            last = Some((alike, engine));
            match engine {
                Some(engine) => {
                    if together[engine].is_empty() {
                        together[engine].reserve_exact(left_count);
                    }
                    together[engine].push(copy);
                }
                None => self.start(copy, source_node, target_node),
            }
            left_count -= 1;
        }
        for (engine, copies) in inner.engines.iter().zip(together).filter(|(_, copies)| !copies.is_empty()) {
            for Rejected { copy, .. } in engine.submit_all(copies) {
                self.start(copy, source_node, target_node);
            }
        }
    }

    /// What drains wait for.
    pub(super) fn epochs(&self) -> &Epochs {
        &self.inner.epochs
    }

    /// A copy with what its options hint at.
    pub(crate) fn with_hints(&self, copy: RawRequest, options: CopyOptions) -> RawRequest {
        let into_cache = self.guidelines().into_cache(options.consumer, copy.size_bytes());
        let copy = copy.with_block_on_fault(options.block_on_fault).with_cache_control(into_cache);
        copy.with_route(options.route)
    }

    /// Whether one of the engines that were passed in has the operation.
    pub(super) fn accelerates(&self, opcode: Opcode) -> bool {
        self.inner.accelerates(opcode)
    }
}

impl Inner {
    /// Splits the copy if the route has several engines for it, or asks the engines in `range` once each, first the
    /// one that the route names.
    fn try_engines(
        self: &Arc<Self>,
        range: Range<usize>,
        copy: RawRequest,
        endpoints: Endpoints,
    ) -> Result<(), Rejected> {
        let Rejected { mut copy, mut why } = match crew::try_split(self, range.clone(), copy, endpoints) {
            Ok(()) => return Ok(()),
            Err(rejected) => rejected,
        };
        for index in self.ask(range, &copy, endpoints) {
            let Err(rejected) = self.engines[index].submit(copy) else { return Ok(()) };
            copy = rejected.copy;
            if rejected.why == Refusal::Full {
                why = Refusal::Full;
            }
        }
        Err(Rejected { copy, why })
    }

    /// Who does a small copy of several, if anybody; none for those that may be split.
    fn engine_of_one(
        &self,
        copy: &RawRequest,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Option<usize> {
        let size_bytes = copy.size_bytes();
        if size_bytes >= 2 * SHARE_BYTES_MIN {
            return None;
        }
        let endpoints = Endpoints { source_node, target_node, size_bytes, turn: self.turn() };
        let first = |range| self.ask(range, copy, endpoints).next();
        first(0..self.cpus_begin).or_else(|| first(self.cpus_begin..self.engines.len()))
    }

    /// The engines in `range` that can do it, and should, in the order in which they are asked: first that of the
    /// calling thread at the place that the route names, or one there that has less to do.
    fn ask(
        &self,
        range: Range<usize>,
        copy: &RawRequest,
        endpoints: Endpoints,
    ) -> impl Iterator<Item = usize> + use<'_> {
        let (engines, sites) = (&self.engines[range.clone()], &self.sites[range.clone()]);
        let route = self.route_of(copy);
        let mut first = route.first(&self.machine, sites, endpoints).unwrap_or(0);
        if route != Route::RoundRobin && sites.len() > 1 {
            let at = sites[first];
            let is_equal = |index: &usize| sites[*index] == at;
            let equals_count = (0..sites.len()).filter(is_equal).count();
            first = (0..sites.len()).filter(is_equal).nth(guidelines::home(equals_count)).unwrap_or(first);
            // A small copy leaves its thread's engine for one that has a whole batch less to do.
            let unit = if endpoints.size_bytes <= BATCHED_BYTES_MAX { BATCH_LEN_MAX } else { 1 };
            first = guidelines::least_loaded(first, sites.len(), |index| {
                is_equal(&index).then(|| (engines[index].load() / unit, engines[index].width()))
            });
        }
        let opcode = copy.opcode();
        // A no-op has no bytes that a CPU could be faster with.
        let offloads = opcode == Opcode::Noop || self.guidelines.offloads(copy.size_bytes());
        let order = (0..engines.len()).map(move |step| (first + step) % engines.len());
        let should = move |&index: &usize| {
            engines[index].supports(opcode) && (offloads || engines[index].kind() != EngineKind::Dsa)
        };
        order.filter(should).map(move |index| range.start + index)
    }

    /// Whether one of the engines that were passed in has the operation.
    fn accelerates(&self, opcode: Opcode) -> bool {
        self.engines[..self.cpus_begin].iter().any(|engine| engine.supports(opcode))
    }

    /// The route that its options name, or the mover's.
    pub(super) fn route_of(&self, copy: &RawRequest) -> Route {
        copy.route().unwrap_or(self.route)
    }

    fn turn(&self) -> usize {
        // ORDERING: Relaxed: a turn only has to be different from most others.
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Copies here and now.
    pub(super) fn copy_inline(&self, copy: RawRequest) {
        let result = copy.copy_on_this_cpu(&self.methods);
        let size_bytes = result.map_or(0, |report| report.cpu_bytes);
        self.inline_operations.add(1);
        self.inline_bytes.add(size_bytes);
        trace::safely(|| debug!(target: "memferry::mover", size_bytes, "done by the caller"));
        copy.finish(result);
    }

    pub(super) fn nearest_cpu(&self, source_node: Option<NodeId>, target_node: Option<NodeId>) -> &CpuEngine {
        let endpoints = Endpoints { source_node, target_node, ..Endpoints::default() };
        let nearest = Route::Single.first(&self.machine, &self.sites[self.cpus_begin..], endpoints);
        &self.cpus[nearest.unwrap_or(0)]
    }
}
