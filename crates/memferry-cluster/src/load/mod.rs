//! `memferry-cluster load`: many clients of `memferry serve` at once, with random queries, cancellations and lost
//! connections. `memferry bench serve` executes it and keeps the record.
//!
//! ```text
//! process of the server ◀── Flight SQL ── clients: run, cancel, drop, disconnect, nonsense
//!        │ /metrics                             │ times, right and wrong answers
//!        └──────────▶ memory, copies ───────────┴──▶ Measured
//! ```
//!
//! The server is a process of its own, so that its memory is not that of the clients.

mod client;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memferry_bench::harness::Random;
use serde::Serialize;

use self::client::{Client, Counts, Expected};
use self::server::ServerProcess;

/// Many clients of `memferry serve` at once. Prints counts, times and memory as one JSON object.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Duration.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Number of clients.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Scale of the TPC-H tables.
    #[arg(long, value_name = "SCALE", default_value = "0.01")]
    tpch: String,
    /// Seed of the clients' choices. Scheduling is not deterministic.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Part of the run during which caches and pools still grow, as one in so many.
const WARM_UP_PART: u32 = 5;

/// Samples of the server's memory.
const SAMPLES_COUNT: u32 = 100;

/// How long the server may take to be idle after the clients have gone.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Counts and times of a run.
#[derive(Debug, Serialize)]
struct Measured {
    /// Queries with all their rows, which were right.
    answers: u64,
    /// Queries whose rows were not those of the same query alone.
    wrong_answers: u64,
    cancelled: u64,
    dropped: u64,
    disconnected: u64,
    prepared: u64,
    /// Nonsense that was refused.
    refused: u64,
    /// Refused for want of a place, as announced.
    too_many: u64,
    /// Errors that no limit and no cancellation explains.
    unexpected_errors: u64,
    /// Of the queries with all their rows, from the request to the last row.
    seconds_p50: f64,
    seconds_p90: f64,
    seconds_p99: f64,
    seconds_max: f64,
    queries_per_second: f64,
    /// Of the server, after the warm-up and at the end: medians of a tenth of the samples.
    resident_bytes_early: f64,
    resident_bytes_late: f64,
    /// After the clients have gone.
    copies_in_flight: f64,
    /// Copies that were started and neither arrived nor failed.
    copies_lost: f64,
    queries_running: f64,
    queries_planned: f64,
    /// Whether the server answers afterwards, and ends when it is asked to.
    ends_well: bool,
}

/// Runs the clients, and prints the result.
///
/// # Errors
/// The server cannot be started, or does not answer before the clients come.
pub fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start threads for the clients")?;
    let measured = runtime.block_on(measure(arguments))?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

async fn measure(arguments: &Arguments) -> Result<Measured> {
    let server = ServerProcess::start(&arguments.tpch, arguments.clients).await?;
    let expected = Arc::new(Expected::of(&server).await?);
    let duration = Duration::from_secs(arguments.seconds);
    let started = Instant::now();
    let clients: Vec<_> = (0..arguments.clients)
        .map(|number| {
            let random = Random(arguments.seed.wrapping_mul(0x1_0000).wrapping_add(u64::from(number)));
            let client = Client::new(server.endpoint(), random, Arc::clone(&expected));
            tokio::spawn(client.run(started + duration))
        })
        .collect();
    let mut resident_bytes = Vec::new();
    let pause = duration / SAMPLES_COUNT;
    while started.elapsed() < duration {
        tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
        resident_bytes.push((started.elapsed(), server.metric("process_resident_memory_bytes").await?));
    }
    let mut counts = Counts::default();
    for client in clients {
        counts.add(client.await.context("a client has panicked")?);
    }
    let elapsed = started.elapsed();
    let waiting = Instant::now();
    while waiting.elapsed() < IDLE_MAX
        && (server.metric("memferry_serve_queries_running").await? > 0.0
            || server.metric("memferry_copies_in_flight").await? > 0.0)
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let copies_started = server.metric("memferry_copies_started_total").await?;
    let copies_ended = server.metric("memferry_copies_arrived_total").await?
        + server.metric("memferry_copies_failed_total").await?;
    resident_bytes.retain(|(at, _)| *at >= duration / WARM_UP_PART);
    let bytes: Vec<f64> = resident_bytes.into_iter().map(|(_, bytes)| bytes).collect();
    ensure!(!bytes.is_empty(), "the run was too short to measure memory; choose more seconds");
    let tenth = (bytes.len() / 10).max(1);
    counts.seconds.sort_by(f64::total_cmp);
    let at = |share: f64| percentile(&counts.seconds, share);
    let measured = Measured {
        answers: counts.seconds.len() as u64,
        wrong_answers: counts.wrong_answers,
        cancelled: counts.cancelled,
        dropped: counts.dropped,
        disconnected: counts.disconnected,
        prepared: counts.prepared,
        refused: counts.refused,
        too_many: counts.too_many,
        unexpected_errors: counts.unexpected_errors,
        seconds_p50: at(0.5),
        seconds_p90: at(0.9),
        seconds_p99: at(0.99),
        seconds_max: at(1.0),
        queries_per_second: counts.seconds.len() as f64 / elapsed.as_secs_f64(),
        resident_bytes_early: median(&bytes[..tenth]),
        resident_bytes_late: median(&bytes[bytes.len() - tenth..]),
        copies_in_flight: server.metric("memferry_copies_in_flight").await?,
        copies_lost: copies_started - copies_ended,
        queries_running: server.metric("memferry_serve_queries_running").await?,
        queries_planned: server.metric("memferry_serve_queries_planned").await?,
        ends_well: Expected::of(&server).await.is_ok_and(|again| again == *expected) && server.stop().await?,
    };
    if let Some(error) = counts.first_unexpected {
        eprintln!("the first unexpected error: {error}");
    }
    Ok(measured)
}

/// The value that a share of sorted values does not exceed; 0 without values.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| percentile(&values, share)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[], 0.5), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
