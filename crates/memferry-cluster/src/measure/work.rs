//! `memferry-cluster work`: the bytes and the CPU time of each TPC-H query on clusters of processes on this machine. `memferry bench
//! cluster --machine` executes it, and predicts larger clusters from it.
//!
//! ```text
//! plans ─▶ columns of scans, their bytes in the files' tables
//! plans after execution ─▶ bytes of messages by exchange
//! /proc ─▶ CPU time of workers and of this process, which coordinates
//! ```
//!
//! The planner gets limits for broadcasts that fit the small tables, so that its plans are those of a large scale.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_distributed::{
    BytesCounterMetric, DistributedLeafExec, DistributedMetricsFormat, rewrite_distributed_plan_with_metrics,
};
use memferry_bench::model::cluster::{ClusterWork, ExchangeKind, ExchangeWork, QueryWork};
use memferry_bench_query::{tpch, tpch_file, tpch_files, tpch_table_names};

use super::median;
use super::workers::Workers;
use crate::description::SHARDS_PER_WORKER;
use crate::planning::PlanOptions;
use crate::scan::ShardScanExec;
use crate::shards::ShardKey;

/// Measures the work of TPC-H queries on clusters of this machine. Prints it as one JSON object.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkArguments {
    /// Larger scale of the TPC-H tables; the smaller one is a quarter of it.
    #[arg(long, value_name = "SCALE", default_value_t = 0.1)]
    tpch: f64,
    /// Runs of each query.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory of the Parquet files, which are written once.
    #[arg(long, value_name = "DIRECTORY")]
    files: Option<std::path::PathBuf>,
}

/// Numbers of workers.
const WORKERS: [usize; 2] = [2, 6];

/// The smaller scale, in parts of the larger.
const SMALLER: f64 = 0.25;

/// Rows of a table that is broadcast. At scale 1000, DataFusion's limit of 131072 rows leaves nation and region, with 25 and 5 rows:
/// all other tables have millions. Here, 32 rows leave the same two.
const BROADCAST_ROWS_MAX: usize = 32;

/// Bytes of such a table. Nation has 1200 in all columns; one column of supplier has 2000 at scale 0.025.
const BROADCAST_BYTES_MAX: usize = 1536;

/// Measures, and prints the result.
///
/// # Errors
/// A worker cannot be started, or a query fails.
pub fn work(arguments: &WorkArguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let work = runtime.block_on(measure(arguments))?;
    println!("{}", serde_json::to_string(&work)?);
    Ok(())
}

async fn measure(arguments: &WorkArguments) -> Result<ClusterWork> {
    let temporary = tempfile::tempdir().context("cannot make a directory for the tables")?;
    let directory = arguments.files.clone().unwrap_or_else(|| temporary.path().to_owned());
    let scales = [arguments.tpch * SMALLER, arguments.tpch];
    let [few, many] = WORKERS;
    let [small, large] =
        [Tables::new(scales[0], &directory).await?, Tables::new(scales[1], &directory).await?];
    let of_few = small.queries(few, arguments.rounds).await?;
    let of_small = small.queries(many, arguments.rounds).await?;
    let of_large = large.queries(many, arguments.rounds).await?;
    let mut queries = Vec::new();
    for (query, ((few, small), large)) in tpch::QUERIES.zip(of_few.into_iter().zip(of_small).zip(of_large)) {
        let kinds = |counted: &Counted| counted.sent.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        let is_same = kinds(&small) == kinds(&large);
        if !is_same {
            eprintln!(
                "note: query {query} has another plan at the smaller scale; its bytes count in proportion"
            );
        }
        let exchanges = large.sent.iter().enumerate().map(|(index, &(kind, bytes))| {
            let smaller = if is_same { small.sent[index].1 } else { bytes * SMALLER };
            ExchangeWork { kind, sent_bytes: [smaller, bytes] }
        });
        queries.push(QueryWork {
            query,
            scanned_bytes: [small.scanned_bytes, large.scanned_bytes],
            exchanges: exchanges.collect(),
            workers_cpu_s: [small.workers_cpu_s, large.workers_cpu_s],
            coordinator_cpu_s: [few.coordinator_cpu_s, small.coordinator_cpu_s],
        });
    }
    let shards = SHARDS_PER_WORKER * many;
    Ok(ClusterWork { scales, workers: WORKERS, shards, shard_skew: large.skew(shards)?, queries })
}

