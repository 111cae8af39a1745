//! `memferry doctor`: what hinders memferry on this machine, why, and what to do about it.
//!
//! ```text
//! files of the machine ──▶ Facts ──▶ checks: Facts -> Option<Problem> ──▶ text, JSON, exit status
//!                                └─▶ guide: the set-up of a DSA, with the state of each step
//! ```

mod checks;
mod facts;
mod guide;
mod telemetry;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use memferry_dsa::system::{Activity, Config, QueueFilter, SystemState};
use serde::Serialize;

use self::checks::{Problem, Severity, problems};
use self::facts::Facts;
use self::guide::{State, Step, steps};
use self::telemetry::{MonitorState, monitors};
use crate::error::{STATUS_ERRORS, STATUS_WARNINGS, usage};
use crate::output::{self, Align, Table, capitalised, count, printable, wrapped};
use crate::source::Source;

pub(crate) use self::facts::Cpu;

const AFTER_HELP: &str = "\
Exit status: 0 without problems, 3 with warnings only, 4 with an error. No file is written; usable queues
get a No-op.

Examples:
  memferry doctor                 this machine
  memferry doctor --guide         the set-up of a DSA, and the state of each step
  memferry doctor --telemetry     what benchmarks count on this machine
  memferry emulate -- memferry doctor";

/// Finds what hinders memferry here: for each problem the cause, the cure and a command.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Print facts and problems as JSON.
    #[arg(long)]
    json: bool,
    /// Print the set-up of a DSA step by step, with the state of each step.
    #[arg(long)]
    guide: bool,
    /// Print what the monitors of the machine count during benchmarks, and why others are absent.
    #[arg(long, conflicts_with = "guide")]
    telemetry: bool,
    /// Look at another machine: the directory with its `sys`, `dev`, `proc` and `boot`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Runs the command. Returns the exit status.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<u8> {
    if let Some(root) = arguments.root.as_ref().filter(|root| !root.is_dir()) {
        // A recording of `topology` lacks most of the files.
        return Err(usage(format!(
            "{} is not a directory; --root needs a copy of the files",
            root.display()
        )));
    }
    let source = Source::open(arguments.root.as_deref())?;
    let machine = source.machine().map_err(|error| error.to_string());
    let mut facts = Facts::read(&*source.files(), machine);
    if arguments.root.is_none() {
        facts = facts.probe();
    }
    let report = Report {
        problems: problems(&facts),
        guide: arguments.guide.then(|| steps(&facts)),
        telemetry: arguments.telemetry.then(|| monitors(&*source.files(), arguments.root.is_none())),
        facts: &facts,
    };
    if arguments.json {
        output::json(out, &report)?
    } else {
        write!(out, "{}", report.text())?
    }
    Ok(report.status())
}

#[derive(Serialize)]
struct Report<'a> {
    problems: Vec<Problem>,
    /// Only with `--guide`.
    #[serde(skip_serializing_if = "Option::is_none")]
    guide: Option<Vec<Step>>,
    /// Only with `--telemetry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    telemetry: Option<Vec<MonitorState>>,
    facts: &'a Facts,
}

impl Report<'_> {
    fn status(&self) -> u8 {
        match self.problems.iter().map(|problem| problem.severity).max() {
            None => 0,
            Some(Severity::Warning) => STATUS_WARNINGS,
            Some(Severity::Error) => STATUS_ERRORS,
        }
    }

    fn text(&self) -> String {
        let mut text = match (&self.guide, &self.telemetry) {
            (Some(steps), _) => self::guide_text(steps),
            (None, Some(monitors)) => telemetry::text(monitors),
            (None, None) => summary(self.facts).to_string() + &configuration(&self.facts.dsa),
        };
        text.push('\n');
        for problem in &self.problems {
            text += &problem_text(problem);
        }
        text + &wrapped(&conclusion(self.facts, &self.problems), 0)
    }
}

fn problem_text(problem: &Problem) -> String {
    let severity = match problem.severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let head = wrapped(&format!("{severity} {}: {}", problem.name, printable(&problem.cause)), 0);
    let cure = wrapped(&printable(&problem.cure), 2);
    let command = format!("  $ {}\n", problem.command);
    head + &cure + &command + &wrapped(&format!("Source: {}.", problem.source), 2) + "\n"
}

fn conclusion(facts: &Facts, problems: &[Problem]) -> String {
    let found = match problems.len() {
        0 => "No problem found.".to_owned(),
        number => format!("{} found.", count(number, "problem")),
    };
    match facts.has_dsa() {
        None | Some(true) => found,
        Some(false) => format!(
            "{found} This machine has no DSA, so there is nothing to configure: memferry copies with CPU cores. `memferry \
             emulate` runs DSA programs here."
        ),
    }
}

