//! Model checking with loom: the library's `loom_*` tests, compiled with `--cfg memferry_loom`.
//!
//! Release profile, because loom runs a test some hundred thousand times; a target directory of its own, because the
//! flag would otherwise make cargo rebuild everything else.

use crate::shell::{Call, Failure, cargo, target_directory};

pub(crate) fn run(filter: &str) -> Result<(), Failure> {
    let filter = format!("loom_{filter}");
    // A filter that matches nothing would pass in silence.
    let listing = tests(&filter).arg("--list").output()?;
    let count = listing.lines().filter(|line| line.ends_with(": test")).count();
    if count == 0 {
        return Err(Failure(format!("no test is called {filter}*, so nothing would be checked")));
    }
    eprintln!("{count} models");
    tests(&filter).run()
}

fn tests(filter: &str) -> Call {
    let packages = ["memferry-dsa", "memferry-dsa-emulator", "memferry"];
    cargo(["test", "--release", "--lib"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .arg("--")
        .arg(filter)
        .env("CARGO_TARGET_DIR", target_directory().join("loom"))
        .env("RUSTFLAGS", "--cfg memferry_loom")
}
