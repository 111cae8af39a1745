//! Counters of the server in the text format of Prometheus.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memferry_query::Tiers;

/// How a query ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All rows were sent.
    Done,
    /// The statement was wrong, or its tables could not be read.
    Failed,
    /// It needed more memory than it may take.
    Memory,
    /// It took longer than it may.
    Time,
    /// The client cancelled it.
    Cancelled,
    /// The client went away, or did not want the rest.
    Disconnected,
    /// Too many others were running.
    Refused,
    /// The server stopped.
    Stopped,
}

impl Outcome {
    const ALL: [Outcome; 8] = [
        Outcome::Done,
        Outcome::Failed,
        Outcome::Memory,
        Outcome::Time,
        Outcome::Cancelled,
        Outcome::Disconnected,
        Outcome::Refused,
        Outcome::Stopped,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Memory => "memory",
            Outcome::Time => "time",
            Outcome::Cancelled => "cancelled",
            Outcome::Disconnected => "disconnected",
            Outcome::Refused => "refused",
            Outcome::Stopped => "stopped",
        }
    }

    fn index(self) -> usize {
        Outcome::ALL.iter().position(|it| *it == self).unwrap_or_default()
    }
}

/// Upper bounds of the histograms in seconds: from a query over one row group to the default limit of time.
const BOUNDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// Counters, which any thread adds to. They guard no other memory, so all accesses are relaxed.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    seconds: Histogram,
    first_batch_seconds: Histogram,
    rows: AtomicU64,
    bytes: AtomicU64,
    unauthenticated: AtomicU64,
}

/// Values that the server reads when it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gauges {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) planned: usize,
    pub(super) prepared: usize,
}

impl Metrics {
    pub(super) fn ended(&self, outcome: Outcome, elapsed: Duration) {
        self.outcomes[outcome.index()].fetch_add(1, Ordering::Relaxed);
        self.seconds.add(elapsed);
    }

    pub(super) fn first_batch(&self, elapsed: Duration) {
        self.first_batch_seconds.add(elapsed);
    }

    pub(super) fn sent(&self, rows: usize, bytes: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn unauthenticated(&self) {
        self.unauthenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// All metrics as text.
    pub(super) fn text(&self, gauges: Gauges, tiers: &Tiers) -> String {
        let mut text = Text(String::new());
        text.head("memferry_serve_queries_total", "counter", "Queries that ended, by outcome.");
        for outcome in Outcome::ALL {
            let count = self.outcomes[outcome.index()].load(Ordering::Relaxed);
            text.line("memferry_serve_queries_total", &format!("{{outcome=\"{}\"}}", outcome.name()), count);
        }
        let gauge = "gauge";
        text.one("memferry_serve_queries_running", gauge, "Queries that run.", gauges.running);
        text.one(
            "memferry_serve_queries_waiting",
            gauge,
            "Queries that wait for one to end.",
            gauges.waiting,
        );
        text.one("memferry_serve_queries_planned", gauge, "Queries that nobody fetched yet.", gauges.planned);
        text.one("memferry_serve_prepared_statements", gauge, "Prepared statements.", gauges.prepared);
        let about = "Time from the start of a query to its end.";
        self.seconds.text("memferry_serve_query_seconds", about, &mut text);
        let about = "Time from the start of a query to its first rows.";
        self.first_batch_seconds.text("memferry_serve_first_batch_seconds", about, &mut text);
        let counter = "counter";
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        text.one("memferry_serve_rows_total", counter, "Rows sent.", read(&self.rows));
        text.one("memferry_serve_bytes_total", counter, "Bytes of columns sent.", read(&self.bytes));
        let about = "Requests with a wrong or no token or password.";
        text.one("memferry_serve_unauthenticated_total", counter, about, read(&self.unauthenticated));
        near_memory(tiers, &mut text);
        process(&mut text);
        text.0
    }
}

/// Copies, and the near memory that holds them.
fn near_memory(tiers: &Tiers, text: &mut Text) {
    let stats = tiers.mover().stats();
    let in_flight = |it: &memferry::mover::EngineStats| it.accepted.saturating_sub(it.operations + it.errors);
    let sum: u64 = stats.engines.iter().map(in_flight).sum();
    text.one("memferry_copies_in_flight", "gauge", "Copies that engines have accepted and not ended.", sum);
    let cache = tiers.cache().stats();
    text.one("memferry_copies_started_total", "counter", "Copies to near memory.", cache.submissions);
    text.one("memferry_copies_arrived_total", "counter", "Copies that completed.", cache.arrived);
    text.one("memferry_copies_failed_total", "counter", "Copies that failed.", cache.failed);
    text.head("memferry_near_bytes", "gauge", "Bytes of near memory in use, by node.");
    for node in &cache.nodes {
        text.line("memferry_near_bytes", &format!("{{node=\"{}\"}}", node.node), node.used_bytes as u64);
    }
}

/// The metrics of a process that Prometheus' own clients have, of the same names.
fn process(text: &mut Text) {
    if let Some(bytes) = resident_bytes() {
        let about = "Memory of the process that has pages.";
        text.one("process_resident_memory_bytes", "gauge", about, bytes);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        text.one("process_open_fds", "gauge", "Open files and connections.", files.count());
    }
}

/// Memory of this process that has pages, as Linux counts it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[derive(Debug, Default)]
struct Histogram {
    /// Values up to each bound and above the one before; the last are those above all.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let index = BOUNDS.iter().position(|&bound| time.as_secs_f64() <= bound).unwrap_or(BOUNDS.len());
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn text(&self, name: &str, about: &str, text: &mut Text) {
        text.head(name, "histogram", about);
        let mut sum = 0;
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            sum += count.load(Ordering::Relaxed);
            text.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), sum);
        }
        let seconds = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        text.line(&format!("{name}_sum"), "", seconds);
        text.line(&format!("{name}_count"), "", sum);
    }
}

struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, about: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, about: &str, value: impl std::fmt::Display) {
        self.head(name, kind, about);
        self.line(name, "", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative() {
        let histogram = Histogram::default();
        for seconds in [0.0005, 0.05, 0.05, 1000.0] {
            histogram.add(Duration::from_secs_f64(seconds));
        }
        let mut text = Text(String::new());
        histogram.text("h", "About.", &mut text);
        for line in [
            "# TYPE h histogram",
            "h_bucket{le=\"0.001\"} 1",
            "h_bucket{le=\"0.03\"} 1",
            "h_bucket{le=\"0.1\"} 3",
            "h_bucket{le=\"300\"} 3",
            "h_bucket{le=\"+Inf\"} 4",
            "h_count 4",
        ] {
            assert!(text.0.lines().any(|it| it == line), "{line} is missing:\n{}", text.0);
        }
    }
}
