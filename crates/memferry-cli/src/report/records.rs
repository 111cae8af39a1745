//! What benchmarks of this machine have left behind (`results/`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::how::How;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// A record, as far as a report tells it.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) bench: String,
    version: String,
    pub(super) commit: String,
    /// UTC, as in RFC 3339.
    pub(super) started: String,
    #[serde(default)]
    options: Value,
    pub(super) rows: Vec<Row>,
}

/// A row; fields that a benchmark does not have are `None`, and other ones are left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Row {
    pub(super) name: String,
    /// None where it could not be taken.
    pub(super) value: Option<f64>,
    pub(super) unit: String,
    pub(super) how: Option<How>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) peer: Option<String>,
    pub(super) peer_value: Option<f64>,
    pub(super) ratio: Option<f64>,
    pub(super) ratio_low: Option<f64>,
    pub(super) ratio_high: Option<f64>,
    /// Of the papers' benchmarks: what of the point.
    pub(super) figure: Option<String>,
    pub(super) way: Option<String>,
    pub(super) operation: Option<String>,
    pub(super) size_bytes: Option<f64>,
    pub(super) batch: Option<f64>,
    pub(super) submitters: Option<f64>,
    pub(super) depth: Option<f64>,
    pub(super) queues: Option<f64>,
    pub(super) entries: Option<f64>,
    pub(super) engines: Option<f64>,
    pub(super) route: Option<String>,
    pub(super) source: Option<Name>,
    pub(super) target: Option<Name>,
    pub(super) pages: Option<String>,
    pub(super) data: Option<String>,
    pub(super) priorities: Option<String>,
    pub(super) read_buffers: Option<String>,
    pub(super) note: Option<String>,
    /// Of `bench atomics`.
    pub(super) work: Option<String>,
    pub(super) threads: Option<f64>,
    pub(super) distance: Option<String>,
    pub(super) churn: Option<bool>,
    /// Which backend it is from, where that is not clear from `how`: under `memferry emulate` the devices of the machine
    /// are emulated as those of `--on emulated` are.
    #[serde(skip)]
    pub(super) backend: Option<String>,
}

/// A word, or the number of a node.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Name {
    Number(u64),
    Word(String),
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Number(number) => write!(f, "{number}"),
            Name::Word(word) => f.write_str(word),
        }
    }
}

/// Options that say what the papers' query works on. Where and how often it ran does not make it another.
const QUERY: [&str; 7] =
    ["sizes", "groups", "scan-threads", "aggregate-threads", "prefetch-threads", "chunks", "sync"];

impl Record {
    /// The backend, of the benchmarks that have several: `machine`, `emulated`, `model`.
    pub(super) fn on(&self) -> Option<&str> {
        self.options["on"].as_str()
    }

    /// What the papers' query works on: times of different ones are not compared.
    pub(super) fn query(&self) -> [&Value; QUERY.len()] {
        QUERY.map(|option| &self.options[option])
    }

    /// How its numbers came about.
    pub(super) fn how(&self) -> Option<How> {
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

/// The newest record of each benchmark in a directory, in the order of their names. None if there is no directory.
///
/// # Errors
/// A file that is no record, or one of another version: figures of both would be compared.
pub(super) fn read(directory: &Path) -> Result<Vec<Record>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", directory.display())),
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", directory.display()))?.path();
        // `NAME.unfinished.json` is a run that was interrupted.
        let is_record = path.extension().is_some_and(|it| it == "json")
            && !path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(".unfinished"));
        if is_record {
            files.push(path);
        }
    }
    // By date, as names begin with it.
    files.sort();
    let mut newest: Vec<(PathBuf, Record)> = Vec::new();
    for file in files {
        let record = parse(&file)?;
        newest.retain(|(_, it)| (&it.bench, it.on()) != (&record.bench, record.on()));
        newest.push((file, record));
    }
    for (file, record) in &newest {
        let (theirs, ours) = (&record.version, env!("CARGO_PKG_VERSION"));
        if theirs != ours {
            bail!(
                "{} is a record of memferry {theirs}, and this is {ours}; take it anew with `memferry bench {}`, or \
                 name other --results",
                file.display(),
                record.bench
            );
        }
    }
    let mut records: Vec<Record> = newest.into_iter().map(|(_, record)| record).collect();
    // The machine before the model, as numbers do that came about so.
    records.sort_by(|one, other| {
        (&one.bench, one.how(), one.on()).cmp(&(&other.bench, other.how(), other.on()))
    });
    records
        .chunk_by_mut(|one, other| (&one.bench, one.how()) == (&other.bench, other.how()))
        .for_each(tell_apart);
    Ok(records)
}

/// Of records whose numbers came about alike, the rows say which backend they are from.
fn tell_apart(records: &mut [Record]) {
    if records.len() < 2 {
        return;
    }
    for record in records {
        let backend = record.on().map(|on| format!("on {on}"));
        record.rows.iter_mut().for_each(|row| row.backend = backend.clone());
    }
}

fn parse(file: &Path) -> Result<Record> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the record {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is no record of a benchmark; move it elsewhere, or take it anew", file.display())
    })
}
