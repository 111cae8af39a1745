//! `memferry bench submit`, `threads` and so on: the benchmarks of the papers, on this machine, on the emulated device or
//! in the model. `memferry_bench::papers` defines them; this module runs their points and records the rows.
//!
//! ```text
//! options ─▶ axes ─▶ points     skips points in the file of an interrupted run
//!                      │ each: Backend::run, rows, file of unfinished rows
//!                      ▼
//!                   record      CSV, JSON; removes the file of unfinished rows
//! ```
//!
//! `qdp` and `atomics` do the same with their own points.

pub(super) mod atomics;
mod options;
pub(super) mod qdp;
mod row;
mod session;
mod unfinished;
mod values;

use std::io::Write;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args as _, Command, FromArgMatches, Subcommand};
use memferry::model::ModelError;
use memferry::topology::{Machine, Tier};
use memferry_bench::dsa::{are_devices_emulated, device_provenance};
use memferry_bench::harness::Provenance;
use memferry_bench::papers::{
    BENCHMARKS, Backend, Benchmark, Measurement, OnEmulated, OnMachine, OnModel, Point, Way, benchmark,
};
use memferry_dsa::system::SystemState;

use self::options::{On, Options};
use self::row::PaperRow;
use self::session::{RunArguments, Session};
use crate::error::usage;
use crate::output::{Table, capitalised, count, number, wrapped};
use crate::topology;

/// From this size on measuring should take less than 1 % of the measured time; below it, readings of the clock count.
const OVERHEAD_BYTES_MIN: f64 = 65536.0;

/// One of `memferry_bench::papers`. Each is a subcommand.
#[derive(Debug)]
pub(super) struct Paper {
    benchmark: &'static Benchmark,
    arguments: Box<Arguments>,
}

impl FromArgMatches for Paper {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Paper, clap::Error> {
        let chosen = matches.subcommand().and_then(|(name, own)| Some((benchmark(name)?, own)));
        let (benchmark, own) = chosen.ok_or_else(|| clap::Error::new(ErrorKind::InvalidSubcommand))?;
        Ok(Paper { benchmark, arguments: Box::new(Arguments::from_arg_matches(own)?) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Paper::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Paper {
    fn augment_subcommands(command: Command) -> Command {
        let subcommand = |benchmark: &Benchmark| {
            Arguments::augment_args(Command::new(benchmark.name)).about(capitalised(benchmark.about))
        };
        command.subcommands(BENCHMARKS.iter().map(subcommand))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Paper::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        benchmark(name).is_some()
    }
}

/// Arguments of all benchmarks of the papers.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    run: RunArguments,
}

pub(super) fn run(paper: &Paper, out: &mut dyn Write) -> Result<()> {
    let Paper { benchmark, arguments } = paper;
    let options = arguments.run.options(&arguments.options, benchmark.name)?;
    let on = options.on()?;
    let backend = backend(on, &options)?;
    let axes =
        options.axes(benchmark.axes_on(backend.machine(), options.quick), |ways| backend.ways(ways))?;
    let points = benchmark.points(&axes);
    if points.is_empty() {
        return Err(usage("no combination of these values can run here; leave out some options"));
    }
    options.check_used(&axes, &points)?;
    let effort = options.effort(on);
    let mut session = Session::begin(
        benchmark.name,
        on,
        backend.machine().clone(),
        options.record(on, &axes, &effort),
        (&arguments.run, options.quick),
    )?;
    let row_name = |point: &Point, metric| benchmark.row_name(&axes, point, metric);
    let provenance_of = |point: &Point| provenance(on, point.way);
    let main = benchmark.metrics[0];
    session.run(("running the benchmark", &points), main, row_name, provenance_of, |_, point| {
        let row = |taken: &Measurement| {
            let name = row_name(point, taken.metric);
            PaperRow::measured(benchmark.name, name, point, provenance_of(point), taken)
        };
        Ok(backend.run(point, benchmark.metrics, effort)?.iter().map(row).collect())
    })?;
    let mut absent = lacking(benchmark, backend.machine(), on, &points[0]);
    absent.retain(|row| session.row(row.name()).is_none());
    session.add(absent)?;
    session.end(arguments.run.keep.json, out)
}

/// A row for each kind of memory under test that the machine lacks.
fn lacking(benchmark: &Benchmark, machine: &Machine, on: On, point: &Point) -> Vec<PaperRow<Point>> {
    let nowhere = Point { source: None, target: None, route: None, ..point.clone() };
    let row = |tier: Tier| {
        let name = format!("{}_{}", benchmark.name, tier.to_string().to_lowercase());
        let why = format!("{} has no {tier} memory to copy from or to", machine.name());
        PaperRow::new(name, &nowhere, benchmark.metrics[0], provenance(on, point.way), Some(&why))
    };
    benchmark.lacks(machine).into_iter().map(row).collect()
}

fn backend(on: On, options: &Options) -> Result<Box<dyn Backend>> {
    let machine = topology::open_calibrated(options.machine.as_deref(), options.calibration.as_deref())?;
    Ok(match on {
        On::Machine => Box::new(OnMachine::new(machine, SystemState::discover()?, are_devices_emulated())),
        On::Emulated => Box::new(OnEmulated::new(machine).map_err(not_modelled)?),
        On::Model => Box::new(OnModel::new(machine).map_err(not_modelled)?),
    })
}

/// A machine that cannot be modelled, as a usage error if its profile lacks figures.
fn not_modelled(error: ModelError) -> anyhow::Error {
    match error {
        ModelError::Unknown { .. } => usage(error),
        _ => error.into(),
    }
}

fn provenance(on: On, way: Way) -> Provenance {
    match (on, way) {
        (On::Machine, Way::Core) => Provenance::Measured,
        (On::Machine, _) => device_provenance(),
        (On::Emulated, _) => Provenance::Emulated,
        (On::Model, _) => Provenance::Modelled,
    }
}

/// The rows with a value as a table, and the notes.
fn text<P>(rows: &[PaperRow<P>], out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new("row | value: | unit | how | ratio: | peer");
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
    let overhead = rows.iter().filter(|row| row.number("size_bytes") >= Some(OVERHEAD_BYTES_MIN));
    if let Some(most) =
        overhead.filter_map(|row| row.number("overhead")).filter(|it| *it > 0.0).reduce(f64::max)
    {
        let percent = format!("{:.2}", most * 100.0);
        writeln!(out, "\nMeasuring took {percent} % of what was measured at most, from 64 KiB on.")?;
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
