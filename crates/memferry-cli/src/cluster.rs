//! Commands of the program `memferry-cluster`, which is installed separately: network libraries would double this program.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::error::usage;

/// The program, beside this one or in PATH.
const PROGRAM: &str = "memferry-cluster";

/// Names another program for tests and unusual installations.
const VARIABLE: &str = "MEMFERRY_CLUSTER";

/// Answers queries of any client of Arrow Flight SQL; `memferry serve --help` has the options of memferry-cluster.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Serve {
    /// The options of `memferry-cluster serve`.
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Becomes `memferry-cluster serve`.
pub(crate) fn serve(arguments: &Serve) -> Result<()> {
    execute("serve", &arguments.options)
}

/// Replaces this process by a command of the program.
fn execute(command: &str, options: &[OsString]) -> Result<()> {
    let Some(program) = program() else {
        return Err(usage(format!(
            "`memferry {command}` is a command of the program {PROGRAM}, which is not installed; `cargo build --package \
             {PROGRAM}` builds it beside memferry, or name it with {VARIABLE}"
        )));
    };
    let error = Command::new(&program).arg(command).args(options).exec();
    Err(error).with_context(|| format!("cannot execute {}; check its permissions", program.display()))
}

/// Finds the program.
fn program() -> Option<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let beside = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(env::split_paths(&path));
    directories.map(|directory| directory.join(PROGRAM)).find(|program| program.is_file())
}
