//! Runs the command and checks its output.

use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const USAGE: i32 = 2;
pub(crate) const FAILURE: i32 = 1;

pub(crate) fn memferry(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    // Errors must not have a backtrace even with this variable.
    command.args(arguments).env("RUST_BACKTRACE", "1");
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs the command, expects success and an empty standard error, and returns its output.
#[track_caller]
pub(crate) fn prints(arguments: &[&str]) -> String {
    let output = memferry(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {} {}", output.status, text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{arguments:?}");
    text(&output.stdout)
}

#[track_caller]
pub(crate) fn prints_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&prints(arguments)).unwrap()
}

/// Expects the exit status and one sentence with all of `words`.
#[track_caller]
pub(crate) fn fails(arguments: &[&str], status: i32, words: &[&str]) {
    let output = memferry(arguments).output().unwrap();
    says(&output, status, words);
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
}

#[track_caller]
pub(crate) fn says(output: &Output, status: i32, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    let sentence = stderr.lines().next().unwrap_or_default();
    assert!(sentence.starts_with("error: "), "{stderr}");
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {stderr}");
    }
    // Only clap prints more lines: usage, and where to find help.
    let rest: Vec<&str> = stderr.lines().skip(1).filter(|line| !line.is_empty()).collect();
    assert!(
        rest.iter().all(|line| line.starts_with("For more information")
            || line.starts_with("  ")
            || line.starts_with("Usage:")),
        "more than a sentence: {stderr}"
    );
    for word in ["panicked", "backtrace", "RUST_BACKTRACE", "stack"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
}
