//! `memferry bench domains`: claims of items by bound workers, spawned tasks beside tokio alone, and TPC-H on domains beside
//! the same queries unbound.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use memferry::topology::Machine;
use memferry_bench::domains::{self as measure, Size};
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench_query::QueryBenchmark;
use memferry_query::QueryDomains;
use memferry_query::load::Progress;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::options::{scale, session_options};
use crate::progress::Bar;
use crate::query::query_error;

/// Claims of items by workers on domains, tasks spawned on a domain beside tokio alone, and TPC-H on domains beside the same
/// queries unbound.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// TPC-H scale of the timed queries [default: 1; 0.01 with --quick].
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let size = if arguments.quick { Size::QUICK } else { Size::FULL };
    let machine = Machine::discover()?;
    let failed = |error: Box<dyn std::error::Error>| anyhow!("{error}");
    let domains = measure::one_for_each_cpu(&machine).context("this machine has no domains")?;
    let (answers_scale, default_scale, pairs) =
        if arguments.quick { (0.01, 0.01, 2) } else { (0.1, 1.0, 11) };
    let scale = arguments.scale.unwrap_or(default_scale);
    let session = session_options(None);
    let options = json!({
        "quick": arguments.quick,
        "domains": domains.len(),
        "answers_scale": answers_scale,
        "scale": scale,
        "pairs": pairs,
        "partitions": session.partitions,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("domains", machine.clone(), arguments.seed, options);
    let bar = Bar::of("measuring domains", 3);
    let rate = |name: &str, rates: &[f64]| Row::median(name, "claims/s", Provenance::Measured, rates);
    let telemetry = arguments.keep.telemetry();
    record.rows = telemetry.rows(|| {
        let own = measure::own_claims(&domains, size).map_err(failed).context("claims cannot be measured")?;
        anyhow::Ok(vec![rate("claims_per_second", &own)])
    })?;
    bar.advance(1);
    let steals = || anyhow::Ok(vec![rate("steals_per_second", &measure::steals(&domains, size))]);
    record.rows.extend(telemetry.rows(steals)?);
    bar.advance(1);
    record.rows.extend(telemetry.rows(|| {
        let spawned = measure::spawned_tasks(&machine, size).map_err(failed);
        let spawned = spawned.context("tasks cannot be measured")?;
        anyhow::Ok(vec![Row::compared(spawned, arguments.seed)])
    })?);
    drop(bar);

    let mut differences = Vec::new();
    if domains.len() > 1 {
        let new_bar = |what| -> Box<dyn Progress> { Box::new(Bar::new(what)) };
        let bench = QueryBenchmark::new(Arc::new(machine), session, arguments.seed, pairs, new_bar);
        let bench = bench.map_err(query_error)?.with_telemetry(telemetry);
        let domains = QueryDomains::new(domains);
        let answers = bench.domains_answers(answers_scale, &domains).map_err(query_error)?;
        record.rows.extend(answers.rows);
        differences = answers.differences;
        record.rows.extend(bench.domains_times(scale, &domains).map_err(query_error)?);
    }
    arguments.keep.finish(&record, directory, out)?;
    if !differences.is_empty() {
        bail!("answers differ from plain DataFusion's, please report this: {}", differences.join("; "));
    }
    Ok(())
}
