//! Measurements of scans with memferry-query: the rates of filters and sums on one core, on several cores, and during
//! copies.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use memferry::internals::{Fairness, Hardware, IDLE_BYTES_MAX, Parameter, Pipeline};
use memferry::memory::Pool;
use memferry::model::{Column, Fetch, Stage};
use memferry::topology::{Machine, NodeId};
use memferry_bench::calibrate::{Checked, SamplingPlan, parameter, undisturbed};
use memferry_bench_query::{Dsa, NamedTable, QueryRunner, QueryTiers, paper_query};
use memferry_query::{Prefetch, SessionOptions, Tiers};
use tokio::runtime::Runtime;

use crate::query::papers_table;

/// Share of rows that pass the filter, as in `bench query`.
const SELECTIVITY: f64 = 0.02;

/// Size of each of the two columns in 10^6 bytes. A query takes a few milliseconds, so some runs are undisturbed.
const COLUMN_MB: f64 = 24.0;
/// Sizes of the check: a smaller and a larger one.
const CHECKED_COLUMNS_MB: [f64; 2] = [12.0, 40.0];
/// A thousand rows, for the time of a query without work.
const EMPTY_COLUMN_MB: f64 = 0.008;
/// Size of a column of the papers' table at scale 1.
const SCALE_COLUMN_MB: f64 = 48.0;
/// Total size of the tables that are queried in turns, so that no CPU cache has the next one.
const ALL_MB: f64 = 240.0;

/// The environment of the measurements.
pub(super) struct Scans {
    runtime: Runtime,
    tiers: QueryTiers,
    effort: SamplingPlan,
}

/// A query over the papers' table.
#[derive(Clone, Copy)]
enum Query {
    /// The filter only.
    Count,
    /// The filter, and the other column of the rows that passed.
    Sum,
}

impl Query {
    fn sql(self, table: &str) -> String {
        let sum = paper_query(SELECTIVITY).replace("from ab ", &format!("from {table} "));
        match self {
            Query::Count => sum.replace("sum(b)", "count(*)"),
            Query::Sum => sum,
        }
    }
}

/// Measurements of a pass that share its time.
const FIGURES_COUNT: usize = STEPS_COUNT + CHECK_STEPS_COUNT;

/// Steps of [`Scans::measure`] and of [`Scans::check`].
pub(super) const STEPS_COUNT: usize = 5;
pub(super) const CHECK_STEPS_COUNT: usize = 2 * CHECKED_COLUMNS_MB.len() * 2;

/// Measured times of queries and of memory allocation.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// A table of a thousand rows, in one partition and in one for each core.
    empty_s: [f64; 2],
    /// [`Query::Count`] and [`Query::Sum`], in one partition and in one for each core.
    queries_s: [[f64; 2]; 2],
    /// Allocation of [`NEW_BYTES`] from the kernel.
    new_s: f64,
}

impl Times {
    /// Seconds of the filter and of the other column, without those of a query without rows, in one partition and in one
    /// for each core.
    fn parts_s(&self) -> [[f64; 2]; 2] {
        let [query_s, parallel_s] = self.empty_s;
        let parts = |[count_s, sum_s]: [f64; 2], empty_s: f64| [count_s - empty_s, sum_s - count_s];
        [parts(self.queries_s[0], query_s), parts(self.queries_s[1], parallel_s.max(query_s))]
    }

    /// Whether more work takes longer, which disturbances can prevent with few samples.
    pub(super) fn make_sense(&self) -> bool {
        self.parts_s().iter().flatten().all(|seconds| *seconds > 0.0)
    }

    /// The better of two passes.
    pub(super) fn or_better(self, other: Times) -> Times {
        let pair = |one: [f64; 2], other: [f64; 2]| [0, 1].map(|at| one[at].min(other[at]));
        Times {
            empty_s: pair(self.empty_s, other.empty_s),
            queries_s: [0, 1].map(|at| pair(self.queries_s[at], other.queries_s[at])),
            new_s: self.new_s.min(other.new_s),
        }
    }
}

/// A query of the check, with its time.
#[derive(Clone)]
pub(super) struct CheckedScan {
    column_mb: f64,
    partitions: usize,
    prefetch: Prefetch,
    measured_s: f64,
}

/// The better time of two passes for each query.
pub(super) fn better_pass(mut ran: Vec<CheckedScan>, other: &[CheckedScan]) -> Vec<CheckedScan> {
    for (ran, other) in ran.iter_mut().zip(other) {
        ran.measured_s = ran.measured_s.min(other.measured_s);
    }
    ran
}

/// The size in which a pool allocates memory from the kernel.
const NEW_BYTES: usize = 2 << 20;

