//! The disturbed part of a workload: sessions run queries while some are cancelled, a table changes and reads fail.
//!
//! The largest table has two versions, which replace each other by a rename, as tools write tables. A query answers as one of
//! the versions does, or fails with an error that names the file and says why; anything else fails the benchmark. All reads go to
//! the disk, so that each of them may fail. Meanwhile a thread asks the kernel how many pages the budget has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memferry::cache::Cache;
use memferry::internals::DiskFaults;
use memferry::mover::{StorageEngine, StorageOptions};
use memferry_bench::harness::{Provenance, Random, Row, median};
use memferry_query::Tiers;
use memferry_query::load::Progress;
use tempfile::TempDir;
use tokio::time::timeout;

use super::sections::{Expected, Order};
use super::{FIFTHS, WorkloadBenchmark};
use crate::process::status_bytes;
use crate::{QueryError, answers_equal, tpch_file, tpch_table_names};

/// The table that changes. All but a few queries read it.
const CHANGING: &str = "lineitem";

/// One of so many queries is cancelled.
const CANCELS_ONE_OF: usize = 8;

/// One of so many returns a part of its bytes.
const SHORTENS_ONE_OF: usize = 40;

/// Changes of the table in each fifth of the time.
const CHANGES_PER_FIFTH: u32 = 10;

/// Between two questions to the kernel.
const WATCH_PAUSE: Duration = Duration::from_millis(20);

/// Reads of cancelled queries may be in flight for so long.
const QUIET_AFTER: Duration = Duration::from_secs(10);

/// What became of a query that was begun.
enum Outcome {
    Answered {
        ms: f64,
    },
    Cancelled,
    /// A read failed, and the error says so.
    ReadFailed,
    /// The table changed, and the error says so.
    TableChanged,
}

/// Outcomes by fifths of the time, and the resident memory of the process after each query.
#[derive(Default)]
struct Outcomes {
    queries: Vec<(usize, Outcome)>,
    rss_bytes: Vec<(usize, u64)>,
}

