//! Statistics of movers and engines: counters that add up, and latencies.

mod latency;
mod prometheus;
pub(super) mod trace;

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use latency::Histogram;

pub use latency::Latencies;

use super::request::CopyResult;
use crate::moment::Moment;
use crate::route::EngineKind;
use crate::topology::NodeId;

/// Statistics of one engine since its start in this process; a forked child begins at zero. With nothing in flight:
///
/// - `accepted` = `operations` + `errors`;
/// - `descriptors` = `descriptors_done` + `faults_resumed` + `descriptors_failed` + `descriptors_skipped` +
///   `descriptors_lost`;
/// - the count of `latencies` = `accepted`;
/// - `bytes` + `fallback_bytes` = the bytes of all accepted copies, if there are no errors.
///
/// A descriptor that a queue refuses goes to the next queue (`diverted`). If all refuse it, it waits for a completion,
/// or for a pause if they have room by the engine's own count (`backoffs`). In the end the CPU executes it
/// (`fallbacks`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Name of the engine.
    pub name: String,
    /// Its kind of hardware.
    pub kind: EngineKind,
    /// Its node, if known.
    pub node: Option<NodeId>,
    /// Accepted copies.
    pub accepted: u64,
    /// Copies handed back because it was full or gone.
    pub rejected: u64,
    /// Copies finished without error.
    pub operations: u64,
    /// Copies finished with an error.
    pub errors: u64,
    /// Bytes it copied itself, also those of copies that failed in the end.
    pub bytes: u64,
    /// Descriptors that a device accepted.
    pub descriptors: u64,
    /// Descriptors that completed in full.
    pub descriptors_done: u64,
    /// Descriptors that stopped at a page fault; software touched the page and resumed behind it.
    pub faults_resumed: u64,
    /// Descriptors that completed with an error, or that a device does not accept in this form and that were replaced.
    pub descriptors_failed: u64,
    /// Members of batches that a device did not execute: they were submitted again.
    pub descriptors_skipped: u64,
    /// Descriptors without completion, given up.
    pub descriptors_lost: u64,
    /// Batches that a device accepted.
    pub batches: u64,
    /// Descriptors in these batches.
    pub batch_members: u64,
    /// Hints that a device does not support: their descriptors were submitted again without them.
    pub hints_dropped: u64,
    /// Submissions that a full work queue refused.
    pub retries: u64,
    /// Descriptors that another queue accepted, because the queue in turn was full or refused them.
    pub diverted: u64,
    /// Pauses before a retry, because all queues were full.
    pub backoffs: u64,
    /// Failed submissions: the kernel refused the descriptor, the device was gone, or a forked child could not open its
    /// queue.
    pub refused: u64,
    /// Queues that get no more work: their device is gone or has lost a descriptor, or they failed to open.
    pub queues_gone: u64,
    /// Queues opened again because this process, or one of its ancestors, was forked.
    pub reopened: u64,
    /// Parts of copies that the CPU did in the device's place.
    pub fallbacks: u64,
    /// Bytes of these parts.
    pub fallback_bytes: u64,
    /// Reads of pieces of files, without those from the page cache.
    pub reads: u64,
    /// Reads that returned a part of their piece; another read continued it.
    pub short_reads: u64,
    /// Reads that were cancelled before they started. They are among the errors.
    pub cancelled: u64,
    /// Bytes of files that were in the page cache, a part of `bytes`.
    pub cached_bytes: u64,
    /// Bytes read from disk through the page cache, because the file system refuses direct reads; a part of `bytes`.
    pub buffered_bytes: u64,
    /// Bytes of leaked targets; as many again were leaked for their sources.
    pub leaked_bytes: u64,
    /// Latencies of copies from their creation, with or without error.
    pub latencies: Latencies,
}

impl EngineStats {
    /// All zero, for an [`Engine`](super::Engine) that counts nothing or sets some of the fields.
    pub fn new(name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
        Counters::default().read(name, kind, node)
    }
}

/// Statistics of a mover and its engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoverStats {
    /// Each engine, accelerators first.
    pub engines: Vec<EngineStats>,
    /// Small copies that the calling thread did, because every engine was full.
    pub inline_operations: u64,
    /// Bytes of these copies.
    pub inline_bytes: u64,
    /// Large copies that waited in a CPU engine's queue beyond its limit, because every engine was full.
    pub overflow_operations: u64,
    /// Operations that no added engine supports: a CPU engine did them.
    pub unsupported_operations: u64,
    /// Split copies. Engines count their items.
    pub split_operations: u64,
    /// Items of split copies that an engine failed; they were repeated.
    pub split_redone: u64,
    /// Items that a CPU engine or the calling thread did, because the route's engines were full or gone.
    pub split_taken_over: u64,
    /// Leaked bytes of split copies, in addition to those that engines count.
    pub split_leaked_bytes: u64,
}

impl MoverStats {
    /// Bytes copied by all engines of this kind.
    pub fn bytes_by(&self, kind: EngineKind) -> u64 {
        self.engines.iter().filter(|engine| engine.kind == kind).map(|engine| engine.bytes).sum()
    }
}

/// A counter. Relaxed: it orders nothing. It is raised before the completion of the copy, so a thread that has seen the
/// result also sees it counted.
#[derive(Debug, Default)]
pub(in crate::mover) struct Counter(AtomicU64);

