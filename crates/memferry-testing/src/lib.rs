//! A test that cannot run here calls [`skip`] and returns: libtest counts such a test as passed and hides its output.
//!
//! Each skip is a line of the file that [`FILE_VARIABLE`] names. `cargo xtask ci` sets the variable, prints the tally,
//! and fails on a skip that is not on its list.
//!
//! A dev-dependency only, and without dependencies of its own.
#![forbid(unsafe_code)]

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::thread;

/// The environment variable that names the file for the skipped tests.
pub const FILE_VARIABLE: &str = "MEMFERRY_SKIPPED_TESTS";

/// The thing that a skipped test needs and this machine lacks: the classes of the tally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A DSA that the test may use.
    Dsa,
    /// No DSA: the test looks at the answer of a machine without one.
    NoDsa,
    /// Root, or a privilege that only root has here.
    Root,
    /// The guest of `cargo xtask numa`, whose layout the test knows.
    Guest,
    /// Several NUMA nodes, possibly of a certain kind.
    Nodes,
    /// So many CPUs.
    Cpus(usize),
    /// An instruction of the CPU.
    Instruction(&'static str),
    /// A program or its files; `cargo xtask setup` installs them.
    Program(&'static str),
    /// Mount and user namespaces, with FUSE where devices are emulated.
    Namespaces,
    /// A feature that this kernel lacks or that a sandbox forbids.
    Kernel(&'static str),
    /// More free memory or more free addresses.
    Memory,
    /// Huge pages, which fragmented memory does not have.
    HugePages,
    /// The developer's consent: it is slow or large, and marked `#[ignore]`.
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

/// Reports that the test that runs on this thread leaves out all or a part of its work, and why.
///
/// The line is `BINARY::TEST: needs CLASS: why`. On a thread that libtest did not name, the place of the call stands for
/// the test.
///
/// # Panics
/// If the test needs something that `cargo xtask setup` provides and `CI` is set; if the file cannot be written.
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
    let path = std::env::current_exe().expect("Linux names the program in /proc/self/exe");
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

/// One write of a whole line: several test binaries may append to the file.
fn append(file: &Path, line: &str) {
    let opened = File::options().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| {
        panic!("{}, which {FILE_VARIABLE} names, cannot be written: {error}", file.display())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skips itself in a second process, so that the variables are that process's own.
    fn again(variables: &[(&str, &str)]) -> std::process::Output {
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
            assert!(again(&[(FILE_VARIABLE, file.to_str().unwrap())]).status.success());
            let text = std::fs::read_to_string(&file).unwrap();
            let line = "memferry_testing::tests::skips_if_told_to: needs the program none: there is no such program\n";
            assert_eq!(text, line.repeat(count));
        }
        std::fs::remove_file(file).unwrap();
        assert!(!again(&[(FILE_VARIABLE, "/nowhere/at/all")]).status.success());
        assert!(again(&[]).status.success());
    }

    #[test]
    fn in_ci_a_program_must_be_there() {
        let output = again(&[("CI", "true")]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("this test must run in CI: there is"), "{text}");
    }
}
