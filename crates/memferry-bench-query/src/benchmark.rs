//! TPC-H and the papers' query beside plain DataFusion over the same batches.
//!
//! Four questions: are all answers equal, whichever way the columns come near; what does each way of prefetching cost or
//! gain, query by query; how much does each technique of the scan gain; and how much memory does it all take.
//!
//! Every timed run starts with an empty cache and includes planning. It is paired with a run of its peer (A B B A ...),
//! so that slow changes of the machine affect both.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::config::{ConfigExtension, ExtensionOptions};
use memferry::internals::{Measured, Parameter};
use memferry::mover::EngineKind;
use memferry::topology::{Machine, TopologyError};
use memferry_query::load::Progress;
use memferry_query::{MemferryOptions, Prefetch, SessionOptions, Tiers};
use tokio::runtime::Runtime;

use crate::process::status_bytes;
use crate::{
    Dsa, NamedTable, QueryError, QueryRun, QueryRunner, QueryTiers, answers_equal, layout, paper_query,
    paper_table, tpch, tpch_tables,
};
use memferry_bench::harness::{Pairs, Provenance, Row, try_alternate};
use memferry_bench::telemetry::{Counts, Telemetry};

/// The benchmark of queries on a machine.
pub struct QueryBenchmark {
    pub(crate) machine: Arc<Machine>,
    pub(crate) runtime: Runtime,
    pub(crate) options: SessionOptions,
    pub(crate) seed: u64,
    pub(crate) pairs_count: usize,
    /// Names of the queries to time, such as q06; empty: all. Summaries are then over them.
    pub queries: Vec<String>,
    /// A Python that has DuckDB and Polars. `None` by default: no row then compares with them.
    pub python: Option<PathBuf>,
    progress: NewProgress,
    telemetry: Telemetry,
}

/// Starts to show the progress of a piece of work.
type NewProgress = fn(&'static str) -> Box<dyn Progress>;

/// The comparison of all answers with plain DataFusion's.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Numbers of equal answers.
    pub rows: Vec<Row>,
    /// Descriptions of the answers that differ.
    pub differences: Vec<String>,
}

impl QueryBenchmark {
    /// A benchmark with `pairs_count` pairs of runs per query. `progress` is called for each piece of work.
    ///
    /// # Errors
    /// [`QueryError::Threads`].
    pub fn new(
        machine: Arc<Machine>,
        options: SessionOptions,
        seed: u64,
        pairs_count: usize,
        progress: NewProgress,
    ) -> Result<QueryBenchmark, QueryError> {
        let runtime = Runtime::new().map_err(QueryError::Threads)?;
        let telemetry = Telemetry::none();
        let (queries, python) = (Vec::new(), None);
        Ok(QueryBenchmark {
            machine,
            runtime,
            options,
            seed,
            pairs_count,
            queries,
            python,
            progress,
            telemetry,
        })
    }

    /// The same benchmark, whose timed queries are watched by these monitors.
    pub fn with_telemetry(self, telemetry: Telemetry) -> QueryBenchmark {
        QueryBenchmark { telemetry, ..self }
    }

    pub(crate) fn load(&self, scale: f64, tiers: &Tiers) -> Result<Vec<NamedTable>, QueryError> {
        let layout = layout(tiers, self.options.partitions);
        let tables = tpch_tables(scale, &layout, &*(self.progress)("generating TPC-H"))?;
        Ok(tables.into_iter().map(|(name, data)| (name, Arc::new(data))).collect())
    }

    /// A progress display with `total` steps.
    pub(crate) fn steps(&self, what: &'static str, total: usize) -> Box<dyn Progress> {
        let progress = (self.progress)(what);
        progress.total(total as u64);
        progress
    }

    fn tiered(
        &self,
        name: &'static str,
        tables: &[NamedTable],
        tiers: &QueryTiers,
        prefetch: Prefetch,
    ) -> Result<QueryRunner, QueryError> {
        QueryRunner::tiered(name, tables, tiers, &self.options, prefetch)
    }

    pub(crate) fn run(&self, way: &QueryRunner, sql: &str) -> Result<QueryRun, QueryError> {
        self.runtime.block_on(way.run_cold(sql))
    }

