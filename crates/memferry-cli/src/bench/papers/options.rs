//! The options of the papers' benchmarks: the values of axes, and where they run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use memferry::mover::Route;
use memferry_bench::papers::{Axes, Point, RunLength, Way};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::values::{Word, counted, named, node, priorities, read_buffers, route, values};
use crate::bench::BUILD_PROFILE;
use crate::error::usage;
use crate::options::size_bytes;

/// Enough for any confidence interval.
const ITERATIONS_MAX: usize = 100_000;

/// The backend of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum On {
    /// On this machine: its cores, and the DSA queues that it has.
    Machine,
    /// On the emulated device with its timing model: in virtual time, but for the query (qdp).
    Emulated,
    /// In the model.
    Model,
}

impl On {
    /// Suffix of the names of its records.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            On::Machine => "",
            On::Emulated => "-emulated",
            On::Model => "-modelled",
        }
    }
}

/// Options of the command line and of a file. An axis without an option has the papers' values.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct Options {
    /// Where to run it [default: machine; model with --machine].
    #[arg(long, value_enum)]
    on: Option<On>,
    /// The machine of the model, or on whose nodes emulated devices are, all with one timing: the name of a profile (see
    /// `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE")]
    pub(super) machine: Option<String>,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<String>,
    /// Few values and short: to see that it works, not for the record.
    #[arg(long)]
    pub(super) quick: bool,
    /// Values of each figure on this machine [default: 10; 2 with --quick]; elsewhere there is no noise, and one.
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// Who works: core, shared, dedicated, write for write(2) to a queue's file, or any in the model.
    #[arg(long, value_name = "WAY,...", value_delimiter = ',')]
    ways: Option<Vec<Word>>,
    /// What is done, such as copy or crc.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    operations: Option<Vec<Word>>,
    /// Sizes of descriptors, such as 4KiB.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    sizes: Option<Vec<Word>>,
    /// Descriptors of a submission. This and what follows up to engines is of queues: a core has one row for all.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    batches: Option<Vec<Word>>,
    /// Threads that submit.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    submitters: Option<Vec<Word>>,
    /// Submissions in flight of each thread.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    depths: Option<Vec<Word>>,
    /// Queues that submitters are spread over; of each device, with a route.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    queues: Option<Vec<Word>>,
    /// Entries of each queue.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    entries: Option<Vec<Word>>,
    /// Engines behind the queues.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    engines: Option<Vec<Word>>,
    /// Who shares in a copy: single, push-pull, socket, smart, all, adaptive, or none.
    #[arg(long, value_name = "ROUTE,...", value_delimiter = ',')]
    routes: Option<Vec<Word>>,
    /// Nodes of the sources, or any: that of the device, or of the cores.
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    sources: Option<Vec<Word>>,
    /// Nodes of the targets, or any.
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    targets: Option<Vec<Word>>,
    /// Pages of the targets: touched, huge, absent-block, absent-resume.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pages: Option<Vec<Word>>,
    /// Where the data is when an iteration begins: any (flushed), memory (flushed, and other bytes each time), cached-source,
    /// cached-target, cached.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    data: Option<Vec<Word>>,
    /// Priorities of two queues, such as 15-1, or any.
    #[arg(long, value_name = "N-N,...", value_delimiter = ',')]
    priorities: Option<Vec<Word>>,
    /// Read buffers that two groups may use, such as 96-16, or any.
    #[arg(long, value_name = "N-N,...", value_delimiter = ',')]
    read_buffers: Option<Vec<Word>>,
    /// Bytes that the reader of `pollution` reads again and again: powers of two, such as 4MiB.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    working_sets: Option<Vec<Word>>,
}

impl Options {
    /// # Errors
    /// As [`place`].
    pub(super) fn on(&self) -> Result<On> {
        place(self.on, self.machine.as_deref(), self.iterations)
    }

    /// The length of a run; backends without noise run one iteration.
    pub(super) fn effort(&self, on: On) -> RunLength {
        let effort = if self.quick { RunLength::QUICK } else { RunLength::FULL };
        let iterations = if on == On::Machine { self.iterations.unwrap_or(effort.iterations) } else { 1 };
        RunLength { iterations, ..effort }
    }

