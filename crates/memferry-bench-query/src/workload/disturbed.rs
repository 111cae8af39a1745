//! The same workload beside everything that goes wrong: cancelled queries, files that are replaced, reads that fail.
//!
//! A query that is neither cancelled nor hit by one of them answers right. One that is hit says which file it was. Afterwards
//! all queries answer right again.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datafusion::prelude::SessionContext;
use memferry::internals::DiskFaults;
use memferry::mover::{StorageEngine, StorageOptions};
use memferry_bench::harness::{Provenance, Random, Row, median};
use memferry_query::Tiers;
use memferry_query::files::FileError;

use super::sections::{self, Expected, Order, Run};
use super::{FIFTHS, WorkloadBenchmark};
use crate::{QueryError, tpch_file, tpch_table_names};

/// Of so many queries one is cancelled.
const CANCELLED_ONE_OF: usize = 8;
/// Of so many reads of the disk one fails.
const FAILS_ONE_OF: u64 = 5000;
/// Tables whose files are replaced: small ones, so that a copy takes no time that counts.
const REPLACED: [&str; 3] = ["customer", "nation", "supplier"];

/// A disk of which some reads fail, while it is told so.
#[derive(Debug, Default)]
struct FailingDisk {
    is_failing: AtomicBool,
    reads: AtomicU64,
}

impl DiskFaults for FailingDisk {
    fn result(&self, _offset: u64, _size_bytes: usize, result: i32) -> i32 {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let fails = self.is_failing.load(Ordering::Relaxed) && number % FAILS_ONE_OF == FAILS_ONE_OF - 1;
        if fails { -libc::EIO } else { result }
    }
}

/// The time of the run.
#[derive(Clone, Copy)]
struct Span {
    begin: Instant,
    time: Duration,
}

impl Span {
    fn is_over(self) -> bool {
        self.begin.elapsed() >= self.time
    }

    /// The fifth that it is now.
    fn fifth(self) -> usize {
        (FIFTHS as f64 * self.begin.elapsed().div_duration_f64(self.time)) as usize
    }
}

/// What became of the queries.
#[derive(Default)]
struct Outcomes {
    runs: Vec<Run>,
    cancelled: u64,
    changed: u64,
    failed_reads: u64,
}

impl WorkloadBenchmark {
    /// Rows of the disturbed workload, for the time of one way. `times_ms` has plain DataFusion's median time of each query.
    pub(super) fn disturbed(
        &self,
        expected: &Arc<Expected>,
        budget_bytes: u64,
        times_ms: HashMap<usize, f64>,
    ) -> Result<Vec<Row>, QueryError> {
        let parent = self.files.parent().unwrap_or(Path::new("."));
        let directory =
            tempfile::Builder::new().prefix("disturbed-").tempdir_in(parent).map_err(not_written)?;
        for table in tpch_table_names() {
            let (from, to) = (tpch_file(&self.files, table), tpch_file(directory.path(), table));
            let linked = !REPLACED.contains(&table) && fs::hard_link(&from, &to).is_ok();
            if !linked {
                fs::copy(from, to).map_err(not_written)?;
            }
        }
        let disk = Arc::new(FailingDisk::default());
        let engine = StorageEngine::with_faults(StorageOptions::default(), Arc::clone(&disk) as _)?;
        let tiers = Tiers::builder(Arc::clone(&self.machine)).budget_bytes(Some(budget_bytes));
        let tiers = tiers.engine(Arc::new(engine)).build()?;
        let contexts = (0..self.sessions_count)
            .map(|_| self.our_session(&tiers, true, directory.path()))
            .collect::<Result<Vec<_>, _>>()?;
        disk.is_failing.store(true, Ordering::Relaxed);
        let span = Span { begin: Instant::now(), time: self.time };
        let times_ms = Arc::new(times_ms);
        let replacing = {
            let directory = directory.path().to_owned();
            std::thread::spawn(move || replace_during(span, &directory))
        };
        let tasks: Vec<_> = contexts
            .iter()
            .enumerate()
            .map(|(session, context)| {
                let (random, order) = (Random(self.seed ^ session as u64), Order::new(self.seed, session));
                let session = Session { context: context.clone(), number: session, order, random };
                self.runtime.spawn(session.run_during(span, Arc::clone(expected), Arc::clone(&times_ms)))
            })
            .collect();
        let results: Vec<_> = tasks.into_iter().map(|task| self.runtime.block_on(task)).collect();
        let replaced_count = replacing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let replaced_count = replaced_count.map_err(not_written)?;
        disk.is_failing.store(false, Ordering::Relaxed);
        let mut all = Outcomes::default();
        for result in results {
            let own = result.map_err(|error| {
                QueryError::Invalid(format!("a session failed: {error}; please report this"))
            })??;
            all.runs.extend(own.runs);
            all.cancelled += own.cancelled;
            all.changed += own.changed;
            all.failed_reads += own.failed_reads;
        }
        for query in 0..expected.queries.len() {
            self.runtime.block_on(sections::run(
                &contexts[0],
                expected,
                query,
                "memferry, after disturbances",
            ))?;
        }
        sections::check_budget("memferry, disturbed", &tiers)?;
        Ok(rows(&all, replaced_count, &times_ms))
    }
}

