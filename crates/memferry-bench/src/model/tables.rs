//! The tables of a scenario: their TOML, and their computation.

use memferry::internals::{
    Endpoints, Fairness, Hardware, Offload, Part, Pipeline, copy_s, device_shares, queries_per_s,
};
use memferry::model::{Column, Fetch, ModelError, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};
use serde::Deserialize;
use serde::de::Error as _;

use crate::harness::Row;
use crate::sncdb::{self, Setting, Study};

/// A size: a number of bytes, or a text with a unit.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bytes(pub(super) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        let text = match Either::deserialize(deserializer)? {
            Either::Number(bytes) => return Ok(Bytes(bytes)),
            Either::Text(text) => text,
        };
        let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("MB", 1_000_000), ("B", 1)];
        let number = |&(unit, bytes): &(&str, u64)| {
            text.strip_suffix(unit)?.trim().parse().ok().and_then(|count: u64| count.checked_mul(bytes))
        };
        units.iter().find_map(number).map(Bytes).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is no size; write one such as 4096 or \"8 MiB\""))
        })
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    cpus: NodeId,
    groups: usize,
    chunk: Bytes,
    #[serde(default)]
    wait: bool,
    pub(super) runs: Vec<QueryRun>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryRun {
    pub(super) name: String,
    columns: Vec<QueryColumn>,
    stages: Vec<QueryStage>,
    #[serde(default)]
    prefetch: Vec<Prefetch>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryColumn {
    name: String,
    size: Bytes,
    node: NodeId,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryStage {
    name: String,
    reads: Vec<String>,
    threads: usize,
    /// Maximum rate of a thread; only memory limits it by default.
    thread_mb_per_s: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefetch {
    column: String,
    node: NodeId,
    /// Without a route a thread copies.
    route: Option<Route>,
    /// Chunks of each group; all by default.
    chunks: Option<usize>,
}

impl Query {
    pub(super) fn pipeline(&self, run: &QueryRun) -> Result<Pipeline, ModelError> {
        let names = || run.columns.iter().map(|column| &column.name);
        if let Some((index, name)) =
            names().enumerate().find(|(index, name)| names().take(*index).any(|it| it == *name))
        {
            let what =
                format!("{} has two columns {name}, the second of them number {}", run.name, index + 1);
            return Err(ModelError::Scenario { what });
        }
        let column = |name: &String| {
            run.columns.iter().position(|column| column.name == *name).ok_or_else(|| ModelError::Scenario {
                what: format!("{} reads column {name}, which it does not have", run.name),
            })
        };
        let stage = |stage: &QueryStage| -> Result<Stage, ModelError> {
            let reads = stage.reads.iter().map(column).collect::<Result<_, _>>()?;
            let thread_rate_max = stage.thread_mb_per_s.map_or(f64::INFINITY, |rate| rate * 1e6);
            Ok(Stage { name: stage.name.clone(), reads, threads_count: stage.threads, thread_rate_max })
        };
        let fetch = |prefetch: &Prefetch| -> Result<Fetch, ModelError> {
            Ok(Fetch {
                column: column(&prefetch.column)?,
                chunks_count: prefetch.chunks.unwrap_or(usize::MAX),
                node: prefetch.node,
                route: prefetch.route,
            })
        };
        let columns = run.columns.iter().map(|column| Column {
            name: column.name.clone(),
            size_bytes: column.size.0,
            node: column.node,
        });
        Ok(Pipeline {
            columns: columns.collect(),
            stages: run.stages.iter().map(stage).collect::<Result<_, _>>()?,
            cpus: self.cpus,
            groups_count: self.groups,
            chunk_bytes: self.chunk.0,
            fetches: run.prefetch.iter().map(fetch).collect::<Result<_, _>>()?,
            is_waiting: self.wait,
            fairness: Fairness::default(),
        })
    }

    /// Computes all runs; the first is the baseline of the others.
    pub(super) fn run(
        &self,
        machine: &Machine,
        hardware: &Hardware,
        rows: &mut Vec<Row>,
    ) -> Result<(), ModelError> {
        let mut baseline: Option<(&str, f64)> = None;
        for run in &self.runs {
            let pipeline = self.pipeline(run)?;
            let computed = pipeline.run(machine, hardware)?;
            let ms = computed.total_s * 1e3;
            let total = Row::modelled(run.name.clone(), ms, "ms");
            rows.push(match baseline {
                Some((name, baseline_ms)) => total.against(name, baseline_ms, baseline_ms / ms),
                None => total,
            });
            baseline = baseline.or(Some((&run.name, ms)));
            for (stage, seconds) in pipeline.stages.iter().zip(&computed.stages_s) {
                rows.push(Row::modelled(format!("{}: {}", run.name, stage.name), seconds * 1e3, "ms"));
            }
            if let Some(hits) = computed.hit_rate() {
                rows.push(Row::modelled(format!("{}: hit rate", run.name), hits * 100.0, "%"));
                rows.push(Row::modelled(format!("{}: copied", run.name), computed.copied_s * 1e3, "ms"));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Copies {
    source: NodeId,
    targets: Vec<NodeId>,
    size: Bytes,
    routes: Vec<Route>,
}

impl Copies {
    pub(super) fn run(
        &self,
        machine: &Machine,
        hardware: &Hardware,
        rows: &mut Vec<Row>,
    ) -> Result<(), ModelError> {
        if self.size.0 == 0 {
            return Err(ModelError::Scenario { what: "it copies nothing: sizes begin at 1".into() });
        }
        for &route in &self.routes {
            let mut rates = Vec::with_capacity(self.targets.len());
            for &target in &self.targets {
                let endpoints = Endpoints {
                    source_node: Some(self.source),
                    target_node: Some(target),
                    size_bytes: self.size.0 as usize,
                    turn: 0,
                };
                let seconds = copy_s(machine, hardware, route, endpoints)?;
                rates.push(self.size.0 as f64 / seconds / f64::from(1 << 30));
                let devices = device_shares(route, machine, endpoints).len();
                let name = format!("{route:?} ({devices} devices) {} to {target}", self.source);
                rows.extend(rates.last().map(|&rate| Row::modelled(name, rate, "GiB/s")));
            }
            let average = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
            rows.push(Row::modelled(format!("{route:?}, average"), average, "GiB/s"));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Submit {
    sizes: Vec<Bytes>,
    batches: Vec<usize>,
    /// Submissions in flight per device.
    under_way: Vec<usize>,
    /// Numbers of devices with the same load at the same time.
    #[serde(default = "one")]
    devices: Vec<usize>,
    /// Whether devices write to the last-level cache.
    #[serde(default)]
    into_cache: bool,
}

fn one() -> Vec<usize> {
    vec![1]
}

impl Submit {
    pub(super) fn run(
        &self,
        machine: &Machine,
        hardware: &Hardware,
        rows: &mut Vec<Row>,
    ) -> Result<(), ModelError> {
        let costs = Offload::of(hardware)?;
        let wrong = |what: String| Err(ModelError::Scenario { what });
        let mut counts = self.batches.iter().chain(&self.under_way).chain(&self.devices);
        if self.sizes.iter().any(|size| size.0 == 0) || counts.any(|&count| count == 0) {
            return wrong("it submits nothing: sizes and counts begin at 1".into());
        }
        let there = machine.accelerators().len();
        if let Some(devices) = self.devices.iter().find(|&&devices| devices > there) {
            return wrong(format!("it submits to {devices} devices, and {} has {there}", machine.name()));
        }
        for &Bytes(size) in &self.sizes {
            let bytes = size as f64;
            let core = bytes / costs.core_s(bytes) / 1e9;
            for &devices in &self.devices {
                let most = together_max(machine, hardware, devices);
                for &under_way in &self.under_way {
                    for &batch in &self.batches {
                        let rate = match self.into_cache {
                            true => costs.batch_rate_into_cache(bytes, batch, under_way, devices)?,
                            false => devices as f64 * costs.batch_rate(bytes, batch, under_way)?,
                        };
                        let rate = rate.min(most) / 1e9;
                        let mut name = format!("{size} B, batch {batch}, {under_way} under way");
                        if devices > 1 {
                            name += &format!(", {devices} devices");
                        }
                        rows.push(Row::modelled(name, rate, "GB/s").against("core", core, rate / core));
                    }
                }
            }
        }
        rows.push(Row::modelled("break-even, waited for", costs.break_even_waited_bytes(), "B"));
        rows.push(Row::modelled("break-even, pipelined", costs.break_even_pipelined_bytes(), "B"));
        rows.push(Row::modelled("saturation, pipelined", costs.saturation_bytes(), "B"));
        Ok(())
    }
}

/// Maximum rate of `devices` devices that copy within the memory of the first one's node, if its rate is known.
fn together_max(machine: &Machine, hardware: &Hardware, devices: usize) -> f64 {
    let node = machine.accelerators().first().and_then(|device| device.node);
    let endpoints = Endpoints { source_node: node, target_node: node, ..Endpoints::default() };
    hardware.copy_rate(&(0..devices).collect::<Vec<_>>(), endpoints).unwrap_or(f64::INFINITY)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clients {
    count: usize,
    column: Bytes,
    runs: Vec<ClientsRun>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientsRun {
    name: String,
    /// A profile that replaces the scenario's: with sub-domains or without.
    machine: Option<String>,
    reads: Vec<ClientsPart>,
}

#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientsPart {
    cpus: NodeId,
    node: NodeId,
    columns: usize,
}

impl Clients {
    pub(super) fn run(&self, hardware: &Hardware, rows: &mut Vec<Row>) -> Result<(), ModelError> {
        let mut baseline: Option<(&str, f64)> = None;
        for run in &self.runs {
            let other = run.machine.as_deref().map(Machine::from_profile).transpose()?;
            let other = other.as_ref().map(Hardware::of).transpose()?;
            let part =
                |part: &ClientsPart| Part { cpus: part.cpus, node: part.node, columns_count: part.columns };
            let parts: Vec<Part> = run.reads.iter().map(part).collect();
            let hardware = other.as_ref().unwrap_or(hardware);
            let rate = queries_per_s(hardware, self.count, self.column.0 as f64, &parts)?;
            let row = Row::modelled(run.name.clone(), rate, "queries/s");
            rows.push(match baseline {
                Some((name, baseline)) => row.against(name, baseline, rate / baseline),
                None => row,
            });
            baseline = baseline.or(Some((&run.name, rate)));
        }
        Ok(())
    }
}

/// Closed-loop queries over two tables (`memferry_bench::sncdb`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tables {
    range_pred: u64,
    /// Predicates on the first table of each query; the others are on the second.
    on_first: Vec<usize>,
    /// By default one for each hardware thread of the first domain.
    tasks_per_column: Option<usize>,
    /// Spread of the sizes of tasks, from 0 to below 1; 0.5 by default.
    task_spread: Option<f64>,
    runs: Vec<TablesRun>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TablesRun {
    name: String,
    /// A profile that replaces the scenario's: with sub-domains or without.
    machine: Option<String>,
    workers: sncdb::Workers,
    #[serde(default)]
    stealing: bool,
}

impl Tables {
    /// Computes all runs; the first is the baseline of the others.
    pub(super) fn run(&self, machine: &Machine, rows: &mut Vec<Row>) -> Result<(), ModelError> {
        let mut baseline: Option<(&str, Vec<f64>)> = None;
        for run in &self.runs {
            let other = run.machine.as_deref().map(Machine::from_profile).transpose()?;
            let study = Study::of(other.as_ref().unwrap_or(machine))?;
            let study = match self.tasks_per_column {
                Some(tasks) => study.with_tasks_per_column(tasks),
                None => study,
            };
            let study = match self.task_spread {
                Some(spread) => study.with_task_spread(spread),
                None => study,
            };
            let setting = Setting { workers: run.workers, is_stealing: run.stealing };
            let mut rates = Vec::new();
            for (index, &on_first) in self.on_first.iter().enumerate() {
                let computed = study.run(setting, on_first, self.range_pred)?;
                let name = format!("{}, {on_first}/{}", run.name, sncdb::PREDICATES - on_first);
                let mut own = sncdb::rows_of(&name, ": ", &computed).into_iter();
                let rate = computed.queries_per_s;
                rows.extend(own.next().map(|row| match &baseline {
                    Some((name, rates)) => row.against(*name, rates[index], rate / rates[index]),
                    None => row,
                }));
                rows.extend(own);
                rates.push(rate);
            }
            baseline = baseline.or(Some((&run.name, rates)));
        }
        Ok(())
    }
}
