//! `memferry bench offload`: the cost of the preload library of `memferry offload` to small calls and to a server.
//!
//! The calls are measured by `memferry bench offload --inside` in a process with the library. The server is redis, if it is
//! installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use memferry::topology::Machine;
use memferry_bench::harness::{Peer, Provenance, Record, Row, geomean, geomean_ratio, median};
use memferry_bench::offload::{
    Operation, ServerError, SmallCalls, Throughput, redis_version, server_throughput, small_calls,
};
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::output;

/// What a program pays for the library of `memferry offload`: calls that stay on the CPU, and redis.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Measures in this process, which has the library.
    #[arg(long, hide = true)]
    inside: bool,
    /// Seed of the confidence intervals.
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
    let server = match redis_version() {
        Ok(version) => Some(format!("redis {version}")),
        Err(why @ ServerError::Missing { .. }) => {
            eprintln!("memferry: no row server_throughput, because {why}");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let options = json!({ "quick": arguments.quick, "profile": BUILD_PROFILE, "server": server });
    let mut record: Record = start_record("offload", Machine::discover()?, arguments.seed, options);
    let telemetry = arguments.keep.telemetry();
    record.rows = telemetry.rows(|| rows(&measure(arguments.quick)?))?;
    if server.is_some() {
        let memferry = this_program()?;
        let rows = telemetry.rows(|| {
            let measured = server_throughput(super::effort(arguments.quick), || offload(&memferry, &[]))?;
            anyhow::Ok(server_rows(&measured, arguments.seed))
        })?;
        record.rows.extend(rows);
    }
    arguments.keep.finish(&record, directory, out)
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the executable of this command")
}

/// `memferry offload OPTIONS --`, without the program.
fn offload(memferry: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(memferry);
    command.arg("offload").args(options).arg("--").env_remove("MEMFERRY_OFFLOAD").stdin(Stdio::null());
    command
}

/// Samples of a separate process.
fn measure(is_quick: bool) -> Result<Vec<SmallCalls>> {
    let memferry = this_program()?;
    let mut command = offload(&memferry, &["--summary", "none"]);
    command.arg(&memferry).args(["bench", "offload", "--inside"]).args(is_quick.then_some("--quick"));
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

/// The same server without the library.
const PLAIN: &str = "the same server without the library";

/// A row for each request and size, behind their geometric mean. The ratios are those of the times of requests.
fn server_rows(measured: &[Throughput], seed: u64) -> Vec<Row> {
    let per_s = |samples_us: &[f64]| samples_us.iter().map(|us| 1e6 / us).collect::<Vec<_>>();
    let mut rows = Vec::new();
    for Throughput { operation, value_bytes, request_us } in measured {
        let operation = match operation {
            Operation::Set => "set",
            Operation::Get => "get",
        };
        let name = format!("server_{operation}_{value_bytes}_B_throughput");
        let peer = Peer::new(PLAIN, median(&per_s(&request_us.peer)), geomean_ratio([request_us], seed));
        let row = Row::median(name, "requests/s", Provenance::Measured, &per_s(&request_us.ours));
        rows.push(Row { peer: Some(peer), ..row });
    }
    let over = |figure: fn(&Row) -> f64| geomean(rows.iter().map(figure));
    let plain = over(|row| row.peer.as_ref().and_then(|peer| peer.value).unwrap_or(f64::NAN));
    let ratio = geomean_ratio(measured.iter().map(|it| &it.request_us), seed);
    let all = Row {
        name: "server_throughput".to_owned(),
        value: over(|row| row.value),
        unit: "requests/s",
        provenance: Provenance::Measured,
        samples: rows.iter().map(|row| row.samples).min().unwrap_or(0),
        min: over(|row| row.min),
        max: over(|row| row.max),
        peer: Some(Peer::new(PLAIN, plain, ratio)),
        telemetry: None,
    };
    rows.insert(0, all);
    rows
}

#[cfg(test)]
mod tests {
    use memferry_bench::harness::Pairs;

    use super::*;

    #[test]
    fn a_server_that_is_slower_has_a_ratio_below_one() {
        let throughput = |operation, ours: f64| Throughput {
            operation,
            value_bytes: 3,
            request_us: Pairs { ours: vec![ours; 3], peer: vec![10.0; 3] },
        };
        let rows = server_rows(&[throughput(Operation::Set, 20.0), throughput(Operation::Get, 20.0)], 1);
        let found: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.value.round())).collect();
        let expected = [
            ("server_throughput", 50_000.0),
            ("server_set_3_B_throughput", 50_000.0),
            ("server_get_3_B_throughput", 50_000.0),
        ];
        assert_eq!(found, expected);
        for row in rows {
            let peer = row.peer.unwrap();
            assert!(
                (peer.ratio.unwrap() - 0.5).abs() < 1e-9 && (peer.value.unwrap() - 1e5).abs() < 1e-3,
                "{peer:?}"
            );
        }
    }

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
