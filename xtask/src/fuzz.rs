//! `cargo xtask fuzz`: runs the targets of `fuzz/` with libFuzzer, each for some seconds.
//!
//! Only this chore needs cargo-fuzz. `cargo test` calls the same functions, in `tests/fuzzed` of the crates, with random
//! bytes.

use std::path::{Path, PathBuf};

use crate::sanitizer;
use crate::shell::{self, Failure, nightly, root, target_directory};

/// Seconds per target that CONTRIBUTING.md asks for after a change of fuzzed code.
const SECONDS: &str = "120";

/// Runs one target, or every target if `target` is `all`, also after a failure.
///
/// The corpus and the failing inputs are kept outside the checkout; the next run starts from them.
pub(crate) fn run(target: &str, seconds: Option<&str>) -> Result<(), Failure> {
    let seconds = seconds.unwrap_or(SECONDS);
    if seconds.parse::<u32>().is_err() {
        return Err(Failure(format!("{seconds:?} is not a number of seconds")));
    }
    let all = targets()?;
    let chosen: Vec<&String> = all.iter().filter(|name| target == "all" || *name == target).collect();
    if chosen.is_empty() {
        return Err(Failure(format!("no fuzz target is called {target:?}; choose all, {}", all.join(", "))));
    }
    let kept = shell::cache("fuzz")?;
    let run = |target: &&String| run_one(target, seconds, &kept).err().map(|it| it.0);
    let failed: Vec<String> = chosen.iter().filter_map(run).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure(failed.join("\n"))) }
}

/// The names of the files in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, Failure> {
    let directory = root().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&directory)
        .map_err(|error| Failure(format!("cannot read {}: {error}", directory.display())))?;
    let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| stem(entry.path())).collect();
    names.sort();
    Ok(names)
}

fn run_one(target: &str, seconds: &str, kept: &Path) -> Result<(), Failure> {
    let directory = |name: &str| -> Result<PathBuf, Failure> {
        let path = kept.join(name).join(target);
        std::fs::create_dir_all(&path)
            .map_err(|error| Failure(format!("cannot make {}: {error}", path.display())))?;
        Ok(path)
    };
    let (corpus, findings) = (directory("corpus")?, directory("findings")?);
    let suppressions = sanitizer::suppressions("fuzz");
    let mut command = nightly();
    command.env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", suppressions.display()));
    command.args(["fuzz", "run", "--target-dir"]).arg(target_directory().join("fuzz"));
    // libFuzzer adds new inputs to the first directory.
    command.arg(target).arg(corpus);
    let seeds = root().join("fuzz/seeds").join(target);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    command.args(["--", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", findings.display()));
    eprintln!("$ {command:?}");
    let status = command.status();
    let status = status.map_err(|error| Failure(format!("fuzzing {target}: cannot run cargo: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure(format!(
        "fuzzing {target} failed ({status}); failing inputs are in {}; if nightly or cargo-fuzz is missing, run \
         `cargo xtask setup`",
        findings.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_in_the_manifest() {
        let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert_eq!(manifest.matches("[[bin]]").count(), targets.len());
        for name in targets {
            assert!(
                manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")),
                "{name}"
            );
        }
    }

    #[test]
    fn wrong_arguments_are_named() {
        let error = run("sysfs", Some("ten")).unwrap_err().to_string();
        assert!(error.contains("\"ten\" is not a number of seconds"), "{error}");
        let error = run("nonesuch", None).unwrap_err().to_string();
        assert!(error.contains("no fuzz target is called \"nonesuch\"; choose all, "), "{error}");
        assert!(error.contains("sysfs"), "{error}");
    }
}
