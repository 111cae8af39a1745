//! Programs on this machine: without a device, the CPU makes all copies.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::common::{example, is_installed, offload, text};
use crate::scripts::SCRIPTS;

fn calls() -> String {
    example("calls").into_os_string().into_string().unwrap()
}

#[test]
fn dangerous_calls_work() {
    for way in
        ["copies", "forks", "threads", "signals", "faults", "differences", "closes", "illegal", "memory"]
    {
        let output = offload("", &[&calls(), way]).output().unwrap();
        assert!(output.status.success() && text(&output).contains("fine"), "{way}: {}", text(&output));
    }
}

#[test]
fn a_fortified_function_ends_the_program() {
    for options in ["", "--threshold 4096"] {
        let output = offload(options, &[&calls(), "overflow"]).output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "{}", text(&output));
        assert!(text(&output).contains("buffer overflow detected"), "{}", text(&output));
    }
}

#[test]
fn output_is_the_same() {
    for (name, program, script) in SCRIPTS.iter().filter(|(_, program, _)| is_installed(program)) {
        let plain = Command::new("sh").args(["-c", script]).output().unwrap();
        assert!(plain.status.success(), "{name} with {program}: {}", text(&plain));
        let output = offload("--no-summary", &["sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output));
        assert_eq!(output.stdout, plain.stdout, "{name}");
    }
}

/// Programs that themselves preload a library: glibc's own, which replaces malloc.
#[test]
fn beside_another_library() {
    const OTHER: &str = "/lib/x86_64-linux-gnu/libmemusage.so";
    if !std::path::Path::new(OTHER).exists() {
        return memferry_testing::skip(memferry_testing::Needs::Program("libmemusage.so"), "it is missing");
    }
    let output = offload("", &[&calls(), "forks"])
        .env("LD_PRELOAD", OTHER)
        .env("MEMUSAGE_PROG_NAME", "none of ours")
        .output()
        .unwrap();
    assert!(output.status.success() && text(&output).contains("fine"), "{}", text(&output));
}
