//! What was copied, by whom, and what it took: counters that add up.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::latency::{Histogram, Latencies};
use super::moment::Moment;
use super::{CopyError, EngineKind, Rejected};
use crate::topology::NodeId;

/// Who carried how much of one copy, or of another operation, whose bytes are those of the size that it names.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// Bytes copied by CPUs.
    pub cpu_bytes: u64,
    /// Bytes copied by DSA devices.
    pub dsa_bytes: u64,
}

impl CopyReport {
    /// All bytes of the copy.
    pub fn bytes(&self) -> u64 {
        self.cpu_bytes + self.dsa_bytes
    }
}

impl AddAssign for CopyReport {
    fn add_assign(&mut self, other: CopyReport) {
        self.cpu_bytes += other.cpu_bytes;
        self.dsa_bytes += other.dsa_bytes;
    }
}

/// What one engine did since it started, in this process: a forked child begins at zero. Once nothing is in flight:
///
/// - `accepted` = `operations` + `errors`;
/// - `descriptors` = `descriptors_done` + `faults_resumed` + `descriptors_failed` + `descriptors_skipped` +
///   `descriptors_lost`;
/// - as many `latencies` as `accepted`;
/// - `bytes` + `fallback_bytes` = the bytes of all accepted copies, if there are no errors.
///
/// What a queue does not take at once is offered to the next (`diverted`); what none takes waits for a completion or,
/// if they have room by the engine's own count, for a pause (`backoffs`); in the end the CPU does it (`fallbacks`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Name of the engine.
    pub name: String,
    /// What it copies with.
    pub kind: EngineKind,
    /// Where it is.
    pub node: Option<NodeId>,
    /// Copies it took.
    pub accepted: u64,
    /// Copies it handed back because it was full or gone.
    pub rejected: u64,
    /// Copies finished without error.
    pub operations: u64,
    /// Copies finished with an error.
    pub errors: u64,
    /// Bytes it copied itself, also for copies that failed in the end.
    pub bytes: u64,
    /// Descriptors that a device took.
    pub descriptors: u64,
    /// Descriptors that did all they were asked to.
    pub descriptors_done: u64,
    /// Descriptors that stopped at a page fault; software touched the page and went on behind it.
    pub faults_resumed: u64,
    /// Descriptors that ended with an error, or that a device does not take like that and that were done otherwise.
    pub descriptors_failed: u64,
    /// Members of batches that a device did not come to: they were submitted again.
    pub descriptors_skipped: u64,
    /// Descriptors nobody will hear of again.
    pub descriptors_lost: u64,
    /// Batches that a device took.
    pub batches: u64,
    /// Descriptors that were members of these.
    pub batch_members: u64,
    /// Hints that a device turned out not to know: what carried them was submitted again without.
    pub hints_dropped: u64,
    /// Submissions that a work queue did not take because it was full.
    pub retries: u64,
    /// Descriptors that another queue took, because the one whose turn it was had no room or would not have them.
    pub diverted: u64,
    /// Pauses before the queues were tried again, because all were full.
    pub backoffs: u64,
    /// Submissions that could not be made: the kernel refused the descriptor, the device was gone, or a forked child
    /// could not open its queue.
    pub refused: u64,
    /// Queues that get no more work: their device is gone or has lost a descriptor, or they could not be opened.
    pub queues_gone: u64,
    /// Times that a queue was opened again because this process, or one that it descends from, was forked.
    pub reopened: u64,
    /// Pieces of copies that the CPU did in the device's place.
    pub fallbacks: u64,
    /// Bytes of these.
    pub fallback_bytes: u64,
    /// Bytes copied into targets that had to be leaked: as many were leaked again for their sources.
    pub leaked_bytes: u64,
    /// How long copies took, from when they were made, with or without error.
    pub latencies: Latencies,
}

impl EngineStats {
    /// Zeros, for an [`Engine`](super::Engine) that counts nothing, or sets some of the fields.
    pub fn new(name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
        Counters::default().read(name, kind, node)
    }
}

/// What a mover and its engines did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoverStats {
    /// Each engine, accelerators first.
    pub engines: Vec<EngineStats>,
    /// Copies the caller's own thread did, because every engine was full and the copy was small.
    pub inline_operations: u64,
    /// Bytes of these.
    pub inline_bytes: u64,
    /// Copies that waited in a CPU engine's queue beyond its limit, because every engine was full and the copy
    /// was large.
    pub overflow_operations: u64,
    /// Operations that none of the engines that were passed in has: a CPU engine did them.
    pub unsupported_operations: u64,
    /// Copies that were split. Engines count their pieces.
    pub split_operations: u64,
    /// Pieces of them that an engine failed, and that were to be done again.
    pub split_redone: u64,
    /// Pieces of them that a CPU engine or the calling thread did, because the route's engines were full or gone.
    pub split_taken_over: u64,
    /// Bytes of split copies that were leaked together with those that engines count.
    pub split_leaked_bytes: u64,
}

