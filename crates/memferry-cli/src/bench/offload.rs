//! `memferry bench offload`: the cost of the preload library of `memferry offload` to small calls.
//!
//! The calls are measured by `memferry bench offload --inside` in a process with the library.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench::offload::{SmallCalls, small_calls};
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::output;

/// What a program pays for the library of `memferry offload`, in calls that stay on the CPU.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Measures in this process, which has the library.
    #[arg(long, hide = true)]
    inside: bool,
    /// Recorded; the measurement has no random part.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if arguments.inside {
        return output::json(out, &small_calls(super::effort(arguments.quick))?);
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    let options = json!({ "quick": arguments.quick, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("offload", Machine::discover()?, arguments.seed, options);
    record.rows = arguments.keep.telemetry().rows(|| rows(&measure(arguments.quick)?))?;
    arguments.keep.finish(&record, directory, out)
}

/// Samples of a separate process.
fn measure(is_quick: bool) -> Result<Vec<SmallCalls>> {
    let memferry = std::env::current_exe().context("cannot find the executable of this command")?;
    let mut command = std::process::Command::new(&memferry);
    command
        .args(["offload", "--summary", "none", "--"])
        .arg(&memferry)
        .args(["bench", "offload", "--inside"]);
    command.args(is_quick.then_some("--quick")).env_remove("MEMFERRY_OFFLOAD").stdin(Stdio::null());
    let output = command.output().context("cannot run `memferry offload`")?;
    if !output.status.success() {
        bail!("calls cannot be measured: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the measuring process printed no measurement")
}

/// A row for each function and size, behind the largest of them.
fn rows(measured: &[SmallCalls]) -> Result<Vec<Row>> {
    let row = |name: String, calls: &SmallCalls| {
        Row::median(name, "ns", Provenance::Measured, &calls.overhead_ns())
    };
    let name = |calls: &SmallCalls| format!("{}_{}_B_overhead_ns", calls.function, calls.size_bytes);
    let all: Vec<Row> = measured.iter().map(|calls| row(name(calls), calls)).collect();
    let largest = all.iter().max_by(|a, b| a.value.total_cmp(&b.value)).context("nothing was measured")?;
    let largest = Row { name: "small_call_overhead_ns".to_owned(), ..largest.clone() };
    Ok([vec![largest], all].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_overhead_comes_first() {
        let calls = |function: &str, ours: f64| SmallCalls {
            function: function.to_owned(),
            size_bytes: 16,
            ours_ns: vec![ours],
            libc_ns: vec![1.0],
        };
        let rows = rows(&[calls("memcpy", 1.5), calls("memset", 3.0), calls("memcmp", 0.5)]).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        let expected = [
            ("small_call_overhead_ns", 2.0),
            ("memcpy_16_B_overhead_ns", 0.5),
            ("memset_16_B_overhead_ns", 2.0),
            ("memcmp_16_B_overhead_ns", -0.5),
        ];
        assert_eq!(found, expected);
        assert!(super::rows(&[]).is_err());
    }
}
