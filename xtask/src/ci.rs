//! What a change must pass. Every step runs even after one failed, so that one run shows everything that is wrong.
//!
//! A step that cannot run is a failed step: cargo says what is missing (rustfmt, clippy), and nothing is skipped.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::shell::{Failure, cargo, program, root};
use crate::{guest, loom, setup};

type Step = (&'static str, fn() -> Result<(), Failure>);

/// In this order: what is missing is installed; then what the README tells newcomers to run, because what it built serves
/// the later steps.
const STEPS: &[Step] = &[
    ("set up", setup::run),
    // With `CI` set, a test fails rather than do without a program that `set up` installs.
    ("tests, as in the README", || cargo(["test", "--locked"]).env("CI", "true").run()),
    ("demo, small", demo),
    ("examples", examples),
    ("emulated devices, with real clients", || {
        cargo(["test", "--locked", "--package", "memferry-idxd", "--package", "memferry-emulate"])
            .env("CI", "true")
            .run()
    }),
    ("one build serves both", one_build),
    ("format", || cargo(["fmt", "--all", "--check"]).run()),
    ("clippy", || {
        cargo(["clippy", "--locked", "--workspace", "--all-targets", "--features", "memferry-cli/peers"])
            .args(["--", "-D", "warnings"])
            .run()
    }),
    ("documentation", || {
        cargo(["doc", "--locked", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").run()
    }),
    ("tests of the chores", || cargo(["test", "--locked", "--package", "xtask"]).run()),
    ("NUMA guest", || guest::run(&["--all-machines".to_owned()])),
    ("loom models", || loom::run("")),
];

pub(crate) fn run() -> Result<(), Failure> {
    let mut failed = Vec::new();
    let mut times = String::new();
    for (name, step) in STEPS {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let verdict = match step() {
            Ok(()) => "ok",
            Err(failure) => {
                eprintln!("{failure}");
                failed.push(*name);
                "FAILED"
            }
        };
        let line = format!("{:>7.1} s  {verdict:<6}  {name}\n", started.elapsed().as_secs_f64());
        eprint!("{line}");
        times += &line;
    }
    eprint!("\n== summary\n{times}");
    if failed.is_empty() { Ok(()) } else { Err(Failure(format!("failed: {}", failed.join(", ")))) }
}

/// `cargo run` and `cargo test` must build the same dependencies: a feature that only a test's dependency asks for would
/// change a crate below DataFusion, and `cargo test` would compile DataFusion a second time.
fn one_build() -> Result<(), Failure> {
    let features = |edges: &str, packages: &[&str]| {
        let tree = cargo(["tree", "--locked", "--prefix", "none", "--format", "{p} [{f}]"])
            .args(["--edges", edges])
            .args(packages.iter().flat_map(|package| ["--package", package]))
            .output()?;
        // A line seen before ends in a mark.
        let lines = tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
        Ok::<_, Failure>(lines.collect::<BTreeSet<String>>())
    };
    let run = features("normal,build", &["memferry-cli"])?;
    let test = features("normal,build,dev", &["memferry-dsa", "memferry", "memferry-query", "memferry-cli"])?;
    let changed: Vec<&str> = run.difference(&test).map(String::as_str).collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("`cargo test` would build these again, with other features: {}", changed.join("; "))))
}

/// Runs each example, as the tests have built it beside this program: they assert what they say.
fn examples() -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure(format!("the examples cannot be found: {error}"));
    let built = std::env::current_exe().map_err(broken)?.with_file_name("examples");
    for package in ["memferry-dsa", "memferry"] {
        let sources = root().join("crates").join(package).join("examples");
        for entry in std::fs::read_dir(sources).map_err(broken)? {
            let source = entry.map_err(broken)?.path();
            if let (Some(name), true) = (source.file_stem(), source.extension().is_some_and(|it| it == "rs"))
            {
                // What it prints is for people who read it.
                program(&built.join(name).to_string_lossy()).output()?;
            }
        }
    }
    Ok(())
}

/// The demo as a newcomer starts it, on little data. It compares every answer with plain DataFusion's and fails when
/// one differs; the sentence is looked for as well, in case it ends early.
fn demo() -> Result<(), Failure> {
    let text = cargo(["run", "--locked", "--", "demo", "--quick"]).output()?;
    print!("{text}");
    if text.contains("All answers agree") {
        Ok(())
    } else {
        Err(Failure("the demo did not say that all answers agree".to_owned()))
    }
}
