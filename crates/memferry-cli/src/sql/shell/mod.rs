//! The shell: reads statements from a terminal, with history and completion, until `\q` or Ctrl-D.

mod completion;
mod history;

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};

use self::completion::SqlHelper;
use self::history::History;
use super::catalog;
use super::runner::Cancelled;
use super::scanner::inputs;
use super::session::{Flow, Session};
use crate::error;

const PROMPT: &str = "memferry> ";

/// Runs a shell in `session`.
pub(super) fn run(session: &mut Session<'_>, out: &mut dyn Write) -> Result<()> {
    let unusable = "cannot use the terminal; give the statements on the command line or with --file";
    let config = Config::builder().completion_type(CompletionType::List).build();
    let history = FileHistory::with_config(&config);
    let mut editor: Editor<SqlHelper, FileHistory> =
        Editor::with_history(config, history).context(unusable)?;
    editor.set_helper(Some(SqlHelper::default()));
    let mut history = History::open(&mut editor);
    session.interactive = true;
    session.runner.catch_interrupts();
    writeln!(
        out,
        "memferry {}. End a statement with a semicolon; \\? lists the commands.",
        env!("CARGO_PKG_VERSION")
    )?;
    loop {
        session.finish_loads(out)?;
        out.flush()?;
        refresh(session, &mut editor);
        match editor.readline(PROMPT) {
            Ok(text) => {
                history.add(&mut editor, &text);
                if run_text(session, &text, out)? == Flow::Quit {
                    return Ok(());
                }
            }
            // Ctrl-C clears what was written.
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context(unusable),
        }
    }
}

/// Runs what was written. Errors of statements are printed, and the shell goes on.
fn run_text(session: &mut Session<'_>, text: &str, out: &mut dyn Write) -> Result<Flow> {
    let text = match text.trim() {
        "exit" | "quit" => "\\q",
        "help" => "\\?",
        _ => text,
    };
    for located in inputs(text) {
        match session.run(located.input, out) {
            Ok(Flow::Quit) => return Ok(Flow::Quit),
            Ok(Flow::Continue) => out.flush()?,
            Err(error) if error.is::<io::Error>() => return Err(error),
            Err(error) if error.is::<Cancelled>() => {
                writeln!(out, "cancelled")?;
                session.runner.recover()?;
                break;
            }
            Err(error) => {
                out.flush()?;
                // An error of standard error cannot be reported.
                let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
                break;
            }
        }
    }
    Ok(Flow::Continue)
}

/// Updates the names for completion and the width of the terminal.
fn refresh(session: &mut Session<'_>, editor: &mut Editor<SqlHelper, FileHistory>) {
    session.width = editor.dimensions().map(|(columns, _)| usize::from(columns));
    session.runner.forget_interrupts();
    // An interrupt at this moment leaves the names of before.
    let Ok(tables) = session.runner.wait(catalog::tables(&session.context)) else { return };
    if let Some(helper) = editor.helper_mut() {
        helper.know(&session.context.state(), &tables);
    }
}

/// The width of the terminal that standard output is, if it is one.
pub(super) fn terminal_width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, _) = Editor::<(), FileHistory>::new().ok()?.dimensions()?;
    Some(usize::from(columns))
}
