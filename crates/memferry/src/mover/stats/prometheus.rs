//! Statistics in the text format of Prometheus.
//!
//! Source: Prometheus documentation, "Exposition formats", text format 0.0.4; "Metric and label naming".

use std::fmt::{self, Display, Write};

use super::{ENGINE_METRICS, EngineStats, MOVER_METRICS, MoverStats};
use crate::route::EngineKind;

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
        for (name, help, value) in MOVER_METRICS {
            head(f, &format!("memferry_mover_{name}_total"), help, "counter")?;
            writeln!(f, "memferry_mover_{name}_total {}", value(stats))?;
        }
        let labels: Vec<String> =
            stats.engines.iter().enumerate().map(|(index, engine)| labels(index, engine)).collect();
        for (name, help, value) in ENGINE_METRICS {
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
    writeln!(f, "# HELP {name} {}\n# TYPE {name} {kind}", help.trim())
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
