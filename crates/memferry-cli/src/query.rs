//! Sessions over tiered and over plain tables, and the execution of statements in them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memferry::mover::EngineKind;
use memferry_query::load::{self, LoadError};
use memferry_query::{Layout, Prefetch, ScanReport, SessionOptions, TableData, TieredTable, Tiers, session};

use crate::error::{one_line, usage};
use crate::output::size;
use crate::progress::Bar;
use crate::provenance::Provenance;

/// A table with its name in SQL.
pub(crate) type NamedTable = (String, Arc<TableData>);

/// The eight TPC-H tables, generated on the home node.
pub(crate) fn tpch(scale: f64, tiers: &Tiers, partitions: usize) -> Result<Vec<NamedTable>> {
    let bar = Bar::new("generating TPC-H");
    match load::tpch(scale, &layout(tiers, partitions), &bar) {
        Ok(tables) => Ok(tables.into_iter().map(|(name, data)| (name, Arc::new(data))).collect()),
        Err(error @ (LoadError::Scale { .. } | LoadError::NoRoom { .. })) => Err(usage(error)),
        Err(error) => Err(error.into()),
    }
}

/// The table of the papers' query ([`memferry_query::tpch::paper_query`]), with as many rows as TPC-H's largest table
/// has at this scale.
pub(crate) fn paper_table(scale: f64, tiers: &Tiers, partitions: usize) -> Result<NamedTable> {
    let rows = (6e6 * scale) as u64;
    let data = load::ab(rows, 1, &layout(tiers, partitions), &Bar::new("generating the papers' table"))?;
    Ok(("ab".to_owned(), Arc::new(data)))
}

/// A Parquet file, loaded onto the home node.
pub(crate) fn parquet(file: &Path, tiers: &Tiers, partitions: usize) -> Result<Arc<TableData>> {
    Ok(Arc::new(load::from_parquet(file, &layout(tiers, partitions), &Bar::new("loading"))?))
}

fn layout(tiers: &Tiers, partitions: usize) -> Layout {
    Layout { partitions, ..Layout::new(Arc::clone(tiers.machine()), tiers.home()) }
}

/// A session over tiered tables, whose columns are prefetched.
pub(crate) fn tiered(
    tables: &[NamedTable],
    tiers: &Arc<Tiers>,
    options: &SessionOptions,
) -> Result<SessionContext> {
    let context = session(options);
    for (name, data) in tables {
        let table = TieredTable::try_new(Arc::clone(data), Arc::clone(tiers)).map_err(usage)?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    Ok(context)
}

/// A session over the same batches in DataFusion's own tables, without memferry.
fn plain(tables: &[NamedTable], options: &SessionOptions) -> Result<SessionContext> {
    let context = session(options);
    for (name, data) in tables {
        let table = MemTable::try_new(Arc::clone(data.schema()), data.batches(options.batch_rows))?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    Ok(context)
}

/// The result of a statement.
pub(crate) struct Outcome {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) report: ScanReport,
    /// Copied bytes by engine, including copies that were ready too late.
    pub(crate) carried: BytesByEngine,
    /// Time from the text of the statement to the last batch.
    pub(crate) elapsed: Duration,
}

/// A session to compare with others over the same tables.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) context: SessionContext,
    /// None for plain DataFusion.
    pub(crate) tiers: Option<Arc<Tiers>>,
}

impl Way {
    pub(crate) fn plain(tables: &[NamedTable], options: &SessionOptions) -> Result<Way> {
        Ok(Way { name: "plain DataFusion", context: plain(tables, options)?, tiers: None })
    }

    pub(crate) fn tiered(
        name: &'static str,
        tables: &[NamedTable],
        tiers: &Arc<Tiers>,
        options: &SessionOptions,
        prefetch: Prefetch,
    ) -> Result<Way> {
        let context = tiered(tables, tiers, &SessionOptions { prefetch, ..options.clone() })?;
        Ok(Way { name, context, tiers: Some(Arc::clone(tiers)) })
    }

    /// Runs a statement after clearing the cache; the time does not include the clearing.
    pub(crate) async fn run_cold(&self, sql: &str) -> Result<Outcome> {
        if let Some(tiers) = &self.tiers {
            tiers.cache().clear();
        }
        self.run(sql).await
    }

