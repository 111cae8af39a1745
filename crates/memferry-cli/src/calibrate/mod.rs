//! `memferry calibrate`: measures this machine, writes its profile, and checks the model against measurements.

mod scans;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use memferry::topology::{Machine, Storage};
use memferry_bench::calibrate::{
    self, Calibration, Calibrator, Check, Checked, Devices, SamplingPlan, StorageProbe, best_methods,
};
use memferry_bench::dsa::are_devices_emulated;
use memferry_bench::harness::{Estimate, Peer, Provenance, Record, Row};
use memferry_query::load::Progress as _;
use serde_json::json;

use self::scans::{CheckedScan, Scans, Times};
use crate::bench::{BUILD_PROFILE, Keep, start_record};
use crate::output::{not_written, wrapped, write_file};
use crate::progress::Bar;
use crate::topology;

/// Measures this machine in less than two minutes, and writes a profile for the model.
///
/// It measures latency and bandwidth from each node's CPUs to each memory, copies by method and size, copies by each DSA
/// and the cost of their submission, waking a worker, scans, and with `--storage` a disk. More nodes mean fewer samples of
/// each figure; the output has their number. Run it on an idle machine: other programs make everything slower.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the profile to this file: on this machine for `memferry sql --calibration FILE` and others, anywhere for
    /// `memferry sim --machine FILE` and `memferry topology --profile FILE`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also run copies, scans and pipelines of other sizes, and print their modelled and measured times and the error;
    /// takes up to twice as long.
    #[arg(long)]
    check: bool,
    /// Also measure the storage of this directory, for scans of files on its file system: writes a file of 256 MiB there and
    /// removes it; may be repeated.
    #[arg(long, value_name = "DIR", conflicts_with = "profile")]
    storage: Vec<PathBuf>,
    /// Check this profile of this machine from an earlier run instead of measuring a new one.
    #[arg(long, value_name = "FILE", requires = "check", conflicts_with = "out")]
    profile: Option<String>,
    /// Small and short: shows that it works, but the profile is not accurate.
    #[arg(long)]
    quick: bool,
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Directory for the record of a check; `none` saves none [default: results; none with --quick].
    #[arg(long, value_name = "DIR|none", requires = "check")]
    results: Option<String>,
}

impl Arguments {
    fn effort(&self) -> SamplingPlan {
        if self.quick { SamplingPlan::QUICK } else { SamplingPlan::FULL }
    }

