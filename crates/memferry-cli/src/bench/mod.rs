//! `memferry bench NAME`: numbers for the record.

mod allocations;
mod cache;
mod dsa;
mod emulate;
mod mover;
mod papers;
mod peers;
mod query;
mod record;
mod soak;
pub(crate) mod stats;

use std::io::Write;
use std::path::Path;

use anyhow::Result;

pub(crate) use dsa::{how_of_this_machines_devices, is_emulated as dsa_is_emulated};
use record::check_writable;
pub(crate) use record::{BUILD_PROFILE, Comparison, Record, Row, machine_slug, rfc3339};

use crate::output::{self, Align, Table};

/// Measures memferry on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    #[command(flatten)]
    Paper(papers::Paper),
    Qdp(Box<papers::qdp::Arguments>),
    Atomics(papers::atomics::Arguments),
    Cache(cache::Arguments),
    Dsa(dsa::Arguments),
    Emulate(emulate::Arguments),
    Mover(mover::Arguments),
    Query(query::Arguments),
    Soak(soak::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.bench {
        Bench::Paper(paper) => papers::run(paper, out),
        Bench::Qdp(arguments) => papers::qdp::run(arguments, out),
        Bench::Atomics(arguments) => papers::atomics::run(arguments, out),
        Bench::Cache(arguments) => cache::run(arguments, out),
        Bench::Dsa(arguments) => dsa::run(arguments, out),
        Bench::Emulate(arguments) => emulate::run(arguments, out),
        Bench::Mover(arguments) => mover::run(arguments, out),
        Bench::Query(arguments) => query::run(arguments, out),
        Bench::Soak(arguments) => soak::run(arguments, out),
    }
}

/// What becomes of a record.
#[derive(Debug, clap::Args)]
pub(crate) struct Keep {
    /// Prints the record as one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where records are kept; `none` keeps nothing [default: results; none with --quick].
    #[arg(long, value_name = "DIR|none")]
    pub(crate) out: Option<String>,
}

impl Keep {
    /// Where the record goes, if anywhere: an hour of measurements should not end with a typing error.
    pub(crate) fn directory(&self, quick: bool) -> Result<Option<&Path>> {
        let default = if quick { "none" } else { "results" };
        let directory =
            Some(self.out.as_deref().unwrap_or(default)).filter(|out| *out != "none").map(Path::new);
        directory.map(check_writable).transpose()?;
        Ok(directory)
    }

    /// Writes and prints the record.
    pub(crate) fn finish(
        &self,
        record: &Record,
        directory: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<()> {
        // The record first: the output may be a pipe that nobody reads any more.
        let written = directory.map(|directory| record.write(directory)).transpose();
        if self.json {
            output::json(out, record)?;
        } else {
            write!(out, "{}", table(&record.rows))?;
            if let Ok(Some(path)) = &written {
                writeln!(out, "\nwritten to {}", path.display())?;
            }
        }
        written.map(drop)
    }
}

fn table(rows: &[Row]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("row", Left),
        ("value", Right),
        ("unit", Left),
        ("how", Left),
        ("ratio", Right),
        ("95 % interval", Left),
        ("peer", Left),
    ]);
    for row in rows {
        let (ratio, interval, peer) = match &row.comparison {
            None => Default::default(),
            Some(it) => (
                format!("{:.3}", it.ratio),
                format!("{:.3} to {:.3}", it.ratio_low, it.ratio_high),
                it.peer.clone(),
            ),
        };
        table.row(vec![
            row.name.clone(),
            output::number(row.value),
            row.unit.to_owned(),
            row.how.to_string(),
            ratio,
            interval,
            peer,
        ]);
    }
    table
}
