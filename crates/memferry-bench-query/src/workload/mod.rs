//! TPC-H by several sessions at once, in random order, for minutes, over files that do not fit the budget decoded.
//!
//! The ways (memferry, memferry without kept columns, plain DataFusion with the page cache) take turns in sections of equal
//! length. Each session has the same sequence of queries in each way, and goes on where its last section ended. Every answer is
//! compared with plain DataFusion's. The files are cold at the beginning. A query that ends after its section takes that time from
//! the next one, so that a fifth of the run is a fifth of its time, however slow the disk is.
//!
//! Before them is a part with cancelled queries, a table that changes and reads that fail (`disturbed`).
//!
//! *Speed* of a run is the median time of its query by plain DataFusion, over all sections, divided by its own time. So it does
//! not depend on which queries a section has.

mod disturbed;
mod rows;
mod sections;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use datafusion::prelude::{SessionConfig, SessionContext};
use memferry::topology::Machine;
use memferry_bench::harness::Row;
use memferry_query::load::Progress;
use memferry_query::{SessionOptions, Tiers, session};
use tokio::runtime::Runtime;

use self::sections::{Expected, Sections, Way};
use crate::cold::{FileCache, Temperature, register_plain};
use crate::{QueryError, tpch, tpch_file, tpch_table_names};

/// Fifths of the run are compared, so sections come in multiples of this.
const FIFTHS: usize = 5;

/// Runs of all queries before the working set is known: a column is kept at its eighth use at the latest.
const PASSES_COUNT: usize = 8;

/// Ways by position.
const OURS: usize = 0;
const STORED: usize = 1;
const PLAIN: usize = 2;

/// The benchmark of a workload.
pub struct WorkloadBenchmark {
    machine: Arc<Machine>,
    files: PathBuf,
    scale: f64,
    options: SessionOptions,
    runtime: Runtime,
    /// Sessions that run queries at the same time. 8 by default.
    pub sessions_count: usize,
    /// Time of each way, all of its sections together. 10 minutes by default.
    pub time: Duration,
    /// Time of the part with cancelled queries, a table that changes and reads that fail; zero leaves it out. 2 minutes by
    /// default.
    pub disturbed_time: Duration,
    /// In that part one of so many reads of the disk fails. 400 by default: at scale 1 a query that finds nothing in memory makes
    /// up to some hundred.
    pub fails_one_of: usize,
    /// Sections of each way for each fifth of its time. 2 by default.
    pub sections_per_fifth: usize,
    /// Budget of memferry; `None`: half of what all queries use if there is room.
    pub budget_bytes: Option<u64>,
    /// Seed of the orders of queries, and of confidence intervals.
    pub seed: u64,
}

impl WorkloadBenchmark {
    /// A benchmark over the files that [`tpch_files`](crate::tpch_files) wrote at `scale`.
    ///
    /// # Errors
    /// [`QueryError::Threads`].
    pub fn new(
        machine: Arc<Machine>,
        files: PathBuf,
        scale: f64,
        options: SessionOptions,
    ) -> Result<WorkloadBenchmark, QueryError> {
        Ok(WorkloadBenchmark {
            machine,
            files,
            scale,
            options,
            runtime: Runtime::new().map_err(QueryError::Threads)?,
            sessions_count: 8,
            time: Duration::from_secs(600),
            disturbed_time: Duration::from_secs(120),
            fails_one_of: 400,
            sections_per_fifth: 2,
            budget_bytes: None,
            seed: 1,
        })
    }

