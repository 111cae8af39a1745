//! `memferry topology`: the machine as text or as a picture, or everything known about it as JSON.
//!
//! ```text
//! Machine ──▶ overview   the hierarchy: machine > sockets > domains > memories, copy engines
//!             links      from CPUs to memories, grouped into classes of similar links
//!               │
//!               ├──▶ text
//!               └──▶ svg, panels ──▶ canvas
//! ```

mod links;
mod overview;
mod panels;
mod svg;
mod text;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memferry::internals::Recording;
use memferry::topology::Machine;
use memferry_dsa::system::SystemState;
use serde::Serialize;

pub(crate) use memferry_session::{open_calibrated, open_machine as open};

use self::overview::Overview;
use crate::devices::Findings;
use crate::error::usage;
use crate::output::{self, not_written, write_file};
use crate::source::Source;

/// Shows sockets, nodes, memory tiers, distances, copy engines (DSA), their work queues, and why a queue cannot be used.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Show this machine instead: the name of a built-in profile, or a JSON file.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "sysfs")]
    profile: Option<String>,
    /// Show a recorded machine: the directory that holds its `sys`, `dev` and `proc`, or a file of --record.
    #[arg(long, value_name = "DIR|FILE")]
    sysfs: Option<PathBuf>,
    /// Print everything known about the machine as JSON.
    #[arg(long)]
    json: bool,
    /// Write a picture (SVG) to this file instead of text; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Save a recording of this machine's sysfs for --sysfs, here or elsewhere. It contains the names of the host and of
    /// its cgroup, and with a DSA the id of the user.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "sysfs", "json", "svg"])]
    record: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.record {
        return record(file, out);
    }
    let to_output = arguments.svg.as_deref().is_some_and(|file| file == Path::new("-"));
    if to_output && arguments.json {
        return Err(usage("--json and --svg - both write to standard output; give --svg a file"));
    }
    let (machine, state) = match &arguments.profile {
        Some(name) => (open(Some(name))?, None),
        None => {
            let source = Source::open(arguments.sysfs.as_deref())?;
            (source.machine()?, Some(SystemState::read(&*source.files())?))
        }
    };
    let mut overview = Overview::of(&machine);
    if let Some(state) = &state {
        overview = overview.with_dsa(state.clone());
    }
    match arguments.svg.as_deref() {
        Some(_) if to_output => return Ok(write!(out, "{}", svg::draw(&overview))?),
        Some(file) => {
            let picture = svg::draw(&overview);
            write_file(file, picture.as_bytes()).with_context(|| not_written("picture", "--svg", file))?;
            if !arguments.json {
                return Ok(writeln!(out, "written to {}", file.display())?);
            }
        }
        None => {}
    }
    if !arguments.json {
        return Ok(write!(out, "{}", text::draw(&overview))?);
    }
    let dsa = state.as_ref().map(|state| Dsa { state, findings: Findings::of(state) });
    output::json(out, &Everything { machine: &machine, dsa })
}

/// The output of `--json`.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    /// None for a profile.
    dsa: Option<Dsa<'a>>,
}

#[derive(Serialize)]
struct Dsa<'a> {
    #[serde(flatten)]
    state: &'a SystemState,
    #[serde(flatten)]
    findings: Findings,
}

/// Saves the files that discovery reads, so that `--sysfs` can read them elsewhere.
fn record(file: &Path, out: &mut dyn Write) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&Recording::of("/")?)?;
    text.push('\n');
    write_file(file, text.as_bytes()).with_context(|| not_written("recording", "--record", file))?;
    Ok(writeln!(out, "written to {}", file.display())?)
}

/// The machine as text.
pub(crate) fn draw(machine: &Machine) -> String {
    text::draw(&Overview::of(machine))
}

/// The machine as an SVG document and as a part of a page with this `id`. For this machine, the picture includes the state
/// of its DSA devices.
///
/// # Errors
/// The files of the devices cannot be read.
pub(crate) fn pictures(machine: &Machine, id: &str) -> Result<[String; 2]> {
    let mut overview = Overview::of(machine);
    if machine.is_this_machine() {
        overview = overview.with_dsa(SystemState::read(&*Source::open(None)?.files())?);
    }
    Ok([svg::draw(&overview), svg::part(&overview, id)])
}

#[cfg(test)]
mod tests;
