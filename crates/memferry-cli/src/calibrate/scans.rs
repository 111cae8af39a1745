//! Scans of memferry-query on this machine: what a core filters and takes in, and what becomes of it on several cores
//! and beside copies.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use memferry::calibrate::{Checked, Effort, parameter, undisturbed};
use memferry::model::{Column, Fairness, Fetch, Hardware, Pipeline, Stage};
use memferry::topology::{Machine, NodeId, Parameter};
use memferry_query::{Prefetch, SessionOptions, Tiers, tpch};
use tokio::runtime::Runtime;

use crate::query::{NamedTable, Way, paper_table};

/// Share of the rows that pass, as in `bench query`.
const SELECTIVITY: f64 = 0.02;

/// Of each of the table's two columns, in 10^6 bytes: a query takes some milliseconds, of which some go undisturbed.
const COLUMN_MB: f64 = 24.0;
/// What is checked is smaller and larger.
const CHECKED_COLUMNS_MB: [f64; 2] = [12.0, 40.0];
/// A thousand rows: what is left is the time of a query without rows.
const EMPTY_COLUMN_MB: f64 = 0.008;
/// What a column of the papers' table has at scale 1.
const SCALE_COLUMN_MB: f64 = 48.0;
/// So much of such tables is queried in turns, so that no cache has the next one.
const ALL_MB: f64 = 240.0;

/// Where scans are measured.
pub(super) struct Scans {
    runtime: Runtime,
    tiers: Arc<Tiers>,
    effort: Effort,
}

/// A query over the papers' table, run alone.
#[derive(Clone, Copy)]
enum Query {
    /// The filter only.
    Count,
    /// The filter, and the other column of the rows that passed.
    Sum,
}

impl Query {
    fn sql(self, table: &str) -> String {
        let sum = tpch::paper_query(SELECTIVITY).replace("from ab ", &format!("from {table} "));
        match self {
            Query::Count => sum.replace("sum(b)", "count(*)"),
            Query::Sum => sum,
        }
    }
}

/// Steps of [`Scans::parameters`] and of [`Scans::check`].
pub(super) const STEPS_COUNT: usize = 4;
pub(super) const CHECK_STEPS_COUNT: usize = 2 * CHECKED_COLUMNS_MB.len() * 2;

impl Scans {
    pub(super) fn new(machine: &Arc<Machine>, effort: Effort) -> Result<Scans> {
        Ok(Scans {
            runtime: Runtime::new().context("the threads for the scans cannot be started")?,
            tiers: Tiers::builder(Arc::clone(machine)).build()?,
            effort,
        })
    }

    /// Where tables lie and are scanned.
    fn home(&self) -> Result<NodeId> {
        Ok(self.tiers.machine().node(self.tiers.home())?.cpu_node)
    }

    fn cores_count(&self) -> Result<usize> {
        Ok(self.tiers.machine().node(self.home()?)?.allowed_cpus.len())
    }

    /// Tables of that size, of which there are enough that the next one is in no cache.
    fn tables(&self, column_mb: f64, partitions: usize) -> Result<Vec<NamedTable>> {
        let all_mb = if self.effort.is_quick { 0.0 } else { ALL_MB };
        let count = (all_mb / (2.0 * column_mb)).ceil().clamp(1.0, 64.0) as usize;
        let table = |index| {
            let (_, data) = paper_table(column_mb / SCALE_COLUMN_MB, &self.tiers, partitions)?;
            Ok((format!("ab{index}"), data))
        };
        (0..count).map(table).collect()
    }

    /// Seconds of each of some queries that nothing disturbs, each run begun with an empty cache. They take turns, so
    /// that they can be compared.
    fn queries_s<const N: usize>(
        &self,
        tables: &[NamedTable],
        queries: [Query; N],
        prefetch: Prefetch,
    ) -> Result<[f64; N]> {
        let partitions = tables.iter().map(|(_, data)| data.partitions().len()).max().unwrap_or(1);
        let options = SessionOptions { partitions, ..SessionOptions::default() };
        let way = Way::tiered("scan", tables, &self.tiers, &options, prefetch)?;
        let mut times = [f64::INFINITY; N];
        for (name, _) in tables.iter().cycle().take(2 * self.effort.rounds) {
            for (time, query) in times.iter_mut().zip(queries) {
                let outcome = self.runtime.block_on(way.run_cold(&query.sql(name)))?;
                *time = undisturbed(&[*time, outcome.elapsed.as_secs_f64()]);
            }
        }
        Ok(times)
    }

