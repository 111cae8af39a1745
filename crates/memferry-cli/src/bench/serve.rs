//! `memferry bench serve`: many clients of `memferry serve` at once.

use std::io::Write;

use anyhow::{Result, ensure};
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record, Row};
use serde_json::{Value, json};

use super::{BUILD_PROFILE, Keep, start_record};
use crate::cluster;

/// Many clients of `memferry serve` at once: random queries, cancellations and lost connections. Fails if an answer is wrong, or a
/// copy is lost. Needs the program memferry-cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Duration; runs shorter than 600 seconds are recorded only with --out.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Number of clients.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Scale of the TPC-H tables.
    #[arg(long, value_name = "SCALE", default_value_t = 0.01, value_parser = crate::options::scale)]
    tpch: f64,
    /// Seed of the clients' choices. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// Shorter runs are not recorded by default: memory that grows slowly shows in ten minutes.
const RECORD_SECONDS_MIN: u64 = 600;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let Arguments { seconds, clients, tpch, seed, ref keep } = *arguments;
    let directory = keep.directory(seconds < RECORD_SECONDS_MIN)?;
    let options = json!({ "seconds": seconds, "clients": clients, "tpch": tpch, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("serve", Machine::discover()?, seed, options);
    let mut verdict = Ok(());
    record.rows = keep.telemetry().rows(|| {
        let numbers = [seconds.to_string(), clients.to_string(), tpch.to_string(), seed.to_string()];
        let names = ["--seconds", "--clients", "--tpch", "--seed"];
        let given: Vec<&str> =
            names.iter().zip(&numbers).flat_map(|(name, number)| [*name, number]).collect();
        let measured = cluster::measured("load", &given)?;
        verdict = check(&measured);
        anyhow::Ok(rows(&measured))
    })?;
    keep.finish(&record, directory, out)?;
    verdict
}

/// Faults of the server, or of the measurement.
fn check(measured: &Value) -> Result<()> {
    let number = |name: &str| measured[name].as_f64().unwrap_or(f64::NAN);
    let (wrong, lost) = (number("wrong_answers"), number("copies_lost"));
    ensure!(wrong == 0.0, "{wrong} answers were wrong, please report it");
    ensure!(lost == 0.0, "{lost} copies were lost, please report it");
    ensure!(
        measured["ends_well"] == true,
        "the server did not answer or end after the clients, please report it"
    );
    ensure!(number("answers") > 0.0, "no query was answered; choose more --seconds");
    Ok(())
}

/// Counts, times and bytes, with their names as rows.
fn rows(measured: &Value) -> Vec<Row> {
    let numbers = measured.as_object().into_iter().flatten();
    let numbers = numbers.filter_map(|(name, value)| Some((name, value.as_f64()?)));
    let row = |(name, value): (&String, f64)| {
        let unit = if name.starts_with("seconds_") {
            "s"
        } else if name.starts_with("resident_bytes") {
            "bytes"
        } else if name.ends_with("_per_second") {
            "1/s"
        } else {
            "1"
        };
        Row::median(format!("serve_{name}"), unit, Provenance::Measured, &[value])
    };
    numbers.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_errors_and_numbers_are_rows() {
        let right = json!({ "answers": 5, "wrong_answers": 0, "copies_lost": 0.0, "ends_well": true, "seconds_p99": 0.5 });
        check(&right).unwrap();
        let names: Vec<String> =
            rows(&right).into_iter().map(|row| format!("{} {}", row.name, row.unit)).collect();
        assert!(names.contains(&"serve_seconds_p99 s".to_owned()), "{names:?}");
        for (name, value) in
            [("wrong_answers", json!(1)), ("copies_lost", json!(1)), ("ends_well", json!(false))]
        {
            let mut wrong = right.clone();
            wrong[name] = value;
            assert!(check(&wrong).is_err(), "{name}");
            wrong.as_object_mut().unwrap().remove(name);
            assert!(check(&wrong).is_err(), "without {name}");
        }
    }
}
