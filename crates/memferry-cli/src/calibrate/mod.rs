//! `memferry calibrate`: measures this machine and writes a profile of it, and says how far a model of it is off.

mod scans;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use memferry::calibrate::{self, Calibration, Checked, Effort, best_methods};
use memferry::topology::{Machine, Parameter};
use memferry_dsa::measure::device;
use memferry_query::load::Progress as _;
use serde_json::json;

use self::scans::Scans;
use crate::bench::{self, Comparison, How, Keep, Record, Row, stats};
use crate::output::{not_written, write_file};
use crate::progress::Bar;
use crate::topology;

/// Measures this machine, in less than two minutes, and writes what models need to know of it as a profile.
///
/// Latency and bandwidth from each node's CPUs to each memory, copies by method and size, submissions to DSA queues,
/// waking a worker, scans. Other programs make everything slower; on an idle machine the figures are best.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the profile into this file, for `memferry sim --machine FILE` and `memferry topology --profile FILE`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also run copies, scans and pipelines of other sizes, and print what the model says of them, what they take, and
    /// how far it is off.
    #[arg(long)]
    check: bool,
    /// Check this profile of this machine, written by an earlier run, in place of measuring anew.
    #[arg(long, value_name = "FILE", requires = "check", conflicts_with = "out")]
    profile: Option<String>,
    /// Small and short: to see that it works, not for planning.
    #[arg(long)]
    quick: bool,
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Where the record of a check is kept; `none` keeps nothing [default: results; none with --quick].
    #[arg(long, value_name = "DIR|none", requires = "check")]
    results: Option<String>,
}

impl Arguments {
    fn effort(&self) -> Effort {
        if self.quick { Effort::QUICK } else { Effort::FULL }
    }

    fn keep(&self) -> Keep {
        let none = || Some("none".to_owned());
        Keep { json: self.json, out: if self.check { self.results.clone() } else { none() } }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.out {
        // Before the minutes, not after. An old profile stays until there is a new one.
        check_writable(file).with_context(|| not_written("profile", "--out", file))?;
    }
    let keep = arguments.keep();
    let directory = keep.directory(arguments.quick)?;
    let machine = Arc::new(Machine::discover()?);
    let options = json!({
        "quick": arguments.quick,
        "check": arguments.check,
        "machine_profile": arguments.profile,
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
    });
    let mut record = Record::start("calibrate", Machine::clone(&machine), 0, options);
    let scans = Scans::new(&machine, arguments.effort())?;
    let profile = match &arguments.profile {
        Some(name) => topology::open(Some(name))?,
        None => {
            let measured = measure(&machine, &scans, arguments, &record)?;
            record.rows.extend(measured.rows);
            if let Some(file) = &arguments.out {
                let text = measured.profile.profile_text(&measured.source)?;
                write_file(file, text.as_bytes()).with_context(|| not_written("profile", "--out", file))?;
            }
            if !arguments.json {
                measured.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
            }
            measured.profile
        }
    };
    if arguments.check {
        record.rows.extend(checked_rows(check(&machine, &profile, &scans, arguments.effort())?));
    }
    keep.finish(&record, directory, out)?;
    match &arguments.out {
        Some(file) if !arguments.json => Ok(writeln!(out, "\nwritten to {}", file.display())?),
        _ => Ok(()),
    }
}

/// Whether a file can be written there, without touching what is there now.
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
    /// Which measurement: what the sources of its figures begin with.
    source: String,
    rows: Vec<Row>,
    notes: Vec<String>,
}