    /// What a core's scans cost, from three queries by one core.
    pub(super) fn parameters(&self, source: &str, step: &mut dyn FnMut()) -> Result<Vec<Parameter>> {
        let cores_count = self.cores_count()?;
        let mut empty = |partitions| {
            let tables = self.tables(EMPTY_COLUMN_MB, partitions)?;
            step();
            self.queries_s(&tables, [Query::Sum], Prefetch::Off)
        };
        let ([query_s], [parallel_s]) = (empty(1)?, empty(cores_count)?);
        let partition_s = (parallel_s - query_s).max(0.0) / (cores_count - 1).max(1) as f64;
        let tables = self.tables(COLUMN_MB, 1)?;
        step();
        let [count_s, sum_s] = self.queries_s(&tables, [Query::Count, Query::Sum], Prefetch::Off)?;
        step();
        let (filter_s, late_s) = (count_s - query_s, sum_s - count_s);
        ensure!(
            filter_s > 0.0 && late_s > 0.0,
            "the time of scans makes no sense, other programs disturb it; end them and run it again"
        );
        let how =
            |what: &str| format!("{source}: {what}, by one core, {} % of the rows pass", 100.0 * SELECTIVITY);
        Ok(vec![
            parameter("filter_mb_per_s", COLUMN_MB / filter_s, &how("count(*) behind a filter")),
            parameter("late_mb_per_s", COLUMN_MB / late_s, &how("sum() less count(*) behind a filter")),
            parameter("query_ns", query_s * 1e9, &how("a table of a thousand rows")),
            parameter(
                "query_partition_ns",
                partition_s * 1e9,
                &format!("{source}: the same table in one partition for each core"),
            ),
        ])
    }

    /// Scans of other sizes, by one core and by all, without prefetching and with all of it, which copies on the cores
    /// that scan.
    pub(super) fn check(&self, profile: &Machine, step: &mut dyn FnMut()) -> Result<Vec<Checked>> {
        let mut checked = Vec::new();
        for column_mb in CHECKED_COLUMNS_MB {
            for partitions in [1, self.cores_count()?] {
                let tables = self.tables(column_mb, partitions)?;
                for (what, prefetch) in [("scan", Prefetch::Off), ("pipeline", Prefetch::Always)] {
                    let [measured_s] = self.queries_s(&tables, [Query::Sum], prefetch)?;
                    let predicted_s = self.predicted_s(profile, column_mb, partitions, prefetch)?;
                    let name = format!("{what}_2x{column_mb}MB_by_{partitions}");
                    checked.push(Checked { name, predicted_s, measured_s });
                    step();
                }
            }
        }
        Ok(checked)
    }

    fn predicted_s(
        &self,
        profile: &Machine,
        column_mb: f64,
        partitions: usize,
        prefetch: Prefetch,
    ) -> Result<f64> {
        let parameter = |name: &str| {
            let value = profile.parameter(name).map(|parameter| parameter.value);
            value.with_context(|| format!("{} does not tell {name}; calibrate it anew", profile.name()))
        };
        let (home, size_bytes) = (self.tiers.home(), (1e6 * column_mb) as u64);
        let column = |name: &str| Column { name: name.to_owned(), size_bytes, node: home };
        let stage = |name: &str, column, rate: &str| {
            anyhow::Ok(Stage {
                name: name.to_owned(),
                reads: vec![column],
                threads_count: partitions,
                thread_rate_max: parameter(rate)? * 1e6,
            })
        };
        let fetch = Fetch { column: 1, chunks_count: usize::MAX, node: self.tiers.near(), route: None };
        let pipeline = Pipeline {
            columns: vec![column("a"), column("b")],
            stages: vec![stage("filter", 0, "filter_mb_per_s")?, stage("sum", 1, "late_mb_per_s")?],
            cpus: self.home()?,
            groups_count: partitions,
            // A column of a row group.
            chunk_bytes: 1 << 20,
            fetches: if prefetch == Prefetch::Always { vec![fetch] } else { Vec::new() },
            is_waiting: false,
            fairness: Fairness::default(),
        };
        let run = pipeline.run(profile, &Hardware::of(profile)?)?;
        let query_ns = parameter("query_ns")? + (partitions - 1) as f64 * parameter("query_partition_ns")?;
        Ok(query_ns * 1e-9 + run.total_s)
    }
}
