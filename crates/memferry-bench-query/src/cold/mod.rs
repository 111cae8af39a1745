//! Queries over Parquet files that no memory holds yet, beside plain DataFusion and other engines.
//!
//! Cold: no page of a file is in the page cache, and no session has seen a footer. Warm: all pages are in the page
//! cache, nothing is decoded. Every round runs each way once, in turns (A B C, C B A, ...), so that slow changes of the
//! machine, such as the price of fresh pages, affect all; one round before is not measured.

mod calibrated;
mod first;
mod io;
mod load;
mod planning;
mod pushdown;
mod slow;
mod way;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::prelude::{SessionConfig, SessionContext};
use memferry::topology::Machine;
use memferry_bench::harness::{Pairs, Provenance, Row, geomean, geomean_ratio, median};
use memferry_bench::telemetry::{Counts, Telemetry, beside};
use memferry_query::files::FileReport;
use memferry_query::load::Progress;
use memferry_query::{SessionOptions, Tiers, files, session};
use tokio::runtime::Runtime;

use self::way::{Run, RunAnswer, Session, Way};
use crate::peers::{ENGINES, Peer, PeerTables};
use crate::{QueryError, answers_equal, tpch, tpch_file, tpch_table_names};

pub(crate) use self::io::FileCache;
pub use self::io::Temperature;
pub use self::pushdown::{WIDE_ROWS, wide_files};
pub(crate) use self::way::register_plain;

/// The benchmark of queries over cold files.
pub struct ColdBenchmark {
    machine: Arc<Machine>,
    files: PathBuf,
    scale: f64,
    options: SessionOptions,
    runtime: Runtime,
    /// Rounds of runs of each query. 15 by default.
    pub rounds_count: usize,
    /// Names of the queries to run, and of the parts `first_query` and `load_lineitem`; empty: all.
    pub queries: Vec<String>,
    /// The command `memferry`, for the rows of whole processes; without it they are left out.
    pub program: Option<PathBuf>,
    /// A Python that has the other engines. `None` by default: their rows then have no peer's value.
    pub python: Option<PathBuf>,
    /// Seed of the confidence intervals.
    pub seed: u64,
    /// The monitors that watch each query. None by default.
    pub telemetry: Telemetry,
}

/// The samples of one query: one list per way, a sample per round.
struct Samples {
    name: String,
    runs: Vec<Result<Vec<Run>, String>>,
    /// What the monitors counted meanwhile, all ways together.
    counts: Option<Counts>,
}

/// One query over the same files by plain DataFusion and by memferry, in turns.
#[derive(Debug, Clone)]
pub struct ComparedQuery {
    /// Name of the query.
    pub name: String,
    /// Plain DataFusion with its defaults.
    pub plain: RunSummary,
    /// memferry.
    pub memferry: RunSummary,
}

/// The runs of one query in one way.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// Median of the times, planning included, in milliseconds.
    pub ms: f64,
    /// Median of the bytes that the kernel fetched from the disk meanwhile.
    pub bytes_read: u64,
    /// memferry's reader in the last run; empty for plain DataFusion.
    pub report: FileReport,
}

/// Queries of which few rows pass, by name: with the query of [`SELECTIVE_SQL`] those of `cold_selective_vs_best`.
const SELECTIVE: [&str; 5] = ["q06", "q12", "q14", "q19", "selective"];

/// Parts that are no query, by name: see [`ColdBenchmark::queries`].
const FIRST_QUERY: &str = "first_query";
const LOAD: &str = "load_lineitem";

/// A filter on one column and a sum of another.
const SELECTIVE_SQL: &str = "select sum(l_extendedprice) from lineitem where l_quantity < 2";

/// Queries whose time is compared with that of a warm file and with that of the disk.
const FLOOR: [&str; 5] = ["q01", "q06", "q12", "q14", "q19"];

/// Below this scale the largest table is loaded. At 10 it takes 8 GB of memory, and as much again in the other process.
const LOAD_SCALE_MAX: f64 = 10.0;

/// Ways by position: those of memferry first, then its peers.
const OURS: usize = 0;
const WITHOUT_READ_AHEAD: usize = 1;
const PLAIN: usize = 2;
const PUSHDOWN: usize = 3;
const PLAN_AHEAD: usize = 4;
const OTHERS: usize = 5;

