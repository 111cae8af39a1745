//! Tests under a sanitizer of LLVM: with nightly Rust, in a target directory of their own, because everything is built anew.
//!
//! The precompiled standard library is not instrumented. Each chore says what that costs it.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::shell::{Failure, nightly, target_directory};

/// A sanitizer needs the target by name: Cargo then builds build scripts and macros without it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Some tests of a package.
pub(crate) struct Tests {
    pub(crate) package: &'static str,
    /// Cargo's choice of targets.
    pub(crate) targets: &'static [&'static str],
    /// Arguments of the test binaries.
    pub(crate) arguments: &'static [&'static str],
}

pub(crate) struct Sanitizer {
    /// The name of the chore and of its directory.
    pub(crate) name: &'static str,
    pub(crate) rust_flags: &'static str,
    /// More of Cargo's configuration.
    pub(crate) configuration: &'static [&'static str],
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

impl Sanitizer {
    /// The directory for its builds and files.
    pub(crate) fn directory(name: &str) -> PathBuf {
        target_directory().join(name)
    }

    /// Writes a suppression file and returns its path.
    pub(crate) fn suppressions(name: &str, lines: &[String]) -> Result<PathBuf, Failure> {
        let directory = Sanitizer::directory(name);
        let file = directory.join("suppressions");
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(&file, text))
            .map_err(|error| Failure(format!("cannot write {}: {error}", file.display())))?;
        Ok(file)
    }

    /// Runs all of them, also after one failed.
    pub(crate) fn run(&self, runs: &[Tests]) -> Result<(), Failure> {
        let failed: Vec<String> = runs.iter().filter_map(|tests| self.run_one(tests).err()).collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("{}; if nightly is missing: `cargo xtask setup` installs it", failed.join(", "))))
    }

    fn run_one(&self, tests: &Tests) -> Result<(), String> {
        let mut command = nightly();
        command
            .env("CARGO_TARGET_DIR", Sanitizer::directory(self.name))
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
