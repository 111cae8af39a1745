//! `memferry bench NAME`: numbers for the record.

mod query;
mod record;
pub(crate) mod stats;

use std::io::Write;

use anyhow::Result;

pub(crate) use record::How;

/// Measures memferry on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    Query(query::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.bench {
        Bench::Query(arguments) => query::run(arguments, out),
    }
}
