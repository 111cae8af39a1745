//! The program `memferry-cluster`, which `memferry worker` and `memferry sql --cluster` execute.

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use memferry_cluster::commands::{sql, worker};

/// Queries on several machines. `memferry` executes this program.
#[derive(Debug, Parser)]
#[command(name = "memferry-cluster", bin_name = "memferry", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Worker(worker::Arguments),
    Sql(sql::Arguments),
}

fn main() -> ExitCode {
    let outcome = match &Cli::parse().command {
        Command::Worker(arguments) => worker::run(arguments),
        Command::Sql(arguments) => sql::run(arguments, &mut io::stdout().lock()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
