//! `memferry bench submit`, `threads` and so on: the benchmarks of the papers, on this machine, on the emulated device
//! or in the model. What they are is said in `memferry::bench`; this is what all of them do with their points.
//!
//! ```text
//! options ─▶ axes ─▶ points     those that an interrupted run has done are taken from its file
//!                      │ each: Backend::run, rows, the file of unfinished rows
//!                      ▼
//!                   record      CSV, JSON; the file of unfinished rows is gone
//! ```

mod options;
mod row;
mod unfinished;

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use memferry::bench::{Backend, Benchmark, OnEmulated, OnMachine, OnModel, Unrun, Way, benchmark};
use memferry::model::ModelError;
use memferry_dsa::emulator::Timing;
use memferry_dsa::system::State;
use memferry_query::load::Progress as _;

use self::options::{On, Options};
use self::row::PaperRow;
use self::unfinished::Unfinished;
use super::Keep;
use super::dsa::how_of_this_machines_devices;
use super::record::{How, Record};
use crate::error::usage;
use crate::output::{self, Align, Table, count, number, wrapped};
use crate::progress::Bar;
use crate::topology;

/// Subcommands by the names of `memferry::bench`.
macro_rules! papers {
    ($($variant:ident $name:literal),*) => {
        /// The benchmarks of the papers.
        #[derive(Debug, clap::Subcommand)]
        pub(super) enum Paper {
            $(
                #[command(name = $name, about = about($name))]
                $variant(Box<Arguments>),
            )*
        }

        impl Paper {
            fn parts(&self) -> (&'static str, &Arguments) {
                match self {
                    $(Paper::$variant(arguments) => ($name, arguments),)*
                }
            }
        }

        #[cfg(test)]
        const NAMES: &[&str] = &[$($name),*];
    };
}

papers!(
    Submit "submit",
    Threads "threads",
    Queues "queues",
    Routes "routes",
    Operations "operations",
    Depth "depth",
    Engines "engines",
    Latency "latency",
    Wait "wait",
    Pages "pages",
    Faults "faults",
    Remote "remote",
    Target "target",
    Priority "priority",
    Interference "interference",
    Pollution "pollution"
);

/// What all of them take.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Takes options from a TOML file, with keys as on the command line, such as `sizes = ["4KiB", "1MiB"]`; those on the
    /// command line come first.
    #[arg(long = "options", value_name = "FILE")]
    file: Option<std::path::PathBuf>,
    /// Begins anew, even if an interrupted run could be continued.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    keep: Keep,
}