    /// # Errors
    /// A requested value is in no point, so that it would be ignored.
    pub(super) fn check_used(&self, axes: &Axes, points: &[Point]) -> Result<()> {
        let options = json!(self);
        // An option is the plural of its column: `sizes` of `size_bytes`.
        let is_given = |column: &str| {
            let stem = column.split('_').next().unwrap_or(column);
            let mut options = options.as_object().into_iter().flatten();
            options.any(|(option, value)| option.starts_with(stem) && !value.is_null())
        };
        let Some((column, value)) = axes.unused(points).into_iter().find(|(column, _)| is_given(column))
        else {
            return Ok(());
        };
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Err(usage(format!(
            "no combination with {value} as {column} can run here: leave it out, or change other options, such as --ways"
        )))
    }

    /// A benchmark's axes with these values; `ways` selects the ways of the backend.
    pub(super) fn axes(&self, own: Axes, ways: impl Fn(&[Way]) -> Vec<Way>) -> Result<Axes> {
        let own_ways = ways(&own.ways);
        Ok(Axes {
            ways: values("ways", &self.ways, own_ways, named)?,
            operations: values("operations", &self.operations, own.operations, named)?,
            sizes_bytes: values("sizes", &self.sizes, own.sizes_bytes, size_bytes)?,
            batches: values("batches", &self.batches, own.batches, counted)?,
            submitters: values("submitters", &self.submitters, own.submitters, counted)?,
            depths: values("depths", &self.depths, own.depths, counted)?,
            queues: values("queues", &self.queues, own.queues, counted)?,
            entries: values("entries", &self.entries, own.entries, |word| counted(word).map(Some))?,
            engines: values("engines", &self.engines, own.engines, |word| counted(word).map(Some))?,
            routes: values("routes", &self.routes, own.routes, route)?,
            sources: values("sources", &self.sources, own.sources, node)?,
            targets: values("targets", &self.targets, own.targets, node)?,
            pages: values("pages", &self.pages, own.pages, named)?,
            data: values("data", &self.data, own.data, named)?,
            priorities: values("priorities", &self.priorities, own.priorities, priorities)?,
            read_buffers: values("read-buffers", &self.read_buffers, own.read_buffers, read_buffers)?,
            working_sets_bytes: values("working-sets", &self.working_sets, own.working_sets_bytes, |word| {
                size_bytes(word).map(Some)
            })?,
        })
    }

    /// The options in a record: every value of every axis, chosen or default.
    pub(super) fn record(&self, on: On, axes: &Axes, effort: &RunLength) -> Value {
        let route = |route: &Option<Route>| route.map(|route| format!("{route:?}"));
        json!({
            "on": on,
            "machine": self.machine,
            "calibration": self.calibration,
            "quick": self.quick,
            "iterations": effort.iterations,
            "ways": axes.ways,
            "operations": axes.operations,
            "sizes": axes.sizes_bytes,
            "batches": axes.batches,
            "submitters": axes.submitters,
            "depths": axes.depths,
            "queues": axes.queues,
            "entries": axes.entries,
            "engines": axes.engines,
            "routes": axes.routes.iter().map(route).collect::<Vec<_>>(),
            "sources": axes.sources,
            "targets": axes.targets,
            "pages": axes.pages,
            "data": axes.data,
            "priorities": axes.priorities,
            "read_buffers": axes.read_buffers,
            "working_sets": axes.working_sets_bytes,
            "profile": BUILD_PROFILE,
        })
    }
}

/// The options of a benchmark in a TOML file.
///
/// # Errors
/// The sentence names the file, and line and column of what is wrong in it.
pub(super) fn read<O: DeserializeOwned>(file: &Path, benchmark: &str) -> Result<O> {
    let path = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("the options cannot be read from {path}"))?;
    toml::from_str(&text).map_err(|error| {
        usage(format!("{path} holds no options as `memferry bench {benchmark} --help` lists them: {error}"))
    })
}

/// The backend that the options select.
///
/// # Errors
/// Iterations that are none or too many; a machine that is not here cannot be measured, and a model needs one.
pub(super) fn place(on: Option<On>, machine: Option<&str>, iterations: Option<usize>) -> Result<On> {
    if iterations.is_some_and(|iterations| !(1..=ITERATIONS_MAX).contains(&iterations)) {
        return Err(usage(format!("--iterations is a number from 1 to {ITERATIONS_MAX}")));
    }
    match (on, machine) {
        (None, None) => Ok(On::Machine),
        (None, Some(_)) => Ok(On::Model),
        (Some(On::Machine), Some(_)) => {
            Err(usage("another machine cannot be measured here; leave out --on machine, or --machine"))
        }
        (Some(On::Model), None) => Err(usage("the model needs --machine PROFILE; see `memferry topology`")),
        (Some(on), _) => Ok(on),
    }
}

#[cfg(test)]
mod tests;