    /// Compares all answers at `scale` with plain DataFusion's.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: a way that should prefetch did not, so its answers prove nothing. Others as the queries.
    pub fn answers(&self, scale: f64) -> Result<Answers, QueryError> {
        let here = || Tiers::builder(Arc::clone(&self.machine));
        let two_tiers = QueryTiers::build(Tiers::builder(Arc::new(two_tiers_with_rates()?)), Dsa::None)?;
        let home = QueryTiers::build(here(), Dsa::None)?;
        let tables = self.load(scale, &home)?;
        let tables_of_two_tiers = self.load(scale, &two_tiers)?;
        let faulty = QueryTiers::build(here(), Dsa::Emulated { seed: Some(self.seed) })?;
        let plain = QueryRunner::plain(&tables, &self.options)?;
        let ways = [
            (Provenance::Measured, self.tiered("off", &tables, &home, Prefetch::Off)?),
            (Provenance::Measured, self.tiered("always_cpu", &tables, &home, Prefetch::Always)?),
            (Provenance::Emulated, self.tiered("always_dsa", &tables, &faulty, Prefetch::Always)?),
            (
                Provenance::Emulated,
                self.tiered("auto_two_tiers", &tables_of_two_tiers, &two_tiers, Prefetch::Auto)?,
            ),
        ];
        // Within one query few copies pay, since all columns of a table have one home.
        self.set(&ways[3].1, "reads_to_come", "1000")?;

        let bar = self.steps("comparing answers", tpch::QUERIES.count() * ways.len());
        let mut equal = [0; 4];
        let mut prefetched_bytes = [0; 4];
        let mut differences = Vec::new();
        for number in tpch::QUERIES {
            let sql = tpch::query(number, scale);
            let expected = self.run(&plain, &sql)?.batches;
            for (index, (_, way)) in ways.iter().enumerate() {
                let outcome = self.run(way, &sql)?;
                prefetched_bytes[index] += outcome.report.bytes_prefetched;
                match answers_equal(&expected, &outcome.batches) {
                    Ok(()) => equal[index] += 1,
                    Err(difference) => differences.push(format!("Q{number} {}: {difference}", way.name)),
                }
                bar.advance(1);
            }
        }
        drop(bar);
        if faulty.mover().stats().bytes_by(EngineKind::Dsa) == 0 {
            let what = "the emulated DSA copied nothing: the answers of `always_dsa` prove nothing about it";
            return Err(QueryError::Invalid(what.to_owned()));
        }
        for (index, (_, way)) in ways.iter().enumerate() {
            match (way.name, prefetched_bytes[index]) {
                ("off", bytes @ 1..) => {
                    return Err(QueryError::Invalid(format!("prefetching was off and copied {bytes} bytes")));
                }
                ("off", 0) | (_, 1..) => {}
                (name, 0) => {
                    let what = format!("`{name}` copied nothing: its answers prove nothing");
                    return Err(QueryError::Invalid(what));
                }
            }
        }

        let counted = |name: String, value: usize, how| Row::median(name, "answers", how, &[value as f64]);
        let mut rows =
            vec![counted("tpch_answers_equal".to_owned(), equal.iter().sum(), Provenance::Emulated)];
        for (index, (how, way)) in ways.iter().enumerate() {
            rows.push(counted(format!("tpch_answers_equal_{}", way.name), equal[index], *how));
        }
        Ok(Answers { rows, differences })
    }

