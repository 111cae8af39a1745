//! Tests under an LLVM sanitizer: with nightly Rust, in a separate target directory because every crate is rebuilt.
//!
//! The precompiled standard library is not instrumented. Each chore describes the consequences.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::shell::{Failure, nightly, root, target_directory};

/// An explicit target: cargo then builds build scripts and macros without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Some tests of a package.
pub(crate) struct Tests {
    pub(crate) package: &'static str,
    /// Arguments that select cargo targets.
    pub(crate) targets: &'static [&'static str],
    /// Arguments of the test binaries.
    pub(crate) arguments: &'static [&'static str],
}

/// A sanitizer with its build options.
pub(crate) struct Sanitizer {
    /// Name of the chore and of its target directory.
    pub(crate) name: &'static str,
    pub(crate) rust_flags: &'static str,
    /// Values for cargo's `--config`.
    pub(crate) configuration: &'static [&'static str],
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

/// The file of a sanitizer's suppressions, each with its reason.
pub(crate) fn suppressions(name: &str) -> PathBuf {
    root().join("xtask/suppressions").join(name)
}

impl Sanitizer {
    /// Runs all tests, also after a failure.
    pub(crate) fn run(&self, runs: &[Tests]) -> Result<(), Failure> {
        let failed: Vec<String> = runs.iter().filter_map(|tests| self.run_one(tests).err()).collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("{}; if nightly is missing, run `cargo xtask setup`", failed.join(", "))))
    }

    fn run_one(&self, tests: &Tests) -> Result<(), String> {
        let mut command = nightly();
        command
            .env("CARGO_TARGET_DIR", target_directory().join(self.name))
            .env("RUSTFLAGS", self.rust_flags)
            .envs(self.variables.iter().cloned())
            .args(["test", "--locked", "--no-fail-fast", "--target", TARGET])
            .args(self.configuration.iter().flat_map(|line| ["--config", line]))
            .args(["--package", tests.package])
            .args(tests.targets)
            .arg("--")
            .args(tests.arguments);
        eprintln!("$ {command:?}");
        let what = format!("{} {:?}", tests.package, tests.targets);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{what}: {status}")),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }
}
