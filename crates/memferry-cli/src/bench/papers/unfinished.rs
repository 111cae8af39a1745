//! The file of rows of an unfinished run, so that an interrupted run can continue.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memferry_bench::harness::Record;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file.
pub(super) struct Unfinished {
    path: PathBuf,
}

/// The fields of a record that decide whether it can be continued.
#[derive(Deserialize)]
struct Kept<R> {
    version: String,
    commit: String,
    started: String,
    options: Value,
    rows: Vec<R>,
}

impl Unfinished {
    /// The file of this record, which may not exist, below the directory of all records.
    pub(super) fn of<R>(record: &Record<R>, name: &str, directory: &Path) -> Unfinished {
        Unfinished { path: record.directory(directory).join(format!("{name}.unfinished.json")) }
    }

    /// Start and rows of a run that can be continued; `None` if there is none.
    ///
    /// # Errors
    /// The run is of another version or with other options, or the file cannot be read.
    pub(super) fn rows<R: DeserializeOwned>(&self, record: &Record<R>) -> Result<Option<(String, Vec<R>)>> {
        let path = self.path.display();
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("{path} cannot be read; begin anew with --restart"));
            }
        };
        let kept: Kept<R> = serde_json::from_str(&text)
            .with_context(|| format!("{path} holds no unfinished run; begin anew with --restart"))?;
        if (kept.version.as_str(), kept.commit.as_str()) != (record.version, record.commit) {
            bail!(
                "{path} is an unfinished run of memferry {} ({}), and this is {} ({}): their rows cannot be in one \
                 record; finish it with that version, or begin anew with --restart",
                kept.version,
                kept.commit,
                record.version,
                record.commit
            );
        }
        if kept.options != record.options {
            bail!(
                "{path} is an unfinished run with other options; repeat those to finish it, or begin anew with \
                 --restart"
            );
        }
        Ok(Some((kept.started, kept.rows)))
    }

    /// Saves the rows so far.
    pub(super) fn keep<R: Serialize>(&self, record: &Record<R>) -> Result<()> {
        Ok(record.write_json(&self.path)?)
    }

    /// Removes the file after the run.
    pub(super) fn remove(self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| {
                format!("the record is written, but {} cannot be removed", self.path.display())
            }),
            _ => Ok(()),
        }
    }
}