impl ColdBenchmark {
    /// A benchmark over the files that [`tpch_files`](crate::tpch_files) writes at `scale` before anything runs.
    ///
    /// # Errors
    /// [`QueryError::Threads`].
    pub fn new(
        machine: Arc<Machine>,
        files: PathBuf,
        scale: f64,
        options: SessionOptions,
    ) -> Result<ColdBenchmark, QueryError> {
        let runtime = Runtime::new().map_err(QueryError::Threads)?;
        let (queries, python) = (Vec::new(), None);
        Ok(ColdBenchmark {
            machine,
            files,
            scale,
            options,
            runtime,
            rounds_count: 15,
            queries,
            program: None,
            python,
            seed: 1,
            telemetry: Telemetry::none(),
        })
    }

    /// Whether all of `queries` exist, in [`pushdown_rows`](Self::pushdown_rows) or in the other measurements. Needs no files.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuery`].
    pub fn check_queries(&self, is_pushdown: bool) -> Result<(), QueryError> {
        if is_pushdown { self.pushdown_queries(WIDE_ROWS) } else { self.queries() }.map(drop)
    }

    /// All rows. `progress` counts queries.
    ///
    /// # Errors
    /// [`QueryError::Peer`]: another engine does not start or has ended. [`QueryError::UnknownQuery`] before
    /// anything runs. [`QueryError::Invalid`]: nothing here is cold, or answers differ. Others as the queries.
    pub fn rows(&self, progress: &dyn Progress) -> Result<Vec<Row>, QueryError> {
        let queries = self.queries()?;
        let cold = FileCache::open(&self.files, Temperature::Cold)?;
        let warm = FileCache::open(&self.files, Temperature::Warm)?;
        let warm_queries = || queries.iter().filter(|(name, _)| FLOOR.contains(&name.as_str()));
        let slow_count: usize = queries.iter().map(|(name, _)| slow::samples_count(name)).sum();
        progress.total((queries.len() + warm_queries().count() + slow_count) as u64);
        let mut ways = self.ways()?;
        let disk = cold.disk_rate()?;
        // Before the queries: the memory that they leave to the allocator would be missing in the ratio.
        let mut others = Vec::new();
        if self.wants(LOAD) && self.scale < LOAD_SCALE_MAX {
            others.extend(self.telemetry.rows(|| self.load_rows(&warm).map(Vec::from))?);
        }
        if self.wants(FIRST_QUERY) {
            others.extend(self.telemetry.rows(|| self.first_query_rows(&[&cold, &warm]))?);
        }
        let mut samples = Vec::new();
        for (name, sql) in &queries {
            samples.push(self.sample(name, sql, &mut ways, &cold)?);
            progress.advance(1);
        }
        let mut warm_ms = Vec::new();
        for (name, sql) in warm_queries() {
            let runs = self.sample(name, sql, &mut ways[..1], &warm)?;
            warm_ms.push((name.clone(), median(&runs.ms(OURS).unwrap_or_default())));
            progress.advance(1);
        }
        let slow = self.slow_store_rows(&queries, &warm, progress)?;
        others.extend(self.planning_rows(&queries)?);
        let names: Vec<String> = ways.iter().map(|way| way.name().to_owned()).collect();
        let mut rows = vec![Row::median("disk_bytes_per_s", "bytes/s", Provenance::Measured, &[disk])];
        rows.extend(self.summaries(&samples, &names, &warm_ms, disk));
        rows.extend(slow.into_iter().chain(others));
        rows.extend(samples.iter().flat_map(|query| self.rows_of(query, &names)));
        Ok(rows)
    }

    /// Bytes per second of direct reads from the disk of the files.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: the file system has no direct reads, so no run there is cold.
    pub fn disk_rate(&self) -> Result<f64, QueryError> {
        FileCache::open(&self.files, Temperature::Cold)?.disk_rate()
    }

    /// Runs the queries by memferry and by plain DataFusion only, in turns. `progress` counts queries.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuery`]; [`QueryError::Invalid`]: answers differ. Others as the queries.
    pub fn compare(
        &self,
        temperature: Temperature,
        progress: &dyn Progress,
    ) -> Result<Vec<ComparedQuery>, QueryError> {
        let queries = self.queries()?;
        progress.total(queries.len() as u64);
        let files = FileCache::open(&self.files, temperature)?;
        let tiers = self.tiers()?;
        let mut ways = [self.our_way("memferry", &tiers, true), self.plain_way("DataFusion", false)];
        let compare = |(name, sql): &(String, String)| {
            let samples = self.sample(name, sql, &mut ways, &files)?;
            progress.advance(1);
            let summary = |way| samples.summary(way).expect("a session that fails ends the benchmark");
            Ok(ComparedQuery { name: name.clone(), memferry: summary(0), plain: summary(1) })
        };
        queries.iter().map(compare).collect()
    }

