//! `memferry sim validate`: compares the model with all published numbers.

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use memferry::internals::Pipeline;
use memferry::model::Plan;
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench::model::{self, Coverage, Disposition, Prediction, Shown, Validation, Why};
use memferry_bench::papers::emulator_vs_model;
use serde::Serialize;
use serde_json::json;

use super::{record, table};
use crate::output::{self, Table, count, number, wrapped};

/// The machine of most published numbers.
const MACHINE: &str = "xeon-max-9468-2s-flat";

/// The output of `--json`: rows as of benchmarks, and the prediction of each published row, or why there is none.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    record: &'a Record<Row>,
    predictions: Vec<Predicted<'a>>,
    others: &'a [Disposition],
    coverage: &'a [Coverage],
}

#[derive(Serialize)]
struct Predicted<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    error_percent: f64,
}

pub(super) fn run(is_with_variants: bool, is_json: bool, out: &mut dyn Write) -> Result<()> {
    let validation = model::validate()?;
    let compared = emulator_vs_model().map_err(anyhow::Error::from_boxed)?;
    let measured: Vec<Row> = compared.into_iter().chain([advise_us()?, scenarios_s()?]).collect();
    let variants = if is_with_variants { model::variants()? } else { Vec::new() };
    if is_json {
        let rows = validation.rows().into_iter().chain(measured).chain(variants).collect();
        let options = json!({ "scenario": "validate", "variants": is_with_variants });
        let record = record(Machine::from_profile(MACHINE)?, options, rows);
        let predicted =
            |prediction| Predicted { error_percent: Prediction::error_percent(prediction), prediction };
        let predictions = validation.predictions.iter().map(predicted).collect();
        let Validation { others, coverage, .. } = &validation;
        return output::json(out, &Everything { record: &record, predictions, others, coverage });
    }
    let bounds: Vec<Row> = validation.bounds.iter().cloned().chain(measured).collect();
    writeln!(out, "{}", table(&bounds))?;
    text(&validation, out)?;
    if is_with_variants {
        writeln!(out, "\nWhat else was tried, each calibrated anew:\n\n{}", against(&variants))?;
    }
    Ok(())
}

/// Prints the predictions, and the number of rows without one, by reason.
fn text(validation: &Validation, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new("row | modelled: | published: | unit | error: | calibrated on | ");
    let mut wrong: Vec<(&str, String)> = Vec::new();
    for prediction in &validation.predictions {
        let Prediction { name, rows, predicted, published: (low, high), unit, is_fit, .. } = prediction;
        let error = format!("{:+.1} %", prediction.error_percent());
        let [predicted, published, unit, error] = match *unit {
            // A statement without a number.
            "holds" => [if *predicted == 1.0 { "yes" } else { "no" }, "yes", "", ""].map(str::to_owned),
            _ if low == high => [number(*predicted), number(*low), unit.to_string(), error],
            _ => {
                let range = format!("{} to {}", number(*low), number(*high));
                [number(*predicted), range, unit.to_string(), error]
            }
        };
        let note = match (is_fit, prediction.unexplained) {
            (true, _) => "this row",
            (false, Some(_)) => "see below",
            (false, None) => "",
        };
        let calibrated_on = prediction.calibrated_on.join(", ");
        let rows = rows.join(", ");
        if let Some(reason) = prediction.unexplained {
            wrong.push((reason, rows.clone()));
        }
        let name = format!("{name} [{rows}]");
        table.row(vec![name, predicted, published, unit, error, calibrated_on, note.to_owned()]);
    }
    write!(out, "{table}")?;
    writeln!(out, "\nWhere the model is off, and why:")?;
    for (reason, rows) in wrong {
        write!(out, "{}", wrapped(&format!("- {rows}: {reason}"), 0))?;
    }
    writeln!(out, "\nWhat it says nothing about:")?;
    let unexplained: Vec<&Disposition> =
        validation.others.iter().filter(|other| other.why == Why::Unexplained).collect();
    for same in unexplained.chunk_by(|one, other| one.reason == other.reason) {
        let rows = match same {
            [first, .., last] => format!("{} ... {} ({})", first.row, last.row, count(same.len(), "row")),
            rows => rows.iter().map(|one| one.row.as_str()).collect(),
        };
        let reason = same.first().map_or("", |one| &one.reason);
        write!(out, "{}", wrapped(&format!("- {rows}: {reason}"), 0))?;
    }
    let others = validation.others.len() - unexplained.len();
    let rest =
        format!("{} are inputs, methods, repeated or superseded; --json names each.", count(others, "row"));
    writeln!(out, "\n{rest}")?;
    writeln!(out, "\nFigures and tables of the publications that are not reproduced:")?;
    for it in validation.coverage.iter().filter(|it| it.state != Shown::Reproduced) {
        let remark = if it.remark.is_empty() { String::new() } else { format!(": {}", it.remark) };
        let line = format!("- {}, {} ({}){remark}", it.publication, it.figure, it.state.words());
        write!(out, "{}", wrapped(&line, 0))?;
    }
    Ok(())
}

fn against(rows: &[Row]) -> Table {
    let mut table = Table::new("variant | modelled: | published: | unit");
    for row in rows {
        let published = row.peer.as_ref().and_then(|peer| peer.value).map_or(String::new(), number);
        table.row(vec![row.name.clone(), number(row.value), published, row.unit.to_owned()]);
    }
    table
}

/// Measures the time of advice for the four set-ups of the thesis's query.
fn advise_us() -> Result<Row> {
    const ROUNDS: u32 = 100;
    const SAMPLES: usize = 11;
    let machine = Machine::from_profile(MACHINE)?;
    let pipelines = model::scenario("table-6.2")?.pipelines()?;
    let plan = |(_, it): &(String, Pipeline)| Plan {
        columns: it.columns.clone(),
        stages: it.stages.clone(),
        cpus: it.cpus,
        chunk_bytes: it.chunk_bytes,
        near: None,
        reads_to_come: 0,
    };
    let plans: Vec<Plan> = pipelines.iter().map(plan).collect();
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let begin = Instant::now();
        for plan in plans.iter().cycle().take(plans.len() * ROUNDS as usize) {
            black_box(black_box(plan).advise(&machine)?);
        }
        samples.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS) / plans.len() as f64);
    }
    Ok(measured("advise_us", &samples, "us"))
}

/// Measures the time of all scenarios.
fn scenarios_s() -> Result<Row> {
    let begin = Instant::now();
    for name in model::scenarios() {
        black_box(model::scenario(name)?.run(None)).with_context(|| format!("scenario {name}"))?;
    }
    Ok(measured("scenarios_s", &[begin.elapsed().as_secs_f64()], "s"))
}

fn measured(name: &str, samples: &[f64], unit: &'static str) -> Row {
    Row::median(name, unit, Provenance::Measured, samples)
}