impl Counter {
    pub(in crate::mover) fn add(&self, amount: u64) {
        // ORDERING: see the type.
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds without a locked instruction, for the only thread that writes this counter.
    pub(in crate::mover) fn add_alone(&self, amount: u64) {
        // ORDERING: see the type. No other thread writes in between.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Takes back what was added too early.
    pub(in crate::mover) fn sub(&self, amount: u64) {
        // ORDERING: see the type.
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    pub(in crate::mover) fn get(&self) -> u64 {
        // ORDERING: see the type.
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one worker, on cache lines of their own: only this worker writes them, once per copy.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::mover) struct Tally {
    accepted: Counter,
    operations: Counter,
    bytes: Counter,
    latencies: Histogram,
}

impl Tally {
    /// Counts a successful copy that was created at `begun`. Call it before the completion.
    pub(in crate::mover) fn end(&self, begun: Moment, bytes: u64) {
        self.latencies.record_alone(begun.elapsed_ns());
        self.bytes.add_alone(bytes);
        self.operations.add_alone(1);
    }

    /// Counts a copy that the worker keeps for itself. Call it before the hand-over.
    pub(in crate::mover) fn accept(&self) {
        self.accepted.add_alone(1);
    }

    /// Adds this to the statistics of its engine.
    pub(in crate::mover) fn add_to(&self, stats: &mut EngineStats) {
        stats.accepted += self.accepted.get();
        stats.operations += self.operations.get();
        stats.bytes += self.bytes.get();
        stats.latencies.merge(self.latencies.read());
    }
}

/// The counters behind [`EngineStats`].
#[derive(Debug, Default)]
pub(in crate::mover) struct Counters {
    pub(in crate::mover) accepted: Counter,
    pub(in crate::mover) rejected: Counter,
    pub(in crate::mover) operations: Counter,
    pub(in crate::mover) errors: Counter,
    pub(in crate::mover) bytes: Counter,
    pub(in crate::mover) descriptors: Counter,
    pub(in crate::mover) descriptors_done: Counter,
    pub(in crate::mover) faults_resumed: Counter,
    pub(in crate::mover) descriptors_failed: Counter,
    pub(in crate::mover) descriptors_skipped: Counter,
    pub(in crate::mover) descriptors_lost: Counter,
    pub(in crate::mover) batches: Counter,
    pub(in crate::mover) batch_members: Counter,
    pub(in crate::mover) hints_dropped: Counter,
    pub(in crate::mover) retries: Counter,
    pub(in crate::mover) diverted: Counter,
    pub(in crate::mover) backoffs: Counter,
    pub(in crate::mover) refused: Counter,
    pub(in crate::mover) queues_gone: Counter,
    pub(in crate::mover) fallbacks: Counter,
    pub(in crate::mover) fallback_bytes: Counter,
    pub(in crate::mover) reads: Counter,
    pub(in crate::mover) short_reads: Counter,
    pub(in crate::mover) cancelled: Counter,
    pub(in crate::mover) cached_bytes: Counter,
    pub(in crate::mover) buffered_bytes: Counter,
    pub(in crate::mover) leaked_bytes: Counter,
    pub(in crate::mover) latencies: Histogram,
}

impl Counters {
    /// Counts a submission around `submit`. Counts it as accepted beforehand, because the completion may be visible
    /// before `submit` returns.
    pub(in crate::mover) fn submission<E>(&self, submit: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        self.accepted.add(1);
        submit().inspect_err(|_| {
            self.accepted.sub(1);
            self.rejected.add(1);
        })
    }

    /// Counts the completion of a copy that was created at `begun`. Call it before the callback.
    pub(in crate::mover) fn end(&self, begun: Moment, result: CopyResult) {
        self.latencies.record(begun.elapsed_ns());
        match result {
            Ok(_) => self.operations.add(1),
            Err(_) => self.errors.add(1),
        }
    }

    /// Copies in flight; approximate, because the counters are read one after the other.
    pub(in crate::mover) fn load(&self, tallies: &[Tally]) -> usize {
        let sum =
            |own: u64, of: fn(&Tally) -> &Counter| own + tallies.iter().map(|it| of(it).get()).sum::<u64>();
        let ended = sum(self.operations.get() + self.errors.get(), |tally| &tally.operations);
        sum(self.accepted.get(), |tally| &tally.accepted).saturating_sub(ended) as usize
    }

    pub(in crate::mover) fn read(&self, name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
        EngineStats {
            name: name.to_owned(),
            kind,
            node,
            accepted: self.accepted.get(),
            rejected: self.rejected.get(),
            operations: self.operations.get(),
            errors: self.errors.get(),
            bytes: self.bytes.get(),
            descriptors: self.descriptors.get(),
            descriptors_done: self.descriptors_done.get(),
            faults_resumed: self.faults_resumed.get(),
            descriptors_failed: self.descriptors_failed.get(),
            descriptors_skipped: self.descriptors_skipped.get(),
            descriptors_lost: self.descriptors_lost.get(),
            batches: self.batches.get(),
            batch_members: self.batch_members.get(),
            hints_dropped: self.hints_dropped.get(),
            retries: self.retries.get(),
            diverted: self.diverted.get(),
            backoffs: self.backoffs.get(),
            refused: self.refused.get(),
            queues_gone: self.queues_gone.get(),
            // Portals count these.
            reopened: 0,
            fallbacks: self.fallbacks.get(),
            fallback_bytes: self.fallback_bytes.get(),
            reads: self.reads.get(),
            short_reads: self.short_reads.get(),
            cancelled: self.cancelled.get(),
            cached_bytes: self.cached_bytes.get(),
            buffered_bytes: self.buffered_bytes.get(),
            leaked_bytes: self.leaked_bytes.get(),
            latencies: self.latencies.read(),
        }
    }
}
