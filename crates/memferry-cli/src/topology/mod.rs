//! `memferry topology`: the machine at a glance, as text or as a picture, or all that is known of it as JSON.
//!
//! ```text
//! Machine ──▶ plan      what lies inside what: machine > sockets > domains > memories, copy engines
//!             figures   the ways from CPUs to memories, in few classes where they are alike
//!               │
//!               ├──▶ text
//!               └──▶ svg, panels ──▶ canvas   rectangles within rectangles
//! ```

mod figures;
mod panels;
mod plan;
mod svg;
mod text;

use std::env::VarError;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memferry::topology::{Machine, Recording, TopologyError};
use memferry_dsa::system::SystemState;
use serde::Serialize;

use self::plan::Plan;
use crate::devices::Findings;
use crate::error::usage;
use crate::output::{self, not_written, write_file};
use crate::source::Source;

/// Shows sockets, nodes, memory tiers, distances, copy engines (DSA), their work queues, and what keeps those from being used.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Show this machine instead: the name of a built-in profile, or a JSON file.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "sysfs")]
    profile: Option<String>,
    /// Show a recorded machine: the directory that holds its `sys`, `dev` and `proc`, or a file of --record.
    #[arg(long, value_name = "DIR|FILE")]
    sysfs: Option<PathBuf>,
    /// Print everything that is known as JSON.
    #[arg(long)]
    json: bool,
    /// Draw a picture (SVG) into this file, in place of text; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write down what this machine's kernel shows, for --sysfs, here or elsewhere. The names of the host and of its
    /// cgroup are in it, and where there is a DSA the number of the user.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "sysfs", "json", "svg"])]
    record: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.record {
        return record(file, out);
    }
    let to_output = arguments.svg.as_deref().is_some_and(|file| file == Path::new("-"));
    if to_output && arguments.json {
        return Err(usage("--json and --svg - both want standard output; give --svg a file"));
    }
    let (machine, state) = match &arguments.profile {
        Some(name) => (open(Some(name))?, None),
        None => {
            let source = Source::open(arguments.sysfs.as_deref())?;
            (source.machine()?, Some(SystemState::read(&*source.files())?))
        }
    };
    let mut plan = Plan::of(&machine);
    if let Some(state) = &state {
        plan = plan.with_dsa(state.clone());
    }
    match arguments.svg.as_deref() {
        Some(_) if to_output => return Ok(write!(out, "{}", svg::draw(&plan))?),
        Some(file) => {
            let picture = svg::draw(&plan);
            write_file(file, picture.as_bytes()).with_context(|| not_written("picture", "--svg", file))?;
            if !arguments.json {
                return Ok(writeln!(out, "written to {}", file.display())?);
            }
        }
        None => {}
    }
    if !arguments.json {
        return Ok(write!(out, "{}", text::draw(&plan))?);
    }
    let dsa = state.as_ref().map(|state| Dsa { state, findings: Findings::of(state) });
    output::json(out, &Everything { machine: &machine, dsa })
}

/// What `--json` prints.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    /// None of a profile.
    dsa: Option<Dsa<'a>>,
}

#[derive(Serialize)]
struct Dsa<'a> {
    #[serde(flatten)]
    state: &'a SystemState,
    #[serde(flatten)]
    findings: Findings,
}

/// Keeps what the reader of this machine reads, so that it can be read elsewhere.
fn record(file: &Path, out: &mut dyn Write) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&Recording::of("/")?)?;
    text.push('\n');
    write_file(file, text.as_bytes()).with_context(|| not_written("recording", "--record", file))?;
    Ok(writeln!(out, "written to {}", file.display())?)
}

/// The machine that an option names, or this one.
pub(crate) fn open(profile: Option<&str>) -> Result<Machine> {
    let machine = match profile {
        Some(name) => Machine::from_profile(name),
        None => Machine::discover(),
    };
    machine.map_err(|error| match error {
        TopologyError::UnknownProfile { .. } => usage(error),
        _ => error.into(),
    })
}

/// Names a calibration of this machine, for those who do not want to name it each time.
const CALIBRATION: &str = "MEMFERRY_CALIBRATION";

/// The machine that an option names, or this one with the figures of its calibration, if there is one.
///
/// # Errors
/// Both are named; the calibration is not of this machine.
pub(crate) fn open_calibrated(profile: Option<&str>, calibration: Option<&str>) -> Result<Machine> {
    let named = match (profile, calibration) {
        (Some(_), Some(_)) => {
            return Err(usage(
                "--machine names another machine, whose profile has figures of its own; leave out --calibration, which \
                 is about this one",
            ));
        }
        (Some(_), None) => return open(profile),
        (None, Some(name)) => Some(name.to_owned()),
        (None, None) => match std::env::var(CALIBRATION) {
            Ok(name) => Some(name).filter(|name| !name.is_empty()),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                return Err(usage(format!("{CALIBRATION} is not UTF-8; name the file with --calibration")));
            }
        },
    };
    let machine = open(None)?;
    let Some(name) = named else { return Ok(machine) };
    let calibrated = machine.with_profile(&open(Some(&name))?);
    calibrated.map_err(|error| match error {
        TopologyError::Misfit { .. } => usage(format!("{name}: {error}")),
        _ => error.into(),
    })
}

/// The machine as text that one understands at a glance.
pub(crate) fn draw(machine: &Machine) -> String {
    text::draw(&Plan::of(machine))
}

/// The machine as a picture: a file of its own, and a part of a page with this `id`. Of this machine with the state of
/// its DSA devices.
///
/// # Errors
/// What the kernel shows of the devices cannot be read.
pub(crate) fn pictures(machine: &Machine, id: &str) -> Result<[String; 2]> {
    let mut plan = Plan::of(machine);
    if machine.is_this_machine() {
        plan = plan.with_dsa(SystemState::read(&*Source::open(None)?.files())?);
    }
    Ok([svg::draw(&plan), svg::part(&plan, id)])
}

#[cfg(test)]
mod tests;