impl MoverStats {
    /// Bytes copied by engines of this kind.
    pub fn bytes_by(&self, kind: EngineKind) -> u64 {
        self.engines.iter().filter(|engine| engine.kind == kind).map(|engine| engine.bytes).sum()
    }
}

/// A counter. Relaxed throughout: it orders nothing. It is raised before the copy is reported as finished, so
/// whoever has seen the result sees it counted as well.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: u64) {
        // ORDERING: see the type.
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds without a locked instruction: for the one thread that writes this counter.
    pub(super) fn add_alone(&self, amount: u64) {
        // ORDERING: see the type. Nobody else writes in between.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Takes back what was added too early.
    pub(super) fn sub(&self, amount: u64) {
        // ORDERING: see the type.
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        // ORDERING: see the type.
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker of several counts for itself: in lines of its own, which are written for each copy, by it alone.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    accepted: Counter,
    operations: Counter,
    bytes: Counter,
    latencies: Histogram,
}

impl Tally {
    /// Counts a copy of so many bytes that was made at `begun` and did not fail. To be called before it is reported.
    pub(super) fn end(&self, begun: Moment, bytes: u64) {
        self.latencies.record_alone(begun.elapsed_ns());
        self.bytes.add_alone(bytes);
        self.operations.add_alone(1);
    }

    /// Counts a copy that the worker leaves to itself. To be called before it is.
    pub(super) fn accept(&self) {
        self.accepted.add_alone(1);
    }

    /// Adds this to the statistics of its engine.
    pub(super) fn add_to(&self, stats: &mut EngineStats) {
        stats.accepted += self.accepted.get();
        stats.operations += self.operations.get();
        stats.bytes += self.bytes.get();
        stats.latencies.merge(self.latencies.read());
    }
}

/// The counters behind [`EngineStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) accepted: Counter,
    pub(super) rejected: Counter,
    pub(super) operations: Counter,
    pub(super) errors: Counter,
    pub(super) bytes: Counter,
    pub(super) descriptors: Counter,
    pub(super) descriptors_done: Counter,
    pub(super) faults_resumed: Counter,
    pub(super) descriptors_failed: Counter,
    pub(super) descriptors_skipped: Counter,
    pub(super) descriptors_lost: Counter,
    pub(super) batches: Counter,
    pub(super) batch_members: Counter,
    pub(super) hints_dropped: Counter,
    pub(super) retries: Counter,
    pub(super) diverted: Counter,
    pub(super) backoffs: Counter,
    pub(super) refused: Counter,
    pub(super) queues_gone: Counter,
    pub(super) fallbacks: Counter,
    pub(super) fallback_bytes: Counter,
    pub(super) leaked_bytes: Counter,
    pub(super) latencies: Histogram,
}

impl Counters {
    /// Counts a submission around `submit`. It counts as accepted beforehand: the copy may be finished, and its
    /// result seen, before `submit` returns.
    pub(super) fn submission(&self, submit: impl FnOnce() -> Result<(), Rejected>) -> Result<(), Rejected> {
        self.accepted.add(1);
        submit().inspect_err(|_| {
            self.accepted.sub(1);
            self.rejected.add(1);
        })
    }

    /// Counts the end of a copy that was made at `begun`. To be called before it is reported.
    pub(super) fn end(&self, begun: Moment, result: Result<CopyReport, CopyError>) {
        self.latencies.record(begun.elapsed_ns());
        match result {
            Ok(_) => self.operations.add(1),
            Err(_) => self.errors.add(1),
        }
    }

    /// Copies that were accepted and have not ended; about, since the counters are read one after the other.
    pub(super) fn load(&self, tallies: &[Tally]) -> usize {
        let sum =
            |own: u64, of: fn(&Tally) -> &Counter| own + tallies.iter().map(|it| of(it).get()).sum::<u64>();
        let ended = sum(self.operations.get() + self.errors.get(), |tally| &tally.operations);
        sum(self.accepted.get(), |tally| &tally.accepted).saturating_sub(ended) as usize
    }

    pub(super) fn read(&self, name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
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
            // Portals count that.
            reopened: 0,
            fallbacks: self.fallbacks.get(),
            fallback_bytes: self.fallback_bytes.get(),
            leaked_bytes: self.leaked_bytes.get(),
            latencies: self.latencies.read(),
        }
    }
}
