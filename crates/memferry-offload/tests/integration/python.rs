//! CPython's own tests of buffers, which copy, move, fill and compare them.

use std::process::{Command, Output};

use memferry_testing::{Needs, skip};

use crate::common::{device_bytes_of, has_emulation, offload, seeds, text};

/// The distribution's Python, whose test suite `cargo xtask setup` installs; PATH may have others first.
const PYTHON: &str = "/usr/bin/python3";
const TESTS: [&str; 6] = ["-m", "unittest", "-v", "test.test_bytes", "test.test_mmap", "test.test_array"];

/// Whether the tests are installed. If not, the calling test is skipped.
fn are_installed() -> bool {
    let imported = ["-c", "import test.test_bytes, test.test_mmap, test.test_array"];
    let are_there = Command::new(PYTHON).args(imported).output().is_ok_and(|output| output.status.success());
    if !are_there {
        skip(Needs::Program("CPython's tests"), "they are not installed; `cargo xtask setup` does it");
    }
    are_there
}

/// The result of each test. The time of all is left out.
fn results(output: &Output) -> Vec<String> {
    let text = text(output);
    assert!(output.status.success(), "{text}");
    // Without a device there is a note.
    let lines = text.lines().filter(|line| !line.starts_with("memferry offload: no device can be used"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    let sum = lines.iter_mut().find(|line| line.starts_with("Ran ")).unwrap_or_else(|| panic!("{text}"));
    let count: u32 = sum.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(count > 1000, "{sum}");
    *sum = sum.split(" in ").next().unwrap().to_owned();
    lines
}

fn run(command: &mut Command) -> Vec<String> {
    // The tests write to the working directory.
    let directory = tempfile::tempdir().unwrap();
    results(&command.current_dir(directory.path()).output().unwrap())
}

#[test]
fn results_are_the_same() {
    if !are_installed() {
        return;
    }
    let program = [&[PYTHON], &TESTS[..]].concat();
    let plain = run(Command::new(PYTHON).args(TESTS));
    assert_eq!(run(&mut offload("--no-summary", &program)), plain);
    if !has_emulation() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for seed in seeds(30) {
        let summary = directory.path().join(seed.to_string());
        // Most buffers of these tests are small.
        let options = format!("--emulated {seed} --threshold 1000 --summary {}", summary.display());
        assert_eq!(run(&mut offload(&options, &program)), plain, "seed {seed}");
        assert_ne!(device_bytes_of("python3", &summary), 0, "seed {seed}");
    }
}
