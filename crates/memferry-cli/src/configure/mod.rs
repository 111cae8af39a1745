//! `memferry configure`: shows, applies or saves a configuration of the DSA devices.
//!
//! ```text
//! --profile, --file ──▶ Config ──▶ Plan ──▶ changes   the writes, with the current values
//!                          │         └────▶ --apply   writes in the driver's order
//!                          └──▶ --save                a file for accel-config, also of the current state
//! ```

mod changes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use memferry_dsa::internals::system::Files;
use memferry_dsa::system::{
    ApplyError, ApplyOptions, Config, ConfigError, DeviceId, Limits, Plan, PlanError, Problems, Profile,
    Shape, SystemState, UnknownKeys, UnknownName,
};
use serde::Serialize;

use self::changes::{Change, changes};
use crate::devices::{self, Findings};
use crate::error::usage;
use crate::output::{self, count, fill, wrapped};
use crate::source::Source;

const AFTER_HELP: &str = "\
Without --apply nothing is changed. The file format is that of `accel-config save-config` and `load-config -c`.

Examples:
  memferry configure --profile 8n1d1e1w                 show the profile, and the writes on this machine
  sudo memferry configure --profile 1n1d1e1w --apply    apply it
  memferry configure --save now.json                    save the current configuration
  sudo memferry configure --file now.json --apply --force";

/// Lists, shows and applies configurations of DSA devices.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// A profile, or any name of this form: 2n1d1e4w has 2 nodes, 1 device on each, 1 engine, 4 shared work queues; the
    /// suffix -dedicated makes the queues dedicated.
    #[arg(long, value_name = "NAME", group = "config")]
    profile: Option<String>,
    /// A file in accel-config's format.
    #[arg(long, value_name = "FILE", group = "config")]
    file: Option<PathBuf>,
    /// List the profiles; the default without options.
    #[arg(long, conflicts_with_all = ["config", "save", "device", "root"])]
    list: bool,
    /// Only these devices; with --profile any present devices. May be repeated.
    #[arg(long, value_name = "dsaN", value_parser = device)]
    device: Vec<DeviceId>,
    /// Write the configuration to the devices and enable them; needs root.
    #[arg(long, requires = "config", conflicts_with = "save")]
    apply: bool,
    /// With --apply: disable enabled devices first. Their users lose them.
    #[arg(long, requires = "apply")]
    force: bool,
    /// Ignore unknown keys of a file, as accel-config does. Without it, they are an error, because they may be typing errors.
    #[arg(long, requires = "file")]
    ignore_unknown: bool,
    /// Save the configuration in accel-config's format, or the current one of the devices; `-` is standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    save: Option<PathBuf>,
    /// Use another machine: the directory with its `sys`, `dev` and `proc`, or a file of `topology --record`.
    #[arg(long, value_name = "DIR|FILE")]
    root: Option<PathBuf>,
    /// Print everything as JSON, each write in order.
    #[arg(long)]
    json: bool,
}

fn device(text: &str) -> Result<DeviceId, UnknownName> {
    text.parse()
}

#[cfg(test)]
mod tests;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let has_config = arguments.profile.is_some() || arguments.file.is_some();
    if arguments.list || !has_config && arguments.save.is_none() {
        if !arguments.device.is_empty() || arguments.root.is_some() {
            return Err(usage("choose what to configure: --profile NAME, --file FILE, or --save FILE"));
        }
        return list(arguments.json, out);
    }
    let source = Source::open(arguments.root.as_deref())?;
    if arguments.apply && matches!(source, Source::Recording(_)) {
        return Err(usage("--apply cannot change a recording; leave --root out, or give it a directory"));
    }
    on(arguments, &*source.files(), out)
}

/// Runs the command on the machine with these files.
fn on(arguments: &Arguments, files: &dyn Files, out: &mut dyn Write) -> Result<()> {
    let state = SystemState::read(files)?;
    let wanted = wanted(arguments, &state)?;
    if let Some(file) = &arguments.save {
        return save(&wanted.config, file, out);
    }
    let plan = plan(&wanted.config, &state, arguments)?;
    let changes = plan.as_ref().map_or(Vec::new(), |plan| changes(plan, files));
    let applied = match &plan {
        Some(plan) if arguments.apply => {
            let enabled = plan.apply_to(files).map_err(|error| failed(&error))?;
            Some(Applied { writes_count: plan.steps().len(), enabled })
        }
        _ => None,
    };
    let findings = if applied.is_some() { findings_after_apply(files)? } else { Findings::of(&state) };
    let notes = plan.as_ref().map_or(&[][..], Plan::notes);
    let report = Report { wanted: &wanted, changes, notes, applied, findings };
    if arguments.json { output::json(out, &report) } else { report.print(&state, out) }
}

