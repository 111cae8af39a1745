//! `memferry bench workload`: TPC-H by several sessions at once over files, beside plain DataFusion.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use memferry_bench::harness::Record;
use memferry_bench_query::WorkloadBenchmark;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::options::{scale, session_options, size_bytes};
use crate::progress::Bar;
use crate::query::{files_directory, query_error, write_tpch};
use crate::topology;

/// TPC-H by several sessions at once in random order, over files of which memory keeps half, beside plain DataFusion.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The same on little data for seconds: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// TPC-H scale of the files [default: 1; 0.01 with --quick].
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Time of each of the three ways [default: 600; 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    seconds: Option<u32>,
    /// Time of a part before, in which queries are cancelled, a table changes and reads fail; 0: none [default: 120; 2 with
    /// --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=SECONDS_MAX))]
    disturbed_seconds: Option<u32>,
    /// Sessions that run queries at the same time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    sessions: u16,
    /// Memory for stored and decoded columns, such as 512MiB [default: half of what all queries use].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    budget: Option<u64>,
    /// Directory of the files, on a disk; they are written if they are missing [default: as `memferry demo`].
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Seed of the orders of queries, and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// A week.
const SECONDS_MAX: i64 = 7 * 24 * 3600;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let (default_scale, default_seconds, default_disturbed) =
        if arguments.quick { (0.01, 2, 2) } else { (1.0, 600, 120) };
    let scale = arguments.scale.unwrap_or(default_scale);
    let seconds = arguments.seconds.unwrap_or(default_seconds);
    let disturbed_seconds = arguments.disturbed_seconds.unwrap_or(default_disturbed);
    let directory = arguments.keep.directory(arguments.quick)?;
    let machine = Arc::new(topology::open_calibrated(None, None)?);
    let session = session_options(None);
    let options = json!({
        "quick": arguments.quick,
        "scale": scale,
        "seconds": seconds,
        "disturbed_seconds": disturbed_seconds,
        "sessions": arguments.sessions,
        "budget_bytes": arguments.budget,
        "partitions": session.partitions,
        "batch_rows": session.batch_rows,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("workload", machine.as_ref().clone(), arguments.seed, options);
    let tpch = write_tpch(scale, &files_directory(arguments.files.as_deref())?)?;
    let mut bench = WorkloadBenchmark::new(machine, tpch, scale, session).map_err(query_error)?;
    bench.seed = arguments.seed;
    bench.time = Duration::from_secs(u64::from(seconds));
    bench.disturbed_time = Duration::from_secs(u64::from(disturbed_seconds));
    if arguments.quick {
        // A query over little data makes a few reads.
        bench.fails_one_of = 25;
    }
    bench.sessions_count = usize::from(arguments.sessions);
    bench.sections_per_fifth = if arguments.quick { 1 } else { 2 };
    bench.budget_bytes = arguments.budget;
    let telemetry = arguments.keep.telemetry();
    record.rows = telemetry.rows(|| bench.rows(&Bar::new("running sessions"))).map_err(query_error)?;
    arguments.keep.finish(&record, directory, out)
}
