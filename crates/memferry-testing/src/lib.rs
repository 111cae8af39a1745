//! Reports of skipped tests: a test that cannot run calls [`skip`] and returns.
//!
//! libtest counts such a test as passed and hides its output, so each skip is a line of the file that [`FILE_VARIABLE`]
//! names. `cargo xtask ci` sets the variable, prints the tally, and fails on a skip that is not on its list.
//!
//! ```no_run
//! use memferry_testing::{Needs, skip};
//!
//! if !std::path::Path::new("/dev/dsa").exists() {
//!     return skip(Needs::Dsa, "/dev/dsa does not exist");
//! }
//! ```
#![forbid(unsafe_code)]

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::thread;

/// The environment variable that names the file for the skipped tests.
pub const FILE_VARIABLE: &str = "MEMFERRY_SKIPPED_TESTS";

/// The requirement that this machine lacks; the classes of the tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A DSA that the test may use.
    Dsa,
    /// No DSA: the test checks the behaviour without one.
    NoDsa,
    /// Root, or a privilege that only root has here.
    Root,
    /// The guest of `cargo xtask numa`, whose layout the test knows.
    Guest,
    /// Several NUMA nodes, possibly of a certain kind.
    Nodes,
    /// This number of CPUs.
    Cpus(usize),
    /// An instruction of the CPU.
    Instruction(&'static str),
    /// A program or its files; `cargo xtask setup` installs them.
    Program(&'static str),
    /// Mount and user namespaces, with FUSE where devices are emulated.
    Namespaces,
    /// A feature of the kernel, which this kernel lacks or a sandbox forbids.
    Kernel(&'static str),
    /// More free memory or address space.
    Memory,
    /// Free huge pages, which fragmented memory lacks.
    HugePages,
    /// The developer's consent: the test is slow or large, and marked `#[ignore]`.
    Consent,
}

impl Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Needs::Dsa => "a DSA",
            Needs::NoDsa => "a machine without a DSA",
            Needs::Root => "root",
            Needs::Guest => "a guest",
            Needs::Nodes => "several NUMA nodes",
            Needs::Cpus(count) => return write!(f, "{count} CPUs"),
            Needs::Instruction(name) => return write!(f, "the instruction {name}"),
            Needs::Program(name) => return write!(f, "the program {name}"),
            Needs::Namespaces => "namespaces",
            Needs::Kernel(feature) => return write!(f, "the kernel's {feature}"),
            Needs::Memory => "more memory",
            Needs::HugePages => "huge pages",
            Needs::Consent => "consent",
        };
        f.write_str(name)
    }
}

/// Reports that the test of this thread skips all or a part of its work.
///
/// The line is `BINARY::TEST: needs CLASS: why`. On a thread that libtest did not name, TEST is the location of the call.
///
/// # Panics
/// If `CI` is set and `cargo xtask setup` provides the requirement; if the file cannot be written.
#[track_caller]
pub fn skip(needs: Needs, why: impl Display) {
    let is_provided = matches!(needs, Needs::Program(_) | Needs::Namespaces);
    assert!(!is_provided || std::env::var_os("CI").is_none(), "this test must run in CI: {why}");
    let current = thread::current();
    let test = match current.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => Location::caller().to_string(),
    };
    let line = line(&binary(), &test, needs, &why.to_string());
    println!("skipped: {line}");
    if let Some(file) = std::env::var_os(FILE_VARIABLE) {
        append(Path::new(&file), &line);
    }
}

/// The test binary without the hash that Cargo adds.
fn binary() -> String {
    let path = std::env::current_exe().expect("Linux has /proc/self/exe");
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match stem.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => name.to_owned(),
        _ => stem,
    }
}

fn line(binary: &str, test: &str, needs: Needs, why: &str) -> String {
    let why: Vec<&str> = why.split_whitespace().collect();
    format!("{binary}::{test}: needs {needs}: {}", why.join(" "))
}

/// Appends a line with one write, because several test binaries append to the file.
fn append(file: &Path, line: &str) {
    let opened = File::options().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| {
        panic!("cannot write {}, the file of {FILE_VARIABLE}: {error}", file.display())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `skips_if_told_to` in a second process, which has its own variables.
    fn run_skipping_test(variables: &[(&str, &str)]) -> std::process::Output {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::skips_if_told_to", "--nocapture", "--test-threads=1"]);
        command.env_remove("CI").env_remove(FILE_VARIABLE).env("MEMFERRY_SKIP", "1");
        command.envs(variables.iter().copied()).output().unwrap()
    }

    #[test]
    fn skips_if_told_to() {
        if std::env::var_os("MEMFERRY_SKIP").is_some() {
            skip(Needs::Program("none"), "there is\n  no such program");
        }
    }

    #[test]
    fn a_skip_is_a_line_of_the_file() {
        let file = std::env::temp_dir().join(format!("memferry-skips-{}", std::process::id()));
        for count in 1..=2 {
            assert!(run_skipping_test(&[(FILE_VARIABLE, file.to_str().unwrap())]).status.success());
            let text = std::fs::read_to_string(&file).unwrap();
            let line = "memferry_testing::tests::skips_if_told_to: needs the program none: there is no such program\n";
            assert_eq!(text, line.repeat(count));
        }
        std::fs::remove_file(file).unwrap();
        assert!(!run_skipping_test(&[(FILE_VARIABLE, "/nowhere/at/all")]).status.success());
        assert!(run_skipping_test(&[]).status.success());
    }

    #[test]
    fn ci_requires_provided_programs() {
        let output = run_skipping_test(&[("CI", "true")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("this test must run in CI: there is"), "{text}");
    }
}
