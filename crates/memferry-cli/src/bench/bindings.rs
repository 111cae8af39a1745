//! `memferry bench bindings`: the cost of a hit in C and Python, over that in Rust, and of a query in Python.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, anyhow};
use memferry::topology::Machine;
use memferry_bench::bindings::Python;
use memferry_bench::cache::Size;
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench::telemetry::beside;
use memferry_bench::{bindings, harness};
use memferry_query::{SessionOptions, session};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{BUILD_PROFILE, Keep, start_record};

/// A cache hit by the installed C library beside one in Rust, and the Python package. Needs a C compiler.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where `cargo xtask install-c` installed the C library, with the build profile of this command.
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// A Python with the package `memferry` of the same build profile: a hit there, and a query beside one of this command.
    #[arg(long, value_name = "PYTHON")]
    python: Option<PathBuf>,
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of the keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// A query whose time is mostly planning, so that the overhead shows.
const QUERY: &str = "select sum(value) from range(1, 1000) where value % 7 = 3";

/// Pairs of queries in a round.
const QUERIES_COUNT: usize = 20;

fn explain_python(error: Box<dyn std::error::Error>) -> anyhow::Error {
    anyhow!("the Python package cannot be measured: {error}")
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let size = if arguments.quick { Size::QUICK } else { Size::FULL };
    let options = json!({ "quick": arguments.quick, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("bindings", Machine::discover()?, arguments.seed, options);
    let prefix = std::path::absolute(&arguments.prefix)?;
    let telemetry = arguments.keep.telemetry();
    let (times, counts) = telemetry.watch(|| bindings::hits(size, arguments.seed, &prefix));
    let times = times.map_err(|error| anyhow!("the C library cannot be measured: {error}"))?;
    let median =
        |name: &str, values: &[f64]| Row::median(name.to_owned(), "ns", Provenance::Measured, values);
    let mut rows = Vec::new();
    for (c, c_ns) in [("c", &times.shared_ns), ("c_static", &times.static_ns)] {
        rows.push(median(&format!("{c}_hit_overhead_ns"), &times.overhead_ns(c_ns)));
        rows.push(median(&format!("{c}_hit_ns"), c_ns).beside("Rust", harness::median(&times.rust_ns)));
    }
    record.rows = beside(rows, counts);
    let in_python = |python: &PathBuf| {
        let mut hits_ns = Vec::new();
        let mut overheads_us = Vec::new();
        let mut process = Python::start(python, size, arguments.seed).map_err(explain_python)?;
        let runtime = Runtime::new()?;
        let context = session(&SessionOptions::default());
        for _ in 0..size.rounds_count {
            hits_ns.push(process.hit_ns().map_err(explain_python)?);
            // A pair each, because a query is short.
            for _ in 0..QUERIES_COUNT {
                let python_us = process.query_us(QUERY).map_err(explain_python)?;
                let started = Instant::now();
                runtime.block_on(async { context.sql(QUERY).await?.collect().await })?;
                overheads_us.push(python_us - started.elapsed().as_secs_f64() * 1e6);
            }
        }
        let hit = median("python_hit_ns", &hits_ns).beside("Rust", harness::median(&times.rust_ns));
        let overhead = "python_sql_overhead_us".to_owned();
        anyhow::Ok(vec![hit, Row::median(overhead, "us", Provenance::Measured, &overheads_us)])
    };
    if let Some(python) = &arguments.python {
        record.rows.extend(telemetry.rows(|| in_python(python))?);
    }
    arguments.keep.finish(&record, directory, out)
}
