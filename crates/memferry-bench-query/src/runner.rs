//! Sessions over tiered and plain tables, and runs of a statement in them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memferry::mover::EngineKind;
use memferry_query::{Layout, Prefetch, ScanReport, SessionOptions, TableData, TieredTable, Tiers, session};

use crate::{QueryError, QueryTiers};
use memferry_bench::harness::Provenance;

/// A table and its name in SQL.
pub type NamedTable = (String, Arc<TableData>);

/// The layout of tables on the home node.
pub fn layout(tiers: &Tiers, partitions: usize) -> Layout {
    Layout { partitions, ..Layout::new(Arc::clone(tiers.machine()), tiers.home()) }
}

/// A session over tiered tables.
///
/// # Errors
/// [`QueryError::Budget`], [`QueryError::DataFusion`].
pub fn tiered_session(
    tables: &[NamedTable],
    tiers: &Arc<Tiers>,
    options: &SessionOptions,
) -> Result<SessionContext, QueryError> {
    let context = session(options);
    for (name, data) in tables {
        let table = TieredTable::try_new(Arc::clone(data), Arc::clone(tiers))?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    Ok(context)
}

/// A session over the same batches as tables of DataFusion, without memferry.
fn plain_session(tables: &[NamedTable], options: &SessionOptions) -> Result<SessionContext, QueryError> {
    let context = session(options);
    for (name, data) in tables {
        let table = MemTable::try_new(Arc::clone(data.schema()), data.batches(options.batch_rows))?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    Ok(context)
}

/// One run of a statement.
pub struct QueryRun {
    /// The answer.
    pub batches: Vec<RecordBatch>,
    /// The work of the scans.
    pub report: ScanReport,
    /// Bytes by engine, copies that came too late included.
    pub carried: CarriedBytes,
    /// Time from the text of the statement to the last batch.
    pub elapsed: Duration,
}

/// One of several ways to run queries over the same tables.
pub struct QueryRunner {
    /// Name of the way.
    pub name: &'static str,
    pub(super) context: SessionContext,
    /// Near memory; `None` for plain DataFusion.
    pub tiers: Option<QueryTiers>,
}

impl QueryRunner {
    /// Runs queries in plain DataFusion.
    ///
    /// # Errors
    /// [`QueryError::DataFusion`].
    pub fn plain(tables: &[NamedTable], options: &SessionOptions) -> Result<QueryRunner, QueryError> {
        Ok(QueryRunner { name: "plain DataFusion", context: plain_session(tables, options)?, tiers: None })
    }

    /// Runs queries over tiered tables.
    ///
    /// # Errors
    /// As [`tiered_session`].
    pub fn tiered(
        name: &'static str,
        tables: &[NamedTable],
        tiers: &QueryTiers,
        options: &SessionOptions,
        prefetch: Prefetch,
    ) -> Result<QueryRunner, QueryError> {
        let context = tiered_session(tables, &tiers.tiers, &SessionOptions { prefetch, ..options.clone() })?;
        Ok(QueryRunner { name, context, tiers: Some(tiers.clone()) })
    }

    /// Clears the cache, untimed, and runs a statement.
    ///
    /// # Errors
    /// [`QueryError::DataFusion`].
    pub async fn run_cold(&self, sql: &str) -> Result<QueryRun, QueryError> {
        if let Some(tiers) = &self.tiers {
            tiers.cache().clear();
        }
        self.run(sql).await
    }

    /// Runs a statement, and waits untimed for copies that it started and no longer needs.
    ///
    /// # Errors
    /// [`QueryError::DataFusion`].
    pub async fn run(&self, sql: &str) -> Result<QueryRun, QueryError> {
        let before = CarriedBytes::by(self.tiers.as_ref());
        let started = Instant::now();
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), self.context.task_ctx()).await?;
        let elapsed = started.elapsed();
        let carried = CarriedBytes::by(self.tiers.as_ref()).since(&before);
        Ok(QueryRun { batches, report: ScanReport::of(plan.as_ref()), carried, elapsed })
    }
}

/// Bytes that each kind of engine has copied.
#[derive(Clone, Debug, Default)]
pub struct CarriedBytes(Vec<EngineShare>);

/// Bytes that one kind of engine has copied.
#[derive(Clone, Copy, Debug)]
pub struct EngineShare {
    /// The kind of engine.
    pub kind: EngineKind,
    /// Provenance of its copies.
    pub provenance: Provenance,
    /// Bytes copied.
    pub bytes: u64,
}

impl CarriedBytes {
    /// Bytes copied so far. Waits until the engines are idle.
    pub fn by(tiers: Option<&QueryTiers>) -> CarriedBytes {
        let Some(tiers) = tiers else { return CarriedBytes::default() };
        // Far longer than the copies of a window of row groups; a dead device must not block the caller.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let stats = tiers.mover().stats();
            let busy = stats.engines.iter().any(|it| it.accepted > it.operations + it.errors);
            if !busy || Instant::now() > deadline {
                // The CPU finishes copies of a failing device and copies inline when all engines are full.
                let finished_by_cpu: u64 = stats.engines.iter().map(|it| it.fallback_bytes).sum();
                let by_cpu = stats.bytes_by(EngineKind::Cpu) + stats.inline_bytes + finished_by_cpu;
                let share = |kind, provenance, bytes| EngineShare { kind, provenance, bytes };
                return CarriedBytes(vec![
                    share(EngineKind::Cpu, Provenance::Measured, by_cpu),
                    share(EngineKind::Dsa, tiers.dsa.provenance(), stats.bytes_by(EngineKind::Dsa)),
                ]);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Bytes copied after `before`.
    pub fn since(&self, before: &CarriedBytes) -> CarriedBytes {
        let shares = self.0.iter().zip(&before.0);
        CarriedBytes(
            shares.map(|(now, then)| EngineShare { bytes: now.bytes - then.bytes, ..*now }).collect(),
        )
    }

    /// The engines that copied anything.
    pub fn shares(&self) -> impl Iterator<Item = EngineShare> {
        self.0.iter().copied().filter(|share| share.bytes > 0)
    }
}