    /// All rows. `progress` counts sections.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: an answer differs, the budget was exceeded, the working set does not fit the memory, the time is
    /// too short for each part of the run to have a query; in the disturbed part: an error does not say what is wrong with which
    /// file, memory stays in use, or the kernel does not say how much there is. Others as the queries.
    pub fn rows(&self, progress: &dyn Progress) -> Result<Vec<Row>, QueryError> {
        let queries: Vec<String> = tpch::QUERIES.map(|number| tpch::query(number, self.scale)).collect();
        let sections_count = FIFTHS * self.sections_per_fifth.max(1);
        let names = ["memferry", "memferry without keep_decoded", "DataFusion"];
        let disturbed_count = if self.disturbed_time.is_zero() { 0 } else { FIFTHS };
        progress.total((names.len() * sections_count + disturbed_count) as u64);
        let expected = Arc::new(self.expected(&self.plain_session(&self.files)?, &queries)?);
        let working_set_bytes = match self.budget_bytes {
            Some(_) => None,
            None => Some(self.working_set_bytes(&expected)?),
        };
        let half = working_set_bytes.map(|bytes| bytes / 2);
        let budget_bytes = self.budget_bytes.or(half).unwrap_or_default();
        let disturbed = match disturbed_count {
            0 => Vec::new(),
            _ => self.disturbed_rows(&expected, budget_bytes, progress)?,
        };
        let mut ways = Vec::new();
        for (position, name) in names.into_iter().enumerate() {
            let tiers = if position == PLAIN { None } else { Some(self.tiers(budget_bytes)?) };
            let open = || match &tiers {
                Some(tiers) => self.our_session(tiers, position == OURS, &self.files),
                None => self.plain_session(&self.files),
            };
            let contexts = (0..self.sessions_count).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
            ways.push(Way::new(name, contexts, tiers, self.seed));
        }
        FileCache::open(&self.files, Temperature::Cold)?.prepare()?;
        let sections = Sections { count: sections_count, each: self.time / sections_count as u32 };
        for section in 0..sections_count {
            let forth = 0..ways.len();
            let order: Vec<usize> = if section % 2 == 0 { forth.collect() } else { forth.rev().collect() };
            for way in order {
                ways[way].run_section(section, sections, &expected, &self.runtime)?;
                progress.advance(1);
            }
        }
        let mut rows = self.summaries(&ways, budget_bytes, working_set_bytes)?;
        rows.extend(disturbed);
        Ok(rows)
    }

    /// The answers in a session of plain DataFusion.
    fn expected(&self, plain: &SessionContext, queries: &[String]) -> Result<Expected, QueryError> {
        let answer = |sql: &String| -> Result<_, QueryError> {
            Ok(self.runtime.block_on(async { plain.sql(sql).await?.collect().await })?)
        };
        let answers = queries.iter().map(answer).collect::<Result<_, _>>()?;
        Ok(Expected { queries: queries.to_vec(), answers })
    }

    /// Bytes of stored and decoded columns that all queries need.
    fn working_set_bytes(&self, expected: &Expected) -> Result<u64, QueryError> {
        let near = Tiers::builder(Arc::clone(&self.machine)).build()?.near();
        let node = self.machine.node(near)?;
        let free_bytes = node.free_bytes.or(node.memory_bytes).unwrap_or_default();
        let tiers = self.tiers(free_bytes / 2)?;
        let context = self.our_session(&tiers, true, &self.files)?;
        for _ in 0..PASSES_COUNT {
            for sql in &expected.queries {
                self.runtime.block_on(async { context.sql(sql).await?.collect().await })?;
            }
        }
        let stats = tiers.cache().stats();
        if stats.evictions > 0 || stats.no_room > 0 {
            return Err(QueryError::Invalid(format!(
                "the columns of all queries do not fit half of the free memory ({free_bytes} bytes); choose a smaller --scale, \
                 or give --budget"
            )));
        }
        Ok(stats.nodes.iter().map(|usage| usage.used_bytes as u64).sum())
    }

    fn tiers(&self, budget_bytes: u64) -> Result<Arc<Tiers>, QueryError> {
        Ok(Tiers::builder(Arc::clone(&self.machine)).budget_bytes(Some(budget_bytes)).build()?)
    }

    fn our_session(
        &self,
        tiers: &Arc<Tiers>,
        keep_decoded: bool,
        files: &Path,
    ) -> Result<SessionContext, QueryError> {
        let context = session(&SessionOptions { tiers: Some(Arc::clone(tiers)), ..self.options.clone() });
        self.runtime.block_on(async {
            context.sql(&format!("set memferry.keep_decoded = {keep_decoded}")).await?.collect().await?;
            for table in tpch_table_names() {
                memferry_query::files::register(&context, table, &tpch_file(files, table).to_string_lossy())
                    .await?;
            }
            Ok(context)
        })
    }

    fn plain_session(&self, files: &Path) -> Result<SessionContext, QueryError> {
        self.session_over(|table| tpch_file(files, table))
    }

    /// A session of plain DataFusion over the file of each table.
    fn session_over(&self, file: impl Fn(&str) -> PathBuf) -> Result<SessionContext, QueryError> {
        let config = SessionConfig::new().with_target_partitions(self.options.partitions);
        let context = SessionContext::new_with_config(config);
        register_plain(&self.runtime, &context, |table| file(table).to_string_lossy().into_owned())?;
        Ok(context)
    }
}
