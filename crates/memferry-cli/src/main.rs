//! The command `memferry`.
//!
//! Each subcommand is a module with its `Arguments` and a `run` that writes to the given output. Errors are one sentence
//! on standard error; see [`error`] for the exit status.

mod bench;
mod calibrate;
mod canvas;
mod configure;
mod csv;
mod demo;
mod devices;
mod emulate;
mod error;
mod how;
mod options;
mod output;
mod progress;
mod query;
mod report;
mod sim;
mod source;
mod sql;
mod topology;
mod words;

use std::io::{self, BufWriter, Write};
use std::panic;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use memferry_bench::harness::CountingAllocator;
use memferry_query::load;

/// `bench cache` counts the allocations of a hit.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const AFTER_HELP: &str = "\
Exit status: 0 if all went well, 1 if something failed, 2 if the command line cannot be meant. `emulate` ends as
its program does; see its own help.";

/// Moves data between memory tiers and prefetches columns for SQL queries.
#[derive(Debug, Parser)]
#[command(name = "memferry", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Topology(topology::Arguments),
    Configure(configure::Arguments),
    Sql(sql::Arguments),
    Sim(sim::Arguments),
    Calibrate(calibrate::Arguments),
    Emulate(emulate::Arguments),
    Bench(bench::Arguments),
    Report(report::Arguments),
    Demo(demo::Arguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Damaged Parquet files can make their reader panic. That becomes an error, and one sentence is enough.
    let print_panic = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !load::panics_become_errors() {
            print_panic(panic);
        }
    }));
    // A block at a time, as files and pipes want it; what should be seen earlier is flushed.
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = run(&cli.command, &mut out);
    match finish(outcome, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if this fails too.
            let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
            ExitCode::from(error::status(&error))
        }
    }
}

fn run(command: &Command, out: &mut dyn Write) -> Result<()> {
    match command {
        Command::Topology(arguments) => topology::run(arguments, out),
        Command::Configure(arguments) => configure::run(arguments, out),
        Command::Sql(arguments) => sql::run(arguments, out),
        Command::Sim(arguments) => sim::run(arguments, out),
        Command::Calibrate(arguments) => calibrate::run(arguments, out),
        Command::Emulate(arguments) => emulate::run(arguments),
        Command::Bench(arguments) => bench::run(arguments, out),
        Command::Report(arguments) => report::run(arguments, out),
        Command::Demo(arguments) => demo::run(arguments, out),
    }
}

/// What was written before an error is shown as well; the error itself matters more than one of showing it.
fn finish(outcome: Result<()>, out: &mut dyn Write) -> Result<()> {
    let flushed = out.flush().map_err(anyhow::Error::from);
    // An error without a word of explanation comes from writing to `out`: all others are given one where they arise.
    let is_bare = |error: &anyhow::Error| error.is::<io::Error>() && error.chain().len() == 1;
    outcome.and(flushed).map_err(|error| match is_bare(&error) {
        true => error.context("the output cannot be written (see where it goes)"),
        false => error,
    })
}