impl WorkloadBenchmark {
    /// Rows of the disturbed part, which takes `disturbed_time`.
    pub(super) fn disturbed_rows(
        &self,
        expected: &Arc<Expected>,
        budget_bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Vec<Row>, QueryError> {
        let table = ChangingTable::write(&self.files, &self.runtime, &self.plain_session(&self.files)?)?;
        let changed = self.session_over(|name| match name {
            CHANGING => table.other.clone(),
            name => tpch_file(&self.files, name),
        })?;
        let versions =
            Arc::new([Arc::clone(expected), Arc::new(self.expected(&changed, &expected.queries)?)]);
        drop(changed);

        let disk = Arc::new(FailingDisk::new(self.seed, self.fails_one_of));
        // Nothing comes from the page cache, so that each read may fail.
        let options = StorageOptions { page_cache: false, ..StorageOptions::default() };
        let engine = StorageEngine::with_faults(options, Arc::clone(&disk) as _)?;
        let tiers = Tiers::builder(Arc::clone(&self.machine)).budget_bytes(Some(budget_bytes));
        let tiers = tiers.engine(Arc::new(engine)).build()?;
        let watch = Watch::start(tiers.cache())?;
        let mut outcomes = Outcomes::default();
        let open = |session| {
            let context = self.our_session(&tiers, true, table.directory.path())?;
            Ok((context, Order::new(self.seed, session), Random(self.seed ^ ((session as u64 + 1) << 32))))
        };
        let mut sessions: Vec<Session> =
            (0..self.sessions_count).map(open).collect::<Result<_, QueryError>>()?;
        disk.fails.store(true, Ordering::SeqCst);
        for fifth in 0..FIFTHS {
            let time = self.disturbed_time / FIFTHS as u32;
            self.run_fifth(fifth, time, &mut sessions, &versions, &table, &mut outcomes)?;
            progress.advance(1);
        }
        drop(sessions);
        let kernel_bytes = watch.stop()?;
        check_nothing_is_held(tiers.cache())?;
        outcomes.rows(&disk, kernel_bytes, budget_bytes)
    }

    /// Runs all sessions for `time`, while the table changes.
    fn run_fifth(
        &self,
        fifth: usize,
        time: Duration,
        sessions: &mut Vec<Session>,
        versions: &Arc<[Arc<Expected>; 2]>,
        table: &ChangingTable,
        outcomes: &mut Outcomes,
    ) -> Result<(), QueryError> {
        let deadline = Instant::now() + time;
        let tasks: Vec<_> = (sessions.drain(..))
            .map(|(context, mut order, mut random)| {
                let versions = Arc::clone(versions);
                self.runtime.spawn(async move {
                    let mut done = Outcomes::default();
                    let mut last_ms = None;
                    while Instant::now() < deadline {
                        let (query, _) = order.next(versions[0].queries.len());
                        let cancel_after = (random.below(CANCELS_ONE_OF) == 0)
                            .then(|| Duration::from_secs_f64(random.unit() * last_ms.unwrap_or(1.0) / 1e3));
                        let outcome = attempt(&context, &versions, query, cancel_after).await?;
                        if let Outcome::Answered { ms } = outcome {
                            last_ms = Some(ms);
                        }
                        done.queries.push((fifth, outcome));
                        done.rss_bytes.push((fifth, status_bytes("VmRSS")?));
                    }
                    Ok::<_, QueryError>(((context, order, random), done))
                })
            })
            .collect();
        let pause = time / CHANGES_PER_FIFTH;
        let mut changed = Ok(());
        while changed.is_ok() && Instant::now() + pause < deadline {
            thread::sleep(pause);
            changed = table.change();
        }
        // All are waited for, so that none goes on after the benchmark.
        let results: Vec<_> = tasks.into_iter().map(|task| self.runtime.block_on(task)).collect();
        changed?;
        for result in results {
            let (session, done) = result.map_err(|error| {
                QueryError::Invalid(format!("a disturbed session failed: {error}; please report this"))
            })??;
            sessions.push(session);
            outcomes.queries.extend(done.queries);
            outcomes.rss_bytes.extend(done.rss_bytes);
        }
        Ok(())
    }
}

/// A session, its sequence of queries, and when it cancels.
type Session = (SessionContext, Order, Random);

/// Runs a query, or the beginning of it.
async fn attempt(
    context: &SessionContext,
    versions: &[Arc<Expected>; 2],
    query: usize,
    cancel_after: Option<Duration>,
) -> Result<Outcome, QueryError> {
    let started = Instant::now();
    let sql = &versions[0].queries[query];
    let run = async {
        let plan = context.sql(sql).await?.create_physical_plan().await?;
        collect(plan, context.task_ctx()).await
    };
    let answer = match cancel_after {
        None => run.await,
        Some(time) => match timeout(time, run).await {
            Ok(answer) => answer,
            Err(_) => return Ok(Outcome::Cancelled),
        },
    };
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let number = query + 1;
    match answer {
        Ok(answer) => match difference(versions, query, &answer) {
            None => Ok(Outcome::Answered { ms }),
            Some(difference) => Err(QueryError::Invalid(format!(
                "Q{number}: memferry's answer is that of neither version of {CHANGING} ({difference}); please report this"
            ))),
        },
        Err(error) => outcome_of(&error).ok_or_else(|| {
            QueryError::Invalid(format!(
                "Q{number} failed, and the error does not say which file changed or cannot be read: {error}; please report this"
            ))
        }),
    }
}

/// How an answer differs from those of all versions; `None` if it is that of one.
fn difference(versions: &[Arc<Expected>], query: usize, answer: &[RecordBatch]) -> Option<String> {
    let mut differences = Vec::new();
    for version in versions {
        match answers_equal(&version.answers[query], answer) {
            Ok(()) => return None,
            Err(difference) => differences.push(difference.to_string()),
        }
    }
    Some(differences.join("; "))
}

/// What an error says; `None` if it does not name a file with the reason.
fn outcome_of(error: &DataFusionError) -> Option<Outcome> {
    let text = error.to_string();
    let names_file = text.contains(".parquet");
    let is_changed = text.contains("changed while");
    let is_read = text.contains("cannot read bytes") && text.contains("Input/output error");
    match (names_file, is_changed, is_read) {
        (true, true, _) => Some(Outcome::TableChanged),
        (true, _, true) => Some(Outcome::ReadFailed),
        _ => None,
    }
}

/// The files of the tables in a directory of their own, of which one changes.
struct ChangingTable {
    directory: TempDir,
    first: PathBuf,
    other: PathBuf,
    is_other: AtomicBool,
}

impl ChangingTable {
    /// Links the files of `files` in a directory beside it, and writes the other version of the changing table there.
    fn write(
        files: &Path,
        runtime: &tokio::runtime::Runtime,
        plain: &SessionContext,
    ) -> Result<ChangingTable, QueryError> {
        let beside = files.parent().unwrap_or(files);
        let directory = tempfile::Builder::new().prefix(".workload-").tempdir_in(beside);
        let directory = directory.map_err(failed("make a directory in", beside))?;
        for table in tpch_table_names() {
            let link = tpch_file(directory.path(), table);
            fs::hard_link(tpch_file(files, table), &link).map_err(failed("link", &link))?;
        }
        let other = directory.path().join("other.parquet");
        let path = other.to_string_lossy().into_owned();
        runtime.block_on(async {
            let rows = plain.sql(&format!("select * from {CHANGING} where l_orderkey % 8 <> 0")).await?;
            let options = DataFrameWriteOptions::new().with_single_file_output(true);
            rows.write_parquet(&path, options, None).await
        })?;
        let first = tpch_file(files, CHANGING);
        Ok(ChangingTable { directory, first, other, is_other: AtomicBool::new(false) })
    }

