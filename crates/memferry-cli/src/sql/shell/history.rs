//! The file of statements that earlier shells ran.

use std::env;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustyline::Editor;
use rustyline::Helper;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;

/// Where history is kept; `None` if it cannot be kept.
pub(super) struct History {
    path: Option<PathBuf>,
}

impl History {
    /// Reads the file into `editor`. The shell works without it, so an error is a warning.
    pub(super) fn open<H: Helper>(editor: &mut Editor<H, FileHistory>) -> History {
        let path = path(env::var_os("XDG_STATE_HOME").map(PathBuf::from), env::home_dir());
        let Some(path) = path else { return History { path: None } };
        let mut history = History { path: Some(path.clone()) };
        if let Some(directory) = path.parent() {
            // Statements can contain secrets: only their writer reads them. The file itself is made so by rustyline.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            if let Err(error) = made {
                history.give_up(&error);
                return history;
            }
        }
        match editor.load_history(&path) {
            Ok(()) => {}
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => history.give_up(&error),
        }
        history
    }

    /// Adds what was written, and appends it to the file at once: the shell may be killed.
    pub(super) fn add<H: Helper>(&mut self, editor: &mut Editor<H, FileHistory>, text: &str) {
        let added = editor.add_history_entry(text.trim_end()).and_then(|_| match &self.path {
            Some(path) => editor.append_history(path),
            None => Ok(()),
        });
        if let Err(error) = added {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &dyn std::error::Error) {
        if let Some(path) = self.path.take() {
            // An error of standard error cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "history is not kept: {}: {error}; set XDG_STATE_HOME to a directory of yours",
                path.display()
            );
        }
    }
}

/// Source: XDG Base Directory Specification 0.8: a state directory must be absolute; the default is `~/.local/state`.
fn path(state: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state.filter(|path| path.is_absolute());
    let state = state.or_else(|| home.map(|home| home.join(Path::new(".local/state"))))?;
    Some(state.join("memferry").join("sql_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_below_the_state_directory() {
        let at = |state: Option<&str>, home: Option<&str>| path(state.map(Into::into), home.map(Into::into));
        assert_eq!(at(Some("/s"), Some("/h")), Some("/s/memferry/sql_history".into()));
        assert_eq!(at(None, Some("/h")), Some("/h/.local/state/memferry/sql_history".into()));
        assert_eq!(at(Some("relative"), Some("/h")), at(None, Some("/h")));
        assert_eq!(at(None, None), None);
    }
}
