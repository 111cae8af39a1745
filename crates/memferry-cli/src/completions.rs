//! `memferry completions SHELL`: a script for a shell, generated from the definition of the command line.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::Cli;

const AFTER_HELP: &str = "\
The Debian package and the archive contain the scripts of bash, zsh and fish. After `cargo install`:
  memferry completions bash > ~/.local/share/bash-completion/completions/memferry
  memferry completions fish > ~/.config/fish/completions/memferry.fish
  memferry completions zsh > DIRECTORY/_memferry    # a directory of $fpath";

/// Prints a script that completes memferry's options in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    // Into memory first: the generator panics if a write fails.
    let mut script = Vec::new();
    generate(arguments.shell, &mut Cli::command(), "memferry", &mut script);
    Ok(out.write_all(&script)?)
}