    /// Puts the other version in the place of the present one, at once.
    fn change(&self) -> Result<(), QueryError> {
        let is_other = !self.is_other.fetch_xor(true, Ordering::SeqCst);
        let version = if is_other { &self.other } else { &self.first };
        let link = self.directory.path().join("next");
        fs::hard_link(version, &link).map_err(failed("link", &link))?;
        let table = tpch_file(self.directory.path(), CHANGING);
        fs::rename(&link, &table).map_err(failed("replace", &table))
    }
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> QueryError + 'a {
    move |error| {
        QueryError::Invalid(format!(
            "cannot {what} {}: {error}; choose files in a directory that you can write to with --files",
            path.display()
        ))
    }
}

/// A disk of which some reads fail, and some return a part of their bytes.
#[derive(Debug)]
struct FailingDisk {
    fails: AtomicBool,
    fails_one_of: usize,
    random: Mutex<Random>,
    failed_count: AtomicU64,
    shortened_count: AtomicU64,
}

impl FailingDisk {
    fn new(seed: u64, fails_one_of: usize) -> FailingDisk {
        FailingDisk {
            fails: AtomicBool::new(false),
            fails_one_of,
            random: Mutex::new(Random(seed)),
            failed_count: AtomicU64::new(0),
            shortened_count: AtomicU64::new(0),
        }
    }
}

impl DiskFaults for FailingDisk {
    fn result(&self, _offset: u64, _size_bytes: usize, result: i32) -> i32 {
        if !self.fails.load(Ordering::SeqCst) {
            return result;
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(self.fails_one_of) == 0 {
            self.failed_count.fetch_add(1, Ordering::SeqCst);
            return -libc::EIO;
        }
        if result > 1 && random.below(SHORTENS_ONE_OF) == 0 {
            self.shortened_count.fetch_add(1, Ordering::SeqCst);
            return 1 + random.below(result as usize - 1) as i32;
        }
        result
    }
}

/// A thread that asks the kernel for the pages of a cache's budget, as long as this lives.
struct Watch {
    goes_on: Arc<()>,
    thread: thread::JoinHandle<Result<usize, QueryError>>,
}

impl Watch {
    fn start(cache: &Cache) -> Result<Watch, QueryError> {
        let resident_bytes = |cache: &Cache| {
            let unknown = |error| {
                QueryError::Invalid(format!(
                    "the kernel does not say how much memory the budget takes: {error}; leave this part out with \
                     --disturbed-seconds 0"
                ))
            };
            cache.resident_bytes().map_err(unknown)
        };
        resident_bytes(cache)?;
        let goes_on = Arc::new(());
        let (cache, owner) = (cache.clone(), Arc::downgrade(&goes_on));
        let watch = move || {
            let mut most_bytes = 0;
            while owner.strong_count() > 0 {
                most_bytes = resident_bytes(&cache)?.max(most_bytes);
                thread::sleep(WATCH_PAUSE);
            }
            Ok(most_bytes)
        };
        let thread = thread::Builder::new().name("watch".to_owned()).spawn(watch);
        Ok(Watch { goes_on, thread: thread.map_err(QueryError::Threads)? })
    }

