//! Scenarios: what to compute, as TOML.
//!
//! A scenario has one of four tables. Sizes are numbers of bytes or texts such as `"4 GiB"`; routes are spelled
//! `single`, `round-robin`, `push-pull`, `socket`, `smart`, `all`, `adaptive`.
//!
//! ```toml
//! about = "what it shows"
//! machine = "xeon-max-9468-2s-flat"       # a profile; a run may name another
//!
//! [query]                                  # stages that read columns, some of them brought near meanwhile
//! cpus = 0
//! groups = 8
//! chunk = "8 MiB"
//! [[query.runs]]
//! name = "prefetching"
//! columns = [{ name = "a", size = "4 GiB", node = 0 }, { name = "b", size = "4 GiB", node = 0 }]
//! stages = [{ name = "scan", reads = ["a"], threads = 32 }, { name = "sum", reads = ["b"], threads = 32 }]
//! prefetch = [{ column = "b", node = 8, route = "round-robin" }]
//! ```
//!
//! The others are `[copy]` (one copy, by routes and targets), `[submit]` (sizes, batches, submissions under way) and
//! `[clients]` (closed-loop scans); `scenarios/` has each.

use std::fs;

use serde::Deserialize;
use serde::de::Error as _;

use crate::mover::{Journey, Route};
use crate::topology::{Machine, NodeId};

use super::clients::{Part, queries_per_s};
use super::hardware::Hardware;
use super::offload::{Offload, copy_s};
use super::pipeline::{Column, Fetch, Pipeline, Stage};
use super::traffic::Fairness;
use super::{ModelError, Row};

macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../scenarios/", $name, ".toml")))
    };
}

const BUILT_IN: &[(&str, &str)] = &[
    built_in!("table-6.1"),
    built_in!("table-6.2"),
    built_in!("thesis-submit"),
    built_in!("thesis-threads"),
    built_in!("thesis-routes"),
    built_in!("kuper-submit"),
    built_in!("snc-scans"),
];

/// What to compute.
#[derive(Clone, Debug)]
pub struct Scenario {
    name: String,
    text: toml::Value,
    content: Content,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    about: String,
    machine: String,
    query: Option<Query>,
    copy: Option<Copies>,
    submit: Option<Submit>,
    clients: Option<Clients>,
}

/// Names of the built-in scenarios.
pub fn scenarios() -> Vec<&'static str> {
    BUILT_IN.iter().map(|&(name, _)| name).collect()
}

/// A built-in scenario, or the TOML file of that path.
///
/// # Errors
/// [`ModelError::UnknownScenario`], [`Read`](ModelError::Read), [`Toml`](ModelError::Toml),
/// [`Scenario`](ModelError::Scenario).
pub fn scenario(name_or_path: &str) -> Result<Scenario, ModelError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return Scenario::parse(name, text);
    }
    if !name_or_path.contains('/') && !name_or_path.ends_with(".toml") {
        return Err(ModelError::UnknownScenario { name: name_or_path.to_owned(), known: scenarios() });
    }
    let text = fs::read_to_string(name_or_path)
        .map_err(|source| ModelError::Read { path: name_or_path.to_owned(), source })?;
    Scenario::parse(name_or_path, &text)
}

impl Scenario {
    /// A scenario that is in memory already; errors call it `name`.
    ///
    /// # Errors
    /// [`ModelError::Toml`], [`Scenario`](ModelError::Scenario).
    pub fn parse(name: &str, text: &str) -> Result<Scenario, ModelError> {
        let toml_error = |source| ModelError::Toml { name: name.to_owned(), source: Box::new(source) };
        let content: Content = toml::from_str(text).map_err(toml_error)?;
        let text: toml::Value = toml::from_str(text).map_err(toml_error)?;
        Scenario { name: name.to_owned(), text, content }.checked()
    }

    fn checked(self) -> Result<Scenario, ModelError> {
        let Content { query, copy, submit, clients, .. } = &self.content;
        let tables = [query.is_some(), copy.is_some(), submit.is_some(), clients.is_some()];
        if tables.into_iter().filter(|&is_there| is_there).count() == 1 {
            return Ok(self);
        }
        let what = "it needs one of the tables query, copy, submit and clients".into();
        Err(ModelError::Scenario { what })
    }

