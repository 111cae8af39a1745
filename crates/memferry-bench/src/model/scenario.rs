//! Scenarios: computations of the model, described in TOML.
//!
//! A scenario has one of five tables. Sizes are numbers of bytes or texts such as `"4 GiB"`; routes are spelled
//! `single`, `round-robin`, `push-pull`, `socket`, `smart`, `all`, `adaptive`.
//!
//! ```toml
//! about = "what it shows"
//! machine = "xeon-max-9468-2s-flat"       # a profile; a run may name another
//!
//! [query]                                  # stages that read columns, some of them prefetched
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
//! The others are `[copy]` (one copy, by routes and targets), `[submit]` (sizes, batches, submissions in flight, devices),
//! `[clients]` (closed-loop scans) and `[tables]` (closed-loop queries over two tables, as tasks); `scenarios/` has each.

use std::fs;

use memferry::internals::{Hardware, Pipeline};
use memferry::model::ModelError;
use memferry::topology::Machine;
use serde::Deserialize;

use super::tables::{Clients, Copies, Query, Submit, Tables};
use crate::harness::Row;

macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../scenarios/", $name, ".toml")))
    };
}

const BUILT_IN: &[(&str, &str)] = &[
    built_in!("table-6.1"),
    built_in!("table-6.2"),
    built_in!("thesis-submit"),
    built_in!("thesis-threads"),
    built_in!("thesis-routes"),
    built_in!("kuper-submit"),
    built_in!("kuper-devices"),
    built_in!("snc-scans"),
    built_in!("snc-packed"),
    built_in!("snc-figure-12"),
    built_in!("snc-figure-13"),
    built_in!("snc-figure-14"),
];

/// A computation of the model.
///
/// ```
/// let rows = memferry_bench::model::scenario("table-6.2")?.run(None)?;
/// assert_eq!(rows[0].name, "DDR-SDRAM (Baseline)");
/// # Ok::<(), memferry::model::ModelError>(())
/// ```
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
    tables: Option<Tables>,
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
    /// Parses a scenario; errors call it `name`.
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
        let Content { query, copy, submit, clients, tables, .. } = &self.content;
        let given = [query.is_some(), copy.is_some(), submit.is_some(), clients.is_some(), tables.is_some()];
        if given.into_iter().filter(|&is_there| is_there).count() == 1 {
            return Ok(self);
        }
        let what = "it needs one of the tables query, copy, submit, clients and tables".into();
        Err(ModelError::Scenario { what })
    }

    /// The scenario with another value at a path such as `query.groups` or `query.runs.2.stages.0.threads`. A value that is
    /// not TOML counts as text.
    ///
    /// # Errors
    /// [`ModelError::Scenario`] for a path that does not exist, [`Toml`](ModelError::Toml) for an unknown key or a wrong
    /// value.
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

    /// Description.
    pub fn about(&self) -> &str {
        &self.content.about
    }

    /// Name of its profile.
    pub fn machine(&self) -> &str {
        &self.content.machine
    }

    /// Computes the scenario on `machine`, by default its own. Runs that name a profile keep it.
    ///
    /// # Errors
    /// [`ModelError`]: a missing parameter of the machine, or a mistake in the scenario.
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
        let Content { query, copy, submit, clients, tables, .. } = &self.content;
        let mut rows = Vec::new();
        if let Some(query) = query {
            query.run(machine, &hardware, &mut rows)?;
        }
        if let Some(copy) = copy {
            copy.run(machine, &hardware, &mut rows)?;
        }
        if let Some(submit) = submit {
            submit.run(machine, &hardware, &mut rows)?;
        }
        if let Some(clients) = clients {
            clients.run(&hardware, &mut rows)?;
        }
        if let Some(tables) = tables {
            tables.run(machine, &mut rows)?;
        }
        let wrong = |what: String| Err(ModelError::Scenario { what });
        let repeated =
            |(index, row): &(usize, &Row)| rows[..*index].iter().any(|before| before.name == row.name);
        match rows.iter().enumerate().find(repeated) {
            Some((_, row)) => {
                wrong(format!("two rows would be called {:?}; give each a name of its own", row.name))
            }
            None if rows.is_empty() => {
                wrong("it has nothing to compute; give it a run or a value".to_owned())
            }
            None => Ok(rows),
        }
    }

    /// Its queries as named pipelines; empty for other scenarios.
    ///
    /// # Errors
    /// [`ModelError::Scenario`] for an unknown column.
    pub fn pipelines(&self) -> Result<Vec<(String, Pipeline)>, ModelError> {
        let Some(query) = &self.content.query else { return Ok(Vec::new()) };
        query.runs.iter().map(|run| Ok((run.name.clone(), query.pipeline(run)?))).collect()
    }
}
