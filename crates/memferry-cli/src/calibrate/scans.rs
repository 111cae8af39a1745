//! Scans of memferry-query on this machine: what a core filters and takes in, and what becomes of it on several cores
//! and beside copies.

use std::sync::Arc;

use anyhow::{Context, Result};
use memferry::calibrate::{Checked, Effort, parameter, undisturbed};
use memferry::model::{Column, Fairness, Fetch, Hardware, Pipeline, Stage};
use memferry::topology::{Machine, NodeId, Parameter};
use memferry_query::{Prefetch, SessionOptions, Tiers, tpch};
use tokio::runtime::Runtime;

use crate::query::{NamedTable, Way, paper_table};

/// Share of the rows that pass, as in `bench query`.
const SELECTIVITY: f64 = 0.02;

/// In units of TPC-H's largest table: what is calibrated on is 96 MB a column, which no cache holds for long.
const SCALE: f64 = 2.0;
/// What is checked is smaller and larger.
const CHECKED_SCALES: [f64; 2] = [1.5, 4.0];
/// One row group: what is left is the time of a query without rows.
const EMPTY_SCALE: f64 = 0.001;

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
    fn sql(self) -> String {
        let sum = tpch::paper_query(SELECTIVITY);
        match self {
            Query::Count => sum.replace("sum(b)", "count(*)"),
            Query::Sum => sum,
        }
    }
}

/// Steps of [`Scans::parameters`] and of [`Scans::check`].
pub(super) const STEPS_COUNT: usize = 3;
pub(super) const CHECK_STEPS_COUNT: usize = 2 * CHECKED_SCALES.len() * 2;

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

    fn scale(&self, scale: f64) -> f64 {
        if self.effort.is_quick { scale / 20.0 } else { scale }
    }

    fn table(&self, scale: f64, partitions: usize) -> Result<NamedTable> {
        paper_table(self.scale(scale), &self.tiers, partitions)
    }

    /// Seconds of a query that nothing disturbs, begun with an empty cache.
    fn query_s(&self, table: &NamedTable, query: Query, prefetch: Prefetch) -> Result<f64> {
        let partitions = table.1.partitions().len();
        let options = SessionOptions { partitions, ..SessionOptions::default() };
        let tables = std::slice::from_ref(table);
        let way = Way::tiered("scan", tables, &self.tiers, &options, prefetch)?;
        let mut times = Vec::new();
        for _ in 0..self.effort.rounds.div_ceil(3) {
            times.push(self.runtime.block_on(way.run_cold(&query.sql()))?.elapsed.as_secs_f64());
        }
        Ok(undisturbed(&times))
    }

    /// What a core's scans cost, from three queries by one core.
    pub(super) fn parameters(&self, source: &str, step: &mut dyn FnMut()) -> Result<Vec<Parameter>> {
        let mut measure = |scale, query| {
            let table = self.table(scale, 1)?;
            step();
            self.query_s(&table, query, Prefetch::Off)
        };
        let query_s = measure(EMPTY_SCALE, Query::Sum)?;
        let (count_s, sum_s) = (measure(SCALE, Query::Count)?, measure(SCALE, Query::Sum)?);
        let column_bytes = 8.0 * 6e6 * self.scale(SCALE);
        let (filter_s, late_s) = (count_s - query_s, sum_s - count_s);
        anyhow::ensure!(
            filter_s > 0.0 && late_s > 0.0,
            "the time of scans makes no sense, other programs disturb it; end them and run it again"
        );
        let how =
            |what: &str| format!("{source}: {what}, by one core, {} % of the rows pass", 100.0 * SELECTIVITY);
        Ok(vec![
            parameter("filter_mb_per_s", column_bytes / filter_s / 1e6, &how("count(*) behind a filter")),
            parameter(
                "late_mb_per_s",
                column_bytes / late_s / 1e6,
                &how("sum() less count(*) behind a filter"),
            ),
            parameter("query_ns", query_s * 1e9, &how("a table of one row group")),
        ])
    }

    /// Scans of other sizes, by one core and by all, without prefetching and with all of it, which copies on the cores
    /// that scan.
    pub(super) fn check(&self, profile: &Machine, step: &mut dyn FnMut()) -> Result<Vec<Checked>> {
        let mut checked = Vec::new();
        for scale in CHECKED_SCALES {
            for partitions in [1, self.cores_count()?] {
                let table = self.table(scale, partitions)?;
                for (what, prefetch) in [("scan", Prefetch::Off), ("pipeline", Prefetch::Always)] {
                    let megabytes = 48.0 * self.scale(scale);
                    checked.push(Checked {
                        name: format!("{what}_2x{megabytes}MB_by_{partitions}"),
                        predicted_s: self.predicted_s(profile, scale, partitions, prefetch)?,
                        measured_s: self.query_s(&table, Query::Sum, prefetch)?,
                    });
                    step();
                }
            }
        }
        Ok(checked)
    }

    fn predicted_s(
        &self,
        profile: &Machine,
        scale: f64,
        partitions: usize,
        prefetch: Prefetch,
    ) -> Result<f64> {
        let parameter = |name: &str| {
            let value = profile.parameter(name).map(|parameter| parameter.value);
            value.with_context(|| format!("{} does not tell {name}; calibrate it anew", profile.name()))
        };
        let (home, size_bytes) = (self.tiers.home(), (8.0 * 6e6 * self.scale(scale)) as u64);
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
        Ok(parameter("query_ns")? * 1e-9 + run.total_s)
    }
}