    /// Times of all queries in three ways, of the selective ones, and of the selective ones without each technique.
    ///
    /// # Errors
    /// As the queries.
    pub fn times(&self, scale: f64) -> Result<Vec<Row>, QueryError> {
        let tiers = QueryTiers::build(Tiers::builder(Arc::clone(&self.machine)), Dsa::None)?;
        let mut tables = self.load(scale, &tiers)?;
        let layout = layout(&tiers, self.options.partitions);
        let progress = (self.progress)("generating the papers' table");
        tables.push(("ab".to_owned(), Arc::new(paper_table((6e6 * scale) as u64, 1, &layout, &*progress)?)));
        drop(progress);
        let plain = QueryRunner::plain(&tables, &self.options)?;
        let way = |name, prefetch| self.tiered(name, &tables, &tiers, prefetch);
        let ways =
            [way("off", Prefetch::Off)?, way("auto", Prefetch::Auto)?, way("always", Prefetch::Always)?];
        let ablations = ablations();
        let queries = self.queries(scale)?;
        let selective: Vec<&Query> = queries.iter().filter(|query| query.selective).collect();

        let runs = queries.len() * ways.len() + selective.len() * ablations.len();
        let bar = self.steps("timing queries", runs * self.pairs_count);
        let (mut rows, mut rows_by_query) = (Vec::new(), Vec::new());
        for way in &ways {
            let mut timed = Vec::new();
            for query in &queries {
                timed.push((query, self.watched_pairs(way, &plain, &query.sql, &*bar)?));
            }
            let prefix = format!("tpch_sf{scale}_{}", way.name);
            let all = timed.iter().filter(|(query, _)| query.tpch).map(|(_, (pairs, _))| pairs);
            if timed.iter().any(|(query, _)| query.tpch) {
                rows.push(Row::over_queries(format!("{prefix}_geomean"), "datafusion", all, self.seed));
            }
            if way.name == "auto" && !selective.is_empty() {
                // The default of users.
                let selective = timed.iter().filter(|(query, _)| query.selective);
                let selective = selective.map(|(_, (pairs, _))| pairs);
                rows.push(Row::over_queries("selective_geomean", "datafusion", selective, self.seed));
            }
            for (query, (pairs, counts)) in timed {
                let name = format!("{prefix}_{}", query.name);
                let row = Row::over_queries(name, "datafusion", [&pairs], self.seed);
                rows_by_query.push(Row { telemetry: counts, ..row });
            }
        }
        let [off, auto, _] = &ways;
        rows.extend(self.planning_rows(scale, auto, &plain, &queries)?);
        if let Some(python) = &self.python {
            rows.extend(self.peer_rows(python, scale, &tables, auto, &queries)?);
        }
        for (name, techniques) in ablations.into_iter().filter(|_| !selective.is_empty()) {
            let without = self.tiered("without a technique", &tables, &tiers, Prefetch::Off)?;
            for technique in &techniques {
                self.set(&without, technique, "false")?;
            }
            let mut timed = Vec::new();
            for query in &selective {
                timed.push(self.pairs(off, &without, &query.sql, &*bar)?);
            }
            let peer = format!("memferry without {}", techniques.join(", "));
            rows.push(Row::over_queries(format!("selective_ablation_{name}"), peer, &timed, self.seed));
        }
        // Summaries come first.
        rows.append(&mut rows_by_query);
        Ok(rows)
    }

