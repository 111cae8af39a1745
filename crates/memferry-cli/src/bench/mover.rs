//! `memferry bench mover`: the copy kernel beside its methods, two workers beside two threads, the cost of handing small
//! copies to a worker, and the ordered pipeline.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use memferry::topology::Machine;
use memferry_bench::harness::{self, Provenance, Record, Row};
use memferry_bench::mover::{self as measure, Size};
use memferry_bench::telemetry::beside;
use memferry_query::load::Progress as _;
use serde_json::json;

use super::isa::Limit;
use super::{BUILD_PROFILE, Keep, start_record};
use crate::progress::Bar;

/// Copies by the CPU beside memcpy, `rep movsb` and non-temporal stores, and what handing them over costs.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let isa = arguments.limit.apply()?;
    let directory = arguments.keep.directory(arguments.quick)?;
    let size = if arguments.quick { Size::QUICK } else { Size::full() };
    let bar = Bar::of("measuring the mover", 4);
    let started: Record =
        start_record("mover", Machine::discover()?, arguments.seed, serde_json::Value::Null);
    let telemetry = arguments.keep.telemetry();
    let (copies, counts) = telemetry.watch(|| measure::copies(size));
    bar.advance(1);
    let options = json!({
        "quick": arguments.quick,
        "buffer_bytes": size.buffer_bytes,
        "last_level_cache_bytes": measure::last_level_cache_bytes(),
        "methods": copies.methods,
        "isa": isa,
        "profile": BUILD_PROFILE,
    });
    let mut record = Record { options, ..started };
    let median =
        |name: &str, values: &[f64]| Row::median(name.to_owned(), "ns", Provenance::Measured, values);
    let compared = |times| Row::compared(times, arguments.seed);
    let mut rows: Vec<Row> = copies.rows.into_iter().map(compared).collect();
    rows.push(median("copy_call_ns", &copies.call_ns));
    record.rows = beside(rows, counts);

    let failed = |error: Box<dyn std::error::Error>| anyhow!("{error}");
    record.rows.extend(telemetry.rows(|| {
        let workers = measure::two_workers(size, copies.methods).map_err(failed);
        anyhow::Ok(vec![compared(workers.context("two workers cannot be measured")?)])
    })?);
    bar.advance(1);
    record.rows.extend(telemetry.rows(|| {
        let overheads = measure::small_copies(size).map_err(failed);
        let overheads = overheads.context("small copies cannot be measured")?;
        let overhead = median("async_4KiB_overhead_ns", &overheads);
        anyhow::Ok(vec![match measure::hand_overs(size.rounds_count) {
            Some(samples) => overhead.beside("a word between two threads", harness::median(&samples)),
            None => overhead,
        }])
    })?);
    bar.advance(1);
    let modelled =
        measure::ordered_modelled().map_err(failed).context("the ordered pipeline cannot be modelled")?;
    record.rows.extend(modelled.map(|times| Row { provenance: Provenance::Modelled, ..compared(times) }));
    let ordered = || anyhow::Ok(vec![compared(measure::ordered_measured(size).map_err(failed)?)]);
    record.rows.extend(telemetry.rows(ordered)?);
    drop(bar);
    arguments.keep.finish_as(&arguments.limit.file_name(record.bench), &record, directory, out)
}
