//! Runs programs by the example `offload`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use memferry_testing::{Needs, skip};

/// An example, which Cargo builds beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-offload --examples", path.display());
    path
}

/// `offload OPTIONS -- PROGRAM`; words are separated by spaces.
pub(crate) fn offload(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example("offload"));
    command.args(options.split_whitespace()).arg("--").args(program).stdin(Stdio::null());
    command.env_remove("MEMFERRY_OFFLOAD").env_remove("LD_PRELOAD");
    command
}

/// Standard output and standard error.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Whether this machine can run programs on emulated devices. If not, the calling test is skipped.
pub(crate) fn has_emulation() -> bool {
    static OUTPUT: OnceLock<Output> = OnceLock::new();
    let output = OUTPUT.get_or_init(|| offload("--emulated 1 --no-summary", &["true"]).output().unwrap());
    if !output.status.success() {
        skip(Needs::Namespaces, text(output));
    }
    output.status.success()
}

/// Whether a program is installed; if not, a part of the calling test is skipped.
pub(crate) fn is_installed(program: &'static str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
    if !found.status.success() {
        skip(Needs::Program(program), "it is not installed; `cargo xtask setup` does it");
    }
    found.status.success()
}

/// The bytes that devices moved for `program`, in a summary file.
pub(crate) fn device_bytes_of(program: &str, summary: &Path) -> u64 {
    let lines = fs::read_to_string(summary).unwrap();
    let of_program = format!("\"program\":\"{program}\",");
    let bytes = (lines.lines().filter(|line| line.contains(&of_program)))
        .flat_map(|line| line.split("\"device_bytes\":").skip(1))
        .map(|rest| rest.split('}').next().unwrap().parse::<u64>().unwrap());
    bytes.sum()
}

/// Faulty devices: the seeds that the outputs of programs are compared with.
pub(crate) fn seeds(first: u64) -> [u64; 2] {
    [first, first + 50]
}