fn not_written(error: std::io::Error) -> QueryError {
    QueryError::Invalid(format!(
        "files for the disturbed workload cannot be written: {error}; choose --files DIR with room"
    ))
}

/// Replaces files by equal ones, each as a whole. Returns how often.
fn replace_during(span: Span, directory: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for table in REPLACED.iter().cycle() {
        // Fast enough that a short run has some, and slow enough that entries of the cache are used.
        std::thread::sleep(Duration::from_millis(200).min(span.time.saturating_sub(span.begin.elapsed())));
        if span.is_over() {
            break;
        }
        let file = tpch_file(directory, table);
        let new: PathBuf = file.with_extension("new");
        fs::copy(&file, &new)?;
        fs::rename(new, file)?;
        count += 1;
    }
    Ok(count)
}

/// A session and its queries, in the order of an undisturbed one.
struct Session {
    context: SessionContext,
    number: usize,
    order: Order,
    random: Random,
}

impl Session {
    async fn run_during(
        mut self,
        span: Span,
        expected: Arc<Expected>,
        times_ms: Arc<HashMap<usize, f64>>,
    ) -> Result<Outcomes, QueryError> {
        let mut outcomes = Outcomes::default();
        while !span.is_over() {
            let (query, position) = self.order.next(expected.queries.len());
            let run = sections::run(&self.context, &expected, query, "memferry, disturbed");
            let Ok(outcome) = tokio::time::timeout(self.limit(times_ms.get(&query)), run).await else {
                outcomes.cancelled += 1;
                continue;
            };
            match outcome {
                Ok(run) => {
                    let place = (self.number, position);
                    outcomes.runs.push(Run { section: span.fifth(), place, ..run });
                }
                Err(error) => match file_error(&error) {
                    Some(FileError::Changed { .. } | FileError::Vanished { .. } | FileError::Storage(_)) => {
                        outcomes.changed += 1;
                    }
                    Some(FileError::Read(_)) => outcomes.failed_reads += 1,
                    _ => return Err(error),
                },
            }
        }
        Ok(outcomes)
    }

    /// The time after which a query is cancelled: at any moment of the query, or never.
    fn limit(&mut self, time_ms: Option<&f64>) -> Duration {
        match time_ms {
            Some(time_ms) if self.random.below(CANCELLED_ONE_OF) == 0 => {
                Duration::from_secs_f64(time_ms * 1e-3 * self.random.below(1000) as f64 / 1000.0)
            }
            _ => Duration::MAX,
        }
    }
}

/// The innermost error of reading a file.
fn file_error(error: &QueryError) -> Option<&FileError> {
    let first: &(dyn Error + 'static) = error;
    let chain = std::iter::successors(Some(first), |error| error.source());
    chain.filter_map(|error| error.downcast_ref::<FileError>()).last()
}

fn rows(all: &Outcomes, replaced_count: u64, times_ms: &HashMap<usize, f64>) -> Vec<Row> {
    let counted = |name: &str, unit, count: u64| {
        Row::median(format!("workload_disturbed_{name}"), unit, Provenance::Measured, &[count as f64])
    };
    let mut rows = vec![
        counted("queries", "queries", all.runs.len() as u64),
        counted("cancelled", "queries", all.cancelled),
        counted("files_replaced", "files", replaced_count),
        counted("failed_by_changes", "queries", all.changed),
        counted("failed_by_reads", "queries", all.failed_reads),
    ];
    let speeds: Vec<f64> =
        all.runs.iter().filter_map(|run| Some(times_ms.get(&run.query)? / run.ms)).collect();
    if !speeds.is_empty() {
        rows.push(Row::median("workload_disturbed_speed", "ratio", Provenance::Measured, &speeds));
    }
    let rss = |fifth: usize| {
        let runs = all.runs.iter().filter(move |run| run.section == fifth);
        runs.map(|run| run.rss_bytes as f64).collect::<Vec<f64>>()
    };
    let (early, late) = (rss(0), rss(FIFTHS - 1));
    if !early.is_empty() && !late.is_empty() {
        let row = Row::median("workload_disturbed_rss_bytes", "bytes", Provenance::Measured, &late);
        rows.push(row.against("the first fifth", median(&early), median(&early) / median(&late)));
    }
    rows
}
