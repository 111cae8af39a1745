//! Builds the test binaries and the command for a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::shell::{self, Failure, cargo};

/// Packages that may have tests for a guest.
const PACKAGES: &[&str] = &["memferry", "memferry-query", "memferry-bench", "memferry-cli"];
/// Prefix of the names of such tests.
const PREFIX: &str = "numa";
/// The package with the command `memferry`, and the name of that binary.
const COMMAND: (&str, &str) = ("memferry-cli", "memferry");

/// The built programs.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Built {
    pub(crate) tests: Vec<TestBinary>,
    /// The command `memferry`, if tests of its package were built.
    pub(crate) command: Option<PathBuf>,
}

/// A test binary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TestBinary {
    /// Name of the cargo target, for example `numa_discovery`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Builds the guest's tests of `packages`, or of all packages.
pub(crate) fn build(packages: &[String]) -> Result<Built, Failure> {
    if let Some(unknown) = packages.iter().find(|package| !PACKAGES.contains(&package.as_str())) {
        return Err(Failure(format!(
            "the package {unknown} has no tests for a guest; choose from {}",
            PACKAGES.join(", ")
        )));
    }
    let wanted = |package: &str| packages.is_empty() || packages.iter().any(|wanted| wanted == package);
    let chosen: Vec<&str> =
        PACKAGES.iter().copied().filter(|package| wanted(package) && has_tests(package)).collect();
    if chosen.is_empty() {
        return Err(Failure(format!("no test is called {PREFIX}*")));
    }
    let messages = cargo(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .args(chosen.iter().flat_map(|package| ["--package", package]))
        .args(["--test", &format!("{PREFIX}*")])
        .output()
        // The failure's text is JSON for programs; cargo has printed the readable messages.
        .map_err(|_| Failure("cannot build the guest's tests, see above".to_owned()))?;
    let built = read(&messages);
    if built.tests.is_empty() {
        return Err(Failure("cargo built no test for the guest".to_owned()));
    }
    if chosen.contains(&COMMAND.0) && built.command.is_none() {
        return Err(Failure(format!(
            "cargo built the tests of {}, but not the command {}",
            COMMAND.0, COMMAND.1
        )));
    }
    Ok(built)
}

fn has_tests(package: &str) -> bool {
    let entries =
        fs::read_dir(shell::root().join("crates").join(package).join("tests")).into_iter().flatten();
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Executables in cargo's messages, one JSON object per line.
fn read(messages: &str) -> Built {
    let mut built = Built::default();
    for line in messages.lines() {
        let Ok(Message { reason, target: Some(target), executable: Some(path) }) = serde_json::from_str(line)
        else {
            continue;
        };
        let is = |kind: &str| target.kind.iter().any(|of| of == kind);
        if reason != "compiler-artifact" {
            continue;
        } else if is("test") && target.name.starts_with(PREFIX) {
            built.tests.push(TestBinary { name: target.name, path });
        } else if is("bin") && target.name == COMMAND.1 {
            built.command = Some(path);
        }
    }
    built.tests.sort_by(|a, b| a.name.cmp(&b.name));
    built
}

/// The number of tests in a binary that match one of the filters; all tests if there is no filter.
pub(crate) fn count(binary: &Path, filters: &[String]) -> Result<usize, Failure> {
    let listing = Command::new(binary).args(filters).args(["--list", "--format", "terse"]).output();
    let listing =
        listing.map_err(|error| Failure(format!("{}: {error}; build it again", binary.display())))?;
    if !listing.status.success() {
        return Err(Failure(format!("{} does not list its tests ({})", binary.display(), listing.status)));
    }
    let text = String::from_utf8_lossy(&listing.stdout);
    Ok(text.lines().filter(|line| line.ends_with(": test")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_in_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"memferry"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"numa_b"},"executable":"/t/numa_b-1"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"numa_a"},"executable":"/t/numa_a-1"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"cli"},"executable":"/t/cli-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"memferry"},"executable":"/t/memferry"}
{"reason":"build-finished","success":true}
not JSON"#;
        let built = read(messages);
        assert_eq!(
            built.tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(),
            ["numa_a", "numa_b"]
        );
        assert_eq!(built.command.as_deref(), Some(Path::new("/t/memferry")));
        assert_eq!(read(""), Built::default());
    }

    #[test]
    fn tests_of_a_binary_are_counted() {
        let this = std::env::current_exe().unwrap();
        let filters = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(count(&this, &filters(&["tests_of_a_binary_are_counted"])).unwrap(), 1);
        assert_eq!(count(&this, &filters(&["no-such-test"])).unwrap(), 0);
        assert!(count(&this, &[]).unwrap() > 1);
        let error = count(Path::new("/nowhere/numa_x"), &[]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/numa_x"), "{error}");
    }

    #[test]
    fn unknown_packages_are_refused() {
        let error = build(&["memfery".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("memferry-query"), "{error}");
    }
}