fn about(name: &str) -> String {
    let about = benchmark(name).map_or("", |benchmark| benchmark.about);
    let mut letters = about.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub(super) fn run(paper: &Paper, out: &mut dyn Write) -> Result<()> {
    let (name, arguments) = paper.parts();
    let benchmark = benchmark(name).with_context(|| format!("there is no benchmark {name}"))?;
    let options = match &arguments.file {
        Some(file) => arguments.options.clone().or(Options::read(file)?),
        None => arguments.options.clone(),
    };
    run_benchmark(benchmark, arguments, &options, out)
}

fn run_benchmark(
    benchmark: &'static Benchmark,
    arguments: &Arguments,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let on = options.on()?;
    let backend = backend(on, options)?;
    let axes =
        options.axes(benchmark.axes_on(backend.machine(), options.quick), |ways| backend.ways(ways))?;
    let points = benchmark.points(&axes);
    if points.is_empty() {
        return Err(usage("no combination of these values makes sense here; leave out some options"));
    }
    let directory = arguments.keep.directory(options.quick)?;
    let mut record = Record::start(
        benchmark.name,
        backend.machine().clone(),
        0,
        options.record(on, &axes, &options.effort()),
    );
    let name = format!("{}{}", benchmark.name, on.suffix());
    let unfinished = directory.map(|directory| Unfinished::of(&record, &name, directory));
    if let Some(unfinished) = &unfinished
        && !arguments.restart
        && let Some((started, rows)) = unfinished.rows(&record)?
    {
        (record.started, record.rows) = (started, rows);
    }
    let bar = Bar::of("running the benchmark", points.len());
    for point in &points {
        bar.advance(1);
        let row_name = |figure| benchmark.row_name(&axes, point, figure);
        let first = row_name(benchmark.figures[0]);
        if record.rows.iter().any(|row| row.name() == first) {
            continue;
        }
        match backend.run(point, benchmark.figures, options.effort()) {
            Ok(taken) => {
                let row = |it| PaperRow::taken(benchmark.name, row_name, point, how(on, point.way), it);
                record.rows.extend(taken.iter().map(row));
            }
            Err(Unrun::Cannot(why)) => {
                let row = PaperRow::missing(first, point, benchmark.figures[0], how(on, point.way), &why);
                record.rows.push(row);
            }
            Err(Unrun::Failed(error)) => {
                let kept = match &unfinished {
                    Some(_) => "; what was done before is kept, and the same command goes on from there",
                    None => "",
                };
                return Err(anyhow!(error)).with_context(|| format!("{first} cannot be run{kept}"));
            }
        }
        if let Some(unfinished) = &unfinished {
            unfinished.keep(&record)?;
        }
    }
    drop(bar);
    let written = directory.map(|directory| record.write_as(&name, directory)).transpose()?;
    if let Some(unfinished) = unfinished {
        unfinished.remove()?;
    }
    if arguments.keep.json {
        return output::json(out, &record);
    }
    text(&record.rows, out)?;
    if let Some(path) = written {
        writeln!(out, "\nwritten to {}", path.display())?;
    }
    Ok(())
}

fn backend(on: On, options: &Options) -> Result<Box<dyn Backend>> {
    let machine = topology::open(options.machine.as_deref())?;
    Ok(match on {
        On::Machine => Box::new(OnMachine::new(machine, State::discover()?)),
        On::Emulated => Box::new(OnEmulated::new(machine, Timing::sapphire_rapids())),
        On::Model => Box::new(OnModel::new(machine).map_err(|error| match error {
            ModelError::Unknown { .. } => usage(error),
            _ => error.into(),
        })?),
    })
}

fn how(on: On, way: Way) -> How {
    match (on, way) {
        (On::Machine, Way::Core) => How::Measured,
        (On::Machine, _) => how_of_this_machines_devices(),
        (On::Emulated, _) => How::Emulated,
        (On::Model, _) => How::Modelled,
    }
}

/// The rows with a value as a table, and what the others say.
fn text(rows: &[PaperRow], out: &mut dyn Write) -> Result<()> {
    use Align::{Left, Right};
    let columns =
        [("row", Left), ("value", Right), ("unit", Left), ("how", Left), ("ratio", Right), ("peer", Left)];
    let mut table = Table::new(columns);
    let valued = rows.iter().filter_map(|row| Some((row, row.number("value")?)));
    for (row, value) in valued {
        let ratio = row.number("ratio").map_or(String::new(), |ratio| format!("{ratio:.3}"));
        let words = ["unit", "how", "peer"].map(|column| row.text(column).to_owned());
        let [unit, how, peer] = words;
        table.row(vec![row.name().to_owned(), number(value), unit, how, ratio, peer]);
    }
    if rows.iter().any(|row| row.number("value").is_some()) {
        write!(out, "{table}")?;
    }
    for (title, is_run) in [("Not run:", false), ("To know:", true)] {
        let mut notes: Vec<(&str, usize)> = Vec::new();
        for row in rows.iter().filter(|row| row.number("value").is_some() == is_run) {
            match notes.iter_mut().find(|(note, _)| *note == row.text("note")) {
                Some((_, rows_count)) => *rows_count += 1,
                None if row.text("note").is_empty() => {}
                None => notes.push((row.text("note"), 1)),
            }
        }
        if !notes.is_empty() {
            writeln!(out, "\n{title}")?;
        }
        for (note, rows_count) in notes {
            write!(out, "{}", wrapped(&format!("- {}: {note}", count(rows_count, "row")), 0))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memferry::bench::BENCHMARKS;

    use super::*;

    #[test]
    fn every_benchmark_is_a_subcommand() {
        assert_eq!(BENCHMARKS.iter().map(|benchmark| benchmark.name).collect::<Vec<_>>(), NAMES);
        assert!(about("submit").starts_with("Single submissions"));
    }
}
