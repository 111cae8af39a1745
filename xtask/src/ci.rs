//! What a change must pass. Every step runs even after one failed, so that one run shows everything that is wrong.
//!
//! A step that cannot run is a failed step: cargo says what is missing (rustfmt, clippy), and nothing is skipped. Tests
//! that skip are counted, see [`skips`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memferry_testing::FILE_VARIABLE;

use crate::beside::{self, Chore, Ended};
use crate::shell::{Call, Failure, cargo, program, root};
use crate::{links, loom, setup, skips};

type Step = (&'static str, fn() -> Result<(), Failure>);

/// The packages of the test steps: the workspace's default members, and the others.
const README: &[&str] = &[];
const DEFAULT_MEMBERS: &[&str] = &[
    "memferry-dsa",
    "memferry-dsa-emulator",
    "memferry",
    "memferry-query",
    "memferry-bench",
    "memferry-cli",
];
const CLIENTS: &[&str] = &[
    "--package",
    "memferry-emulate",
    "--package",
    "memferry-emulate-embed",
    "--package",
    "memferry-emulate-preload",
];
const CHORES: &[&str] = &["--package", "xtask", "--package", "memferry-testing"];

/// In this order, with the machine to themselves: what is missing is installed; then what the README tells newcomers to
/// run, because what it built serves the later steps.
const ALONE: &[Step] = &[
    ("set up", setup::run),
    ("tests, as in the README", || tests(README).run()),
    ("demo, small", demo),
    ("examples", examples),
    ("emulated devices, with real clients", || tests(CLIENTS).run()),
];

/// Beside each other: these steps, and chores that build with nightly and so in directories of their own.
const TOGETHER: &[Step] = &[
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
    ("links of the documents", links::run),
    ("tests of the chores", || tests(CHORES).run()),
    // A process of its own has the variable for the skips in its guests.
    ("NUMA guest", || {
        program(&this_program()?.to_string_lossy())
            .args(["numa", "--all-machines"])
            .env(FILE_VARIABLE, skips::file())
            .run()
    }),
    ("loom models", || loom::run("")),
];
const BESIDE: &[Chore] = &[
    ("AddressSanitizer", &["asan"]),
    ("ThreadSanitizer", &["tsan"]),
    ("fuzzing, 60 s a target", &["fuzz", "all", "60"]),
];

pub(crate) fn run() -> Result<(), Failure> {
    skips::begin()?;
    let mut report = Report::default();
    report.run(ALONE);
    let beside = start_beside()?;
    for step in TOGETHER {
        report.run(&[*step]);
        beside.try_iter().for_each(|ended| report.ended_beside(ended));
    }
    eprintln!("\n== waiting for what runs beside");
    beside.iter().for_each(|ended| report.ended_beside(ended));
    report.run(&[("skipped tests are listed", || skips::check(&[README, CLIENTS, CHORES]))]);
    report.finish()
}

/// Names and times of what has run.
#[derive(Default)]
struct Report {
    failed: Vec<&'static str>,
    lines: String,
}

impl Report {
    fn run(&mut self, steps: &[Step]) {
        for (name, step) in steps {
            eprintln!("\n== {name}");
            let started = Instant::now();
            let outcome = step();
            self.ended(name, outcome, started.elapsed());
        }
    }

    fn ended_beside(&mut self, Ended { name, output, outcome, elapsed }: Ended) {
        eprintln!("\n== {name}, which ran beside\n{output}");
        self.ended(name, outcome, elapsed);
    }

    fn ended(&mut self, name: &'static str, outcome: Result<(), Failure>, elapsed: Duration) {
        let verdict = match outcome {
            Ok(()) => "ok",
            Err(failure) => {
                eprintln!("{failure}");
                self.failed.push(name);
                "FAILED"
            }
        };
        let line = format!("{:>7.1} s  {verdict:<6}  {name}\n", elapsed.as_secs_f64());
        eprint!("{line}");
        self.lines += &line;
    }

    fn finish(self) -> Result<(), Failure> {
        eprint!("\n== summary\n{}", self.lines);
        if self.failed.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("failed: {}", self.failed.join(", "))))
    }
}

/// With `CI` set, a test fails rather than do without a program that `set up` installs.
fn tests(selection: &[&str]) -> Call {
    cargo(["test", "--locked"]).args(selection).env("CI", "true").env(FILE_VARIABLE, skips::file())
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure(format!("this program cannot be found: {error}")))
}

fn start_beside() -> Result<Receiver<Ended>, Failure> {
    let file = skips::file();
    let directory = file.with_file_name("");
    Ok(beside::start(&this_program()?, &directory, vec![(FILE_VARIABLE, file.into())], BESIDE))
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
    let test = features("normal,build,dev", DEFAULT_MEMBERS)?;
    let changed: Vec<&str> = run.difference(&test).map(String::as_str).collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("`cargo test` would build these again, with other features: {}", changed.join("; "))))
}

/// Runs each example, as the tests have built it beside this program: they assert what they say.
fn examples() -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure(format!("the examples cannot be found: {error}"));
    let built = this_program()?.with_file_name("examples");
    for package in DEFAULT_MEMBERS {
        let sources = root().join("crates").join(package).join("examples");
        // Not every package has examples.
        for entry in std::fs::read_dir(sources).into_iter().flatten() {
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
