//! The commands that start with a backslash.

use std::path::PathBuf;

use anyhow::Result;

use crate::error::usage;

/// The commands and what each does, for `\?` and for completion.
pub(crate) const COMMANDS: [(&str, &str); 6] = [
    ("\\d", "lists the tables; \\d NAME lists the columns of one"),
    ("\\i FILE", "runs the statements and commands of a file"),
    ("\\timing", "shows or hides the time of each statement; \\timing on, \\timing off"),
    ("\\q", "leaves, as Ctrl-D does"),
    ("\\?", "shows this help"),
    ("Ctrl-C", "cancels the running statement, or clears the one being written"),
];

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// `\d`
    Tables,
    /// `\d NAME`
    Columns(String),
    /// `\i FILE`
    Include(PathBuf),
    /// `\timing [on|off]`; without a word it toggles.
    Timing(Option<bool>),
    /// `\?`
    Help,
    /// `\q`
    Quit,
}

/// Parses a command without its backslash.
pub(crate) fn parse(text: &str) -> Result<Command> {
    // A semicolon at the end is a habit.
    let text = text.trim().trim_end_matches(';').trim_end();
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let alone = |command: Command| match rest {
        "" => Ok(command),
        _ => Err(usage(format!("\\{name} takes no argument, found {rest:?}; \\? lists the commands"))),
    };
    match (name, rest) {
        ("d", "") => Ok(Command::Tables),
        ("d", table) => Ok(Command::Columns(table.to_owned())),
        ("i", "") => Err(usage("\\i has no file; write \\i FILE")),
        ("i", file) => Ok(Command::Include(unquoted(file).into())),
        ("timing", "") => Ok(Command::Timing(None)),
        ("timing", "on") => Ok(Command::Timing(Some(true))),
        ("timing", "off") => Ok(Command::Timing(Some(false))),
        ("timing", other) => Err(usage(format!("\\timing is on or off, not {other:?}"))),
        ("q", _) => alone(Command::Quit),
        ("?", _) => alone(Command::Help),
        _ => Err(usage(format!("there is no command \\{name}; \\? lists the commands"))),
    }
}

/// A file name without the quotes that names with spaces may have.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_arguments() {
        for (text, expected) in [
            ("d", Command::Tables),
            ("d;", Command::Tables),
            ("d  Trips ", Command::Columns("Trips".to_owned())),
            ("i a.sql", Command::Include("a.sql".into())),
            ("i 'my queries.sql'", Command::Include("my queries.sql".into())),
            ("timing", Command::Timing(None)),
            ("timing off", Command::Timing(Some(false))),
            ("timing on", Command::Timing(Some(true))),
            ("?", Command::Help),
            ("q", Command::Quit),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn wrong_commands_say_what_to_do() {
        for (text, word) in [
            ("x", "\\x"),
            ("", "\\?"),
            ("i", "FILE"),
            ("q now", "now"),
            ("timing maybe", "maybe"),
            ("dt", "\\dt"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
