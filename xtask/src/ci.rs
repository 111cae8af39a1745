//! `cargo xtask ci`: the checks that a change must pass. Every step runs even after a failure, so that one run shows all
//! failures.
//!
//! A step that cannot run fails: no step is skipped. Skipped tests are counted, see [`skips`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memferry_testing::FILE_VARIABLE;

use crate::background::{self, Chore, Finished};
use crate::shell::{Call, Failure, cargo, program, root};
use crate::{c_library, dist, docs, links, loom, packages, python, setup, skips};

type Step = (&'static str, fn() -> Result<(), Failure>);

/// The packages of the test steps: the workspace's default members, and the others.
const README: &[&str] = &[];
const DEFAULT_MEMBERS: &[&str] = &[
    "memferry-dsa",
    "memferry-dsa-emulator",
    "memferry",
    "memferry-guest",
    "memferry-schedule",
    "memferry-kernels",
    "memferry-query",
    "memferry-bench",
    "memferry-bench-query",
    "memferry-session",
    "memferry-cli",
];
/// In one call, because the emulation by itself would build with fewer features, and all of memferry a second time.
const CLIENTS: &[&str] = &[
    "--package",
    "memferry-emulate",
    "--package",
    "memferry-emulate-embed",
    "--package",
    "memferry-emulate-preload",
    "--package",
    "memferry-offload",
    "--package",
    "memferry-offload-preload",
    "--package",
    "memferry-place-preload",
    "--package",
    "memferry-c",
    "--package",
    "memferry-cluster",
    "--package",
    "memferry-bench-query",
    "--features",
    "memferry-bench-query/postgres",
];
const PYTHON: &[&str] = &["--package", "memferry-python"];
const CHORES: &[&str] = &["--package", "xtask", "--package", "memferry-testing"];

/// The arguments of clippy and rustdoc. Both have the same features, so that cargo checks the dependencies once.
const WHOLE_WORKSPACE: &[&str] = &[
    "--locked",
    "--workspace",
    "--features",
    "memferry-cli/peers,memferry-cli/postgres,memferry-cli/stores",
];

/// Steps that run one at a time and first. The commands of the README come early, because later steps use their builds.
const ALONE: &[Step] = &[
    ("set up", setup::run),
    ("tests, as in the README", || tests(README).run_and_quote()),
    ("demo, small", demo),
    ("examples", examples),
    ("emulated devices, the C library, memferry serve and bench sncdb with other clients", || {
        tests(CLIENTS).run_and_quote()
    }),
    ("the C library, installed", c_library::try_installed),
    ("the Python package, installed", python::try_installed),
    ("the Debian package and the archive, installed", dist::trial::run),
    ("shell blocks of the documents", docs::run),
];

/// Steps that run while the [`BACKGROUND`] chores run. Those build with nightly, in target directories of their own.
const TOGETHER: &[Step] = &[
    ("one build serves all", one_build),
    ("format", || cargo(["fmt", "--all", "--check"]).run()),
    ("clippy", || {
        cargo(["clippy", "--all-targets"])
            .args(WHOLE_WORKSPACE)
            .args(["--", "-D", "warnings"])
            .run_and_quote()
    }),
    ("documentation", || {
        cargo(["doc", "--no-deps"]).args(WHOLE_WORKSPACE).env("RUSTDOCFLAGS", "-D warnings").run_and_quote()
    }),
    ("links of the documents", links::run),
    ("tests of the chores", || tests(CHORES).run_and_quote()),
    ("packages", packages::run),
    // A separate process, because it reads the variable for skips in its guests.
    ("NUMA guest", || {
        program(&this_program()?.to_string_lossy())
            .args(["numa", "--all-machines"])
            .env(FILE_VARIABLE, skips::file())
            .run_and_quote()
    }),
    ("loom models", || loom::run("")),
];
const BACKGROUND: &[Chore] = &[
    ("AddressSanitizer", &["asan"]),
    ("ThreadSanitizer", &["tsan"]),
    ("public API", &["api", "--check"]),
    ("fuzzing, 20 s a target", &["fuzz", "all", "20"]),
];

pub(crate) fn run() -> Result<(), Failure> {
    skips::begin()?;
    let mut report = Report::default();
    report.run(ALONE);
    let background = start_background()?;
    for step in TOGETHER {
        report.run(&[*step]);
        background.try_iter().for_each(|chore| report.add_background(chore));
    }
    eprintln!("\n== waiting for the chores in the background");
    background.iter().for_each(|chore| report.add_background(chore));
    report.run(&[("skipped tests are listed", || skips::check(&[README, CLIENTS, CHORES]))]);
    report.finish()
}

/// Names, times and verdicts of the steps so far.
#[derive(Default)]
struct Report {
    failed: Vec<(&'static str, Failure)>,
    lines: String,
}

impl Report {
    fn run(&mut self, steps: &[Step]) {
        for (name, step) in steps {
            eprintln!("\n== {name}");
            let started = Instant::now();
            let outcome = step();
            self.add(name, outcome, started.elapsed());
        }
    }

    fn add_background(&mut self, Finished { name, output, outcome, elapsed }: Finished) {
        eprintln!("\n== {name}, which ran in the background\n{output}");
        self.add(name, outcome, elapsed);
    }

    fn add(&mut self, name: &'static str, outcome: Result<(), Failure>, elapsed: Duration) {
        let verdict = match outcome {
            Ok(()) => "ok",
            Err(failure) => {
                eprintln!("{failure}");
                self.failed.push((name, failure));
                "FAILED"
            }
        };
        let line = format!("{:>7.1} s  {verdict:<6}  {name}\n", elapsed.as_secs_f64());
        eprint!("{line}");
        self.lines += &line;
    }

    fn finish(self) -> Result<(), Failure> {
        // Again at the end, where a reader of a long log looks first.
        for (name, failure) in &self.failed {
            eprintln!("\n== {name} failed\n{failure}");
        }
        eprint!("\n== summary\n{}", self.lines);
        if self.failed.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.failed.iter().map(|(name, _)| *name).collect();
        Err(Failure(format!("failed: {}", names.join(", "))))
    }
}

/// Runs tests with `CI` set: a test then fails if a program is missing that `set up` installs.
fn tests(selection: &[&str]) -> Call {
    cargo(["test", "--locked"]).args(selection).env("CI", "true").env(FILE_VARIABLE, skips::file())
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure(format!("cannot find the path of xtask: {error}")))
}

fn start_background() -> Result<Receiver<Finished>, Failure> {
    let file = skips::file();
    let directory = file.with_file_name("");
    Ok(background::start(&this_program()?, &directory, vec![(FILE_VARIABLE, file.into())], BACKGROUND))
}

/// Checks that `cargo test`, `cargo run`, the tests with clients and the Python package share one build of the crates that they depend
/// on. A feature that only one of them enables makes cargo compile a crate, and all that depend on it, a second time.
fn one_build() -> Result<(), Failure> {
    let features = |edges: &str, selection: &[&str]| {
        let tree = cargo(["tree", "--locked", "--prefix", "none", "--format", "{p} [{f}]"])
            .args(["--edges", edges])
            .args(selection)
            .output()?;
        // cargo marks a repeated line with (*).
        let lines = tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
        Ok::<_, Failure>(lines.collect::<BTreeSet<String>>())
    };
    let default_members: Vec<&str> =
        DEFAULT_MEMBERS.iter().flat_map(|member| ["--package", member]).collect();
    let test = features("normal,build,dev", &default_members)?;
    let run = features("normal,build", &["--package", "memferry-cli"])?;
    let mut others = features("normal,build,dev", CLIENTS)?;
    others.extend(features("normal,build,dev", PYTHON)?);

    let name = |line: &str| line.split(" [").next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = test.iter().map(|line| name(line)).collect();
    let is_shared = |line: &&String| known.contains(&name(line)) && !line.starts_with("memferry");
    let changed: Vec<&str> =
        run.difference(&test).chain(others.difference(&test).filter(is_shared)).map(String::as_str).collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "these crates are built a second time with other features: {}; give memferry-features, or the test dependency, the same \
         features",
        changed.join("; ")
    )))
}

/// Runs each example that the test steps have built next to this program. Examples assert their results.
fn examples() -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure(format!("cannot list the examples: {error}"));
    let built = this_program()?.with_file_name("examples");
    for package in DEFAULT_MEMBERS {
        let sources = root().join("crates").join(package).join("examples");
        // Not every package has examples.
        for entry in std::fs::read_dir(sources).into_iter().flatten() {
            let source = entry.map_err(broken)?.path();
            if let (Some(name), true) = (source.file_stem(), source.extension().is_some_and(|it| it == "rs"))
            {
                // The output is for readers, not for CI.
                program(&built.join(name).to_string_lossy()).output()?;
            }
        }
    }
    Ok(())
}

/// Runs the demo on little data. It compares every answer with plain DataFusion and fails if one differs. The sentence
/// proves that it did not end early.
fn demo() -> Result<(), Failure> {
    let text = cargo(["run", "--locked", "--", "demo", "--quick"]).output()?;
    print!("{text}");
    if text.contains("All answers agree") {
        Ok(())
    } else {
        Err(Failure("the demo did not print \"All answers agree\"".to_owned()))
    }
}
