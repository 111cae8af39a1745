//! `memferry sim SCENARIO`: the cost of copies, queries and scans on a machine, computed in virtual time.

mod validation;

use std::io::Write;

use anyhow::Result;
use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_bench::harness::{Record, Row};
use memferry_bench::model::{self, Scenario};
use serde_json::json;

use crate::bench::start_record;
use crate::error::usage;
use crate::output::{self, Table, number, wrapped};
use crate::topology;

/// Computes the cost of copies and queries on any machine with a profile.
///
/// Every number is modelled: computed from the rates and costs in the machine's profile, which names their sources.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A built-in scenario, the path of a TOML file, or `validate`, which compares the model with all published numbers.
    /// Without it, the scenarios are listed.
    #[arg(value_name = "SCENARIO|FILE|validate")]
    scenario: Option<String>,
    /// Use this machine instead of the scenario's: the name of a profile (see `memferry topology`), or a JSON file. Runs
    /// of a scenario that name a machine keep theirs.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// Change a value of the scenario, such as query.groups=4 or query.runs.2.stages.0.threads=16; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// With `validate`: also show the rejected variants of the model.
    #[arg(long)]
    variants: bool,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let is_changed = arguments.machine.is_some() || !arguments.settings.is_empty();
    match arguments.scenario.as_deref() {
        Some("validate") | None if is_changed => {
            Err(usage("--machine and --set need a scenario; name one, such as table-6.2"))
        }
        Some("validate") => validation::run(arguments.variants, arguments.json, out),
        _ if arguments.variants => Err(usage("--variants needs `memferry sim validate`")),
        None => list(arguments.json, out),
        Some(name) => simulate(name, arguments, out),
    }
}

fn simulate(name: &str, arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let scenario = changed(model::scenario(name).map_err(scenario_error)?, &arguments.settings)?;
    let machine = topology::open(Some(arguments.machine.as_deref().unwrap_or(scenario.machine())))?;
    let rows = scenario.run(Some(&machine)).map_err(scenario_error)?;
    if !arguments.json {
        write!(out, "{}", wrapped(scenario.about(), 0))?;
        writeln!(out, "Modelled on {}.\n", machine.name())?;
        return Ok(write!(out, "{}", table(&rows))?);
    }
    let settings: Vec<String> =
        arguments.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let options = json!({ "scenario": scenario.name(), "set": settings });
    output::json(out, &record(machine, options, rows))
}

/// A record. The model is deterministic, so the seed is 0.
fn record(machine: Machine, options: serde_json::Value, rows: Vec<Row>) -> Record<Row> {
    Record { rows, ..start_record("sim", machine, 0, options) }
}

fn changed(scenario: Scenario, settings: &[(String, String)]) -> Result<Scenario> {
    settings.iter().try_fold(scenario, |scenario, (key, value)| scenario.with(key, value)).map_err(usage)
}

/// Marks an unknown scenario as a usage error.
fn scenario_error(error: ModelError) -> anyhow::Error {
    match error {
        ModelError::UnknownScenario { .. } => usage(error),
        _ => error.into(),
    }
}

fn list(is_json: bool, out: &mut dyn Write) -> Result<()> {
    let scenarios = model::scenarios().into_iter().map(model::scenario).collect::<Result<Vec<_>, _>>()?;
    if is_json {
        let one = |it: &Scenario| json!({ "name": it.name(), "about": it.about(), "machine": it.machine() });
        return output::json(out, &scenarios.iter().map(one).collect::<Vec<_>>());
    }
    let mut scenarios_left = scenarios.iter().peekable();
    while let Some(scenario) = scenarios_left.next() {
        writeln!(out, "{} (on {})", scenario.name(), scenario.machine())?;
        write!(out, "{}", wrapped(scenario.about(), 2))?;
        if scenarios_left.peek().is_some() {
            writeln!(out)?;
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new("row | value: | unit | ratio: | peer");
    for row in rows {
        let peer = row.peer.as_ref();
        let ratio = peer.and_then(|peer| peer.ratio).map_or(String::new(), |ratio| format!("{ratio:.3}"));
        let peer = peer.map_or(String::new(), |peer| peer.name.clone());
        table.row(vec![row.name.clone(), number(row.value), row.unit.to_owned(), ratio, peer]);
    }
    table
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("a setting is a key and a value, such as query.groups=4".to_owned()),
    }
}
