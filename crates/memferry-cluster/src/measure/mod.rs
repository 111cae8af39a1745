//! `memferry-cluster measure`: clusters of processes on this machine, beside one process. `memferry bench cluster` executes it and
//! keeps the record.
//!
//! ```text
//! 1, 3, 5 workers ─▶ 22 answers each, compared with those of one process
//! 3 workers       ─▶ times beside one process on the same CPUs; bytes that workers send each other
//! 3 workers       ─▶ times to the first rows with and without announcement; bytes read with and without dynamic filters
//! 3 workers       ─▶ kill -9 of one at a random moment of a random query, again and again, over small tables
//! ```

mod work;
mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use memferry::topology::Machine;
use memferry_bench::harness::Random;
use memferry_bench_query::{answers_equal, tpch, tpch_file, tpch_files, tpch_table_names};
use memferry_query::load::from_plan;
use memferry_query::{Layout, SessionOptions, TieredTable, Tiers, session};
use serde::Serialize;

pub use self::work::{WorkArguments, work};
use self::workers::Workers;
pub use self::workers::free_addresses;
use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::planning::PlanOptions;

/// Clusters of processes on this machine beside one process. Prints counts, times and bytes as one JSON object.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Scale of the TPC-H tables; workers are killed over tables of at most 0.1.
    #[arg(long, value_name = "SCALE", default_value_t = 0.01)]
    tpch: f64,
    /// Runs of each query that are timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Workers that are killed.
    #[arg(long, value_name = "N", default_value_t = 100)]
    kills: u32,
    /// Seed of the queries and moments of kills. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory of the Parquet files, which are written once.
    #[arg(long, value_name = "DIRECTORY")]
    files: Option<PathBuf>,
}

/// Numbers of workers whose answers are compared.
const SIZES: [usize; 3] = [1, 3, 5];

/// Scale of the tables of workers that are killed, at most: one that is started again loads them.
const KILLED_SCALE_MAX: f64 = 0.1;

/// Workers of the timed and the killed cluster.
const WORKERS: usize = 3;

/// Queries whose joins find filters for their scans.
const FILTERED: [usize; 3] = [3, 5, 17];

/// A query whose rows come while the large table is read, when a small one has been received by all workers.
const STREAMED: &str = "SELECT l_orderkey, l_comment, p_name FROM lineitem LEFT JOIN part ON l_partkey = p_partkey \
                        WHERE l_comment LIKE '%furiously%'";

/// Least number of pairs of runs of [`STREAMED`].
const FIRST_BATCH_ROUNDS_MIN: u32 = 5;

/// Time after which the scans of a query that has ended are counted.
const SETTLED: Duration = Duration::from_millis(300);

/// No query may take longer, whatever happens to a worker.
const LIMIT: Duration = Duration::from_secs(10);

/// Counts, bytes and times of a run.
#[derive(Debug, Default, Serialize)]
struct Measured {
    /// Answers that were compared, and those that were equal to one process's.
    answers: u32,
    answers_equal: u32,
    /// Geometric mean over the queries of the median time of three workers, divided by that of one process.
    overhead: f64,
    /// Decoded bytes that the three workers received from each other in one run of all queries.
    shuffled_bytes: f64,
    /// Median time to the first rows, over the queries; and of plans that workers do not begin to read when they arrive.
    seconds_first_rows: f64,
    seconds_first_rows_unannounced: f64,
    /// Median time to the first batch of [`STREAMED`].
    seconds_first_batch: f64,
    seconds_first_batch_unannounced: f64,
    /// Of each query: its median time on three workers and in one process, and decoded bytes that the workers received from each
    /// other. Of each query of [`FILTERED`]: bytes of columns that workers read, and of batches that they received from each
    /// other; without dynamic filters, too. Dynamic filters that scans were given, and those that change there.
    #[serde(flatten)]
    queries: BTreeMap<String, f64>,
    kills: u32,
    /// Kills after which the answer was right, or an error named a worker, in time.
    kills_survived: u32,
    /// Kills after which the answer was right.
    kills_answered: u32,
    /// Of them, those whose query was planned again.
    kills_planned_again: u32,
    seconds_killed_max: f64,
}

/// Measures, and prints the result.
///
/// # Errors
/// A worker cannot be started, or a query fails without an accident.
pub fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads")?;
    let measured = runtime.block_on(measure(arguments))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

