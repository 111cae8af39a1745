//! `memferry advise`: who copies, in which direction, and how DSA devices should be configured; and the nodes of columns, which
//! `sql::advise` finds.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memferry::model::ModelError;
use memferry_bench::model::{DeviceAdvice, Shape, StreamAdvice, Workload};

use crate::error::usage;
use crate::output::{self, Table, count, not_written, number, size, wrapped, write_file};
use crate::{sql, topology};

/// Says what a machine should do for a workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    about: About,
}

#[derive(Debug, clap::Subcommand)]
enum About {
    /// Who copies, in which direction, and how the DSA devices should be configured, with the modelled gain.
    ///
    /// A workload is a TOML file with a table for each kind of copies:
    ///
    ///   [[streams]]
    ///   name = "pages"
    ///   size = "4 KiB"
    ///   threads = 4       # that copy at the same time; 1 by default
    ///   in-flight = 16    # copies of each thread; 1, the default, waits for each copy
    ///   source = 0        # nodes; optional
    ///   target = 8
    #[command(verbatim_doc_comment)]
    Devices(Devices),
    /// On which nodes the columns of tables should lie, by the reads of queries, with the modelled gain.
    ///
    /// Loads the tables, runs the queries, counts the bytes that the CPUs of each node read of each column, and proposes moves
    /// that pay.
    Placement(sql::AdviceArguments),
}

#[derive(Debug, clap::Args)]
struct Devices {
    /// The workload.
    #[arg(value_name = "WORKLOAD")]
    workload: String,
    /// The machine: the name of a profile (see `memferry topology`), or a JSON file [default: this machine].
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// What this machine can do: a file of `memferry calibrate --out FILE` [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    /// Save the configuration for `memferry configure --file` and accel-config.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let devices = match &arguments.about {
        About::Devices(devices) => devices,
        About::Placement(placement) => return sql::advise(placement, out),
    };
    let workload = Workload::read(&devices.workload).map_err(|error| match error {
        ModelError::Toml { name, source } => {
            usage(format!("{name}: {source}; see `memferry advise devices --help`"))
        }
        ModelError::Scenario { what } => usage(format!("{}: {what}", devices.workload)),
        error => error.into(),
    })?;
    let machine = topology::open_calibrated(devices.machine.as_deref(), devices.calibration.as_deref())?;
    let advice = workload.advise(&machine).with_context(|| format!("no advice for {}", machine.name()))?;
    if let Some(file) = &devices.save {
        if advice.shape.is_none() {
            return Err(usage("--save has nothing to save: cores should copy everything"));
        }
        let config = advice.config.to_json();
        write_file(file, config.as_bytes()).with_context(|| not_written("configuration", "--save", file))?;
    }
    if devices.json { output::json(out, &advice) } else { print(&advice, machine.name(), out) }
}

fn print(advice: &DeviceAdvice, machine: &str, out: &mut dyn Write) -> Result<()> {
    let DeviceAdvice { thresholds, streams, shape, gain, .. } = advice;
    writeln!(out, "Modelled on {machine}.\n")?;
    let mut table = Table::new("copies | by | cores: | plain device: | advised: | unit");
    let rate = |rate: f64| number(rate / 1e9);
    for StreamAdvice { name, is_by_device, cores_rate, plain_rate, rate: advised, .. } in streams {
        let by = if *is_by_device { "device" } else { "cores" };
        let plain = plain_rate.map_or("-".to_owned(), rate);
        table.row(vec![
            name.clone(),
            by.to_owned(),
            rate(*cores_rate),
            plain,
            rate(*advised),
            "GB/s".to_owned(),
        ]);
    }
    writeln!(out, "{table}")?;
    let mut line = |text: String| write!(out, "{}", wrapped(&text, 0));
    line(format!(
        "G2 (Kuper et al., 6.1): devices copy from {} on if a thread waits for each copy, from {} on otherwise.",
        size(thresholds.waited_bytes),
        size(thresholds.asynchronous_bytes)
    ))?;
    for StreamAdvice { name, direction, .. } in streams.iter().filter(|it| !it.direction.is_empty()) {
        line(format!("G4 (6.2), {name}: {direction}."))?;
    }
    let Some(Shape { devices, is_group_per_stream, engines_of_group, is_dedicated }) = *shape else {
        return Ok(line("Cores should copy everything: no device has to be configured.".to_owned())?);
    };
    let groups = if is_group_per_stream { "a group for each kind of copies" } else { "one group" };
    let first = advice.config.devices.first();
    let entries = first.and_then(|device| device.groups.first()?.queues.first()?.size).unwrap_or(0);
    let queues = match (is_dedicated, is_group_per_stream) {
        (true, _) => format!("a dedicated queue of {entries} entries for each thread"),
        (false, true) => {
            format!("a shared queue in each, the first of {entries} entries, which is its threshold")
        }
        (false, false) => format!("one shared queue of {entries} entries, which is its threshold"),
    };
    line(format!(
        "G5, G6 (6.3): {}; {groups} with {}; {queues}.",
        count(devices, "device"),
        count(engines_of_group, "engine"),
    ))?;
    let plain = "one engine and one shared queue";
    Ok(line(match *gain {
        1.0 => format!("Nothing larger gains 2 % over {plain}."),
        gain => format!("That is {gain:.2} times {plain}, as a geometric mean over the copies by devices."),
    })?)
}
