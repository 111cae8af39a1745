//! Programs whose calls emulated devices share: late, out of order, full and faulting.

use std::process::Command;

use crate::common::{SCRIPTS, example, has_emulation, is_installed, offload, text};

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
    for (seed, way) in ["copies", "forks", "threads", "signals", "faults", "closes"].into_iter().enumerate() {
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
    for (seed, (name, program, script)) in SCRIPTS.iter().enumerate() {
        if !is_installed(program) {
            continue;
        }
        let plain = Command::new("sh").args(["-c", script]).output().unwrap();
        let options = format!("--emulated {} --threshold 20000 --no-summary", seed + 10);
        let output = offload(&options, &["sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{name}, seed {}: {}", seed + 10, text(&output));
        assert_eq!(output.stdout, plain.stdout, "{name}, seed {}", seed + 10);
    }
}
