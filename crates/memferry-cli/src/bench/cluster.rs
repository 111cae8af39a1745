//! `memferry bench cluster`: workers on this machine beside one process, and what kills do to queries.

use std::io::Write;

use anyhow::{Result, ensure};
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record, Row};
use serde_json::{Value, json};

use super::{BUILD_PROFILE, Keep, start_record};
use crate::cluster;

/// TPC-H on workers of this machine beside one process, and with workers that are killed in mid-query. Fails if an answer is wrong.
/// Needs the program memferry-cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Scale of the TPC-H tables.
    #[arg(long, value_name = "SCALE", default_value_t = 0.1, value_parser = crate::options::scale)]
    tpch: f64,
    /// Runs of each query that are timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Workers that are killed; fewer than 100 are recorded only with --out.
    #[arg(long, value_name = "N", default_value_t = 100)]
    kills: u32,
    /// Seed of the queries and moments of kills. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// Fewer kills are not recorded by default: rare moments need many.
const RECORD_KILLS_MIN: u32 = 100;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let Arguments { tpch, rounds, kills, seed, ref keep } = *arguments;
    let directory = keep.directory(kills < RECORD_KILLS_MIN)?;
    let options = json!({ "tpch": tpch, "rounds": rounds, "kills": kills, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("cluster", Machine::discover()?, seed, options);
    let mut verdict = Ok(());
    record.rows = keep.telemetry().rows(|| {
        let numbers = [tpch.to_string(), rounds.to_string(), kills.to_string(), seed.to_string()];
        let names = ["--tpch", "--rounds", "--kills", "--seed"];
        let given: Vec<&str> =
            names.iter().zip(&numbers).flat_map(|(name, number)| [*name, number]).collect();
        let measured = cluster::measured("measure", &given)?;
        verdict = check(&measured);
        anyhow::Ok(rows(&measured))
    })?;
    keep.finish(&record, directory, out)?;
    verdict
}

/// Faults of the cluster.
fn check(measured: &Value) -> Result<()> {
    let number = |name: &str| measured[name].as_f64().unwrap_or(f64::NAN);
    let (answers, equal) = (number("answers"), number("answers_equal"));
    ensure!(equal == answers, "{equal} of {answers} answers were right, please report it");
    let (kills, survived) = (number("kills"), number("kills_survived"));
    ensure!(survived == kills, "{survived} of {kills} kills were survived, please report it");
    Ok(())
}

/// Counts, times and bytes, with their names as rows.
fn rows(measured: &Value) -> Vec<Row> {
    let numbers = measured.as_object().into_iter().flatten();
    let numbers = numbers.filter_map(|(name, value)| Some((name, value.as_f64()?)));
    let row = |(name, value): (&String, f64)| {
        let unit = if name.starts_with("seconds_") {
            "s"
        } else if name.ends_with("_bytes") {
            "bytes"
        } else {
            "1"
        };
        Row::median(format!("cluster_{name}"), unit, Provenance::Measured, &[value])
    };
    numbers.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_errors_and_numbers_are_rows() {
        let right = json!({
            "answers": 66, "answers_equal": 66, "kills": 5, "kills_survived": 5, "shuffled_bytes": 7.0, "seconds_killed_max": 0.5
        });
        check(&right).unwrap();
        let names: Vec<String> =
            rows(&right).into_iter().map(|row| format!("{} {}", row.name, row.unit)).collect();
        for name in
            ["cluster_shuffled_bytes bytes", "cluster_seconds_killed_max s", "cluster_answers_equal 1"]
        {
            assert!(names.contains(&name.to_owned()), "{names:?}");
        }
        for (name, value) in [("answers_equal", json!(65)), ("kills_survived", json!(4))] {
            let mut wrong = right.clone();
            wrong[name] = value;
            assert!(check(&wrong).is_err(), "{name}");
            wrong.as_object_mut().unwrap().remove(name);
            assert!(check(&wrong).is_err(), "without {name}");
        }
    }
}
