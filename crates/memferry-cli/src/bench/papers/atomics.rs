//! `memferry bench atomics`: the cost of sharing by distance, on this machine or by the latencies of another. See
//! `memferry_bench::papers::atomics`.

use std::io::Write;

use anyhow::Result;
use memferry_bench::harness::Provenance;
use memferry_bench::papers::atomics::{Atomics, AtomicsRuns, Axes, Point, Threads};
use memferry_bench::papers::{Measurement, Metric};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::{On, place};
use super::row::PaperRow;
use super::session::{RunArguments, Session};
use super::values::{Word, counted, named, values};
use crate::bench::BUILD_PROFILE;
use crate::error::usage;
use crate::topology;

/// A hit in the cache, a shared counter and one's own by the distance of the threads, and hits while blocks come and go
/// (what the draft of Fürst 2024 leaves to future work, 5.1.3 and 7.2)
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    run: RunArguments,
}

/// Options of the command line and of a file.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Options {
    /// Where to run it [default: machine; model with --machine].
    #[arg(long, value_enum)]
    on: Option<On>,
    /// The machine of the model: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    /// Few accesses: to see that it works, not for the record.
    #[arg(long)]
    quick: bool,
    /// Values of each figure [default: 10; 2 with --quick]; the model has no noise, and computes one.
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// What is done: hit, entry, shared, own [default: all].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    works: Option<Vec<Word>>,
    /// Numbers of threads, or all [default: 1, 2 and all].
    #[arg(long, value_name = "N|all,...", value_delimiter = ',')]
    threads: Option<Vec<Word>>,
    /// Distances between the threads: sibling, node, nodes, sockets [default: all].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    distances: Option<Vec<Word>>,
    /// Whether other blocks leave and come meanwhile: off, on [default: both].
    #[arg(long, value_name = "off|on,...", value_delimiter = ',')]
    churn: Option<Vec<Word>>,
}

impl Options {
    fn axes(&self) -> Result<Axes> {
        let own = Axes::default();
        let threads = |word: &str| match word {
            "all" => Ok(Threads::All),
            word => counted(word).map(Threads::Count).map_err(|why| format!("{why}, or all")),
        };
        let churn = |word: &str| match word {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err("there are off and on".to_owned()),
        };
        Ok(Axes {
            works: values("works", &self.works, own.works, named)?,
            threads: values("threads", &self.threads, own.threads, threads)?,
            distances: values("distances", &self.distances, own.distances, named)?,
            churns: values("churn", &self.churn, own.churns, churn)?,
        })
    }

    fn effort(&self) -> AtomicsRuns {
        let effort = if self.quick { AtomicsRuns::QUICK } else { AtomicsRuns::FULL };
        AtomicsRuns { iterations: self.iterations.unwrap_or(effort.iterations), ..effort }
    }

    /// The options in a record: every value of every axis, chosen or default.
    fn record(&self, on: On, axes: &Axes) -> Value {
        let threads = |threads: &Threads| match threads {
            Threads::Count(count) => json!(count),
            Threads::All => json!("all"),
        };
        json!({
            "on": on,
            "machine": self.machine,
            "calibration": self.calibration,
            "quick": self.quick,
            "iterations": self.effort().iterations,
            "works": axes.works,
            "threads": axes.threads.iter().map(threads).collect::<Vec<_>>(),
            "distances": axes.distances,
            "churn": axes.churns,
            "profile": BUILD_PROFILE,
        })
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let options = arguments.run.options(&arguments.options, "atomics")?;
    let on = place(options.on, options.machine.as_deref(), options.iterations)?;
    let axes = options.axes()?;
    let machine = topology::open_calibrated(options.machine.as_deref(), options.calibration.as_deref())?;
    let (atomics, provenance) = match on {
        On::Machine => (Atomics::on_machine(machine), Provenance::Measured),
        On::Emulated => (Atomics::on_emulated(machine), Provenance::Emulated),
        On::Model => (Atomics::on_model(machine), Provenance::Modelled),
    };
    let points = axes.points(atomics.places());
    if points.is_empty() {
        return Err(usage(
            "no combination of these values makes sense: counters have no churn; leave out some options",
        ));
    }
    let mut session = Session::begin(
        "atomics",
        on,
        atomics.machine().clone(),
        options.record(on, &axes),
        (&arguments.run, options.quick),
    )?;
    let work = ("running the benchmark", &points[..]);
    session.run(
        work,
        Metric::LATENCY,
        Point::row_name,
        |_| provenance,
        |_, point| {
            let row = |taken: &Measurement| {
                PaperRow::taken(point.row_name(taken.metric), point, provenance, taken, None)
            };
            Ok(atomics.run(point, options.effort())?.iter().map(row).collect())
        },
    )?;
    session.end(arguments.run.keep.json, out)
}
