//! `cargo xtask python`: the wheel of the Python package, and its tests.

use std::fs;
use std::path::PathBuf;

use crate::c_library;
use crate::shell::{self, Failure, cargo, program, root, target_directory};

/// Builds the wheel in the dev profile, installs it in a new environment, and runs the tests and the notebook.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let directory = target_directory().join("ci/python");
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .map_err(|error| Failure(format!("cannot remove {}: {error}", directory.display())))?;
    }
    let package = root().join("crates/memferry-python");
    let tools = shell::cache("python")?;
    let maturin = tools.join("bin/maturin").display().to_string();
    if !shell::is_installed(&maturin) {
        return Err(Failure(format!("{maturin} is missing; run `cargo xtask setup`")));
    }
    program(&maturin)
        .args(["build", "--profile", "dev", "--locked", "--manifest-path"])
        .args([package.join("Cargo.toml")])
        .arg("--out")
        .args([&directory])
        .env("CARGO_TARGET_DIR", target_directory())
        .run()?;
    let wheel = wheel(&directory)?;

    let environment = directory.join("environment");
    program("python3").args(["-m", "venv"]).args([&environment]).run()?;
    let python = environment.join("bin/python").display().to_string();
    program(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args([wheel])
        .run()?;
    // Nothing else is installed there.
    let command = "import memferry; print(memferry.sql('select 1'))";
    program(&python).args(["-c", command]).directory(&directory).run()?;

    // The packages of the tests are those of the tools.
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages =
        program(&tools.join("bin/python").display().to_string()).args(["-c", packages]).output()?;
    program(&python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args([package.join("tests")])
        .args(arguments)
        .env("PYTHONPATH", packages.trim())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run()
}

/// Tests the package, and its benchmark beside the C library that the step before has installed.
pub(crate) fn try_installed() -> Result<(), Failure> {
    run(&[])?;
    let python = target_directory().join("ci/python/environment/bin/python");
    cargo(["run", "--locked", "--", "bench", "bindings", "--quick", "--prefix"])
        .args([c_library::installed_prefix()])
        .arg("--python")
        .args([python])
        .run()
}

/// The wheel in a directory.
fn wheel(directory: &PathBuf) -> Result<PathBuf, Failure> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut wheels = files.filter(|file| file.extension().is_some_and(|it| it == "whl"));
    wheels.next().ok_or_else(|| Failure(format!("maturin left no wheel in {}", directory.display())))
}