    /// The ways, in the order of their positions.
    fn ways(&self) -> Result<Vec<Way<'_>>, QueryError> {
        let tiers = self.tiers()?;
        let mut ways = vec![
            self.our_way("memferry", &tiers, true),
            self.our_way("memferry without read-ahead", &tiers, false),
            self.plain_way("DataFusion", false),
            self.plain_way("DataFusion with pushdown_filters", true),
            self.with_plan_ahead(&tiers),
        ];
        if let Some(python) = &self.python {
            for engine in ENGINES {
                ways.push(Way::Peer(self.peer(python, engine)?));
            }
        }
        Ok(ways)
    }

    /// Another engine over the files.
    fn peer(&self, python: &Path, engine: (&str, &str)) -> Result<Peer, QueryError> {
        Peer::start(python, engine, &self.files, PeerTables::Files, self.options.partitions)
    }

    fn tiers(&self) -> Result<Arc<Tiers>, QueryError> {
        Ok(Tiers::builder(Arc::clone(&self.machine)).build()?)
    }

    fn our_way(&self, name: &str, tiers: &Arc<Tiers>, read_ahead: bool) -> Way<'_> {
        self.set_way(name, tiers, format!("memferry.read_ahead = {read_ahead}"), self.tables())
    }

    fn with_plan_ahead(&self, tiers: &Arc<Tiers>) -> Way<'_> {
        let setting = "memferry.plan_ahead = true".to_owned();
        self.set_way("memferry with plan-ahead", tiers, setting, self.tables())
    }

    /// memferry with a setting, over tables in files.
    fn set_way(
        &self,
        name: &str,
        tiers: &Arc<Tiers>,
        setting: String,
        tables: Vec<(String, PathBuf)>,
    ) -> Way<'_> {
        let tiers = Arc::clone(tiers);
        let open = move || self.our_session(&tiers, &setting, &tables);
        Way::Session(Session { name: name.to_owned(), runtime: &self.runtime, open: Box::new(open) })
    }

    /// The tables of TPC-H and their files.
    fn tables(&self) -> Vec<(String, PathBuf)> {
        tpch_table_names().map(|table| (table.to_owned(), tpch_file(&self.files, table))).collect()
    }

    fn plain_way(&self, name: &str, pushdown: bool) -> Way<'_> {
        let open = move || self.plain_session(pushdown);
        Way::Session(Session { name: name.to_owned(), runtime: &self.runtime, open: Box::new(open) })
    }

    fn our_session(
        &self,
        tiers: &Arc<Tiers>,
        setting: &str,
        tables: &[(String, PathBuf)],
    ) -> Result<SessionContext, QueryError> {
        tiers.cache().clear();
        let context = session(&SessionOptions { tiers: Some(Arc::clone(tiers)), ..self.options.clone() });
        self.runtime.block_on(async {
            context.sql(&format!("set {setting}")).await?.collect().await?;
            for (table, location) in tables {
                files::register(&context, table, &location.to_string_lossy()).await?;
            }
            Ok(context)
        })
    }

    fn plain_session(&self, pushdown: bool) -> Result<SessionContext, QueryError> {
        let config = SessionConfig::new()
            .with_target_partitions(self.options.partitions)
            .set_bool("datafusion.execution.parquet.pushdown_filters", pushdown);
        let context = SessionContext::new_with_config(config);
        register_plain(&self.runtime, &context, |table| {
            tpch_file(&self.files, table).to_string_lossy().into_owned()
        })?;
        Ok(context)
    }

    /// The queries of TPC-H and the selective one, by name.
    fn queries(&self) -> Result<Vec<(String, String)>, QueryError> {
        let mut queries: Vec<_> =
            tpch::QUERIES.map(|number| (format!("q{number:02}"), tpch::query(number, self.scale))).collect();
        queries.push(("selective".to_owned(), SELECTIVE_SQL.to_owned()));
        self.select(queries, &[FIRST_QUERY, LOAD])
    }

    /// Those of `queries` that the options ask for, which may also name `parts`.
    fn select(
        &self,
        mut queries: Vec<(String, String)>,
        parts: &[&str],
    ) -> Result<Vec<(String, String)>, QueryError> {
        let known: Vec<&str> =
            queries.iter().map(|(name, _)| name.as_str()).chain(parts.iter().copied()).collect();
        if let Some(unknown) = self.queries.iter().find(|wanted| !known.contains(&wanted.as_str())) {
            return Err(QueryError::UnknownQuery { name: unknown.clone(), known: known.join(", ") });
        }
        queries.retain(|(name, _)| self.wants(name));
        Ok(queries)
    }

    fn wants(&self, name: &str) -> bool {
        self.queries.is_empty() || self.queries.iter().any(|wanted| wanted == name)
    }

    /// Runs a query in all ways, `rounds_count` times after one round that is not kept. All answers agree.
    fn sample(
        &self,
        name: &str,
        sql: &str,
        ways: &mut [Way<'_>],
        files: &FileCache,
    ) -> Result<Samples, QueryError> {
        let (runs, counts) = self.telemetry.watch(|| self.runs(name, sql, ways, files));
        Ok(Samples { name: name.to_owned(), runs: runs?, counts })
    }

    fn runs(
        &self,
        name: &str,
        sql: &str,
        ways: &mut [Way<'_>],
        files: &FileCache,
    ) -> Result<Vec<Result<Vec<Run>, String>>, QueryError> {
        let mut runs: Vec<Result<Vec<Run>, String>> = ways.iter().map(|_| Ok(Vec::new())).collect();
        let mut expected = None;
        for round in 0..=self.rounds_count {
            let forth = 0..ways.len();
            let order: Vec<usize> = if round % 2 == 0 { forth.collect() } else { forth.rev().collect() };
            for way in order {
                let Ok(kept) = &mut runs[way] else { continue };
                match ways[way].run(sql, files)? {
                    Ok(mut run) => {
                        let answer = std::mem::replace(&mut run.answer, RunAnswer::Rows(0));
                        agree(&mut expected, answer).map_err(|difference| {
                            QueryError::Invalid(format!(
                                "{name}: {} answers differently from {} ({difference}); please report this",
                                ways[way].name(),
                                ways[0].name(),
                            ))
                        })?;
                        if round > 0 {
                            kept.push(run);
                        }
                    }
                    Err(error) => runs[way] = Err(error),
                }
            }
        }
        Ok(runs)
    }

    /// The rows over several queries.
    fn summaries(
        &self,
        samples: &[Samples],
        names: &[String],
        warm_ms: &[(String, f64)],
        disk: f64,
    ) -> Vec<Row> {
        let tpch = || samples.iter().filter(|query| query.name.starts_with('q'));
        let pairs = |way: usize| tpch().filter_map(move |query| query.pairs(way)).collect::<Vec<_>>();
        let mut rows = Vec::new();
        let over_tpch = [
            ("cold_geomean", PLAIN),
            ("cold_pushdown_geomean", PUSHDOWN),
            ("cold_read_ahead_geomean", WITHOUT_READ_AHEAD),
            ("cold_plan_ahead_geomean", PLAN_AHEAD),
        ];
        for (name, way) in over_tpch.into_iter().filter(|_| tpch().next().is_some()) {
            rows.push(Row::over_queries(name, names[way].as_str(), &pairs(way), self.seed));
        }
        let late = tpch().filter(|query| query.late_columns() >= 2);
        let late: Vec<Pairs> = late.filter_map(|query| query.pairs(WITHOUT_READ_AHEAD)).collect();
        if !late.is_empty() {
            rows.push(Row::over_queries(
                "cold_read_ahead",
                names[WITHOUT_READ_AHEAD].as_str(),
                &late,
                self.seed,
            ));
        }
        let highs = tpch().filter_map(|query| Some(geomean_ratio([&query.pairs(PLAIN)?], self.seed).high));
        rows.extend(extreme("cold_query_min", highs, f64::min));
        let ratios = tpch().filter_map(|query| Some(query.bytes(OURS)? / query.bytes_needed()?));
        rows.extend(extreme("cold_bytes_ratio", ratios, f64::max));
        let over_floor = warm_ms.iter().filter_map(|(name, warm_ms)| {
            let query = samples.iter().find(|query| query.name == *name)?;
            let disk_ms = query.bytes(OURS)? / disk * 1e3;
            Some(median(&query.ms(OURS)?) / warm_ms.max(disk_ms))
        });
        rows.extend(extreme("cold_over_floor", over_floor, f64::max));
        let selective = || samples.iter().filter(|query| SELECTIVE.contains(&query.name.as_str()));
        if selective().count() == SELECTIVE.len() {
            let name = "cold_selective_vs_best";
            let best: Vec<Pairs> = selective().filter_map(Samples::pairs_with_best).collect();
            rows.push(if best.len() == SELECTIVE.len() {
                Row::over_queries(name, "the faster of the other engines", &best, self.seed)
            } else {
                let ours = geomean(selective().filter_map(|query| Some(median(&query.ms(OURS)?))));
                let row = Row::median(name, "ms", Provenance::Measured, &[ours]);
                row.without_peer("DuckDB and Polars: not run, see --peers")
            });
        }
        rows
    }

    /// The rows of one query: against each way, and the bytes that each has read.
    fn rows_of(&self, query: &Samples, names: &[String]) -> Vec<Row> {
        let against = ["", "_read_ahead", "", "_pushdown", "_plan_ahead", "_duckdb", "_polars"];
        let mut rows = Vec::new();
        for (way, suffix) in against.iter().enumerate().skip(1) {
            let name = format!("cold_{}{suffix}", query.name);
            let ours = query.ms(OURS).unwrap_or_default();
            match query.pairs(way) {
                Some(pairs) => rows.push(Row::over_queries(name, names[way].as_str(), [&pairs], self.seed)),
                None => {
                    let (_, engine) = ENGINES[way - OTHERS];
                    let why = match query.runs.get(way) {
                        Some(Err(error)) => format!("{engine}: {error}"),
                        _ => format!("{engine}: not run, see --peers"),
                    };
                    rows.push(Row::median(name, "ms", Provenance::Measured, &ours).without_peer(why));
                }
            }
        }
        let bytes: Vec<f64> = (0..names.len()).filter_map(|way| query.bytes(way)).collect();
        if let [ours, _, plain, ..] = bytes[..] {
            let name = format!("cold_{}_bytes", query.name);
            let row = Row::median(name, "bytes", Provenance::Measured, &[ours]);
            rows.push(row.against(names[PLAIN].as_str(), plain, plain / ours));
        }
        beside(rows, query.counts.clone())
    }
}

/// The largest or smallest of the queries' ratios.
fn extreme(name: &str, ratios: impl Iterator<Item = f64>, of: fn(f64, f64) -> f64) -> Option<Row> {
    Some(Row::median(name, "ratio", Provenance::Measured, &[ratios.reduce(of)?]))
}

impl Samples {
    fn ms(&self, way: usize) -> Option<Vec<f64>> {
        let runs = self.runs.get(way)?.as_ref().ok()?;
        Some(runs.iter().map(|run| run.ms).collect())
    }

    /// The median of the bytes that a way read.
    fn bytes(&self, way: usize) -> Option<f64> {
        let runs = self.runs.get(way)?.as_ref().ok()?;
        Some(median(&runs.iter().map(|run| run.bytes_read as f64).collect::<Vec<_>>()))
    }

    /// The median of the bytes of column chunks that the query needs.
    fn bytes_needed(&self) -> Option<f64> {
        let runs = self.runs.get(OURS)?.as_ref().ok()?;
        Some(median(&runs.iter().map(|run| run.report.bytes_requested as f64).collect::<Vec<_>>()))
    }

    /// The late columns of the scan that has most.
    fn late_columns(&self) -> usize {
        let runs = self.runs[OURS].as_deref().unwrap_or_default();
        runs.first().map_or(0, |run| run.late_columns)
    }

    /// The runs of a way beside those of another.
    fn pairs_of(&self, way: usize, peer: usize) -> Option<Pairs> {
        Some(Pairs { ours: self.ms(way)?, peer: self.ms(peer)? })
    }

    fn pairs(&self, way: usize) -> Option<Pairs> {
        self.pairs_of(OURS, way)
    }

    /// With the fastest of the other engines that can run the query.
    fn pairs_with_best(&self) -> Option<Pairs> {
        let others = (OTHERS..self.runs.len()).filter_map(|way| self.pairs(way));
        others.min_by(|a, b| median(&a.peer).total_cmp(&median(&b.peer)))
    }

    fn summary(&self, way: usize) -> Option<RunSummary> {
        let last = self.runs.get(way)?.as_ref().ok()?.last()?;
        let bytes_read = self.bytes(way)? as u64;
        Some(RunSummary { ms: median(&self.ms(way)?), bytes_read, report: last.report.clone() })
    }
}

/// Compares an answer with the first one, which is of a session.
fn agree(expected: &mut Option<Vec<RecordBatch>>, answer: RunAnswer) -> Result<(), String> {
    match (expected, answer) {
        (expected @ None, RunAnswer::Batches(batches)) => *expected = Some(batches),
        (Some(expected), RunAnswer::Batches(batches)) => {
            answers_equal(expected, &batches).map_err(|difference| difference.to_string())?;
        }
        (expected, RunAnswer::Rows(rows)) => {
            let first: usize = expected.iter().flatten().map(RecordBatch::num_rows).sum();
            if rows != first {
                return Err(format!("{rows} rows instead of {first}"));
            }
        }
    }
    Ok(())
}