impl Scans {
    pub(super) fn new(machine: &Arc<Machine>, effort: SamplingPlan) -> Result<Scans> {
        Ok(Scans {
            runtime: Runtime::new().context("the threads for the scans cannot be started")?,
            tiers: QueryTiers::build(Tiers::builder(Arc::clone(machine)), Dsa::None)?,
            effort,
        })
    }

    /// The node of the tables and of the scanning CPUs.
    fn home(&self) -> Result<NodeId> {
        Ok(self.tiers.machine().node(self.tiers.home())?.cpu_node)
    }

    fn cores_count(&self) -> Result<usize> {
        Ok(self.tiers.machine().node(self.home()?)?.allowed_cpus.len())
    }

    /// Enough tables of a size that no CPU cache has the next one.
    fn tables(&self, column_mb: f64, partitions: usize) -> Result<Vec<NamedTable>> {
        let all_mb = if self.effort.is_quick { 0.0 } else { ALL_MB };
        let count = (all_mb / (2.0 * column_mb)).ceil().clamp(1.0, 64.0) as usize;
        let table = |index| {
            let (_, data) = papers_table(column_mb / SCALE_COLUMN_MB, &self.tiers, partitions)?;
            Ok((format!("ab{index}"), data))
        };
        (0..count).map(table).collect()
    }

    /// Undisturbed seconds of each query; each run starts with an empty cache. Queries take turns, so that their times can
    /// be compared.
    fn queries_s<const N: usize>(
        &self,
        tables: &[NamedTable],
        queries: [Query; N],
        prefetch: Prefetch,
    ) -> Result<[f64; N]> {
        let partitions = tables.iter().map(|(_, data)| data.partitions().len()).max().unwrap_or(1);
        let options = SessionOptions { partitions, ..SessionOptions::default() };
        let way = QueryRunner::tiered("scan", tables, &self.tiers, &options, prefetch)?;
        let mut times = [f64::INFINITY; N];
        let (begin, slice) = (Instant::now(), self.effort.slice(FIGURES_COUNT));
        for (round, (name, _)) in tables.iter().cycle().take(2 * self.effort.rounds).enumerate() {
            if round > 0 && begin.elapsed() > slice {
                break;
            }
            for (time, query) in times.iter_mut().zip(queries) {
                let outcome = self.runtime.block_on(way.run_cold(&query.sql(name)))?;
                *time = undisturbed(&[*time, outcome.elapsed.as_secs_f64()]);
            }
        }
        Ok(times)
    }

    /// Measures the times for the calibration in one pass.
    pub(super) fn measure(&self, step: &mut dyn FnMut()) -> Result<Times> {
        let partitions = [1, self.cores_count()?];
        let mut empty_s = [0.0; 2];
        for (time_s, partitions) in empty_s.iter_mut().zip(partitions) {
            let tables = self.tables(EMPTY_COLUMN_MB, partitions)?;
            [*time_s] = self.queries_s(&tables, [Query::Sum], Prefetch::Off)?;
            step();
        }
        let mut queries_s = [[0.0; 2]; 2];
        for (times_s, partitions) in queries_s.iter_mut().zip(partitions) {
            let tables = self.tables(COLUMN_MB, partitions)?;
            *times_s = self.queries_s(&tables, [Query::Count, Query::Sum], Prefetch::Off)?;
            step();
        }
        let new_s = self.new_s()?;
        step();
        Ok(Times { empty_s, queries_s, new_s })
    }

    /// Seconds in which a pool allocates [`NEW_BYTES`] from the kernel.
    fn new_s(&self) -> Result<f64> {
        const BLOCKS: usize = 4;
        let machine = Arc::clone(self.tiers.machine());
        let pool = Pool::new(machine, self.tiers.near(), 2 * BLOCKS * NEW_BYTES)?;
        let mut times = Vec::new();
        for _ in 0..self.effort.rounds {
            pool.trim();
            let mut blocks = Vec::with_capacity(BLOCKS);
            for _ in 0..BLOCKS {
                let begin = Instant::now();
                blocks.push(pool.allocate(NEW_BYTES)?);
                times.push(begin.elapsed().as_secs_f64());
            }
        }
        Ok(undisturbed(&times))
    }

