//! `memferry doctor` as users see it. The unit tests have the broken machines.

use std::fs;

use memferry_testing::{Needs, skip};
use serde_json::Value;

use crate::support::{USAGE, fails, memferry, prints, text};

/// The output and the exit status.
fn doctor(prefix: &[&str], options: &[&str]) -> (String, Option<i32>) {
    let output = memferry(&[prefix, &["doctor"], options].concat()).output().unwrap();
    assert_eq!(text(&output.stderr), "");
    (text(&output.stdout), output.status.code())
}

#[test]
fn this_machine_is_judged_by_the_worst_problem() {
    let (output, status) = doctor(&[], &["--json", "--guide"]);
    let json: Value = serde_json::from_str(&output).unwrap();
    let problems = json["problems"].as_array().unwrap();
    let expected = match problems.first().map(|problem| problem["severity"].as_str().unwrap()) {
        None => 0,
        Some("warning") => 3,
        Some(_) => 4,
    };
    assert_eq!(status, Some(expected), "{output}");
    assert_eq!(json["guide"].as_array().unwrap().len(), 9);
    assert!(json["facts"]["machine"]["nodes"][0]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(json["facts"]["io_uring"]["works"].is_boolean(), "{output}");
}

#[test]
fn a_directory_stands_for_a_machine() {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &str| {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("sys/devices/system/node/online", "0\n");
    write("sys/devices/system/cpu/online", "0\n");
    write("sys/devices/system/node/node0/cpulist", "0\n");
    write("sys/devices/system/node/node0/distance", "10\n");
    write(
        "sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal: 4194304 kB\nNode 0 MemFree: 2097152 kB\n",
    );
    write("dev/fuse", "");
    let root = ["--root", directory.path().to_str().unwrap()];
    let (output, status) = doctor(&[], &root);
    assert!(output.contains("No problem found. This machine has no DSA"), "{output}");
    assert_eq!(status, Some(0));
    write("sys/bus/pci/devices/0000:6a:01.0/vendor", "0x8086\n");
    write("sys/bus/pci/devices/0000:6a:01.0/device", "0x0b25\n");
    let (output, status) = doctor(&[], &root);
    assert!(output.contains("error driver-not-loaded: There is a DSA at 0000:6a:01.0"), "{output}");
    assert!(output.contains("$ modprobe idxd\n"), "{output}");
    assert_eq!(status, Some(4));
    let file = directory.path().join("dev/fuse");
    fails(&["doctor", "--root", file.to_str().unwrap()], USAGE, &["dev/fuse", "not a directory"]);
}

#[test]
fn monitors_are_present_or_absent_for_a_reason() {
    let (output, _) = doctor(&[], &["--telemetry", "--json"]);
    let json: Value = serde_json::from_str(&output).unwrap();
    let monitors = json["telemetry"].as_array().unwrap();
    let names: Vec<&str> = monitors.iter().map(|it| it["monitor"].as_str().unwrap()).collect();
    assert_eq!(names, ["dsa", "cache", "memory", "energy"]);
    for monitor in monitors {
        assert!(monitor["is_present"].is_boolean(), "{output}");
        assert!(monitor["found"].as_str().is_some_and(|found| !found.is_empty()), "{output}");
    }
    let (text, _) = doctor(&[], &["--telemetry"]);
    assert!(text.starts_with("What `memferry bench` records beside its rows:\n  - DSA devices: "), "{text}");
    let (facts, _) = doctor(&[], &["--json"]);
    assert!(!facts.contains("\"telemetry\""), "{facts}");
    fails(&["doctor", "--telemetry", "--guide"], USAGE, &["--telemetry", "--guide"]);
    // A record has counts only if there is a monitor, and never if they are not wanted.
    let bench = ["bench", "submit", "--quick", "--sizes", "64KiB", "--ways", "core", "--json"];
    let has_counts = |options: &[&str]| prints(&[&bench[..], options].concat()).contains("\"telemetry\"");
    assert!(!has_counts(&["--no-telemetry"]));
    if monitors.iter().all(|monitor| monitor["is_present"] == false) {
        assert!(!has_counts(&[]));
    }
}

#[test]
fn emulated_devices_are_usable() {
    let output = memferry(&["emulate", "--", "true"]).output().unwrap();
    if !output.status.success() {
        return skip(Needs::Namespaces, text(&output.stderr));
    }
    let (output, _) =
        doctor(&["emulate", "--devices", "2", "--", env!("CARGO_BIN_EXE_memferry")], &["--json"]);
    let json: Value = serde_json::from_str(&output).unwrap();
    let severities = json["problems"].as_array().unwrap().iter().map(|problem| &problem["severity"]);
    assert!(severities.clone().all(|severity| severity == "warning"), "{output}");
    assert_eq!(json["facts"]["emulation"]["is_here"], true);
    assert_eq!(json["facts"]["dsa"]["devices"].as_array().unwrap().len(), 2);
    // Disabled ones are an error, with the command that configures them.
    let unconfigured = ["emulate", "--config", "none", "--", env!("CARGO_BIN_EXE_memferry")];
    let (output, status) = doctor(&unconfigured, &[]);
    assert!(output.contains("error device-disabled: dsa0"), "{output}");
    assert_eq!(status, Some(4));
}