/// TPC-H tables of one scale.
struct Tables {
    scale: f64,
    files: std::path::PathBuf,
    /// Bytes of a column, by table and column.
    column_bytes: BTreeMap<(String, String), f64>,
    /// Keys of the largest table.
    keys: Vec<ArrayRef>,
}

/// What one query did.
#[derive(Debug)]
struct Counted {
    scanned_bytes: f64,
    sent: Vec<(ExchangeKind, f64)>,
    workers_cpu_s: f64,
    coordinator_cpu_s: f64,
}

impl Tables {
    async fn new(scale: f64, directory: &Path) -> Result<Tables> {
        let files = tpch_files(scale, directory, &())?;
        let context = SessionContext::new();
        let mut tables = Tables { scale, files, column_bytes: BTreeMap::new(), keys: Vec::new() };
        for table in tpch_table_names() {
            let location = tpch_file(&tables.files, table).display().to_string();
            let rows =
                context.read_parquet(&location, ParquetReadOptions::default()).await?.collect().await?;
            for batch in &rows {
                tables.add(table, batch);
            }
        }
        Ok(tables)
    }

    fn add(&mut self, table: &str, batch: &RecordBatch) {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            *self.column_bytes.entry((table.to_owned(), field.name().clone())).or_default() += bytes(column);
        }
        if table == LARGEST {
            self.keys.extend(batch.column_by_name(LARGEST_KEY).cloned());
        }
    }

    /// By how much the largest of so many shards exceeds the mean, in parts of the mean.
    fn skew(&self, shards: usize) -> Result<f64> {
        let key = ShardKey { column: LARGEST_KEY.to_owned(), bounds: None };
        let mut rows = vec![0_usize; shards];
        for keys in &self.keys {
            key.shards(keys, shards)?.into_iter().for_each(|shard| rows[shard] += 1);
        }
        let mean = rows.iter().sum::<usize>() as f64 / shards as f64;
        Ok(rows.into_iter().max().unwrap_or(0) as f64 / mean - 1.0)
    }

    /// Runs all queries on a cluster of so many workers.
    async fn queries(&self, workers: usize, rounds: u32) -> Result<Vec<Counted>> {
        let workers = Workers::all_sharded(workers, &self.files).await?;
        let cluster = workers.cluster_with(PlanOptions {
            broadcast_max: Some((BROADCAST_ROWS_MAX, BROADCAST_BYTES_MAX)),
            are_tasks_counted: true,
            ..PlanOptions::default()
        })?;
        let mut all = Vec::new();
        for number in tpch::QUERIES {
            let sql = tpch::query(number, self.scale);
            // The first run makes connections.
            cluster.query(&sql).await?.collect().await?;
            let (mut of_coordinator, mut of_workers) = (Vec::new(), Vec::new());
            let mut plan = None;
            for _ in 0..rounds {
                let before = (cpu_s("self")?, workers_cpu_s(&workers)?);
                let answer = cluster.query(&sql).await?;
                plan = Some(answer.physical_plan());
                answer.collect().await?;
                // A thread that has ended meanwhile takes its time away.
                of_coordinator.push((cpu_s("self")? - before.0).max(0.0));
                of_workers.push((workers_cpu_s(&workers)? - before.1).max(0.0));
            }
            let plan = plan.context("a query runs at least once")?;
            all.push(Counted {
                scanned_bytes: self.scanned_bytes(&plan),
                sent: sent(
                    &rewrite_distributed_plan_with_metrics(plan, DistributedMetricsFormat::Aggregated)
                        .await?,
                ),
                coordinator_cpu_s: median(&mut of_coordinator),
                workers_cpu_s: median(&mut of_workers),
            });
        }
        Ok(all)
    }

    /// Bytes of the columns that the scans of a plan put out or filter by, of all rows.
    fn scanned_bytes(&self, plan: &Arc<dyn ExecutionPlan>) -> f64 {
        let leaf = plan.downcast_ref::<DistributedLeafExec>().map(DistributedLeafExec::original);
        if let Some(scan) = leaf.unwrap_or(plan).downcast_ref::<ShardScanExec>() {
            let read = scan.read();
            let mut columns: Vec<usize> = read.projection.clone();
            let filtered = read.predicate.iter().flat_map(collect_columns);
            columns.extend(filtered.map(|column| column.index()));
            columns.sort_unstable();
            columns.dedup();
            let name = |&column: &usize| (read.table.clone(), read.schema.field(column).name().clone());
            return columns.iter().filter_map(|column| self.column_bytes.get(&name(column))).sum();
        }
        plan.children().into_iter().map(|child| self.scanned_bytes(child)).sum()
    }
}

