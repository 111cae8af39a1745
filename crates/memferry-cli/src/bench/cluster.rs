//! `memferry bench cluster`: workers on this machine beside one process, and what kills do to queries; with `--machine`, predictions
//! of clusters of that machine.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use memferry_bench::harness::Record;
use memferry_bench::model::cluster::{ClusterPoint, ClusterWork, LIMITS, Network, Prediction, cluster_rows};
use serde::Deserialize;
use serde_json::{Value, json};

use super::measured::Measured;
use super::{BUILD_PROFILE, Keep, start_record};
use crate::cluster;
use crate::error::usage;
use crate::output::Table;
use crate::topology;

/// TPC-H on workers of this machine beside one process, and with workers that are killed in mid-query. Fails if an answer is wrong.
/// With --machine, TPC-H on 1 to 64 workers of another machine, on paper. Needs the program memferry-cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Scale of the TPC-H tables; workers are killed over smaller ones [default: 1, with --machine 0.1].
    #[arg(long, value_name = "SCALE", value_parser = crate::options::scale)]
    tpch: Option<f64>,
    /// Runs of each query that are timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Workers that are killed; fewer than 100 are recorded only with --out.
    #[arg(long, value_name = "N", default_value_t = 100)]
    kills: u32,
    /// Seed of the queries and moments of kills. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Instead of the above, measures the work of each query here with small tables, and predicts its time on 1 to 64 workers that
    /// are this machine each: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["kills", "seed"])]
    machine: Option<String>,
    /// Scale of the predicted tables; 1000 is about a terabyte.
    #[arg(long, value_name = "SCALE", default_value_t = 1000.0, requires = "machine", value_parser = positive)]
    predicted_scale: f64,
    /// Gigabits per second of a network interface, in each direction: Ethernet has 100, 200 or 400.
    #[arg(long, value_name = "N", default_value_t = 200.0, requires = "machine", value_parser = positive)]
    gigabits: f64,
    /// Network interfaces of a machine.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "machine", value_parser = clap::value_parser!(u16).range(1..=64))]
    interfaces: u16,
    /// Microseconds from a message to its receiver.
    #[arg(long, value_name = "US", default_value_t = 50.0, requires = "machine", value_parser = positive)]
    latency_us: f64,
    /// Shards of each table for each worker [default: one for each core of the machine].
    #[arg(long, value_name = "N", requires = "machine", value_parser = clap::value_parser!(u32).range(1..=65536))]
    shards_per_worker: Option<u32>,
    #[command(flatten)]
    keep: Keep,
}

/// Fewer kills are not recorded by default: rare moments need many.
const RECORD_KILLS_MIN: u32 = 100;

/// A finite number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "use a number above 0".to_owned())
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(profile) = &arguments.machine {
        return predict(arguments, profile, out);
    }
    let Arguments { tpch, rounds, kills, seed, ref keep, .. } = *arguments;
    let tpch = tpch.unwrap_or(TIMED_SCALE);
    let options = vec![("tpch", tpch.into()), ("rounds", rounds.into()), ("kills", kills.into())];
    Measured { name: "cluster", command: "measure", seed, options, check, unit }.run(
        keep,
        kills < RECORD_KILLS_MIN,
        out,
    )
}

/// Scale of timed queries. At a tenth of it, messages take most of their time.
const TIMED_SCALE: f64 = 1.0;
/// Scale of the queries whose work is measured, in bytes and CPU time.
const WORK_SCALE: f64 = 0.1;

/// Tables below this scale have too few rows to tell what grows with them: region and nation are as large as others.
const WORK_SCALE_MIN: f64 = 0.04;

/// Predicts TPC-H on many workers.
fn predict(arguments: &Arguments, profile: &str, out: &mut dyn Write) -> Result<()> {
    let Arguments { tpch, rounds, predicted_scale, gigabits, interfaces, latency_us, .. } = *arguments;
    let tpch = tpch.unwrap_or(WORK_SCALE);
    let keep = &arguments.keep;
    if tpch < WORK_SCALE_MIN {
        return Err(usage(format!(
            "--tpch {tpch} is too small to predict from; use at least {WORK_SCALE_MIN}"
        )));
    }
    let machine = topology::open(Some(profile))?;
    let directory = keep.directory(false)?;
    let given = ["--tpch".to_owned(), tpch.to_string(), "--rounds".to_owned(), rounds.to_string()];
    let measured = cluster::measured("work", &given)?;
    let work = ClusterWork::deserialize(&measured)
        .context("memferry-cluster is of another version than memferry; build both from the same sources")?;
    let prediction = Prediction {
        scale: predicted_scale,
        network: Network::ethernet(gigabits, usize::from(interfaces), latency_us * 1e-6),
        shards_per_worker: arguments.shards_per_worker.map(|count| count as usize),
    };
    let points = work.predict(&machine, &prediction)?;
    let options = json!({
        "machine": profile,
        "tpch": tpch,
        "rounds": rounds,
        "predicted_scale": predicted_scale,
        "gigabits": gigabits,
        "interfaces": interfaces,
        "latency_us": latency_us,
        "shards_per_worker": arguments.shards_per_worker,
        "profile": BUILD_PROFILE,
        // Measured here; the rows are computed from it.
        "work": measured,
    });
    // A record of its own, so that it does not replace a measured one.
    let mut record: Record = start_record("cluster-model", machine, 0, options);
    record.rows = cluster_rows(&points);
    if !keep.json {
        writeln!(out, "{}", summary(&points))?;
    }
    keep.finish(&record, directory, out)
}

/// Speed-ups and limits by workers and memory.
fn summary(points: &[ClusterPoint]) -> Table {
    let mut table = Table::new(
        "near memory | workers: | speed-up: | limited by memory: | by cores: | by network: | by coordinator:",
    );
    for point in points {
        let mut row = vec![
            if point.is_near { "with" } else { "without" }.to_owned(),
            point.workers.to_string(),
            format!("{:.2}", point.speed_up()),
        ];
        row.extend(LIMITS.map(|limit| point.limited_by(limit).to_string()));
        table.row(row);
    }
    table
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