    /// The most bytes that the kernel reported.
    fn stop(self) -> Result<usize, QueryError> {
        drop(self.goes_on);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Whether cancelled and failed queries have left nothing in use: all entries can be dropped.
fn check_nothing_is_held(cache: &Cache) -> Result<(), QueryError> {
    let deadline = Instant::now() + QUIET_AFTER;
    loop {
        cache.clear();
        let used_bytes: usize = cache.stats().nodes.iter().map(|usage| usage.used_bytes).sum();
        if used_bytes == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(QueryError::Invalid(format!(
                "{used_bytes} bytes of the budget are in use after all queries have ended; please report this"
            )));
        }
        thread::sleep(WATCH_PAUSE);
    }
}

impl Outcomes {
    fn rows(
        &self,
        disk: &FailingDisk,
        kernel_bytes: usize,
        budget_bytes: u64,
    ) -> Result<Vec<Row>, QueryError> {
        if kernel_bytes as u64 > budget_bytes {
            return Err(QueryError::Invalid(format!(
                "the kernel counted {kernel_bytes} bytes, of a budget of {budget_bytes}; please report this"
            )));
        }
        let measured = |name: &str, unit, values: &[f64]| {
            Row::median(format!("workload_disturbed_{name}"), unit, Provenance::Measured, values)
        };
        let count = |is: fn(&Outcome) -> bool| {
            [self.queries.iter().filter(|(_, outcome)| is(outcome)).count() as f64]
        };
        let rss = |fifth: usize| {
            let bytes = self.rss_bytes.iter().filter(move |(of, _)| *of == fifth);
            bytes.map(|(_, bytes)| *bytes as f64).collect::<Vec<f64>>()
        };
        let (early, late) = (rss(0), rss(FIFTHS - 1));
        if early.is_empty() || late.is_empty() {
            return Err(QueryError::Invalid(
                "a fifth of the disturbed part has no query; give more --disturbed-seconds".to_owned(),
            ));
        }
        let reads = |count: &AtomicU64| [count.load(Ordering::SeqCst) as f64];
        Ok(vec![
            measured("answered", "queries", &count(|it| matches!(it, Outcome::Answered { .. }))),
            measured("cancelled", "queries", &count(|it| matches!(it, Outcome::Cancelled))),
            measured("changed", "queries", &count(|it| matches!(it, Outcome::TableChanged))),
            measured("read_failed", "queries", &count(|it| matches!(it, Outcome::ReadFailed))),
            measured("failed_reads", "reads", &reads(&disk.failed_count)),
            measured("short_reads", "reads", &reads(&disk.shortened_count)),
            measured("kernel_bytes", "bytes", &[kernel_bytes as f64])
                .beside("the budget", budget_bytes as f64),
            measured("rss_bytes", "bytes", &late).against(
                "the first fifth",
                median(&early),
                median(&early) / median(&late),
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_must_name_the_file_and_the_reason() {
        let outcome = |text: &str| outcome_of(&DataFusionError::Execution(text.to_owned()));
        let read = "cannot read row group 1, column a: cannot read bytes 0..9 of /x/t.parquet: Input/output error (os error 5)";
        assert!(matches!(outcome(read), Some(Outcome::ReadFailed)));
        let changed = "/x/t.parquet changed while a query read it (it was written); run the query again";
        assert!(matches!(outcome(changed), Some(Outcome::TableChanged)));
        for unclear in
            ["Input/output error", "x.parquet: Corrupt footer", "the file changed while it was read"]
        {
            assert!(outcome(unclear).is_none(), "{unclear}");
        }
    }
}