/// A configuration and its source.
#[derive(Serialize)]
struct Wanted {
    name: Option<String>,
    purpose: Option<&'static str>,
    source: Option<&'static str>,
    config: Config,
}

/// The configuration of the command line; without a profile or a file the current one of the devices.
fn wanted(arguments: &Arguments, state: &SystemState) -> Result<Wanted> {
    let named =
        |name: String| Wanted { name: Some(name), purpose: None, source: None, config: Config::default() };
    let (mut wanted, whose) = if let Some(name) = &arguments.profile {
        let (shape, profile) = match (Profile::named(name), name.parse::<Shape>()) {
            (Ok(profile), _) => (profile.shape(), Some(profile)),
            (_, Ok(shape)) => (shape, None),
            _ => return Err(usage(unknown_profile(name))),
        };
        let devices = match () {
            () if !arguments.device.is_empty() => arguments.device.clone(),
            () if state.devices.is_empty() => shape.usual_devices(),
            () => shape.devices_of(state).with_context(|| format!("{name} does not fit this machine"))?,
        };
        let config = Config::for_devices(&devices, &shape);
        let purpose = profile.map(|profile| profile.purpose());
        return Ok(Wanted {
            purpose,
            source: profile.map(|profile| profile.source()),
            config,
            ..named(name.clone())
        });
    } else if let Some(file) = &arguments.file {
        let unknown = if arguments.ignore_unknown { UnknownKeys::Keep } else { UnknownKeys::Refuse };
        let config = Config::load(file, unknown).map_err(|error| match error {
            // This error names the file.
            ConfigError::Read { .. } => error.into(),
            ConfigError::UnknownKey { .. } => {
                anyhow!("{}: {error}; correct the key, or ignore it with --ignore-unknown", file.display())
            }
            error => anyhow!("{}: {error}", file.display()),
        })?;
        (Wanted { config, ..named(file.display().to_string()) }, "the file")
    } else {
        (
            Wanted { name: None, config: Config::of(state), ..named(String::new()) },
            "the current configuration",
        )
    };
    if !arguments.device.is_empty() {
        let config = &mut wanted.config;
        if let Some(absent) = arguments.device.iter().find(|id| config.devices.iter().all(|it| it.id != **id))
        {
            return Err(usage(format!("{absent} is not in {whose}; leave out --device to see its devices")));
        }
        config.devices.retain(|settings| arguments.device.contains(&settings.id));
        config.others.clear();
    }
    Ok(wanted)
}

fn unknown_profile(name: &str) -> String {
    let known: Vec<&str> = Profile::all().iter().map(Profile::name).collect();
    format!(
        "unknown profile {name:?}, and no device has such a shape (at most 4 engines and 8 queues); profiles are {}; other \
         names of this form work too, such as 2n1d2e4w; for a file use --file",
        known.join(", ")
    )
}

/// The plan of writes; none without devices and without --apply.
fn plan(config: &Config, state: &SystemState, arguments: &Arguments) -> Result<Option<Plan>> {
    if state.devices.is_empty() {
        if arguments.apply {
            return Err(anyhow!("no DSA to configure: {}", Findings::of(state).diagnostics().join("; ")));
        }
        config.validate(&Limits::dsa_1_0()).map_err(|problems| impossible(&problems))?;
        return Ok(None);
    }
    // Without --apply, show the writes of --force.
    let disable_first = arguments.force || !arguments.apply;
    Plan::new(config, state, ApplyOptions { disable_first, enable: true }).map(Some).map_err(|error| match error {
        PlanError::Invalid(problems) => impossible(&problems),
        PlanError::Enabled { device } => anyhow!(
            "{device} is enabled, but only a disabled device can be configured; --force disables it first, and its users \
             lose it"
        ),
        error => error.into(),
    })
}

/// The problems of a configuration as one line.
fn impossible(problems: &Problems) -> anyhow::Error {
    let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    anyhow!("the configuration cannot work, and nothing was changed: {}", problems.join("; "))
}

