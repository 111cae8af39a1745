//! Statistics, fall-backs and errors as `tracing` events with the target `memferry::mover`.
//!
//! There is no event per copy: an event costs more than a submission.
//!
//! | event | level | when |
//! |---|---|---|
//! | `engine`, `mover` | info | [`MoverStats::trace`] is called |
//! | `copy failed` | warn | a copy or an operation completes with an error |
//! | `queue gone` | warn | a queue gets no more work |
//! | `done by the CPU` | debug | a DSA engine leaves pieces to its CPU |
//! | `done by the caller`, `queued beyond the limit` | debug | all engines are full |
//! | `not supported` | debug | no added engine supports an operation |

use memferry_dsa::internals::panics;
use tracing::info;

use super::MoverStats;

impl MoverStats {
    /// Emits an event for each engine, and one for the mover.
    pub fn trace(&self) {
        for engine in &self.engines {
            info!(
                target: "memferry::mover",
                engine = %engine.name,
                kind = ?engine.kind,
                node = engine.node.map(|node| node.0),
                accepted = engine.accepted,
                rejected = engine.rejected,
                operations = engine.operations,
                errors = engine.errors,
                bytes = engine.bytes,
                descriptors = engine.descriptors,
                descriptors_done = engine.descriptors_done,
                faults_resumed = engine.faults_resumed,
                descriptors_failed = engine.descriptors_failed,
                descriptors_skipped = engine.descriptors_skipped,
                descriptors_lost = engine.descriptors_lost,
                batches = engine.batches,
                batch_members = engine.batch_members,
                hints_dropped = engine.hints_dropped,
                retries = engine.retries,
                diverted = engine.diverted,
                backoffs = engine.backoffs,
                refused = engine.refused,
                queues_gone = engine.queues_gone,
                reopened = engine.reopened,
                fallbacks = engine.fallbacks,
                fallback_bytes = engine.fallback_bytes,
                reads = engine.reads,
                short_reads = engine.short_reads,
                cancelled = engine.cancelled,
                cached_bytes = engine.cached_bytes,
                buffered_bytes = engine.buffered_bytes,
                leaked_bytes = engine.leaked_bytes,
                latency_ns_median = engine.latencies.quantile_ns(0.5),
                latency_ns_p99 = engine.latencies.quantile_ns(0.99),
                "engine"
            );
        }
        info!(
            target: "memferry::mover",
            inline_operations = self.inline_operations,
            inline_bytes = self.inline_bytes,
            overflow_operations = self.overflow_operations,
            unsupported_operations = self.unsupported_operations,
            split_operations = self.split_operations,
            split_redone = self.split_redone,
            split_taken_over = self.split_taken_over,
            split_leaked_bytes = self.split_leaked_bytes,
            "mover"
        );
    }
}

/// Emits an event and contains a panic of the subscriber, which runs on threads of engines or between submission and
/// completion of a copy. Hold no lock around it.
pub(in crate::mover) fn safely(event: impl FnOnce()) {
    let _ = panics::contain(event);
}
