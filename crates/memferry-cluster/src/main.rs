//! The program `memferry-cluster`, which `memferry serve` and `memferry worker` execute.

use std::io;
use std::panic;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use memferry_cluster::commands::{sql, worker};
use memferry_cluster::{load, measure, serve};
use memferry_session::error::{is_usage, sentence};

/// Queries on several machines, and a server for any client. `memferry` executes this program.
#[derive(Debug, Parser)]
#[command(name = "memferry-cluster", bin_name = "memferry", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for the whole run")]
enum Command {
    Serve(serve::Arguments),
    Sql(sql::Arguments),
    Worker(worker::Arguments),
    #[command(hide = true)]
    Load(load::Arguments),
    #[command(hide = true)]
    Measure(measure::Arguments),
    #[command(hide = true)]
    Work(measure::WorkArguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A panic of a query becomes its error, so its message is not printed.
    let print_panic = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !serve::panics_become_errors() {
            print_panic(panic);
        }
    }));
    let outcome = match &cli.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Sql(arguments) => sql::run(arguments, &mut io::stdout().lock()),
        Command::Worker(arguments) => worker::run(arguments),
        Command::Load(arguments) => load::run(arguments),
        Command::Measure(arguments) => measure::run(arguments),
        Command::Work(arguments) => measure::work(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", sentence(&error));
            // The statuses of memferry.
            ExitCode::from(if is_usage(&error) { 2 } else { 1 })
        }
    }
}