async fn measure(arguments: &Arguments) -> Result<Measured> {
    let temporary = tempfile::tempdir().context("cannot make a directory for the tables")?;
    let directory = arguments.files.clone().unwrap_or_else(|| temporary.path().to_owned());
    let files = tpch_files(arguments.tpch, &directory, &())?;
    let alone = Alone::open(&files, arguments.tpch).await?;
    let mut measured = Measured::default();
    for size in SIZES {
        let workers = Workers::start(size, &files).await?;
        for (sql, expected) in &alone.queries {
            measured.answers += 1;
            match workers.cluster().query_whole(sql).await {
                Ok(answer) => {
                    let equal = answers_equal(&answer.collect().await?, expected);
                    measured.answers_equal += u32::from(equal.is_ok());
                    equal.unwrap_or_else(|error| eprintln!("{size} workers: {sql}: {error}"));
                }
                Err(error) => eprintln!("{size} workers: {sql}: {error}"),
            }
        }
    }
    let mut workers = Workers::start(WORKERS, &files).await?;
    measure_filters(&alone, &workers, &mut measured).await?;
    time(&alone, &workers, arguments.rounds, &mut measured).await?;
    if arguments.kills == 0 {
        return Ok(measured);
    }
    if arguments.tpch <= KILLED_SCALE_MAX {
        kill(&alone, &mut workers, arguments, &mut measured).await?;
    } else {
        drop((alone, workers));
        let files = tpch_files(KILLED_SCALE_MAX, &directory, &())?;
        let alone = Alone::open(&files, KILLED_SCALE_MAX).await?;
        kill(&alone, &mut Workers::start(WORKERS, &files).await?, arguments, &mut measured).await?;
    }
    Ok(measured)
}

/// One process with all tables in its memory, and its answers.
struct Alone {
    context: SessionContext,
    queries: Vec<(String, Vec<RecordBatch>)>,
}

impl Alone {
    async fn open(files: &std::path::Path, scale: f64) -> Result<Alone> {
        let tiers = Tiers::builder(Arc::new(Machine::discover()?)).build()?;
        let context = session(&SessionOptions::default());
        let layout = Layout::new(Arc::clone(tiers.machine()), tiers.home());
        for table in tpch_table_names() {
            let location = tpch_file(files, table).display().to_string();
            let plan = context.read_parquet(&location, ParquetReadOptions::default()).await?;
            let plan = plan.create_physical_plan().await?;
            let data = from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await?;
            let table_provider = TieredTable::try_new(Arc::new(data), Arc::clone(&tiers))?;
            context.register_table(table, Arc::new(table_provider))?;
        }
        let mut queries = Vec::new();
        for number in tpch::QUERIES {
            let sql = tpch::query(number, scale);
            let rows = context.sql(&sql).await?.collect().await?;
            queries.push((sql, rows));
        }
        Ok(Alone { context, queries })
    }
}

/// Times each query in turns, alone and on the cluster.
async fn time(alone: &Alone, workers: &Workers, rounds: u32, measured: &mut Measured) -> Result<()> {
    let cluster = workers.cluster();
    let unannounced = workers.cluster_with(PlanOptions { announce: false, ..PlanOptions::default() })?;
    let (mut ratios, mut first_rows) = (0.0, [Vec::new(), Vec::new()]);
    for (number, (sql, _)) in tpch::QUERIES.zip(&alone.queries) {
        let (mut of_one, mut of_cluster, mut shuffled) = (Vec::new(), Vec::new(), 0.0);
        for round in 0..rounds {
            if round % 2 == 0 {
                first_rows[1].push(time_to_rows(&unannounced, sql).await?.as_secs_f64());
            }
            let began = Instant::now();
            alone.context.sql(sql).await?.collect().await?;
            of_one.push(began.elapsed().as_secs_f64());
            let (_, before) = workers.bytes(cluster).await?;
            let began = Instant::now();
            let answer = cluster.query(sql).await?;
            first_rows[0].push(began.elapsed().as_secs_f64());
            answer.collect().await?;
            of_cluster.push(began.elapsed().as_secs_f64());
            shuffled += workers.bytes(cluster).await?.1.saturating_sub(before) as f64;
            if round % 2 == 1 {
                first_rows[1].push(time_to_rows(&unannounced, sql).await?.as_secs_f64());
            }
        }
        let (one, of_cluster) = (median(&mut of_one), median(&mut of_cluster));
        ratios += (of_cluster / one).ln();
        let shuffled = shuffled / f64::from(rounds);
        measured.shuffled_bytes += shuffled;
        measured.queries.insert(format!("seconds_q{number}"), of_cluster);
        measured.queries.insert(format!("seconds_q{number}_one_process"), one);
        measured.queries.insert(format!("q{number}_shuffled_bytes"), shuffled);
    }
    measured.overhead = (ratios / alone.queries.len() as f64).exp();
    measured.seconds_first_rows = median(&mut first_rows[0]);
    measured.seconds_first_rows_unannounced = median(&mut first_rows[1]);
    // In turns, as A B B A.
    let mut first_batch = [Vec::new(), Vec::new()];
    for round in 0..2 * rounds.max(FIRST_BATCH_ROUNDS_MIN) {
        for turn in 0..2 {
            let which = ((round + turn) % 2) as usize;
            let cluster = [cluster.as_ref(), &unannounced][which];
            first_batch[which].push(time_to_rows(cluster, STREAMED).await?.as_secs_f64());
        }
    }
    measured.seconds_first_batch = median(&mut first_batch[0]);
    measured.seconds_first_batch_unannounced = median(&mut first_batch[1]);
    Ok(())
}