fn guide_text(steps: &[Step]) -> String {
    let mut text = "The set-up of a DSA (Fürst 2024, 2.5), and its state here:\n".to_owned();
    for step in steps {
        let state = match step.state {
            State::Done => "done",
            State::Open => "open",
            State::Unknown => "?",
        };
        text += &wrapped(&format!("{}. [{state}] {}", step.number, step.action), 0);
        text += &wrapped(&format!("Here: {}.", printable(&step.found)), 3);
        text += &format!("   $ {}\n", step.command);
    }
    text
}

/// The facts as lines.
fn summary(facts: &Facts) -> Table {
    let unknown = || "unknown".to_owned();
    let mut table = Table::plain(vec![Align::Left, Align::Left]);
    let mut row = |name: &str, value: String| table.row(vec![capitalised(name), printable(&value)]);
    row("CPU", facts.cpu.model.clone().unwrap_or_else(unknown));
    let instruction = |(flag, name): (&'static str, &str)| {
        let has = facts.has_flag(flag)?;
        Some(if has { name.to_owned() } else { format!("no {name}") })
    };
    let instructions = [
        ("avx2", "AVX2"),
        ("avx512f", "AVX-512"),
        ("enqcmd", "ENQCMD"),
        ("movdir64b", "MOVDIR64B"),
        ("waitpkg", "UMWAIT"),
    ];
    let instructions: Vec<String> = instructions.into_iter().filter_map(instruction).collect();
    row("instructions", if instructions.is_empty() { unknown() } else { instructions.join(", ") });
    let places = [
        (facts.is_guest(), "virtual machine"),
        (facts.container.is_here, "container"),
        (facts.container.has_seccomp, "seccomp filter"),
        (facts.emulation.is_here, "emulated devices"),
    ];
    let places: Vec<&str> = places.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    let kernel = format!("Linux {}", facts.kernel.release.clone().unwrap_or_else(unknown));
    row("kernel", [vec![kernel.as_str()], places].concat().join(", "));
    row("devices", devices(facts));
    row("queues", queues(facts));
    row("memory", memory(facts));
    let io_uring = match facts.io_uring.works {
        Some(true) => "io_uring works",
        Some(false) => "no io_uring",
        None => "io_uring not tried",
    };
    let fuse = if facts.emulation.has_fuse { "/dev/fuse" } else { "no /dev/fuse" };
    row("other", format!("{io_uring}, {fuse}"));
    table
}

/// Groups, engines and queues, if a queue is configured.
fn configuration(state: &SystemState) -> String {
    let config = Config::of(state);
    match config.devices.is_empty() {
        true => String::new(),
        false => {
            format!("\n{}{}", crate::devices::picture(&config, state), crate::devices::queues(&config, state))
        }
    }
}

fn devices(facts: &Facts) -> String {
    let devices = &facts.dsa.devices;
    if devices.is_empty() {
        return match facts.pci.len() {
            0 if facts.has_dsa().is_none() => "unknown".to_owned(),
            0 => "no DSA".to_owned(),
            number => format!("{number} DSA on the PCI bus, without the driver"),
        };
    }
    let device = |device: &memferry_dsa::system::Device| {
        let state = device.state.as_ref().map_or("state unknown", Activity::as_str);
        let sharing = if device.has_pasid == Some(false) { ", pasid_enabled 0" } else { "" };
        format!("{} {state}{sharing}", device.id)
    };
    devices.iter().map(device).collect::<Vec<_>>().join("; ")
}

fn queues(facts: &Facts) -> String {
    let usable = facts.dsa.diagnose(&QueueFilter::default()).usable;
    let configured = facts.dsa.queues().filter(|(_, queue)| queue.is_configured()).count();
    let queue = |(_, queue): &(_, &memferry_dsa::system::Queue)| {
        let mode = queue.mode.map_or("mode unknown", memferry_dsa::QueueMode::as_str);
        format!("{} {mode}", queue.id)
    };
    let names: Vec<String> = usable.iter().map(queue).collect();
    match (configured, names.is_empty()) {
        (0, _) => "none configured".to_owned(),
        (_, true) => format!("{configured} configured, none usable"),
        (_, false) => format!("{configured} configured, usable: {}", names.join(", ")),
    }
}

fn memory(facts: &Facts) -> String {
    let nodes = facts.machine.as_ref().map_or("unknown nodes".to_owned(), |machine| {
        let node = |node: &memferry::topology::Node| {
            let size = node.memory_bytes.map_or(String::new(), |bytes| format!(" {}", output::size(bytes)));
            format!("node {} {}{size}", node.id, node.tier)
        };
        machine.nodes().iter().filter(|node| node.has_memory()).map(node).collect::<Vec<_>>().join(", ")
    });
    match &facts.huge_pages {
        Some(mode) => format!("{nodes}; huge pages: {mode}"),
        None => nodes,
    }
}

#[cfg(test)]
mod tests;
