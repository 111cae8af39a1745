//! Records of benchmarks on this machine (`results/`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use memferry_bench::harness::Provenance;
use memferry_bench::papers::{Columns, Metric};
use memferry_bench::telemetry::Counts;

use crate::bench::LIMITED;

/// The part of a record that the report uses.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) bench: String,
    pub(super) version: String,
    pub(super) commit: String,
    /// UTC, as in RFC 3339.
    pub(super) started: String,
    #[serde(default)]
    options: Value,
    pub(super) rows: Vec<Row>,
}

/// A row; fields that a benchmark does not have are `None`, and columns without a field are in `point`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    pub(super) name: String,
    /// None if it could not be measured.
    pub(super) value: Option<f64>,
    pub(super) unit: String,
    pub(super) how: Option<Provenance>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) peer: Option<String>,
    pub(super) peer_value: Option<f64>,
    pub(super) ratio: Option<f64>,
    pub(super) ratio_low: Option<f64>,
    pub(super) ratio_high: Option<f64>,
    /// In the papers' benchmarks: the quantity.
    pub(super) figure: Option<String>,
    pub(super) note: Option<String>,
    /// What the monitors of the machine counted meanwhile.
    pub(super) telemetry: Option<Counts>,
    /// In the papers' benchmarks: the columns of the point.
    #[serde(flatten)]
    point: Map<String, Value>,
    /// The backend, if `how` does not identify it: under `memferry emulate`, devices of `--on machine` are emulated, as
    /// those of `--on emulated` are.
    #[serde(skip)]
    pub(super) backend: Option<String>,
}

impl Row {
    /// A number of the model, as the benchmark of its point records it.
    pub(super) fn modelled(metric: Metric, point: &impl Columns, value: f64) -> Row {
        let figure = Some(metric.name.to_owned());
        let how = Some(Provenance::Modelled);
        Row { value: Some(value), how, figure, point: point.columns(), ..Row::default() }
    }

    /// The value of a column of the point; `None` if it has none.
    fn column(&self, name: &str) -> Option<&Value> {
        self.point.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, column: &str) -> Option<String> {
        let value = self.column(column)?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    pub(super) fn number(&self, column: &str) -> Option<f64> {
        self.column(column)?.as_f64()
    }
}

/// Options that identify the papers' query. Its place and number of runs do not change it.
const QUERY: [&str; 7] =
    ["sizes", "groups", "scan-threads", "aggregate-threads", "prefetch-threads", "chunks", "sync"];

impl Record {
    /// The backend, of the benchmarks that have several: `machine`, `emulated`, `model`.
    pub(super) fn on(&self) -> Option<&str> {
        self.options["on"].as_str()
    }

    /// An option that is a number.
    pub(super) fn number(&self, option: &str) -> Option<f64> {
        self.options[option].as_f64()
    }

    /// The options of the papers' query; only times of equal queries are compared.
    pub(super) fn query(&self) -> [&Value; QUERY.len()] {
        QUERY.map(|option| &self.options[option])
    }

    /// The provenance of its numbers.
    pub(super) fn how(&self) -> Option<Provenance> {
        self.rows.iter().find_map(|row| row.how)
    }

    /// The day.
    pub(super) fn date(&self) -> &str {
        self.started.get(..10).unwrap_or(&self.started)
    }

    pub(super) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

/// The newest record of each benchmark in a directory, sorted by name. Empty if the directory does not exist.
///
/// # Errors
/// A file is not a record.
pub(super) fn read(directory: &Path) -> Result<Vec<Record>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", directory.display())),
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        // `NAME.unfinished.json` is an interrupted run. A run without AVX-512 says little of a machine that has it.
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_record = path.extension().is_some_and(|it| it == "json")
            && ![".unfinished", LIMITED].iter().any(|end| stem.ends_with(end));
        if is_record {
            files.push(path);
        }
    }
    // File names begin with the date.
    files.sort();
    let mut records: Vec<Record> = Vec::new();
    for file in files {
        let record = parse(&file)?;
        records.retain(|it| (&it.bench, it.on()) != (&record.bench, record.on()));
        records.push(record);
    }
    // Measured records come before modelled ones.
    records.sort_by(|one, other| {
        (&one.bench, one.how(), one.on()).cmp(&(&other.bench, other.how(), other.on()))
    });
    records
        .chunk_by_mut(|one, other| (&one.bench, one.how()) == (&other.bench, other.how()))
        .for_each(name_backends);
    Ok(records)
}

/// Sets the backend in the rows of records with the same provenance.
fn name_backends(records: &mut [Record]) {
    if records.len() < 2 {
        return;
    }
    for record in records {
        let backend = record.on().map(|on| format!("on {on}"));
        record.rows.iter_mut().for_each(|row| row.backend = backend.clone());
    }
}

/// Whether a text is a record.
pub(super) fn is_record(text: &str) -> bool {
    serde_json::from_str::<Record>(text).is_ok()
}

fn parse(file: &Path) -> Result<Record> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the record {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is not a record of a benchmark; move it elsewhere, or record it again", file.display())
    })
}
