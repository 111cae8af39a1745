//! `memferry bench bindings`: the cost of a hit in C, over that in Rust.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use memferry::topology::Machine;
use memferry_bench::cache::Size;
use memferry_bench::harness::{Provenance, Record, Row};
use memferry_bench::{bindings, harness};
use serde_json::json;

use super::{BUILD_PROFILE, Keep, start_record};

/// A cache hit by the installed C library beside one in Rust. Needs a C compiler.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where `cargo xtask install-c` installed the C library, with the build profile of this command.
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of the keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let size = if arguments.quick { Size::QUICK } else { Size::FULL };
    let options = json!({ "quick": arguments.quick, "profile": BUILD_PROFILE });
    let mut record: Record = start_record("bindings", Machine::discover()?, arguments.seed, options);
    let prefix = std::path::absolute(&arguments.prefix)?;
    let times = bindings::hits(size, arguments.seed, &prefix)
        .map_err(|error| anyhow!("the C library cannot be measured: {error}"))?;
    let median =
        |name: &str, values: &[f64]| Row::median(name.to_owned(), "ns", Provenance::Measured, values);
    for (c, c_ns) in [("c", &times.shared_ns), ("c_static", &times.static_ns)] {
        record.rows.push(median(&format!("{c}_hit_overhead_ns"), &times.overhead_ns(c_ns)));
        record
            .rows
            .push(median(&format!("{c}_hit_ns"), c_ns).beside("Rust", harness::median(&times.rust_ns)));
    }
    arguments.keep.finish(&record, directory, out)
}
