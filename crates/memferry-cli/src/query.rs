//! Sessions over tiered and over plain tables, and running a statement in them.

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
use crate::how::{self, How};
use crate::output::size;
use crate::progress::Bar;

/// A table under the name that SQL knows it by.
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

/// A session in which columns are brought near.
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

/// A session over the same batches as DataFusion's own tables, which memferry has no part in.
fn plain(tables: &[NamedTable], options: &SessionOptions) -> Result<SessionContext> {
    let context = session(options);
    for (name, data) in tables {
        let table = MemTable::try_new(Arc::clone(data.schema()), data.batches(options.batch_rows))?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    Ok(context)
}

/// What came of a statement.
pub(crate) struct Outcome {
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) report: ScanReport,
    /// Bytes by the engine that carried them, those that came too late included.
    pub(crate) carried: Carried,
    /// From the text of the statement to the last batch.
    pub(crate) elapsed: Duration,
}

/// A way to run queries, to be compared with others over the same tables.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) context: SessionContext,
    /// What brings columns near; not for plain DataFusion.
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

    /// Runs a statement as if nothing had been queried before: the cache is emptied first, which is not timed.
    pub(crate) async fn run_cold(&self, sql: &str) -> Result<Outcome> {
        if let Some(tiers) = &self.tiers {
            tiers.cache().clear();
        }
        self.run(sql).await
    }

    /// Runs a statement, and waits untimed for the copies that it started and no longer needs.
    pub(crate) async fn run(&self, sql: &str) -> Result<Outcome> {
        let before = Carried::by(self.tiers.as_deref());
        let started = Instant::now();
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), self.context.task_ctx()).await?;
        let elapsed = started.elapsed();
        let carried = Carried::by(self.tiers.as_deref()).since(&before);
        Ok(Outcome { batches, report: ScanReport::of(plan.as_ref()), carried, elapsed })
    }
}

/// How many bytes each kind of engine has carried.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carried(Vec<Share>);

/// What one kind of engine has carried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) kind: EngineKind,
    pub(crate) how: How,
    pub(crate) bytes: u64,
}

impl Carried {
    /// By the engines of `tiers` so far, once they have nothing to do.
    pub(crate) fn by(tiers: Option<&Tiers>) -> Carried {
        let Some(tiers) = tiers else { return Carried::default() };
        // Far longer than a window of row groups takes; a device that died must not keep us here.
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let stats = tiers.mover().stats();
            let busy = stats.engines.iter().any(|it| it.accepted > it.operations + it.errors);
            if !busy || Instant::now() > deadline {
                // The CPU stands in where a device cannot, and copies what no engine has room for.
                let stood_in: u64 = stats.engines.iter().map(|it| it.fallback_bytes).sum();
                let by_cpu = stats.bytes_by(EngineKind::Cpu) + stats.inline_bytes + stood_in;
                let by_dsa = stats.bytes_by(EngineKind::Dsa);
                return Carried(vec![
                    Share { kind: EngineKind::Cpu, how: How::Measured, bytes: by_cpu },
                    Share { kind: EngineKind::Dsa, how: how::of_dsa(tiers.dsa()), bytes: by_dsa },
                ]);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub(crate) fn since(&self, before: &Carried) -> Carried {
        let shares = self.0.iter().zip(&before.0);
        Carried(shares.map(|(now, then)| Share { bytes: now.bytes - then.bytes, ..*now }).collect())
    }

    /// The engines that carried anything.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> {
        self.0.iter().copied().filter(|share| share.bytes > 0)
    }
}

/// Such as `3 MiB by emulated DSA, 64 KiB by cpu`; nothing if nothing was carried.
impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, share) in self.shares().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let engine = match (share.kind, share.how) {
                (EngineKind::Cpu, _) => "cpu",
                (EngineKind::Dsa, How::Emulated) => "emulated DSA",
                (EngineKind::Dsa, _) => "DSA",
                _ => "another engine",
            };
            write!(f, "{comma}{} by {engine}", size(share.bytes))?;
        }
        Ok(())
    }
}

/// A DataFusion error as a sentence: what the statement got wrong is the user's to mend, anything else is a failure.
pub(crate) fn explain_error(error: DataFusionError) -> anyhow::Error {
    let root = error.find_root();
    let text = one_line(&root.strip_backtrace());
    let text = text.trim_end_matches('.');
    match root {
        DataFusionError::SQL(parser, _) => usage(format!(
            "the statement is not SQL that memferry understands: {}; mend it there",
            one_line(&parser.to_string().replace("sql parser error: ", ""))
        )),
        DataFusionError::SchemaError(..) => usage(format!(
            "{}; `memferry sql ... \"describe TABLE\"` lists the columns of a table",
            without_kind(text)
        )),
        DataFusionError::Plan(text) if text.starts_with("table '") => usage(format!(
            "{}; name its file with --table NAME=FILE.parquet, or take the TPC-H tables with --tpch SCALE",
            one_line(text)
        )),
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => {
            usage(format!("the statement cannot be planned: {}; rephrase it", without_kind(text)))
        }
        _ => anyhow::anyhow!("the query failed: {text}"),
    }
}

/// Without DataFusion's name for the kind of error, which tells users nothing.
fn without_kind(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, rest)| rest)
}
