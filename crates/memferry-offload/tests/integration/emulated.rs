//! Programs whose calls emulated devices share: late, out of order, full and faulting.

use std::fs;
use std::process::Command;

use crate::common::{device_bytes_of, example, has_emulation, is_installed, offload, seeds, text};
use crate::scripts::SCRIPTS;

/// The bytes that devices have moved, of a summary.
fn device_bytes(told: &str) -> &str {
    let row =
        told.lines().find(|line| line.trim_start().starts_with("all ")).unwrap_or_else(|| panic!("{told}"));
    row.rsplit("  ").next().unwrap().trim()
}

#[test]
fn dangerous_calls_work() {
    if !has_emulation() {
        return;
    }
    let calls = example("calls");
    let ways = ["copies", "forks", "threads", "signals", "faults", "closes", "illegal", "memory"];
    for (seed, way) in ways.into_iter().enumerate() {
        let options = format!("--emulated {seed} --threshold 20000");
        let output = offload(&options, &[calls.to_str().unwrap(), way]).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("fine"), "seed {seed}, {way}: {told}");
        assert_ne!(device_bytes(&told), "0 B", "seed {seed}, {way}: {told}");
    }
}

/// The CPU, the device, and both.
#[test]
fn every_share_copies_the_same() {
    if !has_emulation() {
        return;
    }
    let calls = example("calls");
    for share in [1, 37, 100] {
        let options = format!("--emulated {share} --threshold 1000 --share {share}");
        let output = offload(&options, &[calls.to_str().unwrap(), "copies"]).output().unwrap();
        assert!(output.status.success(), "{share} %: {}", text(&output));
        assert_ne!(device_bytes(&text(&output)), "0 B", "{share} %: {}", text(&output));
    }
}

/// The CPU finds the difference, and the device has stopped at memory that cannot be read.
#[test]
fn nothing_is_read_behind_a_difference() {
    if !has_emulation() {
        return;
    }
    let calls = example("calls");
    for seed in 0..4 {
        let options = format!("--emulated {seed} --threshold 20000 --share 37");
        let output = offload(&options, &[calls.to_str().unwrap(), "differences"]).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("fine"), "seed {seed}: {:?} {told}", output.status);
    }
}

#[test]
fn the_tuner_tries_both_ways() {
    if !has_emulation() {
        return;
    }
    let output = offload("--emulated 3", &[example("calls").to_str().unwrap(), "signals"]).output().unwrap();
    let told = text(&output);
    assert!(output.status.success() && told.contains("fine"), "{told}");
    assert_ne!(device_bytes(&told), "0 B", "{told}");
    assert!(!told.contains("no device can be used"), "{told}");
}

#[test]
fn output_is_the_same() {
    if !has_emulation() {
        return;
    }
    for (index, (name, program, script)) in SCRIPTS.iter().enumerate() {
        if !is_installed(program) {
            continue;
        }
        let plain = Command::new("sh").args(["-c", script]).output().unwrap();
        for seed in seeds(10 + index as u64) {
            let options = format!("--emulated {seed} --threshold 20000 --no-summary");
            let output = offload(&options, &["sh", "-c", script]).output().unwrap();
            assert!(output.status.success(), "{name}, seed {seed}: {}", text(&output));
            assert_eq!(text(&output), text(&plain), "{name}, seed {seed}");
        }
    }
}

/// Mapped queues need no descriptors, and the summary does not go to a file that has taken the number of standard error.
#[test]
fn programs_may_close_all_files() {
    if !has_emulation() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let summary = directory.path().join("summary");
    for (options, moves) in [
        ("".to_owned(), false),
        ("--emulated 7 --threshold 20000".to_owned(), false),
        (format!("--emulated 8 --threshold 20000 --summary {}", summary.display()), true),
    ] {
        let files = tempfile::tempdir().unwrap();
        let mut command = offload(&options, &[example("calls").to_str().unwrap(), "closes-streams"]);
        let output = command.env("TMPDIR", files.path()).output().unwrap();
        assert!(output.status.success(), "{options}: {:?} {}", output.status, text(&output));
        for file in fs::read_dir(files.path()).unwrap().map(|entry| entry.unwrap()) {
            let expected = if file.file_name() == "1" { "fine\n" } else { "" };
            assert_eq!(fs::read_to_string(file.path()).unwrap(), expected, "{options}: {file:?}");
        }
        if moves {
            assert_ne!(device_bytes_of("calls", &summary), 0, "{options}");
        }
    }
}
