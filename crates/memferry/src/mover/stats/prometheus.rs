//! Statistics in the text format of Prometheus.
//!
//! Source: Prometheus documentation, "Exposition formats", text format 0.0.4; "Metric and label naming".

use std::fmt::{self, Display, Write};

use super::{EngineStats, MoverStats};
use crate::route::EngineKind;

/// Name and help text of a counter, and its value.
type Metric<S> = (&'static str, &'static str, fn(&S) -> u64);

const ENGINE: [Metric<EngineStats>; 28] = [
    ("accepted", "Copies it took.", |engine| engine.accepted),
    ("rejected", "Copies it handed back, full or gone.", |engine| engine.rejected),
    ("operations", "Copies finished without error.", |engine| engine.operations),
    ("errors", "Copies finished with an error.", |engine| engine.errors),
    ("bytes", "Bytes it copied itself.", |engine| engine.bytes),
    ("descriptors", "Descriptors that a device took.", |engine| engine.descriptors),
    ("descriptors_done", "Descriptors that did all they were asked to.", |engine| engine.descriptors_done),
    ("descriptors_failed", "Descriptors that ended with an error.", |engine| engine.descriptors_failed),
    ("descriptors_skipped", "Members of batches submitted again.", |engine| engine.descriptors_skipped),
    ("descriptors_lost", "Descriptors given up.", |engine| engine.descriptors_lost),
    ("batches", "Batches that a device took.", |engine| engine.batches),
    ("batch_members", "Descriptors in these.", |engine| engine.batch_members),
    ("hints_dropped", "Hints that a device does not know.", |engine| engine.hints_dropped),
    ("faults_resumed", "Descriptors stopped by a page fault.", |engine| engine.faults_resumed),
    ("retries", "Submissions to full work queues.", |engine| engine.retries),
    ("diverted", "Descriptors that another queue took.", |engine| engine.diverted),
    ("backoffs", "Pauses because all queues were full.", |engine| engine.backoffs),
    ("refused", "Submissions that could not be made.", |engine| engine.refused),
    ("queues_gone", "Queues that get no more work.", |engine| engine.queues_gone),
    ("reopened", "Queues opened again after a fork.", |engine| engine.reopened),
    ("fallbacks", "Pieces that the CPU did in the device's place.", |engine| engine.fallbacks),
    ("fallback_bytes", "Bytes of these pieces.", |engine| engine.fallback_bytes),
    ("reads", "Reads of pieces of files.", |engine| engine.reads),
    ("short_reads", "Reads that a further read continued.", |engine| engine.short_reads),
    ("cancelled", "Reads that nobody waited for.", |engine| engine.cancelled),
    ("cached_bytes", "Bytes of files that the page cache had.", |engine| engine.cached_bytes),
    ("buffered_bytes", "Bytes read through the page cache.", |engine| engine.buffered_bytes),
    ("leaked_bytes", "Bytes leaked because a device was lost.", |engine| engine.leaked_bytes),
];

const MOVER: [Metric<MoverStats>; 8] = [
    ("inline_operations", "Copies the calling thread did.", |mover| mover.inline_operations),
    ("inline_bytes", "Bytes of these copies.", |mover| mover.inline_bytes),
    ("overflow_operations", "Copies that waited beyond a limit.", |mover| mover.overflow_operations),
    ("unsupported_operations", "Operations no engine passed in has.", |mover| mover.unsupported_operations),
    ("split_operations", "Copies that were split.", |mover| mover.split_operations),
    ("split_redone", "Pieces of these that an engine failed.", |mover| mover.split_redone),
    ("split_taken_over", "Pieces of these done elsewhere.", |mover| mover.split_taken_over),
    ("split_leaked_bytes", "Bytes leaked with those of engines.", |mover| mover.split_leaked_bytes),
];

/// Upper ends of the exported buckets as powers of two of nanoseconds: 256 ns to 1 s, each four times the previous one.
const BUCKETS_LOG2: [u32; 12] = [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

impl MoverStats {
    /// The statistics for Prometheus, to be served as `text/plain; version=0.0.4`.
    ///
    /// Counters are `memferry_mover_*_total` and `memferry_engine_*_total`, latencies the histogram
    /// `memferry_engine_latency_seconds`. Engines have the labels `engine` (name), `index` (because names may be
    /// equal), `kind` and, if known, `node`.
    pub fn prometheus(&self) -> impl Display + '_ {
        Text(self)
    }
}

struct Text<'a>(&'a MoverStats);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text(stats) = self;
        for (name, help, value) in MOVER {
            head(f, &format!("memferry_mover_{name}_total"), help, "counter")?;
            writeln!(f, "memferry_mover_{name}_total {}", value(stats))?;
        }
        let labels: Vec<String> =
            stats.engines.iter().enumerate().map(|(index, engine)| labels(index, engine)).collect();
        for (name, help, value) in ENGINE {
            head(f, &format!("memferry_engine_{name}_total"), help, "counter")?;
            for (engine, labels) in stats.engines.iter().zip(&labels) {
                writeln!(f, "memferry_engine_{name}_total{{{labels}}} {}", value(engine))?;
            }
        }
        head(f, "memferry_engine_latency_seconds", "From a copy's making to its end.", "histogram")?;
        for (engine, labels) in stats.engines.iter().zip(&labels) {
            latencies(f, engine, labels)?;
        }
        Ok(())
    }
}

fn head(f: &mut fmt::Formatter<'_>, name: &str, help: &str, kind: &str) -> fmt::Result {
    writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn latencies(f: &mut fmt::Formatter<'_>, engine: &EngineStats, labels: &str) -> fmt::Result {
    let (name, latencies) = ("memferry_engine_latency_seconds", &engine.latencies);
    let seconds = |ns: u64| ns as f64 / 1e9;
    for log2 in BUCKETS_LOG2 {
        let ns = 1 << log2;
        writeln!(f, "{name}_bucket{{{labels},le=\"{}\"}} {}", seconds(ns), latencies.count_within(ns))?;
    }
    let count = latencies.count();
    writeln!(f, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
    writeln!(f, "{name}_sum{{{labels}}} {}", seconds(latencies.sum_ns))?;
    writeln!(f, "{name}_count{{{labels}}} {count}")
}

fn labels(index: usize, engine: &EngineStats) -> String {
    let kind = match engine.kind {
        EngineKind::Cpu => "cpu",
        EngineKind::Dsa => "dsa",
        EngineKind::Storage => "storage",
    };
    let mut labels = format!("engine=\"{}\",index=\"{index}\",kind=\"{kind}\"", escaped(&engine.name));
    if let Some(node) = engine.node {
        let _ = write!(labels, ",node=\"{node}\"");
    }
    labels
}

/// Escapes a label value: names of engines are arbitrary.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}
