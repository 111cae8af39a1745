//! How copies and operations get to engines.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memferry_dsa::Opcode;
use tracing::debug;

use super::{
    CopyOptions, CopyReport, CpuEngine, EngineKind, INLINE_BYTES_MAX, Inner, Journey, Mover, RawCopy,
    Refusal, Rejected, Route, SHARE_BYTES_MIN, crew, guidelines, trace,
};
use crate::topology::NodeId;

impl Mover {
    /// Starts a copy given as raw parts. Never blocks; never refuses either: see the head of this module.
    ///
    /// The copy's `done` may run before this returns, on this thread: hold no lock that it needs.
    pub fn start(&self, copy: RawCopy, source_node: Option<NodeId>, target_node: Option<NodeId>) {
        let Err(Rejected { mut copy, .. }) = self.try_start(copy, source_node, target_node) else { return };
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
    /// [`Rejected`], with the copy in it.
    pub fn try_start(
        &self,
        copy: RawCopy,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) -> Result<(), Rejected> {
        if copy.size_bytes() == 0 && !copy.is_operation() {
            copy.finish(Ok(CopyReport::default()));
            return Ok(());
        }
        let inner = &self.inner;
        let journey = Journey { source_node, target_node, size_bytes: copy.size_bytes(), turn: inner.turn() };
        if copy.is_operation() && !inner.accelerates(copy.opcode()) && inner.cpus_begin > 0 {
            inner.unsupported_operations.add(1);
            let operation = copy.opcode().name();
            trace::safely(|| debug!(target: "memferry::mover", operation, "not supported"));
        }
        // The engines that were passed in come first; with none, the mover's own CPU engines are what there is.
        let own = inner.cpus_begin;
        let passed_in = inner.try_engines(0..own, copy, journey);
        passed_in.or_else(|Rejected { copy, .. }| inner.try_engines(own..inner.engines.len(), copy, journey))
    }

    /// Starts several, as if each was started, but small ones together.
    pub(super) fn start_all(
        &self,
        copies: Vec<RawCopy>,
        source_node: Option<NodeId>,
        target_node: Option<NodeId>,
    ) {
        let inner = &self.inner;
        let mut together: Vec<Vec<RawCopy>> = inner.engines.iter().map(|_| Vec::new()).collect();
        for copy in copies {
            let size_bytes = copy.size_bytes();
            let journey = Journey { source_node, target_node, size_bytes, turn: inner.turn() };
            let may_split = size_bytes >= 2 * SHARE_BYTES_MIN;
            let first = |range| inner.ask(range, &copy, journey).next();
            let (passed_in, own) = (0..inner.cpus_begin, inner.cpus_begin..inner.engines.len());
            match first(passed_in).or_else(|| first(own)) {
                Some(engine) if !may_split => together[engine].push(copy),
                _ => self.start(copy, source_node, target_node),
            }
        }
        for (engine, copies) in inner.engines.iter().zip(together).filter(|(_, copies)| !copies.is_empty()) {
            for Rejected { copy, .. } in engine.submit_all(copies) {
                self.start(copy, source_node, target_node);
            }
        }
    }

    /// A copy with what its options hint at.
    pub(super) fn with_hints(&self, copy: RawCopy, options: CopyOptions) -> RawCopy {
        let into_cache = self.guidelines().into_cache(options.consumer, copy.size_bytes());
        copy.with_block_on_fault(options.block_on_fault).with_cache_control(into_cache)
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
        copy: RawCopy,
        journey: Journey,
    ) -> Result<(), Rejected> {
        let Rejected { mut copy, mut why } = match crew::try_split(self, range.clone(), copy, journey) {
            Ok(()) => return Ok(()),
            Err(rejected) => rejected,
        };
        for index in self.ask(range, &copy, journey) {
            let Err(rejected) = self.engines[index].submit(copy) else { return Ok(()) };
            copy = rejected.copy;
            if rejected.why == Refusal::Full {
                why = Refusal::Full;
            }
        }
        Err(Rejected { copy, why })
    }

    /// The engines in `range` that can do it, and should, in the order in which they are asked: first the one that the
    /// route names, or one at the same place that has less to do.
    fn ask(
        &self,
        range: Range<usize>,
        copy: &RawCopy,
        journey: Journey,
    ) -> impl Iterator<Item = usize> + use<'_> {
        let (engines, sites) = (&self.engines[range.clone()], &self.sites[range.clone()]);
        let mut first = self.route.first(&self.machine, sites, journey).unwrap_or(0);
        if self.route != Route::RoundRobin && sites.len() > 1 {
            let load = |index: usize| (engines[index].load(), engines[index].width());
            let at = sites[first];
            first = guidelines::least_loaded(first, sites.len(), |index| {
                (sites[index] == at).then(|| load(index))
            });
        }
        let (opcode, is_operation) = (copy.opcode(), copy.is_operation());
        // A no-op has no bytes that a CPU could be faster with.
        let offloads = opcode == Opcode::Noop || self.guidelines.offloads(copy.size_bytes());
        let order = (0..engines.len()).map(move |step| (first + step) % engines.len());
        let should = move |&index: &usize| {
            (!is_operation || engines[index].supports(opcode))
                && (offloads || engines[index].kind() != EngineKind::Dsa)
        };
        order.filter(should).map(move |index| range.start + index)
    }

    /// Whether one of the engines that were passed in has the operation.
    fn accelerates(&self, opcode: Opcode) -> bool {
        self.engines[..self.cpus_begin].iter().any(|engine| engine.supports(opcode))
    }

    fn turn(&self) -> usize {
        // ORDERING: Relaxed: a turn only has to be different from most others.
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Copies here and now.
    pub(super) fn copy_inline(&self, copy: RawCopy) {
        let report = copy.copy_on_this_cpu(&self.methods);
        self.inline_operations.add(1);
        self.inline_bytes.add(report.cpu_bytes);
        let size_bytes = report.cpu_bytes;
        trace::safely(|| debug!(target: "memferry::mover", size_bytes, "done by the caller"));
        copy.finish(Ok(report));
    }

    pub(super) fn nearest_cpu(&self, source_node: Option<NodeId>, target_node: Option<NodeId>) -> &CpuEngine {
        let journey = Journey { source_node, target_node, ..Journey::default() };
        let nearest = Route::Single.first(&self.machine, &self.sites[self.cpus_begin..], journey);
        &self.cpus[nearest.unwrap_or(0)]
    }
}