    /// The queries that were asked for.
    fn queries(&self, scale: f64) -> Result<Vec<Query>, QueryError> {
        let mut queries = queries(scale);
        if let Some(unknown) =
            self.queries.iter().find(|&name| queries.iter().all(|query| query.name != *name))
        {
            let known = queries.iter().map(|query| query.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(QueryError::UnknownQuery { name: unknown.clone(), known });
        }
        queries.retain(|query| self.queries.is_empty() || self.queries.contains(&query.name));
        Ok(queries)
    }

    fn set(&self, way: &QueryRunner, option: &str, value: &str) -> Result<(), QueryError> {
        let statement = format!("SET {}.{option} = '{value}'", MEMFERRY);
        self.runtime.block_on(async { way.context.sql(&statement).await?.collect().await })?;
        Ok(())
    }

    /// [`pairs`](QueryBenchmark::pairs), and what the monitors counted meanwhile.
    pub(crate) fn watched_pairs(
        &self,
        ours: &QueryRunner,
        peer: &QueryRunner,
        sql: &str,
        bar: &dyn Progress,
    ) -> Result<(Pairs, Option<Counts>), QueryError> {
        let (pairs, counts) = self.telemetry.watch(|| self.pairs(ours, peer, sql, bar));
        Ok((pairs?, counts))
    }

    /// Pairs of times, after one run of each that is not timed.
    fn pairs(
        &self,
        ours: &QueryRunner,
        peer: &QueryRunner,
        sql: &str,
        bar: &dyn Progress,
    ) -> Result<Pairs, QueryError> {
        let time_ms = |way| Ok::<_, QueryError>(self.run(way, sql)?.elapsed.as_secs_f64() * 1e3);
        time_ms(ours)?;
        time_ms(peer)?;
        let peer_ms = || time_ms(peer).inspect(|_| bar.advance(1));
        let (ours, peer) = try_alternate(self.pairs_count, || time_ms(ours), peer_ms)?;
        Ok(Pairs { ours, peer })
    }

    /// Generates TPC-H, runs all queries with every late column copied near, and returns this process's peak of resident
    /// memory.
    ///
    /// # Errors
    /// As the queries; [`QueryError::Invalid`] if Linux does not report the peak.
    pub fn peak_memory_bytes(&self, scale: f64) -> Result<u64, QueryError> {
        let tiers = QueryTiers::build(Tiers::builder(Arc::clone(&self.machine)), Dsa::None)?;
        let tables = self.load(scale, &tiers)?;
        let way = self.tiered("always", &tables, &tiers, Prefetch::Always)?;
        for number in tpch::QUERIES {
            // The cache is not cleared between queries: it then holds as much as it ever does.
            self.runtime.block_on(way.run(&tpch::query(number, scale)))?;
        }
        status_bytes("VmHWM")
    }
}

/// The made-up machine with made-up rates, by which it pays to copy columns that are read again.
fn two_tiers_with_rates() -> Result<Machine, TopologyError> {
    let rates = [
        ("dram_mb_per_s", 40e3),
        ("hbm_mb_per_s", 200e3),
        ("core_mb_per_s", 100e3),
        ("core_copy_mb_per_s", 20e3),
    ];
    let parameters = rates.map(|(name, rate)| Parameter::assumed(name, rate, "made up, as the machine is"));
    let reference = ("made up".to_owned(), "rates of ours that describe no machine".to_owned());
    let measured = Measured { reference, parameters: parameters.to_vec(), ..Measured::default() };
    Machine::two_tiers()?.with_measured(measured)
}

/// Prefix of memferry's settings in SQL.
const MEMFERRY: &str = <MemferryOptions as ConfigExtension>::PREFIX;

pub(crate) struct Query {
    pub(crate) name: String,
    pub(crate) sql: String,
    /// One of the 22 queries of TPC-H.
    pub(crate) tpch: bool,
    /// Few rows pass its filters.
    selective: bool,
}

/// The name of the papers' query.
pub(crate) const PAPER: &str = "paper";

fn tpch_name(number: usize) -> String {
    format!("q{number:02}")
}

/// The 22 queries of TPC-H, and the one of the papers on prefetching.
fn queries(scale: f64) -> Vec<Query> {
    let mut queries: Vec<Query> = tpch::QUERIES
        .map(|number| Query {
            name: tpch_name(number),
            sql: tpch::query(number, scale),
            tpch: true,
            selective: [6, 12, 14, 19].contains(&number),
        })
        .collect();
    queries.push(Query {
        name: PAPER.to_owned(),
        sql: paper_query(PAPER_SELECTIVITY),
        tpch: false,
        selective: true,
    });
    queries
}

/// Share of the rows that pass in the papers' query.
const PAPER_SELECTIVITY: f64 = 0.02;

/// Names of ablations and the settings that they switch off: each technique of the scan (a setting that is on by default),
/// and all of them. The gain that remains without any is that of one scan over a filter, a coalescer and a source.
fn ablations() -> Vec<(String, Vec<String>)> {
    let options = MemferryOptions::default().entries().into_iter();
    let on = options.filter(|option| option.value.as_deref() == Some("true"));
    let techniques: Vec<String> = on.map(|option| option.key).collect();
    let mut ablations: Vec<_> =
        techniques.iter().map(|technique| (technique.clone(), vec![technique.clone()])).collect();
    ablations.push(("all".to_owned(), techniques));
    ablations
}