    /// The parameters of scans that follow from the times.
    pub(super) fn parameters(&self, times: &Times, source: &str) -> Result<Vec<Parameter>> {
        let cores_count = self.cores_count()?;
        let Times { empty_s: [query_s, parallel_s], new_s, .. } = *times;
        let partition_s = (parallel_s - query_s).max(0.0) / (cores_count - 1).max(1) as f64;
        let how = |what: &str| format!("{source}: {what}, {} % of the rows pass", 100.0 * SELECTIVITY);
        let mut parameters = Vec::new();
        ensure!(
            times.make_sense(),
            "the times of scans contradict each other, because other programs disturb it; end them and run it again"
        );
        let [alone_s, together_s] = times.parts_s();
        for (names, parts_s, cores_count, by) in [
            (["filter_mb_per_s", "late_mb_per_s"], alone_s, 1, "one core"),
            (
                ["filter_together_mb_per_s", "late_together_mb_per_s"],
                together_s,
                cores_count,
                "all cores, for each",
            ),
        ] {
            let each_mb = COLUMN_MB / cores_count as f64;
            let what = [
                format!("count(*) behind a filter, by {by}"),
                format!("sum() less count(*) behind a filter, by {by}"),
            ];
            for ((name, what), time_s) in names.into_iter().zip(what).zip(parts_s) {
                parameters.push(parameter(name, each_mb / time_s, &how(&what)));
            }
        }
        let plain = |what: &str| format!("{source}: {what}");
        parameters.extend([
            parameter("query_ns", query_s * 1e9, &plain("a table of a thousand rows, in one partition")),
            parameter(
                "query_partition_ns",
                partition_s * 1e9,
                &plain("the same table in one partition for each core"),
            ),
            parameter(
                "new_memory_mb_per_s",
                NEW_BYTES as f64 / 1e6 / new_s,
                &plain("blocks of 2 MiB of a pool beyond what it keeps"),
            ),
        ]);
        Ok(parameters)
    }

    /// Measures scans of other sizes in one pass: by one core and by all, with prefetching off and always. The scanning
    /// cores make the copies.
    pub(super) fn check(&self, step: &mut dyn FnMut()) -> Result<Vec<CheckedScan>> {
        let mut ran = Vec::new();
        for column_mb in CHECKED_COLUMNS_MB {
            for partitions in [1, self.cores_count()?] {
                let tables = self.tables(column_mb, partitions)?;
                for prefetch in [Prefetch::Off, Prefetch::Always] {
                    let [measured_s] = self.queries_s(&tables, [Query::Sum], prefetch)?;
                    ran.push(CheckedScan { column_mb, partitions, prefetch, measured_s });
                    step();
                }
            }
        }
        Ok(ran)
    }

    /// The predictions of the model for measured scans.
    pub(super) fn against(&self, profile: &Machine, ran: &[CheckedScan]) -> Result<Vec<Checked>> {
        let checked = |ran: &CheckedScan| {
            let CheckedScan { column_mb, partitions, prefetch, measured_s } = *ran;
            let what = if prefetch == Prefetch::Always { "pipeline" } else { "scan" };
            let predicted_s = self.predicted_s(profile, column_mb, partitions, prefetch)?;
            let name = format!("{what}_2x{column_mb}MB_by_{partitions}");
            Ok(Checked { name, predicted_s, measured_s })
        };
        ran.iter().map(checked).collect()
    }

    fn predicted_s(
        &self,
        profile: &Machine,
        column_mb: f64,
        partitions: usize,
        prefetch: Prefetch,
    ) -> Result<f64> {
        let parameter = |name: &str| {
            let value = profile.parameter(name);
            value.with_context(|| {
                format!("{} has no parameter {name}; run `memferry calibrate` again", profile.name())
            })
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
        let rates = match partitions {
            1 => ["filter_mb_per_s", "late_mb_per_s"],
            _ => ["filter_together_mb_per_s", "late_together_mb_per_s"],
        };
        let fetch = Fetch { column: 1, chunks_count: usize::MAX, node: self.tiers.near(), route: None };
        let pipeline = Pipeline {
            columns: vec![column("a"), column("b")],
            stages: vec![stage("filter", 0, rates[0])?, stage("sum", 1, rates[1])?],
            cpus: self.home()?,
            groups_count: partitions,
            // Size of a column in a row group.
            chunk_bytes: 1 << 20,
            fetches: if prefetch == Prefetch::Always { vec![fetch] } else { Vec::new() },
            is_waiting: false,
            fairness: Fairness::default(),
        };
        let run = pipeline.run(profile, &Hardware::of(profile)?)?;
        let query_ns = parameter("query_ns")? + (partitions - 1) as f64 * parameter("query_partition_ns")?;
        // Copies beyond the idle memory of a pool need new memory, which the scanning threads allocate.
        let new_bytes = match prefetch {
            Prefetch::Always => size_bytes.saturating_sub(IDLE_BYTES_MAX as u64) as f64,
            _ => 0.0,
        };
        let new_s = new_bytes / partitions as f64 / (parameter("new_memory_mb_per_s")? * 1e6);
        Ok(query_ns * 1e-9 + new_s + run.total_s)
    }
}
