//! `memferry machine`: machines that need not be here.

mod boot;
mod page_map;

use anyhow::Result;

/// Runs programs on the NUMA nodes of a machine that is not here.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: MachineCommand,
}

#[derive(Debug, clap::Subcommand)]
enum MachineCommand {
    Boot(boot::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        MachineCommand::Boot(arguments) => boot::run(arguments),
    }
}
