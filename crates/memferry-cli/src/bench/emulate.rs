//! `memferry bench emulate`: the cost of emulated devices to a program, at its start and for each submission.
//!
//! The command runs programs under `memferry emulate`. Submissions are measured by `memferry bench emulate --inside
//! THREADS` in such a process. The module `promptness` measures how soon a device answers, `sharing` processes that share
//! one.

mod promptness;
mod sharing;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use memferry::topology::Machine;
use memferry_bench::dsa::submission::{self, Costs};
use memferry_bench::harness::{Effort, Provenance, Record, Row};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::output;
use crate::progress::Bar;

/// What a program pays for running on emulated devices: at its start, and for each submission.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Measures submissions from that many threads on the devices that there are.
    #[arg(long, hide = true, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    inside: Option<u16>,
    #[command(flatten)]
    sharing: sharing::Step,
    #[command(flatten)]
    promptness: promptness::Task,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// The shared queue that is ready on emulated devices.
const QUEUE: &str = "/dev/dsa/wq0.0";

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let effort = super::effort(arguments.quick);
    if let Some(threads) = arguments.inside {
        return output::json(out, &submission::costs(Path::new(QUEUE), threads.into(), effort)?);
    }
    if arguments.sharing.run()? || arguments.promptness.run(effort, out)? {
        return Ok(());
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    let options = json!({
        "quick": arguments.quick,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("emulate", Machine::discover()?, arguments.seed, options);
    let bar = Bar::of("measuring the emulation", 15);
    let telemetry = arguments.keep.telemetry();
    let mut take = |rows: &dyn Fn() -> Result<Vec<Row>>| {
        let rows = telemetry.rows(rows)?;
        bar.advance(rows.len() as u64);
        record.rows.extend(rows);
        anyhow::Ok(())
    };
    take(&|| {
        let trapped = costs(1, effort, &["--no-patch"])?;
        let bare = nanoseconds("trap_bare_ns", &trapped.bare_trap_ns);
        Ok(vec![bare, nanoseconds("trap_submit_overhead_ns", &trapped.overhead_ns())])
    })?;
    for (name, threads) in [("patched_submit_ns", 1), ("patched_submit_4_threads_ns", 4)] {
        take(&|| Ok(vec![nanoseconds(name, &costs(threads, effort, &[])?.submit_ns)]))?;
    }
    take(&|| Ok(vec![milliseconds("startup_ms", &startup(effort)?)]))?;
    take(&|| Ok(vec![milliseconds("accel_config_list_8_devices_ms", &accel_config(effort)?)]))?;
    take(&|| sharing::rows(effort))?;
    take(&|| promptness::rows(effort, arguments.seed))?;
    drop(bar);
    arguments.keep.finish(&record, directory, out)
}

/// A row in nanoseconds. The emulation itself is timed on this machine, so the row is measured, not emulated.
fn nanoseconds(name: &str, values: &[f64]) -> Row {
    Row::median(name.to_owned(), "ns", Provenance::Measured, values)
}

fn milliseconds(name: &str, values: &[f64]) -> Row {
    Row::median(name.to_owned(), "ms", Provenance::Measured, values)
}

/// `memferry emulate OPTIONS -- PROGRAM`.
fn emulate(options: &[&str], program: &Path) -> Result<Command> {
    let memferry = std::env::current_exe().context("cannot find the executable of this command")?;
    let mut command = Command::new(memferry);
    command.arg("emulate").args(options).arg("--").arg(program).stdin(Stdio::null());
    Ok(command)
}

/// Costs of submissions, measured in a separate process.
fn costs(threads: u16, effort: Effort, options: &[&str]) -> Result<Costs> {
    let mut command = emulate(options, &std::env::current_exe()?)?;
    command.args(["bench", "emulate", "--inside", &threads.to_string()]);
    command.args(effort.of(None, Some("--quick")));
    let output = command.output().context("cannot run `memferry emulate`")?;
    if !output.status.success() {
        bail!("submissions cannot be measured: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the measuring process printed no measurement")
}

/// Additional milliseconds of `true` on emulated devices, in pairs of runs.
fn startup(effort: Effort) -> Result<Vec<f64>> {
    let program = Path::new("true");
    let pair = |_| Ok(elapsed_ms(&mut emulate(&[], program)?)? - elapsed_ms(&mut Command::new(program))?);
    (0..effort.of(21, 2)).map(pair).collect()
}

/// Milliseconds of `accel-config list` on eight devices, with the start of the emulation.
fn accel_config(effort: Effort) -> Result<Vec<f64>> {
    let run = |_| elapsed_ms(emulate(&["--devices", "8"], Path::new("accel-config"))?.arg("list"));
    (0..effort.of(11, 1)).map(run).collect()
}

fn elapsed_ms(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let time = start.elapsed();
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(time.as_secs_f64() * 1e3)
}
