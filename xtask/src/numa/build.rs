//! Builds the test binaries and the command for a guest.

use std::fs;
use std::path::PathBuf;

use crate::binaries::{self, Binary};
use crate::shell::{self, Failure};

/// Packages that may have tests for a guest.
const PACKAGES: &[&str] = &[
    "memferry",
    "memferry-schedule",
    "memferry-offload",
    "memferry-query",
    "memferry-bench",
    "memferry-cli",
];
/// Prefixes of the names of such tests: for any machine, and for machines with persistent memory.
const PREFIXES: [&str; 2] = ["numa", DAX_PREFIX];
pub(super) const DAX_PREFIX: &str = "dax";
/// The package with the command `memferry`, and the name of that binary.
const COMMAND: (&str, &str) = ("memferry-cli", "memferry");

/// The built programs.
#[derive(Debug, PartialEq)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Binary>,
    /// The command `memferry`, if tests of its package were built.
    pub(crate) command: Option<PathBuf>,
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
        return Err(Failure(format!("no test is called {}*", PREFIXES.join("* or "))));
    }
    // cargo refuses a pattern that matches nothing.
    let used = PREFIXES.iter().filter(|prefix| chosen.iter().any(|package| has(package, prefix)));
    let patterns: Vec<String> = used.map(|prefix| format!("{prefix}*")).collect();
    let packages = chosen.iter().flat_map(|package| ["--package", package]);
    let selection: Vec<&str> =
        packages.chain(patterns.iter().flat_map(|pattern| ["--test", pattern])).collect();
    let (mut tests, others): (Vec<_>, Vec<_>) =
        binaries::build(&selection)?.into_iter().partition(|binary| binary.is_test);
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    let command = others.into_iter().find(|binary| binary.name == COMMAND.1).map(|binary| binary.path);
    let built = Built { tests, command };
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
    PREFIXES.iter().any(|prefix| has(package, prefix))
}

fn has(package: &str, prefix: &str) -> bool {
    let entries =
        fs::read_dir(shell::root().join("crates").join(package).join("tests")).into_iter().flatten();
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_packages_are_refused() {
        let error = build(&["memfery".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("memferry-query"), "{error}");
    }
}