/// The table whose shards are compared, and its key.
const LARGEST: &str = "lineitem";
const LARGEST_KEY: &str = "l_orderkey";

/// Bytes of a column in memory, without unused capacity.
fn bytes(column: &ArrayRef) -> f64 {
    let long = |length: usize| if length > INLINE_MAX { length } else { 0 };
    let of_views = |lengths: &mut dyn Iterator<Item = usize>| {
        lengths.map(|length| VIEW_BYTES + long(length)).sum::<usize>()
    };
    let bytes = match column.data_type() {
        DataType::Utf8View => {
            of_views(&mut column.as_string_view().iter().map(|text| text.map_or(0, str::len)))
        }
        DataType::Utf8 => {
            of_views(&mut column.as_string::<i32>().iter().map(|text| text.map_or(0, str::len)))
        }
        _ => column.to_data().get_slice_memory_size().unwrap_or(0),
    };
    bytes as f64
}

/// Bytes of a string view, and of the longest string inside it. Source: Arrow's columnar format, variable-size binary view.
const VIEW_BYTES: usize = 16;
const INLINE_MAX: usize = 12;

/// Exchanges of an executed plan, with the bytes of their messages.
fn sent(plan: &Arc<dyn ExecutionPlan>) -> Vec<(ExchangeKind, f64)> {
    let mut all = Vec::new();
    let kind = match plan.name() {
        "NetworkShuffleExec" => Some(ExchangeKind::Shuffle),
        "NetworkBroadcastExec" => Some(ExchangeKind::Broadcast),
        "NetworkCoalesceExec" => Some(ExchangeKind::Gather),
        _ => None,
    };
    if let Some(kind) = kind {
        let metrics = plan.metrics().unwrap_or_default();
        let bytes = metrics.iter().filter_map(|metric| match metric.value() {
            MetricValue::Custom { name, value } if name == "bytes_transferred" => {
                value.as_any().downcast_ref::<BytesCounterMetric>().map(BytesCounterMetric::value)
            }
            _ => None,
        });
        all.push((kind, bytes.sum::<usize>() as f64));
    }
    plan.children().into_iter().for_each(|child| all.extend(sent(child)));
    all
}

fn workers_cpu_s(workers: &Workers) -> Result<f64> {
    workers.processes().map(|process| cpu_s(&process.to_string())).sum()
}

/// Seconds that the threads of a process ran: the first number of `schedstat`, in nanoseconds.
///
/// Source: Linux, Documentation/scheduler/sched-stats.rst.
fn cpu_s(process: &str) -> Result<f64> {
    let directory = format!("/proc/{process}/task");
    let mut ns = 0_u64;
    for thread in fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))? {
        // A thread may end meanwhile.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        ns += text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    ensure!(ns > 0, "{directory} has no CPU times; the kernel needs CONFIG_SCHED_INFO");
    Ok(ns as f64 * 1e-9)
}
