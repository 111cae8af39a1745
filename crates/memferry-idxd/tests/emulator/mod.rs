//! Running programs on emulated devices: the example `emulate`, and this test program itself.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Set for the test program when it runs on emulated devices.
const INSIDE: &str = "MEMFERRY_TEST_INSIDE";

/// The example, which Cargo builds beside the tests.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples/emulate");
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-idxd --examples", path.display());
    path
}

/// The library that catches instructions, where cargo puts it as a dependency.
pub(crate) fn library() -> String {
    let tests = std::env::current_exe().unwrap();
    let path = tests.with_file_name("libmemferry_emulate.so");
    assert!(path.is_file(), "{} is missing: cargo builds it with these tests", path.display());
    path.to_str().expect("a path without strange bytes").to_owned()
}

/// `emulate OPTIONS -- PROGRAM`; words are separated by spaces.
pub(crate) fn emulate(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.args(options.split_whitespace()).arg("--").args(program).stdin(Stdio::null());
    command
}

/// The same with a script of the shell.
pub(crate) fn emulate_script(options: &str, script: &str) -> Command {
    emulate(options, &["sh", "-c", script])
}

/// Whether programs can be run on emulated devices here. Where tests must not be skipped (`CI` is set) it is an error
/// if not.
pub(crate) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let output = emulate("", &["true"]).output().unwrap();
        if !output.status.success() {
            skip(&String::from_utf8_lossy(&output.stderr));
        }
        output.status.success()
    })
}

/// Says why a test does nothing; fails where that is not allowed.
pub(crate) fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "cannot be tested here: {why}");
    println!("skipped: {why}");
}

/// Runs the test that calls it a second time, on emulated devices. True in that second run.
///
/// # Panics
/// If the second run fails.
pub(crate) fn is_inside(options: &str, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_available() {
        return false;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = emulate(options, &[this.to_str().unwrap(), test, "--exact", "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let told = text(&output);
    assert!(output.status.success() && told.contains("1 passed"), "on emulated devices:\n{told}");
    false
}

/// All that was printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
