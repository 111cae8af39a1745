//! `memferry bench query`: TPC-H against plain DataFusion over the same batches; with `--machine`, the model's rows of a machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench_query::{QueryBenchmark, papers_two_nodes, tpch_on_domains};
use memferry_query::load::Progress;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::options::{scale, session_options};
use crate::progress::Bar;
use crate::query::query_error;
use crate::topology;

/// TPC-H against plain DataFusion: answers, times, techniques, memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The same measurements on little data with few pairs: checks that they work; not for records.
    #[arg(long)]
    quick: bool,
    /// TPC-H scale of the timed queries [default: 1; 0.01 with --quick].
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Pairs of runs for each query, at least 11 [default: 11; 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(11..=1001), conflicts_with = "quick")]
    pairs: Option<u16>,
    /// Only times these queries, such as q06 and paper; may be repeated. Summaries are then over them; answers and memory are left
    /// out.
    #[arg(long = "query", value_name = "NAME")]
    queries: Vec<String>,
    /// Compares with DuckDB and Polars in this Python, over tables of their own in memory; `cargo xtask setup` makes one.
    #[arg(long, value_name = "PYTHON")]
    peers: Option<PathBuf>,
    /// Seed of the emulated DSA's faults and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    /// Instead of measuring, models the papers' query with its columns on two nodes of this machine, and TPC-H queries over all of
    /// its domains: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["scale", "pairs", "seed", "calibration", "quick", "queries", "peers"])]
    machine: Option<String>,
    #[command(flatten)]
    keep: Keep,
    /// Does the work whose memory is measured, and prints the peak; `bench query` starts itself with this.
    #[arg(long, hide = true)]
    measure_rss: bool,
}

impl Arguments {
    fn scale(&self) -> f64 {
        self.scale.unwrap_or(if self.quick { 0.01 } else { 1.0 })
    }

    fn answers_scale(&self) -> f64 {
        if self.quick { 0.01 } else { 0.1 }
    }

    fn pairs(&self) -> usize {
        self.pairs.map_or(if self.quick { 2 } else { 11 }, usize::from)
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(profile) = &arguments.machine {
        return model(profile, &arguments.keep, out);
    }
    let machine = Arc::new(topology::open_calibrated(None, arguments.calibration.as_deref())?);
    let session = session_options(None);
    let (seed, pairs) = (arguments.seed, arguments.pairs());
    let options = json!({
        "quick": arguments.quick,
        "calibration": arguments.calibration,
        "scale": arguments.scale(),
        "answers_scale": arguments.answers_scale(),
        "pairs": pairs,
        "queries": arguments.queries,
        "partitions": session.partitions,
        "batch_rows": session.batch_rows,
        "profile": BUILD_PROFILE,
    });
    let new_bar = |what| -> Box<dyn Progress> { Box::new(Bar::new(what)) };
    let mut bench =
        QueryBenchmark::new(Arc::clone(&machine), session, seed, pairs, new_bar).map_err(query_error)?;
    if arguments.measure_rss {
        let bytes = bench.peak_memory_bytes(arguments.scale()).map_err(query_error)?;
        return Ok(writeln!(out, "{bytes}")?);
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    bench.queries.clone_from(&arguments.queries);
    bench.python.clone_from(&arguments.peers);
    let bench = bench.with_telemetry(arguments.keep.telemetry());
    let mut record: Record = start_record("query", machine.as_ref().clone(), seed, options);
    let is_whole = arguments.queries.is_empty();
    let mut differences = Vec::new();
    if is_whole {
        let answers = bench.answers(arguments.answers_scale()).map_err(query_error)?;
        record.rows.extend(answers.rows);
        differences = answers.differences;
    }
    record.rows.extend(bench.times(arguments.scale()).map_err(query_error)?);
    if is_whole {
        record.rows.push(rss_peak(arguments.scale())?);
    }

    arguments.keep.finish(&record, directory, out)?;
    if !differences.is_empty() {
        bail!("answers differ from plain DataFusion's, please report this: {}", differences.join("; "));
    }
    Ok(())
}

/// The rows of a machine that need not be here.
fn model(profile: &str, keep: &Keep, out: &mut dyn Write) -> Result<()> {
    let machine = Arc::new(topology::open(Some(profile))?);
    let directory = keep.directory(false)?;
    let options = json!({ "machine": profile, "profile": BUILD_PROFILE });
    // A record of its own, so that it does not replace a measured one.
    let mut record: Record = start_record("query-model", machine.as_ref().clone(), 0, options);
    record.rows = papers_two_nodes(&machine).map_err(query_error)?;
    let (rows, reasons) = tpch_on_domains(&machine).map_err(query_error)?;
    record.rows.extend(rows);
    if !keep.json {
        reasons.iter().try_for_each(|reason| writeln!(out, "{reason}"))?;
    }
    record.options["notes"] = json!(reasons);
    keep.finish(&record, directory, out)
}

/// Peak of resident memory, measured in a separate process.
fn rss_peak(scale: f64) -> Result<Row> {
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let output = Command::new(program)
        .args(["bench", "query", "--measure-rss", "--scale", &scale.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start this command again to measure memory")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Ok(bytes) = text.trim().parse::<f64>() else {
        bail!("measuring memory failed in a process of its own ({})", output.status);
    };
    Ok(Row::median("rss_peak_bytes".to_owned(), "bytes", Provenance::Measured, &[bytes]))
}
