//! The command `memferry`.
//!
//! Each subcommand is a module with `Arguments` and a function `run` that writes to the given output. An error is one
//! sentence on standard error; [`error`] has the exit statuses.

mod advise;
mod bench;
mod calibrate;
mod canvas;
mod completions;
mod configure;
mod demo;
mod devices;
mod doctor;
mod emulate;
mod error;
mod machine;
mod man;
mod offload;
mod options;
mod output;
mod place;
mod progress;
mod query;
mod report;
mod sim;
mod source;
mod sql;
mod topology;

use std::io::{self, BufWriter, Write};
use std::panic;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use memferry_bench::harness::{CountingAllocator, keep_freed_memory};
use memferry_query::load;

/// `bench cache` counts the allocations of a hit.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const AFTER_HELP: &str = "\
Exit status: 0 on success, 1 on failure, 2 on a usage error. `doctor` exits with 3 or 4 if it
finds a problem, `emulate`, `offload`, `place` and `machine boot` with the status of their program;
see their help.";

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
    Doctor(doctor::Arguments),
    Sql(sql::Arguments),
    Sim(sim::Arguments),
    Advise(advise::Arguments),
    Calibrate(calibrate::Arguments),
    Emulate(emulate::Arguments),
    Offload(offload::Arguments),
    Place(place::Arguments),
    Machine(machine::Arguments),
    Bench(bench::Arguments),
    Report(report::Arguments),
    Demo(demo::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

fn main() -> ExitCode {
    memferry_guest::run_if_init();
    keep_freed_memory();
    let cli = Cli::parse();
    // The Parquet reader can panic on a damaged file, and a query on a fault. The panic becomes an error, so its message is
    // not printed.
    let print_panic = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !load::panics_become_errors() && !sql::panics_become_errors() {
            print_panic(panic);
        }
    }));
    // Buffered for files and pipes; commands flush output that should appear early.
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = run(&cli.command, &mut out);
    match finish(outcome, &mut out) {
        Ok(status) => ExitCode::from(status),
        Err(error) if error::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // An error of standard error cannot be reported.
            let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
            ExitCode::from(error::status(&error))
        }
    }
}

/// Runs a command. Returns the exit status.
fn run(command: &Command, out: &mut dyn Write) -> Result<u8> {
    match command {
        Command::Doctor(arguments) => return doctor::run(arguments, out),
        Command::Topology(arguments) => topology::run(arguments, out),
        Command::Configure(arguments) => configure::run(arguments, out),
        Command::Sql(arguments) => sql::run(arguments, out),
        Command::Sim(arguments) => sim::run(arguments, out),
        Command::Advise(arguments) => advise::run(arguments, out),
        Command::Calibrate(arguments) => calibrate::run(arguments, out),
        Command::Emulate(arguments) => emulate::run(arguments),
        Command::Offload(arguments) => offload::run(arguments, out),
        Command::Place(arguments) => place::run(arguments),
        Command::Machine(arguments) => machine::run(arguments),
        Command::Bench(arguments) => bench::run(arguments, out),
        Command::Report(arguments) => report::run(arguments, out),
        Command::Demo(arguments) => demo::run(arguments, out),
        Command::Completions(arguments) => completions::run(arguments, out),
        Command::Man(arguments) => man::run(arguments, out),
    }?;
    Ok(0)
}

/// Flushes the output, also after an error. The error of the command takes precedence over an error of the flush.
fn finish(outcome: Result<u8>, out: &mut dyn Write) -> Result<u8> {
    let flushed = out.flush().map_err(anyhow::Error::from);
    // A bare I/O error comes from writing to `out`; all other I/O errors have a context.
    let is_bare = |error: &anyhow::Error| error.is::<io::Error>() && error.chain().len() == 1;
    outcome.and_then(|status| flushed.map(|()| status)).map_err(|error| match is_bare(&error) {
        true => error.context("cannot write the output; check the target of standard output"),
        false => error,
    })
}
