//! A run that can be interrupted: starts with the rows of an earlier run, and saves each new row at once.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use memferry::topology::Machine;
use memferry_bench::harness::Record;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::options::read;
use super::row::{PaperRow, Space};
use super::text;
use super::unfinished::Unfinished;
use crate::bench::{Keep, start_record};
use crate::output;

/// Arguments of all papers' benchmarks besides their own options.
#[derive(Debug, clap::Args)]
pub(super) struct RunArguments {
    /// Takes options from a TOML file, with keys as on the command line, such as `iterations = 3`; those on the command
    /// line come first.
    #[arg(long = "options", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Begins anew, even if an interrupted run could be continued.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    pub(super) keep: Keep,
}

impl RunArguments {
    /// Options `given` on the command line; `or` adds those of the file.
    ///
    /// # Errors
    /// As [`read`].
    pub(super) fn options<O: Clone + DeserializeOwned>(
        &self,
        given: &O,
        or: impl Fn(O, O) -> O,
        benchmark: &str,
    ) -> Result<O> {
        Ok(match &self.file {
            Some(file) => or(given.clone(), read(file, benchmark)?),
            None => given.clone(),
        })
    }
}

/// The record, and the file of its rows until it is complete.
pub(super) struct Session<'a, S> {
    pub(super) record: Record<PaperRow<S>>,
    name: String,
    directory: Option<&'a Path>,
    unfinished: Option<Unfinished>,
}

impl<'a, S: Space> Session<'a, S> {
    /// Starts a record of the benchmark `bench` under that name and `suffix`, or continues one.
    ///
    /// # Errors
    /// The record cannot be written, or there is an unfinished run with other options or of another version.
    pub(super) fn begin(
        bench: &'static str,
        suffix: &str,
        machine: Machine,
        options: Value,
        (run, is_quick): (&'a RunArguments, bool),
    ) -> Result<Session<'a, S>> {
        let directory = run.keep.directory(is_quick)?;
        let mut record: Record<PaperRow<S>> = start_record(bench, machine, 0, options);
        let name = format!("{bench}{suffix}");
        let unfinished = directory.map(|directory| Unfinished::of(&record, &name, directory));
        if let Some(unfinished) = &unfinished
            && !run.restart
            && let Some((started, rows)) = unfinished.rows(&record)?
        {
            (record.started, record.rows) = (started, rows);
        }
        Ok(Session { record, name, directory, unfinished })
    }

    /// The row of this name, if it exists.
    pub(super) fn row(&self, name: &str) -> Option<&PaperRow<S>> {
        self.record.rows.iter().find(|row| row.name() == name)
    }

    /// Adds and saves the rows of one point.
    pub(super) fn add(&mut self, rows: impl IntoIterator<Item = PaperRow<S>>) -> Result<()> {
        self.record.rows.extend(rows);
        self.unfinished.as_ref().map_or(Ok(()), |unfinished| unfinished.keep(&self.record))
    }

    /// The context of an error that ends the run.
    pub(super) fn cannot_go_on(&self, row: &str) -> String {
        let kept = match &self.unfinished {
            Some(_) => "; earlier rows are kept, and the same command continues from there",
            None => "",
        };
        format!("{row} cannot be run{kept}")
    }

    /// Writes and prints the record.
    pub(super) fn end(self, is_json: bool, out: &mut dyn Write) -> Result<()> {
        let Session { record, name, directory, unfinished } = self;
        let written = directory.map(|directory| record.write_as(&name, directory)).transpose()?;
        if let Some(unfinished) = unfinished {
            unfinished.remove()?;
        }
        if is_json {
            return output::json(out, &record);
        }
        text(&record.rows, out)?;
        if let Some(path) = written {
            writeln!(out, "\nwritten to {}", path.display())?;
        }
        Ok(())
    }
}