    fn keep(&self) -> Keep {
        let none = || Some("none".to_owned());
        let out = if self.check { self.results.clone() } else { none() };
        Keep { json: self.json, out, no_telemetry: true }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.out {
        // Check before measuring for minutes. An old profile stays until the new one is complete.
        check_writable(file).with_context(|| not_written("profile", "--out", file))?;
    }
    let plan = arguments.effort();
    let probes = arguments.storage.iter().map(|directory| StorageProbe::new(directory, plan));
    let probes = probes.collect::<Result<Vec<_>, _>>()?;
    let keep = arguments.keep();
    let directory = keep.directory(arguments.quick)?;
    let machine = Arc::new(Machine::discover()?);
    let options = json!({
        "quick": arguments.quick,
        "check": arguments.check,
        "machine_profile": arguments.profile,
        "storage": arguments.storage,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("calibrate", Machine::clone(&machine), 0, options);
    let scans = Scans::new(&machine, arguments.effort())?;
    let own_profile = arguments.profile.as_deref().map(|name| topology::open(Some(name))).transpose()?;
    let passes = passes(&machine, &scans, (&probes, &source_of(&record)), arguments)?;
    let profile = match (own_profile, passes.calibrated) {
        (None, Some(calibrated)) => {
            let measured = measured(&machine, &scans, calibrated, arguments, &record)?;
            record.rows.extend(measured.rows);
            if let Some(file) = &arguments.out {
                let text = measured.profile.profile_text(&measured.source)?;
                write_file(file, text.as_bytes()).with_context(|| not_written("profile", "--out", file))?;
            }
            if arguments.json {
                record.options["notes"] = json!(measured.notes);
            } else {
                measured.notes.iter().try_for_each(|note| write!(out, "{}", wrapped(note, 0)))?;
            }
            Some(measured.profile)
        }
        (own_profile, _) => own_profile,
    };
    if let (Some(profile), Some((check, ran))) = (profile, passes.checked) {
        let mut checked = check.against(&profile)?;
        checked.extend(scans.against(&profile, &ran)?);
        record.rows.extend(checked_rows(checked));
    }
    keep.finish(&record, directory, out)?;
    match &arguments.out {
        Some(file) if !arguments.json => Ok(writeln!(out, "\nwritten to {}", file.display())?),
        _ => Ok(()),
    }
}

/// Checks that a file can be written, without changing an existing one.
fn check_writable(file: &Path) -> std::io::Result<()> {
    match std::fs::metadata(file) {
        Ok(old) if old.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        Ok(old) if !old.is_file() => Ok(()),
        _ => {
            let mut probe = file.as_os_str().to_owned();
            probe.push(".probe");
            write_file(Path::new(&probe), b"").and_then(|()| std::fs::remove_file(&probe))
        }
    }
}

struct Measured {
    profile: Machine,
    /// Prefix of the sources of its figures; names the measurement.
    source: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// What a calibration measures.
struct Calibrated {
    calibration: Calibration,
    times: Times,
    /// One for each directory.
    storage: Vec<Storage>,
}

impl Calibrated {
    fn or_better(self, other: Calibrated) -> Result<Calibrated> {
        let storage = self.storage.into_iter().zip(&other.storage);
        Ok(Calibrated {
            storage: storage.map(|(one, other)| one.or_better(other)).collect(),
            calibration: self.calibration.or_better(other.calibration)?,
            times: self.times.or_better(other.times),
        })
    }
}

/// The combined results of all passes.
struct Passes {
    calibrated: Option<Calibrated>,
    checked: Option<(Check, Vec<CheckedScan>)>,
}

/// How often disturbed scans are measured again.
const AGAIN_MAX: usize = 10;

/// Calibrates and checks in turns, so that both see the machine in the same condition.
fn passes(
    machine: &Machine,
    scans: &Scans,
    (probes, source): (&[StorageProbe], &str),
    arguments: &Arguments,
) -> Result<Passes> {
    let mut effort = arguments.effort();
    let calibrates = arguments.profile.is_none();
    if calibrates && arguments.check {
        effort.limit *= 2;
    }
    let mut calibrator = Calibrator::new(machine, effort, are_devices_emulated())?;
    let storage_steps = probes.len() * StorageProbe::STEPS_COUNT;
    let calibration_steps =
        if calibrates { calibrator.steps_count() + scans::STEPS_COUNT + storage_steps } else { 0 };
    let check_steps = if arguments.check { 1 + scans::CHECK_STEPS_COUNT } else { 0 };
    let bar = Bar::of("measuring this machine", effort.passes * (calibration_steps + check_steps));
    let mut step = || bar.advance(1);
    let mut all = Passes { calibrated: None, checked: None };
    let begin = Instant::now();
    for _ in 0..effort.passes {
        let pass_begin = Instant::now();
        if calibrates {
            let (calibration, times) = (calibrator.pass(&mut step)?, scans.measure(&mut step)?);
            let storage = probes.iter().map(|probe| probe.pass(source, &mut step));
            let one = Calibrated { calibration, times, storage: storage.collect::<Result<_, _>>()? };
            all.calibrated = Some(match all.calibrated {
                Some(best) => best.or_better(one)?,
                None => one,
            });
        }
        if arguments.check {
            let check = calibrator.check()?;
            step();
            let ran = scans.check(&mut step)?;
            all.checked = Some(match all.checked {
                Some((best, best_ran)) => (best.or_better(check), scans::better_pass(best_ran, &ran)),
                None => (check, ran),
            });
        }
        if !effort.has_time(begin.elapsed(), pass_begin.elapsed()) {
            break;
        }
    }
    // Measure only the disturbed scans again.
    if let Some(Calibrated { times, .. }) = &mut all.calibrated {
        for _ in 0..AGAIN_MAX {
            if times.make_sense() {
                break;
            }
            *times = times.or_better(scans.measure(&mut || ())?);
        }
    }
    Ok(all)
}

fn measured(
    machine: &Arc<Machine>,
    scans: &Scans,
    calibrated: Calibrated,
    arguments: &Arguments,
    record: &Record,
) -> Result<Measured> {
    let Calibrated { calibration, times, storage } = calibrated;
    let source = source_of(record);
    let others = scans.parameters(&times, &source)?;
    let quick = if arguments.quick { ", --quick: too little memory to be true" } else { "" };
    let Record { version, commit, started, .. } = record;
    let what = format!("memferry calibrate {version} ({commit}) on {}, {started}{quick}", machine.name());
    let mut rows = link_rows(&calibration);
    rows.extend(storage.iter().flat_map(storage_rows));
    rows.extend(others.iter().map(|it| row(it.name.clone(), it.value, unit_of(&it.name))));
    let notes_on_storage: Vec<String> = storage.iter().map(storage_note).collect();
    let profile = calibration.apply(Machine::clone(machine), others, storage, (&source, &what))?;
    let best = best_methods(&calibration.copies.rates);
    let best: Vec<String> =
        best.iter().map(|(method, bytes)| format!("{} from {bytes} bytes on", method.name())).collect();
    let mut notes = vec![
        format!("{}", calibration.sampling),
        format!("fastest copies of memory that no cache holds: {}", best.join(", ")),
    ];
    notes.extend(device_notes(&calibration.devices));
    if notes_on_storage.is_empty() {
        notes.push("storage was not measured; `--storage DIR` measures the one of a directory".to_owned());
    }
    notes.extend(notes_on_storage);
    Ok(Measured { profile, source, rows, notes })
}

/// Notes on the measured devices, and on devices that could not be measured.
fn device_notes(devices: &Devices) -> Vec<String> {
    let measured = |it: &calibrate::MeasuredCosts| {
        let emulated = if it.is_emulated { ", emulated" } else { "" };
        format!(
            "{}{emulated}: {:.1} GB/s with {} copies under way, {:.0} ns to submit one; {}",
            it.device,
            it.bytes_per_s / 1e9,
            it.depth,
            it.submit_s * 1e9,
            it.conditions
        )
    };
    let mut notes: Vec<String> = devices.costs.iter().map(measured).collect();
    if notes.is_empty() {
        notes.push("no DSA was measured, the profile has no figures of one".to_owned());
    }
    notes.extend(devices.diagnostics.iter().map(|diagnostic| format!("DSA: {diagnostic}")));
    notes
}

/// The prefix of the sources of a measurement.
fn source_of(record: &Record) -> String {
    format!("calibrated {}", &record.started[..10])
}

fn storage_note(storage: &Storage) -> String {
    let best = storage.rates.iter().map(|rate| rate.mb_per_s).fold(0.0, f64::max);
    format!(
        "storage {}: {:.0} MB/s at most, within 5 % from {} large reads in flight on, {:.0} us for a small one",
        storage.directory.display(),
        best,
        storage.depth_best,
        storage.latency_ns / 1e3
    )
}

fn storage_rows(storage: &Storage) -> Vec<Row> {
    let directory = storage.directory.display();
    let mut rows = vec![
        row(format!("storage_latency_{directory}"), storage.latency_ns, "ns"),
        row(format!("storage_depth_best_{directory}"), f64::from(storage.depth_best), "reads"),
    ];
    for rate in &storage.rates {
        let name = format!("storage_{}_depth_{}_{directory}", rate.size_bytes, rate.depth);
        rows.push(row(name, rate.mb_per_s, "MB/s"));
    }
    rows
}

fn row(name: String, value: f64, unit: &'static str) -> Row {
    Row::median(name, unit, Provenance::Measured, &[value])
}

fn unit_of(parameter: &str) -> &'static str {
    if parameter.ends_with("_ns") { "ns" } else { "MB/s" }
}

fn link_rows(calibration: &Calibration) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in &calibration.paths {
        let name = |what: &str| format!("{what}_{}_to_{}", way.cpus, way.memory);
        let spread = |what: &str, spread: calibrate::Spread, scale: f64, unit| Row {
            value: spread.mean * scale,
            min: spread.min * scale,
            max: spread.max * scale,
            ..row(name(what), 0.0, unit)
        };
        rows.push(spread("latency", way.latency_s, 1e9, "ns"));
        rows.push(spread("core_read", way.core_read, 1e-6, "MB/s"));
        rows.push(spread("core_copy", way.core_copy, 1e-6, "MB/s"));
        for (what, rate) in [("read", way.read), ("write", way.write), ("copy", way.copy)] {
            rows.push(row(name(what), rate / 1e6, "MB/s"));
        }
    }
    let copies = &calibration.copies;
    for it in &copies.rates {
        rows.push(row(format!("{}_{}", it.method.name(), it.size_bytes), it.bytes_per_s / 1e6, "MB/s"));
    }
    rows.push(row("core_copy_mb_per_s".to_owned(), copies.line.bytes_per_s / 1e6, "MB/s"));
    rows.push(row("core_copy_latency_ns".to_owned(), copies.line.base_s * 1e9, "ns"));
    rows.push(row("worker_wake_ns".to_owned(), copies.wake_s * 1e9, "ns"));
    rows.push(row("worker_warm_ns".to_owned(), copies.warm_s * 1e9, "ns"));
    for it in &calibration.devices.costs {
        let provenance = if it.is_emulated { Provenance::Emulated } else { Provenance::Measured };
        for (what, value, unit) in [
            ("copy", it.bytes_per_s / 1e6, "MB/s"),
            ("submit", it.submit_s * 1e9, "ns"),
            ("descriptor", it.descriptor_s * 1e9, "ns"),
            ("offload", it.offload_s() * 1e9, "ns"),
        ] {
            rows.push(Row { provenance, ..row(format!("{what}_{}", it.device), value, unit) });
        }
    }
    rows
}

/// A row for each check, with the prediction as its peer, and the median of the errors.
fn checked_rows(checked: Vec<Checked>) -> Vec<Row> {
    let errors: Vec<f64> = checked.iter().map(|it| 100.0 * it.error()).collect();
    let median = Row::median("own_error_median".to_owned(), "%", Provenance::Measured, &errors);
    let mut rows = vec![median];
    for it in checked {
        let ratio = Estimate::exact(it.predicted_s / it.measured_s);
        let peer = Peer::new("modelled", it.predicted_s * 1e6, ratio).obtained(Provenance::Modelled);
        rows.push(Row { peer: Some(peer), ..row(it.name, it.measured_s * 1e6, "us") });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_absolute_errors() {
        let checked = |predicted_s| Checked { name: "x".to_owned(), predicted_s, measured_s: 1.0 };
        let rows = checked_rows([0.5, 1.1, 1.3].map(checked).into());
        assert_eq!((rows[0].name.as_str(), rows[0].samples), ("own_error_median", 3));
        assert!((rows[0].value - 30.0).abs() < 1e-9 && (rows[0].max - 50.0).abs() < 1e-9, "{:?}", rows[0]);
        let peer = rows[1].peer.as_ref().expect("the prediction");
        assert_eq!((rows[1].value, peer.value, peer.ratio), (1e6, Some(5e5), Some(0.5)));
    }
}
