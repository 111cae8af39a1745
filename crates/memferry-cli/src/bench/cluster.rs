//! `memferry bench cluster`: workers on this machine beside one process, and what kills do to queries.

use std::io::Write;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Keep;
use super::measured::Measured;

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
    let options = vec![("tpch", tpch.into()), ("rounds", rounds.into()), ("kills", kills.into())];
    Measured { name: "cluster", command: "measure", seed, options, check, unit }.run(
        keep,
        kills < RECORD_KILLS_MIN,
        out,
    )
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

fn unit(number: &str) -> &'static str {
    if number.starts_with("seconds_") {
        "s"
    } else if number.ends_with("_bytes") {
        "bytes"
    } else {
        "1"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::measured::rows;
    use super::*;

    #[test]
    fn faults_are_errors_and_numbers_are_rows() {
        let right = json!({
            "answers": 66, "answers_equal": 66, "kills": 5, "kills_survived": 5, "shuffled_bytes": 7.0, "seconds_killed_max": 0.5
        });
        check(&right).unwrap();
        let names: Vec<String> = rows("cluster", &right, unit)
            .into_iter()
            .map(|row| format!("{} {}", row.name, row.unit))
            .collect();
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
