//! `memferry bench serve`: many clients of `memferry serve` at once.

use std::io::Write;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Keep;
use super::measured::Measured;

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
    let options = vec![("seconds", seconds.into()), ("clients", clients.into()), ("tpch", tpch.into())];
    Measured { name: "serve", command: "load", seed, options, check, unit }.run(
        keep,
        seconds < RECORD_SECONDS_MIN,
        out,
    )
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

fn unit(number: &str) -> &'static str {
    if number.starts_with("seconds_") {
        "s"
    } else if number.starts_with("resident_bytes") {
        "bytes"
    } else if number.ends_with("_per_second") {
        "1/s"
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
        let right = json!({ "answers": 5, "wrong_answers": 0, "copies_lost": 0.0, "ends_well": true, "seconds_p99": 0.5 });
        check(&right).unwrap();
        let names: Vec<String> =
            rows("serve", &right, unit).into_iter().map(|row| format!("{} {}", row.name, row.unit)).collect();
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
