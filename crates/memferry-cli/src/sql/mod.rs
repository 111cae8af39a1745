//! `memferry sql`: runs SQL over files and TPC-H tables, with prefetching: statements of the command line, of a file or of
//! standard input, or of a shell.
//!
//! ```text
//! command line, file, pipe, shell ─▶ scanner ─▶ session ─┬▶ commands     \d, \timing, \i ...
//!                                                        ├▶ load         LOAD TABLE
//!                                                        ├▶ replica      REPLICATE TABLE, RESTORE TABLE
//!                                                        ├▶ placement    ALTER TABLE ... NUMA NODE, SHOW PLACEMENT
//!                                                        ├▶ advice       SHOW READS, ADVISE PLACEMENT
//!                                                        └▶ answer ─▶ print ─▶ terminal, file
//!                                                             │ runner: Ctrl-C cancels it
//! ```

mod advice;
mod answer;
mod arguments;
mod catalog;
mod commands;
mod copy;
mod load;
mod placement;
mod print;
mod replica;
mod runner;
mod scanner;
mod session;
mod shell;
mod statement;
mod summary;
mod target;

use std::io::{self, IsTerminal, Write};

use anyhow::Result;

use self::runner::{Interrupts, Runner};
use self::scanner::{Input, inputs};
use self::session::{Flow, Session};
use crate::error::usage;

pub(crate) use self::advice::{AdviceArguments, advise};
pub(crate) use self::arguments::Arguments;
pub(crate) use self::runner::panics_become_errors;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(options) = arguments.of_cluster()? {
        return crate::cluster::sql(&options);
    }
    arguments.check()?;
    check_statements(arguments)?;
    let given = arguments.statements.is_some() || arguments.file.is_some();
    let shell = !given && io::stdin().is_terminal() && io::stdout().is_terminal();
    if shell && arguments.json {
        return Err(usage(
            "--json prints the answer of one statement; give the statement, or use --format json",
        ));
    }
    // Before any thread starts. Other runs are ended by SIGINT, as usual.
    let interrupts = if shell { Some(Interrupts::install()?) } else { None };
    let mut session = Session::open(arguments, Runner::start(interrupts)?, out)?;
    if shell {
        shell::run(&mut session, out)?;
        return session.finish();
    }
    session.width = shell::terminal_width();
    let mut flow = Flow::Continue;
    if let Some(file) = &arguments.file {
        flow = session.run_file(file, out)?;
    }
    if let (Some(text), Flow::Continue) = (&arguments.statements, flow) {
        session.run_text(text, out)?;
    }
    if !given {
        session.run_lines(&mut io::stdin().lock(), "standard input", out)?;
    }
    session.finish()
}

/// Reports what is wrong with the statements before the tables are made, which may take long.
fn check_statements(arguments: &Arguments) -> Result<()> {
    let Some(text) = &arguments.statements else { return Ok(()) };
    let inputs = inputs(text);
    if arguments.json && (inputs.len() > 1 || arguments.file.is_some()) {
        return Err(usage(
            "--json prints the answer of one statement, and there is more than one; use --format json for several",
        ));
    }
    match inputs.first().map(|located| &located.input) {
        None => Err(usage("the statement is empty; write a query such as \"select 1\"")),
        // SET can change the dialect of those that follow.
        Some(Input::Statement(text)) => statement::parse(text, "generic").map(|_| ()),
        Some(Input::Command(text)) => commands::parse(text).map(|_| ()),
    }
}