/// Time to the first rows of a query that runs to its end.
async fn time_to_rows(cluster: &Cluster, sql: &str) -> Result<Duration> {
    let began = Instant::now();
    let answer = cluster.query(sql).await?;
    let first_rows = began.elapsed();
    answer.collect().await?;
    Ok(first_rows)
}

/// Bytes that workers read and receive with and without dynamic filters.
async fn measure_filters(alone: &Alone, workers: &Workers, measured: &mut Measured) -> Result<()> {
    let unfiltered =
        workers.cluster_with(PlanOptions { dynamic_filters: false, ..PlanOptions::default() })?;
    for number in FILTERED {
        let (sql, _) = &alone.queries[number - 1];
        for (cluster, name) in [(workers.cluster().as_ref(), ""), (&unfiltered, "unfiltered_")] {
            let (read_before, received_before) = workers.bytes(cluster).await?;
            let answer = cluster.query(sql).await?;
            let filters = answer.dynamic_filters();
            answer.collect().await?;
            tokio::time::sleep(SETTLED).await;
            let (read, received) = workers.bytes(cluster).await?;
            let mut add = |what: &str, value: f64| {
                measured.queries.insert(format!("q{number}_{name}{what}"), value);
            };
            add("read_bytes", read.saturating_sub(read_before) as f64);
            add("received_bytes", received.saturating_sub(received_before) as f64);
            if name.is_empty() {
                add("filters_given", filters.given as f64);
                add("filters_in_stage", filters.in_stage as f64);
            }
        }
    }
    Ok(())
}

/// Kills a worker at a random moment of a random query, and starts it again.
async fn kill(
    alone: &Alone,
    workers: &mut Workers,
    arguments: &Arguments,
    measured: &mut Measured,
) -> Result<()> {
    let mut times = Vec::new();
    for (sql, _) in &alone.queries {
        let run = async || workers.cluster().query(sql).await?.collect().await;
        // The first run makes connections, and is not timed.
        run().await?;
        let began = Instant::now();
        run().await?;
        times.push(began.elapsed());
    }
    let mut random = Random(arguments.seed);
    for _ in 0..arguments.kills {
        let query = random.below(alone.queries.len());
        let (sql, expected) = &alone.queries[query];
        let moment = times[query].mul_f64(random.unit());
        let victim = random.below(WORKERS);
        let began = Instant::now();
        let answer = {
            let cluster = workers.cluster().clone();
            let sql = sql.clone();
            tokio::spawn(async move { cluster.query_whole(&sql).await })
        };
        tokio::time::sleep(moment).await;
        workers.kill(victim).await?;
        let answer = answer.await.context("a query has panicked")?;
        let elapsed = began.elapsed();
        measured.kills += 1;
        measured.seconds_killed_max = measured.seconds_killed_max.max(elapsed.as_secs_f64());
        let survived = match answer {
            Ok(answer) => {
                let again = answer.plans() > 1;
                let right = answers_equal(&answer.collect().await?, expected);
                measured.kills_answered += u32::from(right.is_ok());
                measured.kills_planned_again += u32::from(right.is_ok() && again);
                right.map_err(|error| error.to_string())
            }
            Err(ClusterError::Lost { .. } | ClusterError::Partial(_) | ClusterError::Worker { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        measured.kills_survived += u32::from(survived.is_ok() && elapsed < LIMIT);
        survived.unwrap_or_else(|error| eprintln!("query {}: {error}", query + 1));
        workers.start_again(victim).await?;
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