    /// The same with another value at a path such as `query.groups` or `query.runs.2.stages.0.threads`. The value is
    /// TOML; what is none counts as text.
    ///
    /// # Errors
    /// [`ModelError::Scenario`] for a path that leads nowhere, [`Toml`](ModelError::Toml) for a key or a value that
    /// scenarios do not have there.
    pub fn with(&self, path: &str, value: &str) -> Result<Scenario, ModelError> {
        let parsed: toml::Value = toml::from_str::<toml::Table>(&format!("value = {value}"))
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| toml::Value::String(value.to_owned()));
        let nowhere = |key: &str| ModelError::Scenario {
            what: format!("{path} leads nowhere: there is no {key} in {}", self.name),
        };
        let mut text = self.text.clone();
        let mut place = &mut text;
        let (parents, last) =
            path.rsplit_once('.').map_or((None, path), |(parents, last)| (Some(parents), last));
        for key in parents.into_iter().flat_map(|parents| parents.split('.')) {
            place = match place {
                toml::Value::Array(values) => key.parse().ok().and_then(|index: usize| values.get_mut(index)),
                place => place.get_mut(key),
            }
            .ok_or_else(|| nowhere(key))?;
        }
        match place {
            toml::Value::Table(table) => _ = table.insert(last.to_owned(), parsed),
            toml::Value::Array(values) => {
                let index = last.parse().ok().filter(|&index: &usize| index < values.len());
                values[index.ok_or_else(|| nowhere(last))?] = parsed;
            }
            _ => return Err(nowhere(last)),
        }
        let toml_error = |source| ModelError::Toml { name: self.name.clone(), source: Box::new(source) };
        let content = text.clone().try_into().map_err(toml_error)?;
        Scenario { name: self.name.clone(), text, content }.checked()
    }

    /// Its name or path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it shows.
    pub fn about(&self) -> &str {
        &self.content.about
    }

    /// The profile that it was written for.
    pub fn machine(&self) -> &str {
        &self.content.machine
    }

    /// Computes it, on another machine than its own if one is given. Runs that name a profile keep it.
    ///
    /// # Errors
    /// [`ModelError`]: what the machine does not tell, or the scenario gets wrong.
    pub fn run(&self, machine: Option<&Machine>) -> Result<Vec<Row>, ModelError> {
        let own;
        let machine = match machine {
            Some(machine) => machine,
            None => {
                own = Machine::from_profile(&self.content.machine)?;
                &own
            }
        };
        let hardware = Hardware::of(machine)?;
        let Content { query, copy, submit, clients, .. } = &self.content;
        let mut rows = Vec::new();
        if let Some(query) = query {
            query.run(machine, &hardware, &mut rows)?;
        }
        if let Some(copy) = copy {
            copy.run(machine, &hardware, &mut rows)?;
        }
        if let Some(submit) = submit {
            submit.run(&hardware, &mut rows)?;
        }
        if let Some(clients) = clients {
            clients.run(&hardware, &mut rows)?;
        }
        Ok(rows)
    }

    /// The queries in it as pipelines, with their names; empty for other scenarios.
    ///
    /// # Errors
    /// [`ModelError::Scenario`] for a column that a run does not have.
    pub fn pipelines(&self) -> Result<Vec<(String, Pipeline)>, ModelError> {
        let Some(query) = &self.content.query else { return Ok(Vec::new()) };
        query.runs.iter().map(|run| Ok((run.name.clone(), query.pipeline(run)?))).collect()
    }
}

/// A size: a number of bytes, or a text with a unit.
#[derive(Copy, Clone, Debug)]
struct Bytes(u64);

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

#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RouteName {
    Single,
    RoundRobin,
    PushPull,
    Socket,
    Smart,
    All,
    Adaptive,
}

