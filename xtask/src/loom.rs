//! `cargo xtask loom`: model checking of the libraries' `loom_*` tests, compiled with `--cfg memferry_loom`.
//!
//! The release profile, because loom runs a test some hundred thousand times. A separate target directory, because the
//! flag would make cargo rebuild all other crates.

use crate::shell::{Call, Failure, cargo, target_directory};

pub(crate) fn run(filter: &str) -> Result<(), Failure> {
    let filter = format!("loom_{filter}");
    // libtest passes if the filter matches no test.
    let listing = tests(&filter).arg("--list").output()?;
    let count = listing.lines().filter(|line| line.ends_with(": test")).count();
    if count == 0 {
        return Err(Failure(format!("no test name starts with {filter}")));
    }
    eprintln!("{count} models");
    tests(&filter).run()
}

fn tests(filter: &str) -> Call {
    let packages = ["memferry-dsa", "memferry-dsa-emulator", "memferry", "memferry-schedule"];
    cargo(["test", "--release", "--lib"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--")
        .arg(filter)
        .env("CARGO_TARGET_DIR", target_directory().join("loom"))
        .env("RUSTFLAGS", "--cfg memferry_loom")
}