fn measure(
    machine: &Arc<Machine>,
    scans: &Scans,
    arguments: &Arguments,
    record: &Record,
) -> Result<Measured> {
    let bar = Bar::of("measuring this machine", calibrate::steps_count(machine) + 1 + scans::STEPS_COUNT);
    let mut step = || bar.advance(1);
    let calibration = calibrate::measure(machine, arguments.effort(), &mut step)?;
    let source = format!("calibrated {}", &record.started[..10]);
    let mut others = scans.parameters(&source, &mut step)?;
    let (dsa, note) = submissions(&source, arguments.effort());
    others.extend(dsa);
    step();
    let quick = if arguments.quick { ", --quick: too little memory to be true" } else { "" };
    let Record { version, commit, started, .. } = record;
    let what = format!("memferry calibrate {version} ({commit}) on {}, {started}{quick}", machine.name());
    let mut rows = way_rows(&calibration);
    rows.extend(others.iter().map(|it| row(it.name.clone(), it.value, unit_of(&it.name))));
    let profile = calibration.apply(Machine::clone(machine), others, (&source, &what))?;
    let best = best_methods(&calibration.copies.rates);
    let best: Vec<String> =
        best.iter().map(|(method, bytes)| format!("{} from {bytes} bytes on", method.name())).collect();
    let notes = vec![note, format!("fastest copies of memory that no cache holds: {}", best.join(", "))];
    Ok(Measured { profile, source, rows, notes })
}

/// What submissions to a DSA queue of this machine cost, or why that is not known.
fn submissions(source: &str, effort: Effort) -> (Vec<Parameter>, String) {
    const COUNT: usize = 20_000;
    if bench::dsa_is_emulated() {
        return (
            Vec::new(),
            "the DSA of this machine is an emulated one: its submissions are not measured".to_owned(),
        );
    }
    let count = if effort.is_quick { 100 } else { COUNT };
    let measured = bench::open_queue(None).and_then(|portal| {
        let offload_ns = device::round_trip(&*portal, count)?.as_nanos() as f64;
        let descriptor_ns = 1e9 / device::singles(&*portal, 32, count)?;
        Ok((portal.work_queue().name.clone(), offload_ns, descriptor_ns))
    });
    match measured {
        Ok((queue, offload_ns, descriptor_ns)) => {
            let how = |what: &str| format!("{source}: {what}, queue {queue}");
            let parameters = vec![
                calibrate::parameter("device_offload_ns", offload_ns, &how("a no-op, spinning")),
                calibrate::parameter("device_descriptor_ns", descriptor_ns, &how("no-ops, 32 under way")),
            ];
            (parameters, format!("submissions measured on DSA queue {queue}"))
        }
        Err(error) => (Vec::new(), format!("no DSA submission was measured: {error:#}")),
    }
}

fn row(name: String, value: f64, unit: &'static str) -> Row {
    Row::median(name, unit, How::Measured, &[value])
}

fn unit_of(parameter: &str) -> &'static str {
    if parameter.ends_with("_ns") { "ns" } else { "MB/s" }
}

fn way_rows(calibration: &Calibration) -> Vec<Row> {
    let mut rows = Vec::new();
    for way in &calibration.ways {
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
    rows
}

fn check(machine: &Machine, profile: &Machine, scans: &Scans, effort: Effort) -> Result<Vec<Checked>> {
    let bar = Bar::of("running what the model predicts", 1 + scans::CHECK_STEPS_COUNT);
    let mut checked = calibrate::check(machine, profile, effort)?;
    bar.advance(1);
    checked.extend(scans.check(profile, &mut || bar.advance(1))?);
    Ok(checked)
}

/// Each with what the model said as its peer, and the median of the errors.
fn checked_rows(checked: Vec<Checked>) -> Vec<Row> {
    let errors: Vec<f64> = checked.iter().map(|it| 100.0 * it.error()).collect();
    let median = Row::median("own_error_median".to_owned(), "%", How::Measured, &errors);
    let mut rows = vec![median];
    for it in checked {
        let ratio = it.predicted_s / it.measured_s;
        let ratio = stats::Estimate { value: ratio, low: ratio, high: ratio };
        let comparison = Comparison::new("modelled", it.predicted_s * 1e6, ratio);
        rows.push(Row { comparison: Some(comparison), ..row(it.name, it.measured_s * 1e6, "us") });
    }
    rows
}