impl From<RouteName> for Route {
    fn from(name: RouteName) -> Route {
        match name {
            RouteName::Single => Route::Single,
            RouteName::RoundRobin => Route::RoundRobin,
            RouteName::PushPull => Route::PushPull,
            RouteName::Socket => Route::Socket,
            RouteName::Smart => Route::Smart,
            RouteName::All => Route::All,
            RouteName::Adaptive => Route::Adaptive,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    cpus: NodeId,
    groups: usize,
    chunk: Bytes,
    #[serde(default)]
    wait: bool,
    runs: Vec<QueryRun>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryRun {
    name: String,
    columns: Vec<QueryColumn>,
    stages: Vec<QueryStage>,
    #[serde(default)]
    prefetch: Vec<Prefetch>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryColumn {
    name: String,
    size: Bytes,
    node: NodeId,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryStage {
    name: String,
    reads: Vec<String>,
    threads: usize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefetch {
    column: String,
    node: NodeId,
    route: RouteName,
    /// Chunks of each group; all unless it is said.
    chunks: Option<usize>,
}

impl Query {
    fn pipeline(&self, run: &QueryRun) -> Result<Pipeline, ModelError> {
        let column = |name: &String| {
            run.columns.iter().position(|column| column.name == *name).ok_or_else(|| ModelError::Scenario {
                what: format!("{} reads column {name}, which it does not have", run.name),
            })
        };
        let stage = |stage: &QueryStage| -> Result<Stage, ModelError> {
            let reads = stage.reads.iter().map(column).collect::<Result<_, _>>()?;
            Ok(Stage { name: stage.name.clone(), reads, threads_count: stage.threads })
        };
        let fetch = |prefetch: &Prefetch| -> Result<Fetch, ModelError> {
            Ok(Fetch {
                column: column(&prefetch.column)?,
                chunks_count: prefetch.chunks.unwrap_or(usize::MAX),
                node: prefetch.node,
                route: prefetch.route.into(),
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

    /// The first run is what the others are compared with.
    fn run(&self, machine: &Machine, hardware: &Hardware, rows: &mut Vec<Row>) -> Result<(), ModelError> {
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
struct Copies {
    source: NodeId,
    targets: Vec<NodeId>,
    size: Bytes,
    routes: Vec<RouteName>,
}

impl Copies {
    fn run(&self, machine: &Machine, hardware: &Hardware, rows: &mut Vec<Row>) -> Result<(), ModelError> {
        for &route in &self.routes {
            let route = Route::from(route);
            let mut rates = Vec::with_capacity(self.targets.len());
            for &target in &self.targets {
                let journey = Journey {
                    source_node: Some(self.source),
                    target_node: Some(target),
                    size_bytes: self.size.0 as usize,
                    turn: 0,
                };
                let seconds = copy_s(machine, hardware, route, journey)?;
                rates.push(self.size.0 as f64 / seconds / f64::from(1 << 30));
                let devices = route.devices(machine, journey).len();
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
struct Submit {
    sizes: Vec<Bytes>,
    batches: Vec<usize>,
    under_way: Vec<usize>,
}

impl Submit {
    fn run(&self, hardware: &Hardware, rows: &mut Vec<Row>) -> Result<(), ModelError> {
        let costs = Offload::of(hardware)?;
        for &Bytes(size) in &self.sizes {
            let bytes = size as f64;
            for &under_way in &self.under_way {
                for &batch in &self.batches {
                    let rate = costs.rate(bytes, batch, under_way) / 1e9;
                    let name = format!("{size} B, batch {batch}, {under_way} under way");
                    let core = bytes / costs.core_s(bytes) / 1e9;
                    rows.push(Row::modelled(name, rate, "GB/s").against("core", core, rate / core));
                }
            }
        }
        rows.push(Row::modelled("break-even, waited for", costs.break_even_waited_bytes(), "B"));
        rows.push(Row::modelled("break-even, pipelined", costs.break_even_pipelined_bytes(), "B"));
        rows.push(Row::modelled("saturation, pipelined", costs.saturation_bytes(), "B"));
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clients {
    count: usize,
    column: Bytes,
    runs: Vec<ClientsRun>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientsRun {
    name: String,
    /// Another profile than the scenario's: with sub-domains or without.
    machine: Option<String>,
    reads: Vec<ClientsPart>,
}

#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientsPart {
    cpus: NodeId,
    node: NodeId,
    columns: usize,
}

impl Clients {
    fn run(&self, hardware: &Hardware, rows: &mut Vec<Row>) -> Result<(), ModelError> {
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
