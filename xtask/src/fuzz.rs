//! Fuzzing with libFuzzer: the targets of `fuzz/`, each for some seconds.
//!
//! Needs nightly and cargo-fuzz; everything else here does without them, and `cargo test` calls the same functions
//! with random bytes.

use crate::shell::{Failure, nightly, root};

/// What CONTRIBUTING.md asks for after a change to what is fuzzed.
const SECONDS: &str = "120";

/// Runs one target; what it finds is kept below `fuzz/artifacts`.
pub(crate) fn run(target: &str, seconds: Option<&str>) -> Result<(), Failure> {
    let seconds = seconds.unwrap_or(SECONDS);
    if seconds.parse::<u32>().is_err() {
        return Err(Failure(format!("{seconds:?} is no number of seconds")));
    }
    let seeds = root().join("fuzz/seeds").join(target);
    if !seeds.is_dir() {
        return Err(Failure(format!("no target {target:?}; fuzz/fuzz_targets has them")));
    }
    let corpus = root().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus)
        .map_err(|error| Failure(format!("{} cannot be made: {error}", corpus.display())))?;
    let time = format!("-max_total_time={seconds}");
    let (corpus, seeds) = (corpus.to_string_lossy().into_owned(), seeds.to_string_lossy().into_owned());
    // What grows goes to the first directory.
    let arguments = [
        "fuzz",
        "run",
        target,
        &corpus,
        &seeds,
        "--",
        &time,
        "-max_len=4096",
        "-timeout=10",
        "-rss_limit_mb=2048",
    ];
    let line = format!("cargo +nightly {}", arguments.join(" "));
    eprintln!("$ {line}");
    let status = nightly().args(arguments).status();
    let status = status.map_err(|error| Failure(format!("`{line}` cannot be run: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure(format!(
        "`{line}` failed ({status}); if nightly or cargo-fuzz is missing: rustup toolchain install nightly \
         --profile minimal, cargo install cargo-fuzz --locked"
    )))
}
