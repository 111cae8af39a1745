//! `memferry bench domains`: claims of items by bound workers, and spawned tasks beside tokio alone.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use memferry::topology::Machine;
use memferry_bench::domains::{self as measure, Size};
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::progress::Bar;

/// Claims of items by workers on domains, and tasks spawned on a domain beside tokio alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
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
    let options = json!({ "quick": arguments.quick, "domains": domains.len(), "profile": BUILD_PROFILE });
    let mut record: Record = start_record("domains", machine.clone(), arguments.seed, options);
    let bar = Bar::of("measuring domains", 3);
    let rate = |name: &str, rates: &[f64]| Row::median(name, "claims/s", Provenance::Measured, rates);
    let own = measure::own_claims(&domains, size).map_err(failed).context("claims cannot be measured")?;
    record.rows.push(rate("claims_per_second", &own));
    bar.advance(1);
    record.rows.push(rate("steals_per_second", &measure::steals(&domains, size)));
    bar.advance(1);
    let spawned =
        measure::spawned_tasks(&machine, size).map_err(failed).context("tasks cannot be measured")?;
    record.rows.push(Row::compared(spawned, arguments.seed));
    drop(bar);
    arguments.keep.finish(&record, directory, out)
}