fn failed(error: &ApplyError) -> anyhow::Error {
    let status =
        error.status.map_or(String::new(), |status| format!("; {} says: {status}", error.step.device));
    anyhow!("{}: {}{status}; {}; {}", error.step, error.cause, error.advice, error.what_was_done())
}

/// The findings after enabling devices. Waits up to a second until udev has created the files of their queues.
fn findings_after_apply(files: &dyn Files) -> Result<Findings> {
    let start = Instant::now();
    loop {
        let findings = Findings::of(&SystemState::read(files)?);
        if !findings.lacks_files() || start.elapsed() > Duration::from_secs(1) {
            return Ok(findings);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The result of a completely executed plan.
#[derive(Serialize)]
struct Applied {
    writes_count: usize,
    /// The enabled devices and queues, in order.
    enabled: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    wanted: &'a Wanted,
    /// The writes in order; empty without devices.
    changes: Vec<Change>,
    notes: &'a [String],
    applied: Option<Applied>,
    #[serde(flatten)]
    findings: Findings,
}

impl Report<'_> {
    fn print(&self, state: &SystemState, out: &mut dyn Write) -> Result<()> {
        let Wanted { name, purpose, source, config } = self.wanted;
        let name = name.as_deref().unwrap_or_default();
        let purpose = purpose.map_or(String::new(), |purpose| format!(": {purpose}"));
        write!(out, "{}", wrapped(&format!("{name}{purpose}"), 0))?;
        if let Some(source) = source {
            write!(out, "{}", wrapped(&format!("Source: {source}."), 0))?;
        }
        // `state` is from before the writes and does not belong to this configuration.
        let nothing = SystemState::default();
        writeln!(out, "\n{}\n{}", devices::picture(config, &nothing), devices::queues(config, &nothing))?;
        for note in self.notes {
            write!(out, "{}", wrapped(&format!("Note: {note}."), 0))?;
        }
        if state.devices.is_empty() {
            let names = "The names are those that devices of such a machine usually have.";
            write!(out, "{}{}", wrapped(names, 0), self.findings.text())?;
            return Ok(());
        }
        if let Some(applied) = &self.applied {
            let done = format!(
                "{} done. Enabled: {}.",
                count(applied.writes_count, "write"),
                applied.enabled.join(", ")
            );
            write!(out, "{}{}", wrapped(&done, 0), self.findings.text())?;
            return Ok(());
        }
        write!(out, "{}", changes::draw(&self.changes))?;
        let disabled = changes::disabled(&self.changes);
        let mut end = "Nothing was written: --apply does it, as root".to_owned();
        if !disabled.is_empty() {
            end += &format!(", with --force, because {} would be disabled first", disabled.join(", "));
        }
        write!(out, "\n{}", wrapped(&(end + "."), 0))?;
        Ok(())
    }
}

fn save(config: &Config, file: &Path, out: &mut dyn Write) -> Result<()> {
    if config.devices.is_empty() {
        return Err(anyhow!("nothing to save: no DSA has a configured work queue; see `memferry topology`"));
    }
    let text = config.to_json();
    if file == Path::new("-") {
        return Ok(write!(out, "{text}")?);
    }
    output::write_file(file, text.as_bytes())
        .with_context(|| output::not_written("configuration", "--save", file))?;
    Ok(writeln!(out, "written to {}", file.display())?)
}

fn list(json: bool, out: &mut dyn Write) -> Result<()> {
    #[derive(Serialize)]
    struct Listed {
        name: &'static str,
        purpose: &'static str,
        source: &'static str,
    }
    let listed = |profile: &Profile| Listed {
        name: profile.name(),
        purpose: profile.purpose(),
        source: profile.source(),
    };
    let all: Vec<Listed> = Profile::all().iter().map(listed).collect();
    if json {
        return output::json(out, &all);
    }
    let width = all.iter().map(|profile| profile.name.len()).max().unwrap_or(0) + 2;
    for profile in &all {
        let mut name = profile.name;
        for line in fill(profile.purpose, output::COLUMNS_MAX - width) {
            writeln!(out, "{name:width$}{line}")?;
            name = "";
        }
    }
    let how = "8n1d1e1w: 8 nodes, 1 device on each, in it 1 engine and 1 shared work queue. Any other name of this form can \
               be used too. `memferry configure --profile NAME` shows what one is and what it would change here.";
    Ok(write!(out, "\n{}", wrapped(how, 0))?)
}
