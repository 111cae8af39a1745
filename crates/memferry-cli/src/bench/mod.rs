//! `memferry bench NAME`: numbers for the record.

mod dsa;
mod emulate;
mod query;
mod record;
pub(crate) mod stats;

use std::io::Write;
use std::path::Path;

use anyhow::Result;

pub(crate) use record::How;
use record::{Record, Row, check_writable};

use crate::output::{self, Align, Table};

/// Measures memferry on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    Dsa(dsa::Arguments),
    Emulate(emulate::Arguments),
    Query(query::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.bench {
        Bench::Dsa(arguments) => dsa::run(arguments, out),
        Bench::Emulate(arguments) => emulate::run(arguments, out),
        Bench::Query(arguments) => query::run(arguments, out),
    }
}

/// What becomes of a record.
#[derive(Debug, clap::Args)]
struct Keep {
    /// Prints the record as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Where records are kept; `none` keeps nothing [default: results; none with --quick].
    #[arg(long, value_name = "DIR|none")]
    out: Option<String>,
}

impl Keep {
    /// Where the record goes, if anywhere: an hour of measurements should not end with a typing error.
    fn directory(&self, quick: bool) -> Result<Option<&Path>> {
        let default = if quick { "none" } else { "results" };
        let directory =
            Some(self.out.as_deref().unwrap_or(default)).filter(|out| *out != "none").map(Path::new);
        directory.map(check_writable).transpose()?;
        Ok(directory)
    }

    /// Writes and prints the record.
    fn finish(&self, record: &Record, directory: Option<&Path>, out: &mut dyn Write) -> Result<()> {
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
        let value = match row.value.abs() {
            ..1.0 => format!("{:.4}", row.value),
            ..1000.0 => format!("{:.2}", row.value),
            _ => format!("{:.0}", row.value),
        };
        table.row(vec![
            row.name.clone(),
            value,
            row.unit.to_owned(),
            row.how.to_string(),
            ratio,
            interval,
            peer,
        ]);
    }
    table
}
