//! `cargo xtask packages`: whether cargo can publish all crates, and whether the packages build. Nothing is sent.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{Failure, cargo, root, target_directory};

/// The packages that are built from what `cargo publish` would send: all without DataFusion, which a package would build
/// once more, since it has no profiles of the workspace.
const LIGHT: &[&str] = &[
    "memferry-testing",
    "memferry-dsa",
    "memferry-dsa-emulator",
    "memferry",
    "memferry-guest",
    "memferry-schedule",
    "memferry-kernels",
    "memferry-c",
    "memferry-emulate-embed",
    "memferry-emulate-preload",
    "memferry-emulate",
    "memferry-offload-preload",
    "memferry-place-preload",
    "memferry-offload",
];

pub(crate) fn run() -> Result<(), Failure> {
    let target = target_directory().join("packages");
    forget_packages(&target)?;
    let cargo = |command| cargo([command, "--locked", "--allow-dirty", "--target-dir"]).args([&target]);
    // Also that these versions are not published yet.
    cargo("publish").args(["--workspace", "--dry-run", "--no-verify"]).run()?;
    cargo("package").args(LIGHT.iter().flat_map(|name| ["--package", name])).run()?;
    carry_licences()
}

/// Checks that each package has the texts of both licences, which are links in the directories of the crates.
fn carry_licences() -> Result<(), Failure> {
    let crates = root().join("crates");
    let entries = fs::read_dir(&crates)
        .map_err(|error| Failure(format!("cannot list {}: {error}", crates.display())))?;
    let mut missing = Vec::new();
    for manifest in entries.flatten().map(|entry| entry.path().join("Cargo.toml")).filter(|it| it.is_file()) {
        let list = cargo(["package", "--locked", "--allow-dirty", "--list", "--manifest-path"]);
        let files = list.args([&manifest]).output()?;
        let lacks = |file: &&str| !files.lines().any(|line| line == *file);
        let without = ["LICENSE-APACHE", "LICENSE-MIT"].into_iter().filter(lacks);
        missing.extend(without.map(|file| manifest.with_file_name(file).display().to_string()));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "link these to the file in the root, so that packages have it: {}",
        missing.join(", ")
    )))
}

/// Removes what an earlier run has left of the workspace's packages: their sources in cargo's home, and their builds.
///
/// `cargo package` builds a package against the packages of its dependencies. Cargo takes these for packages of a
/// registry, which never change while their version stays the same.
fn forget_packages(target: &Path) -> Result<(), Failure> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let home = home.ok_or_else(|| Failure("neither CARGO_HOME nor HOME is set".into()))?;
    let registries =
        home.join("registry/src").read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let builds = ["debug/.fingerprint", "package"].map(|directory| target.join(directory));
    for directory in registries.chain(builds) {
        for entry in directory.read_dir().into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("memferry") {
                let path = entry.path();
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(|error| Failure(format!("cannot remove {}: {error}", path.display())))?;
            }
        }
    }
    Ok(())
}
