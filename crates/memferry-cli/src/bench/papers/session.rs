//! A record while it is being taken: rows of an interrupted run first, and each row kept at once.

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

/// What all of these benchmarks take besides their own options.
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
    /// Options `given` on the command line, and by `or` those of the file where these say nothing.
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

/// The record, and where its rows are kept meanwhile.
pub(super) struct Session<'a, S> {
    pub(super) record: Record<PaperRow<S>>,
    name: String,
    directory: Option<&'a Path>,
    unfinished: Option<Unfinished>,
}

impl<'a, S: Space> Session<'a, S> {
    /// Begins a record of the benchmark `bench`, kept under that name and `suffix`, or continues one.
    ///
    /// # Errors
    /// The record could not be written, or there is an unfinished run of other options or another version.
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

    /// The row of this name, if it was taken.
    pub(super) fn row(&self, name: &str) -> Option<&PaperRow<S>> {
        self.record.rows.iter().find(|row| row.name() == name)
    }

    /// Adds rows, all of one point.
    pub(super) fn add(&mut self, rows: impl IntoIterator<Item = PaperRow<S>>) -> Result<()> {
        self.record.rows.extend(rows);
        self.unfinished.as_ref().map_or(Ok(()), |unfinished| unfinished.keep(&self.record))
    }

    /// What to say of a run that ends here.
    pub(super) fn cannot_go_on(&self, row: &str) -> String {
        let kept = match &self.unfinished {
            Some(_) => "; what was done before is kept, and the same command goes on from there",
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
