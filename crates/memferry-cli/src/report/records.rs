//! What benchmarks of this machine have left behind (`results/`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::figure::How;

/// A record, as far as a report tells it.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    pub(super) bench: String,
    version: String,
    pub(super) commit: String,
    /// UTC, as in RFC 3339.
    pub(super) started: String,
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
    pub(super) note: Option<String>,
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

impl Record {
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
        // Backends of a benchmark have records of their own, and differ in how their numbers came about.
        let how = |record: &Record| record.rows.iter().find_map(|row| row.how);
        newest.retain(|(_, it)| it.bench != record.bench || is_by_backend(it) && how(it) != how(&record));
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
    records.sort_by(|one, other| one.bench.cmp(&other.bench));
    Ok(records)
}

/// Whether it is of a benchmark that runs on this machine, on the emulated device and in the model.
fn is_by_backend(record: &Record) -> bool {
    record.rows.iter().any(|row| row.figure.is_some())
}

fn parse(file: &Path) -> Result<Record> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read the record {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is no record of a benchmark; move it elsewhere, or take it anew", file.display())
    })
}
