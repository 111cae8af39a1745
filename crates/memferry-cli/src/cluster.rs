//! Commands of the program `memferry-cluster`, which is installed separately: network libraries would double this program.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

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

/// Holds shards of tables for `memferry sql --cluster`; `memferry worker --help` has the options of memferry-cluster.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Worker {
    /// The options of `memferry-cluster worker`.
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

/// Becomes `memferry-cluster worker`.
pub(crate) fn worker(arguments: &Worker) -> Result<()> {
    execute("worker", &arguments.options)
}

/// Becomes `memferry-cluster sql`.
pub(crate) fn sql(options: &[OsString]) -> Result<()> {
    execute("sql", options)
}

/// Becomes `memferry-cluster serve`.
pub(crate) fn serve(arguments: &Serve) -> Result<()> {
    execute("serve", &arguments.options)
}

/// Replaces this process by a command of the program.
fn execute(command: &str, options: &[OsString]) -> Result<()> {
    let program = program(&format!("memferry {command}"))?;
    let error = Command::new(&program).arg(command).args(options).exec();
    Err(error).with_context(|| not_executed(&program))
}

/// Runs a command of the program that measures, and reads the JSON that it prints.
pub(crate) fn measured(command: &str, options: &[String]) -> Result<Value> {
    let program = program("this benchmark")?;
    let output = Command::new(&program).arg(command).args(options).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| not_executed(&program))?;
    ensure!(output.status.success(), "{} {command} failed, see its message above", program.display());
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("{} is of another version than memferry; build both from the same sources", program.display())
    })
}

fn not_executed(program: &Path) -> String {
    format!("cannot execute {}; check its permissions", program.display())
}

/// Finds the program, which `purpose` needs.
fn program(purpose: &str) -> Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let beside = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = beside.into_iter().chain(env::split_paths(&path));
    let found =
        directories.find_map(|directory| Some(directory.join(PROGRAM)).filter(|program| program.is_file()));
    found.ok_or_else(|| {
        usage(format!(
            "{purpose} needs the program {PROGRAM}, which is not installed; `cargo build --package {PROGRAM}` builds it \
             beside memferry, or name it with {VARIABLE}"
        ))
    })
}
