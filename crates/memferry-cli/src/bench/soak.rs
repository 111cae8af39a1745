//! `memferry bench soak`: a randomised stress test of the cache, of any duration.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use memferry::topology::{Machine, Node, NodeId};
use memferry_bench::cache::{Soak, SoakReport, soak};
use memferry_bench::harness::{Provenance, Record, Row};
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};

/// A stress test of the cache on a faulty emulated device. Checks every byte that is read, and at the end the results of
/// calls and the sums of all counters.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Duration; runs shorter than 600 seconds are recorded only with --out.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Seed of the threads' steps and of the device's faults. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of threads.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = threads)]
    threads: usize,
    #[command(flatten)]
    keep: Keep,
}

/// Shorter runs are not recorded by default: ten minutes find faults that one minute does not.
const RECORD_SECONDS_MIN: u64 = 600;
/// A year.
const SECONDS_MAX: u64 = 365 * 24 * 3600;
const THREADS_MAX: usize = 1024;

fn threads(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=THREADS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("a number of threads is from 1 to {THREADS_MAX}")),
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let Arguments { seconds, seed, threads, ref keep } = *arguments;
    let directory = keep.directory(seconds < RECORD_SECONDS_MIN)?;
    let options = json!({
        "seconds": seconds,
        "threads": threads,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("soak", Machine::discover()?, seed, options);
    let (machine, nodes) = two_nodes(&record.machine)?;
    let options = Soak { duration: Duration::from_secs(seconds), seed, threads_count: threads };
    record.rows = keep.telemetry().rows(|| {
        let report = soak(machine, nodes, options)
            .map_err(|error| anyhow!("the soak found a fault, please report it: {error}"))?;
        anyhow::Ok(rows(&report))
    })?;
    keep.finish(&record, directory, out)
}

/// The first and the last node with memory; made-up nodes on a machine with one node.
fn two_nodes(machine: &Machine) -> Result<(Arc<Machine>, [NodeId; 2])> {
    let usable = |node: &&Node| node.is_allowed && node.memory_bytes != Some(0);
    let with_memory = || machine.nodes().iter().filter(usable).map(|node| node.id);
    match (with_memory().min(), with_memory().max()) {
        (Some(first), Some(last)) if first != last => Ok((Arc::new(machine.clone()), [first, last])),
        _ => Ok((Arc::new(Machine::two_tiers()?), [NodeId(0), NodeId(1)])),
    }
}

/// Counts of the checked operations.
fn rows(report: &SoakReport) -> Vec<Row> {
    let stats = &report.stats;
    let counts = [
        ("soak_steps", report.steps_count),
        ("soak_checked_bytes", report.checked_bytes),
        ("soak_panics", report.panics_count),
        ("soak_forgotten", report.forgotten_count),
        ("soak_versions", report.versions_count),
        ("soak_rewrites", report.rewrites_count),
        ("soak_accesses", stats.accesses),
        ("soak_hits_ready", stats.hits_ready),
        ("soak_hits_in_flight", stats.hits_in_flight),
        ("soak_copies_arrived", stats.arrived),
        ("soak_copies_failed", stats.failed),
        ("soak_no_room", stats.no_room),
        ("soak_evictions", stats.evictions),
        ("soak_invalidated", stats.invalidated),
    ];
    let row = |(name, count): (&str, u64)| {
        let unit = if name.ends_with("_bytes") { "bytes" } else { "1" };
        Row::median(name.to_owned(), unit, Provenance::Emulated, &[count as f64])
    };
    counts.map(row).into()
}