    /// Runs a statement, then waits for its copies in flight; the time does not include the wait.
    pub(crate) async fn run(&self, sql: &str) -> Result<Outcome> {
        let before = BytesByEngine::by(self.tiers.as_deref());
        let started = Instant::now();
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), self.context.task_ctx()).await?;
        let elapsed = started.elapsed();
        let carried = BytesByEngine::by(self.tiers.as_deref()).since(&before);
        Ok(Outcome { batches, report: ScanReport::of(plan.as_ref()), carried, elapsed })
    }
}

/// Copied bytes by kind of engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct BytesByEngine(Vec<EngineBytes>);

/// The copied bytes of one kind of engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineBytes {
    pub(crate) kind: EngineKind,
    pub(crate) how: Provenance,
    pub(crate) bytes: u64,
}

impl BytesByEngine {
    /// Waits until the engines of `tiers` are idle, then returns their totals.
    pub(crate) fn by(tiers: Option<&Tiers>) -> BytesByEngine {
        let Some(tiers) = tiers else { return BytesByEngine::default() };
        // Far longer than the copies of a window of row groups. The limit is for a lost device.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let stats = tiers.mover().stats();
            let busy = stats.engines.iter().any(|it| it.accepted > it.operations + it.errors);
            if !busy || Instant::now() > deadline {
                // The CPU also copies as a fallback for devices, and inline if no engine has room.
                let fallback: u64 = stats.engines.iter().map(|it| it.fallback_bytes).sum();
                let by_cpu = stats.bytes_by(EngineKind::Cpu) + stats.inline_bytes + fallback;
                let by_dsa = stats.bytes_by(EngineKind::Dsa);
                return BytesByEngine(vec![
                    EngineBytes { kind: EngineKind::Cpu, how: Provenance::Measured, bytes: by_cpu },
                    EngineBytes {
                        kind: EngineKind::Dsa,
                        how: Provenance::of_dsa(tiers.dsa()),
                        bytes: by_dsa,
                    },
                ]);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn since(&self, before: &BytesByEngine) -> BytesByEngine {
        let shares = self.0.iter().zip(&before.0);
        BytesByEngine(
            shares.map(|(now, then)| EngineBytes { bytes: now.bytes - then.bytes, ..*now }).collect(),
        )
    }

    /// The engines that copied bytes.
    pub(crate) fn shares(&self) -> impl Iterator<Item = EngineBytes> {
        self.0.iter().copied().filter(|share| share.bytes > 0)
    }
}

/// Such as `3 MiB by emulated DSA, 64 KiB by cpu`; empty without copies.
impl fmt::Display for BytesByEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, share) in self.shares().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let engine = match (share.kind, share.how) {
                (EngineKind::Cpu, _) => "cpu",
                (EngineKind::Dsa, Provenance::Emulated) => "emulated DSA",
                (EngineKind::Dsa, _) => "DSA",
                _ => "another engine",
            };
            write!(f, "{comma}{} by {engine}", size(share.bytes))?;
        }
        Ok(())
    }
}

/// A DataFusion error as a sentence. Errors in the statement are usage errors.
pub(crate) fn explain_error(error: DataFusionError) -> anyhow::Error {
    let root = error.find_root();
    let text = one_line(&root.strip_backtrace());
    let text = text.trim_end_matches('.');
    match root {
        DataFusionError::SQL(parser, _) => usage(format!(
            "cannot parse the statement: {}; fix it there",
            one_line(&parser.to_string().replace("sql parser error: ", ""))
        )),
        DataFusionError::SchemaError(..) => usage(format!(
            "{}; `memferry sql ... \"describe TABLE\"` lists the columns of a table",
            without_kind(text)
        )),
        DataFusionError::Plan(text) if text.starts_with("table '") => usage(format!(
            "{}; name its file with --table NAME=FILE.parquet, or generate the TPC-H tables with --tpch SCALE",
            one_line(text)
        )),
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) if text.contains("ExprPlanner") => {
            usage(format!("this build has no functions for lists and structs: {}", without_kind(text)))
        }
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => {
            usage(format!("cannot plan the statement: {}", without_kind(text)))
        }
        _ => anyhow::anyhow!("the query failed: {text}"),
    }
}

/// Removes DataFusion's prefix for the kind of the error.
fn without_kind(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, rest)| rest)
}
