//! Ways to run a query over files: a session of DataFusion, or another engine.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::datasource::physical_plan::ParquetSource;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use memferry_query::files::{Demand, FileReport};
use tokio::runtime::Runtime;

use super::io::{FileCache, bytes_read};
use crate::peers::Peer;
use crate::{QueryError, tpch_table_names};

/// One run of a query.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ms: f64,
    /// Bytes that the kernel fetched from the disk meanwhile.
    pub(super) bytes_read: u64,
    /// Of memferry's reader; empty for others.
    pub(super) report: FileReport,
    /// Columns that a scan puts out and its filter does not read, of the scan that has most; 0 for other engines.
    pub(super) late_columns: usize,
    pub(super) answer: RunAnswer,
}

/// The answer of a run, for comparison.
#[derive(Debug)]
pub(super) enum RunAnswer {
    Batches(Vec<RecordBatch>),
    /// Other engines only count their rows.
    Rows(usize),
}

/// One way to run queries.
pub(super) enum Way<'a> {
    Session(Session<'a>),
    Peer(Peer),
}

/// Sessions over the files, a new one for each run: none knows a footer or a page of an earlier run.
pub(super) struct Session<'a> {
    pub(super) name: String,
    pub(super) runtime: &'a Runtime,
    /// Makes a session with all tables. Its time is not measured.
    pub(super) open: Box<dyn Fn() -> Result<SessionContext, QueryError> + 'a>,
}

impl Way<'_> {
    pub(super) fn name(&self) -> &str {
        match self {
            Way::Session(session) => &session.name,
            Way::Peer(peer) => &peer.name,
        }
    }

    /// Runs a query over files that are as cold or warm as `files` says. The inner error: the engine cannot run it.
    pub(super) fn run(&mut self, sql: &str, files: &FileCache) -> Result<Result<Run, String>, QueryError> {
        match self {
            Way::Session(session) => session.run(sql, files).map(Ok),
            Way::Peer(peer) => run_peer(peer, sql, files),
        }
    }
}

/// Runs a query in another engine.
pub(super) fn run_peer(
    peer: &mut Peer,
    sql: &str,
    files: &FileCache,
) -> Result<Result<Run, String>, QueryError> {
    files.prepare()?;
    let before = bytes_read(peer.process())?;
    let run = match peer.run(sql)? {
        Ok(run) => run,
        Err(error) => return Ok(Err(error)),
    };
    let bytes_read = bytes_read(peer.process())?.saturating_sub(before);
    let (report, answer) = (FileReport::default(), RunAnswer::Rows(run.rows));
    Ok(Ok(Run { ms: run.ms, bytes_read, report, late_columns: 0, answer }))
}

impl Session<'_> {
    pub(super) fn run(&self, sql: &str, files: &FileCache) -> Result<Run, QueryError> {
        let context = (self.open)()?;
        files.prepare()?;
        let process = std::process::id();
        let before = bytes_read(process)?;
        let started = Instant::now();
        let (plan, batches) = self.runtime.block_on(async {
            let plan = context.sql(sql).await?.create_physical_plan().await?;
            Ok::<_, QueryError>((Arc::clone(&plan), collect(plan, context.task_ctx()).await?))
        })?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let bytes_read = bytes_read(process)?.saturating_sub(before);
        let (report, late_columns) = (FileReport::of(plan.as_ref()), late_columns(plan.as_ref())?);
        Ok(Run { ms, bytes_read, report, late_columns, answer: RunAnswer::Batches(batches) })
    }
}

/// The late columns of the scan of files that has most. A scan without a filter has none.
fn late_columns(plan: &dyn ExecutionPlan) -> Result<usize, QueryError> {
    let mut most = 0;
    for child in plan.children() {
        most = most.max(late_columns(child.as_ref())?);
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    let Some((config, source)) = scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>()) else {
        return Ok(most);
    };
    let demand = Demand::of(config, source)?;
    let Some(predicate) = demand.predicate() else { return Ok(most) };
    let filtered: HashSet<String> =
        collect_columns(predicate).iter().map(|column| column.name().to_owned()).collect();
    let columns = demand.first().iter().chain(demand.late());
    let late = columns.filter(|&&column| !filtered.contains(demand.file_schema().field(column).name()));
    Ok(most.max(late.count()))
}

/// Registers the files of TPC-H, at the location of each table, as plain DataFusion does.
pub(crate) fn register_plain(
    runtime: &Runtime,
    context: &SessionContext,
    location: impl Fn(&str) -> String,
) -> Result<(), QueryError> {
    for table in tpch_table_names() {
        runtime.block_on(context.register_parquet(table, location(table), ParquetReadOptions::default()))?;
    }
    Ok(())
}
