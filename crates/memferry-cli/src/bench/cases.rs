//! `memferry bench cases`: programs whose movement a DSA takes over, beside the published gains.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use clap::builder::PossibleValuesParser;
use memferry::topology::Machine;
use memferry_bench::cases::{CASES, PROFILE, Study};
use memferry_bench::harness::Record;
use memferry_bench::model::validate;
use memferry_query::load::Progress as _;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::progress::Bar;

/// Case studies: packets, messages, a cache server, digests of a storage target, gradients; with and without a DSA.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A case; can be repeated [default: all].
    #[arg(long = "case", value_name = "NAME", value_parser = PossibleValuesParser::new(CASES))]
    cases: Vec<String>,
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of keys, blocks and sizes of values.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let is_wanted = |case: &&str| arguments.cases.is_empty() || arguments.cases.iter().any(|it| it == case);
    let cases: Vec<&str> = CASES.into_iter().filter(is_wanted).collect();
    let options = json!({ "quick": arguments.quick, "cases": cases, "virtual_machine": PROFILE, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("cases", Machine::discover()?, arguments.seed, options);
    let study = Study::new(super::effort(arguments.quick), arguments.seed)?;
    let predictions = validate()?.predictions;
    let telemetry = arguments.keep.telemetry();
    let bar = Bar::of("running the cases", cases.len());
    for case in cases {
        let rows = telemetry.rows(|| study.rows(case, &predictions)).map_err(|error| anyhow!("{error}"));
        record.rows.extend(rows.with_context(|| format!("the case {case} cannot be run"))?);
        bar.advance(1);
    }
    drop(bar);
    arguments.keep.finish(&record, directory, out)
}
