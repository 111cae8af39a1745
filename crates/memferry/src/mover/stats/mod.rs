//! Statistics of movers and engines: counters that add up, and latencies.

mod latency;
mod prometheus;
pub(super) mod trace;

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tracing::info;

use latency::Histogram;

pub use latency::Latencies;

use super::request::CopyResult;
use crate::moment::Moment;
use crate::route::EngineKind;
use crate::topology::NodeId;

/// A counter of statistics: its name, its meaning, and its value.
type Metric<S> = (&'static str, &'static str, fn(&S) -> u64);

/// Lists the counters of an engine once, for the statistics, the live counters, Prometheus and `tracing`.
macro_rules! engine_counters {
    ($($(#[doc = $about:literal])+ $name:ident)*) => {
        /// Statistics of one engine since its start in this process; a forked child begins at zero. With nothing in flight:
        ///
        /// - `accepted` = `operations` + `errors`;
        /// - `descriptors` = `descriptors_done` + `faults_resumed` + `descriptors_failed` + `descriptors_skipped` +
        ///   `descriptors_lost`;
        /// - the count of `latencies` = `accepted`;
        /// - `bytes` + `fallback_bytes` = the bytes of all accepted copies, if there are no errors.
        ///
        /// A descriptor that a queue refuses goes to the next queue (`diverted`). If all refuse it, it waits for a
        /// completion, or for a pause if they have room by the engine's own count (`backoffs`). In the end the CPU executes
        /// it (`fallbacks`).
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct EngineStats {
            /// Name of the engine.
            pub name: String,
            /// Its kind of hardware.
            pub kind: EngineKind,
            /// Its node, if known.
            pub node: Option<NodeId>,
            $($(#[doc = $about])+ pub $name: u64,)*
            /// Latencies of copies from their creation, with or without error.
            pub latencies: Latencies,
        }

        /// The counters behind [`EngineStats`].
        #[derive(Debug, Default)]
        pub(in crate::mover) struct Counters {
            $(pub(in crate::mover) $name: Counter,)*
            pub(in crate::mover) latencies: Histogram,
        }

        impl Counters {
            pub(in crate::mover) fn read(&self, name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
                let latencies = self.latencies.read();
                EngineStats { name: name.to_owned(), kind, node, $($name: self.$name.get(),)* latencies }
            }
        }

        const ENGINE_METRICS: &[Metric<EngineStats>] =
            &[$((stringify!($name), concat!($($about),+), |engine| engine.$name),)*];

        impl EngineStats {
            fn trace(&self) {
                info!(
                    target: "memferry::mover",
                    engine = %self.name,
                    kind = ?self.kind,
                    node = self.node.map(|node| node.0),
                    $($name = self.$name,)*
                    latency_ns_median = self.latencies.quantile_ns(0.5),
                    latency_ns_p99 = self.latencies.quantile_ns(0.99),
                    "engine"
                );
            }
        }
    };
}

engine_counters! {
    /// Accepted copies.
    accepted
    /// Copies handed back because it was full or gone.
    rejected
    /// Copies finished without error.
    operations
    /// Copies finished with an error.
    errors
    /// Bytes it copied itself, also those of copies that failed in the end.
    bytes
    /// Descriptors that a device accepted.
    descriptors
    /// Descriptors that completed in full.
    descriptors_done
    /// Descriptors that stopped at a page fault; software touched the page and resumed behind it.
    faults_resumed
    /// Descriptors that completed with an error, or that a device does not accept in this form and that were replaced.
    descriptors_failed
    /// Members of batches that a device did not execute: they were submitted again.
    descriptors_skipped
    /// Descriptors without completion, given up.
    descriptors_lost
    /// Batches that a device accepted.
    batches
    /// Descriptors in these batches.
    batch_members
    /// Hints that a device does not support: their descriptors were submitted again without them.
    hints_dropped
    /// Submissions that a full work queue refused.
    retries
    /// Descriptors that another queue accepted, because the queue in turn was full or refused them.
    diverted
    /// Pauses before a retry, because all queues were full.
    backoffs
    /// Failed submissions: the kernel refused the descriptor, the device was gone, or a forked child could not open its
    /// queue.
    refused
    /// Queues that get no more work: their device is gone or has lost a descriptor, or they failed to open.
    queues_gone
    /// Queues opened again because this process, or one of its ancestors, was forked.
    reopened
    /// Parts of copies that the CPU did in the device's place.
    fallbacks
    /// Bytes of these parts.
    fallback_bytes
    /// Reads of pieces of files, without those from the page cache.
    reads
    /// Reads that returned a part of their piece; another read continued it.
    short_reads
    /// Reads that were cancelled before they started. They are among the errors.
    cancelled
    /// Bytes of files that were in the page cache, a part of `bytes`.
    cached_bytes
    /// Bytes read from disk through the page cache, because the file system refuses direct reads; a part of `bytes`.
    buffered_bytes
    /// Bytes of leaked targets; as many again were leaked for their sources.
    leaked_bytes
}

impl EngineStats {
    /// All zero, for an [`Engine`](super::Engine) that counts nothing or sets some of the fields.
    pub fn new(name: &str, kind: EngineKind, node: Option<NodeId>) -> EngineStats {
        Counters::default().read(name, kind, node)
    }
}

/// Lists the counters of a mover once.
macro_rules! mover_counters {
    ($($(#[doc = $about:literal])+ $name:ident)*) => {
        /// Statistics of a mover and its engines.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct MoverStats {
            /// Each engine, accelerators first.
            pub engines: Vec<EngineStats>,
            $($(#[doc = $about])+ pub $name: u64,)*
        }

        const MOVER_METRICS: &[Metric<MoverStats>] =
            &[$((stringify!($name), concat!($($about),+), |mover| mover.$name),)*];

        impl MoverStats {
            /// Emits an event for each engine, and one for the mover.
            pub fn trace(&self) {
                self.engines.iter().for_each(EngineStats::trace);
                info!(target: "memferry::mover", $($name = self.$name,)* "mover");
            }
        }
    };
}

mover_counters! {
    /// Small copies that the calling thread did, because every engine was full.
    inline_operations
    /// Bytes of these copies.
    inline_bytes
    /// Large copies, and copies started in callbacks, that waited in a CPU engine's queue beyond its limit, because every
    /// engine was full.
    overflow_operations
    /// Operations that no added engine supports: a CPU engine did them.
    unsupported_operations
    /// Split copies. Engines count their items.
    split_operations
    /// Items of split copies that an engine failed; they were repeated.
    split_redone
    /// Items that a CPU engine or the calling thread did, because the route's engines were full or gone.
    split_taken_over
    /// Leaked bytes of split copies, in addition to those that engines count.
    split_leaked_bytes
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
}
