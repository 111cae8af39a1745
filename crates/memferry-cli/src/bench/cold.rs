//! `memferry bench cold`: TPC-H over Parquet files that no memory holds yet, beside plain DataFusion and other engines.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use memferry_bench::harness::Record;
use memferry_bench_query::{ColdBenchmark, WIDE_ROWS, tpch_directory, wide_files};
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::options::{scale, session_options};
use crate::progress::Bar;
use crate::query::{files_directory, query_error, write_tpch};
use crate::topology;

/// The scale whose rows and record have names of their own.
const LARGE_SCALE: f64 = 10.0;

/// TPC-H over cold Parquet files, against plain DataFusion and other engines.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The same measurements on little data with few rounds: checks that they work; not for records.
    #[arg(long)]
    quick: bool,
    /// TPC-H scale of the files [default: 3; 0.01 with --quick]. At 10, the record is called cold-sf10, its rows
    /// `cold_sf10_*`, and nothing is loaded.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Rounds of runs for each query [default: 15; 1 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1001), conflicts_with = "quick")]
    rounds: Option<u16>,
    /// Only these queries, such as q06, and parts: first_query, load_lineitem; may be repeated. Summaries are then over
    /// them.
    #[arg(long = "query", value_name = "NAME")]
    queries: Vec<String>,
    /// Measures instead filters in the decoder: q06, and 40 queries over a table of 100 columns (1.8 GB on the disk).
    #[arg(long, conflicts_with = "peers")]
    pushdown: bool,
    /// Measures instead the gain of a calibration of the storage (memferry calibrate --storage DIR --out FILE): each query with it,
    /// without it, and in plain DataFusion.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["peers", "pushdown"])]
    calibration: Option<String>,
    /// Compares with DuckDB, Polars and pyarrow in this Python; `cargo xtask setup` makes one.
    #[arg(long, value_name = "PYTHON")]
    peers: Option<PathBuf>,
    /// Directory of the files, on a disk; they are written if they are missing [default: as `memferry demo`].
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let scale = arguments.scale.unwrap_or(if arguments.quick { 0.01 } else { 3.0 });
    let rounds = arguments.rounds.map_or(if arguments.quick { 1 } else { 15 }, usize::from);
    let directory = arguments.keep.directory(arguments.quick)?;
    let machine = Arc::new(topology::open_calibrated(None, arguments.calibration.as_deref())?);
    let session = session_options(None);
    let options = json!({
        "quick": arguments.quick,
        "scale": scale,
        "rounds": rounds,
        "queries": arguments.queries,
        "pushdown": arguments.pushdown,
        "calibration": arguments.calibration,
        "partitions": session.partitions,
        "batch_rows": session.batch_rows,
        "profile": BUILD_PROFILE,
    });
    // Other work than that of the default has a record of its own.
    let bench = match (arguments.pushdown, arguments.calibration.is_some()) {
        (true, _) => "cold-pushdown",
        (_, true) => "cold-calibrated",
        _ if scale == LARGE_SCALE => "cold-sf10",
        _ => "cold",
    };
    let mut record: Record = start_record(bench, machine.as_ref().clone(), arguments.seed, options);
    let files = files_directory(arguments.files.as_deref())?;
    let mut benchmark =
        ColdBenchmark::new(machine, tpch_directory(scale, &files), scale, session).map_err(query_error)?;
    benchmark.seed = arguments.seed;
    benchmark.rounds_count = rounds;
    benchmark.queries = arguments.queries.clone();
    benchmark.program = Some(std::env::current_exe().context("cannot find this program to start it again")?);
    benchmark.python = arguments.peers.clone();
    benchmark.telemetry = arguments.keep.telemetry();
    benchmark.check_queries(arguments.pushdown).map_err(query_error)?;
    write_tpch(scale, &files)?;
    let rows = if arguments.pushdown {
        let rows = if arguments.quick { WIDE_ROWS / 100 } else { WIDE_ROWS };
        let wide = wide_files(rows, &files, &Bar::new("writing the wide table"));
        let wide = wide.map_err(|error| query_error(error.into()))?;
        benchmark.pushdown_rows(&wide, rows, &Bar::new("timing filters"))
    } else if arguments.calibration.is_some() {
        benchmark.calibrated_rows(&Bar::new("timing queries"))
    } else {
        benchmark.rows(&Bar::new("timing queries"))
    };
    record.rows = rows.map_err(query_error)?;
    if bench == "cold-sf10" {
        for row in &mut record.rows {
            if row.name != "disk_bytes_per_s" {
                row.name = format!("cold_sf10_{}", row.name.trim_start_matches("cold_"));
            }
        }
    }
    arguments.keep.finish(&record, directory, out)
}
