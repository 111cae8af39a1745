//! `memferry topology`: the machine at a glance, as text or as a picture, or all that is known of it as JSON.
//!
//! ```text
//! Machine ──▶ plan      what lies inside what: machine > sockets > domains > memories, copy engines
//!             figures   the ways from CPUs to memories, in few classes where they are alike
//!               │
//!               ├──▶ text
//!               └──▶ svg, panels ──▶ canvas   rectangles within rectangles
//! ```

mod canvas;
mod figures;
mod panels;
mod plan;
mod svg;
mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use memferry::topology::{Machine, Recording, TopologyError};

use self::plan::Plan;
use crate::error::usage;
use crate::output::{self, Part};

/// Shows sockets, nodes, memory tiers, distances and copy engines.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Show this machine instead: the name of a built-in profile, or a JSON file.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "sysfs")]
    profile: Option<String>,
    /// Show a recorded machine: the directory that holds its `sys` and `proc`, or a file of --record.
    #[arg(long, value_name = "DIR|FILE")]
    sysfs: Option<PathBuf>,
    /// Print everything that is known as JSON.
    #[arg(long)]
    json: bool,
    /// Draw a picture (SVG) into this file, in place of text; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write down what this machine's kernel shows, for --sysfs, here or elsewhere. The names of the host and of its
    /// cgroup are in it.
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
    let machine = match &arguments.sysfs {
        Some(root) => Machine::discover_at(root)?,
        None => open(arguments.profile.as_deref())?,
    };
    match arguments.svg.as_deref() {
        Some(_) if to_output => return Ok(write!(out, "{}", svg::draw(&Plan::of(&machine)))?),
        Some(file) => {
            let picture = svg::draw(&Plan::of(&machine));
            write_file(file, picture.as_bytes()).with_context(|| not_written("picture", "--svg", file))?;
            if !arguments.json {
                return Ok(writeln!(out, "written to {}", file.display())?);
            }
        }
        None => {}
    }
    if arguments.json { output::json(out, &machine) } else { Ok(write!(out, "{}", draw(&machine))?) }
}

/// Keeps what the reader of this machine reads, so that it can be read elsewhere.
fn record(file: &Path, out: &mut dyn Write) -> Result<()> {
    let mut text = serde_json::to_string_pretty(&Recording::of("/")?)?;
    text.push('\n');
    write_file(file, text.as_bytes()).with_context(|| not_written("recording", "--record", file))?;
    Ok(writeln!(out, "written to {}", file.display())?)
}

fn not_written(what: &str, option: &str, file: &Path) -> String {
    format!(
        "the {what} cannot be written to {}; choose {option} FILE in a directory that exists and has room",
        file.display()
    )
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

/// The machine as text that one understands at a glance.
pub(crate) fn draw(machine: &Machine) -> String {
    text::draw(&Plan::of(machine))
}

/// Puts a whole file in the place of an older one. What is no file (a pipe, a terminal) is written to.
fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(old) if !old.is_file() => fs::write(path, content),
        // Behind a link: renaming would replace the link.
        Ok(_) => Part::write(&fs::canonicalize(path)?, content)?.keep(),
        Err(_) => Part::write(path, content)?.keep(),
    }
}

#[cfg(test)]
mod tests;
