//! Unmodified programs of the distribution that submit descriptors: the tests of accel-config and of DPDK.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use memferry_testing::{Needs, skip};

use crate::emulator::{emulate_script, is_available, run_as_user, text};

/// Where Debian's package accel-config-test has its programs.
const TESTS: &str = "/usr/libexec/accel-config/test";
const DPDK_TEST: &str = "/usr/bin/dpdk-test";

fn is_there(program: &str, package: &'static str) -> bool {
    if !Path::new(program).is_file() {
        let why = format!("{program} is not installed; `cargo xtask setup` does it");
        skip(Needs::Program(package), why);
        return false;
    }
    is_available()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    let told = text(output);
    let end: Vec<&str> = told.lines().rev().take(40).collect();
    assert!(output.status.success(), "{:?}:\n{}", output.status, end.join("\n"));
    told
}

/// The vendor's test of every operation except the deltas: single and in batches, five sizes, shared and dedicated,
/// with and without block-on-fault, on queues that accel-config configures.
#[test]
fn the_runner_of_accel_config() {
    let runner = format!("{TESTS}/dsa_user_test_runner.sh");
    if !is_there(&runner, "accel-config-test") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // The script loads the driver, which is there already, and waits for it.
    for name in ["modprobe", "lsmod", "sleep"] {
        let path = directory.path().join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = format!("PATH={}:$PATH exec {runner}", directory.path().display());
    let told = succeeds(&emulate_script("--disabled --stats --preload", &script).output().unwrap());
    let runs = told.matches("+ /usr/libexec/accel-config/test/dsa_test -w ").count();
    assert!(runs >= 400, "only {runs} tests");
    let accepted = |queue: &str| -> u32 {
        let line = told.lines().rev().find_map(|line| line.trim_start().strip_prefix(queue));
        line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |count| count.parse().unwrap())
    };
    let [shared, dedicated] = ["wq0.0", "wq0.1"].map(accepted);
    assert!(shared == dedicated && shared as usize >= runs / 2, "{shared} and {dedicated} of {runs}");
}

/// Operations, each with a valid size.
const OPERATIONS: [(u32, u32); 15] = [
    (0x0, 4096),
    (0x2, 4096),
    (0x3, 4097),
    (0x4, 4096),
    (0x5, 4096),
    (0x6, 4096),
    (0x7, 4096),
    (0x8, 4096),
    (0x9, 4096),
    (0x10, 4096),
    (0x11, 4096),
    (0x12, 4096),
    (0x13, 4096),
    (0x14, 4096),
    (0x15, 4096),
];

/// A script that runs each operation with accel-config's dsa_test, single and in a batch, on both kinds of queues.
fn each_operation() -> String {
    let mut script = "set -e\n".to_owned();
    for (operation, size) in OPERATIONS {
        for mode in [0, 1] {
            let test = format!("{TESTS}/dsa_test -w {mode} -l {size}");
            script += &format!("{test} -o {operation} || {{ echo operation {operation} >&2; exit 9; }}\n");
            // A batch must not contain a drain.
            if operation != 2 {
                script += &format!(
                    "{test} -o 1 -b {operation} -c 16 || {{ echo batch of {operation} >&2; exit 9; }}\n"
                );
            }
        }
    }
    script
}

#[test]
fn each_operation_in_dsa_test() {
    if !is_there(&format!("{TESTS}/dsa_test"), "accel-config-test") {
        return;
    }
    // The program gives up after a few Retry answers, and after a page fault on the list of a batch.
    for options in ["", "--seed 3 --no-retries --no-faults", "--seed 4 --no-retries --no-faults"] {
        succeeds(&emulate_script(&format!("{options} --preload"), &each_operation()).output().unwrap());
    }
}

#[test]
fn each_operation_in_dsa_test_for_a_user() {
    if !is_there(&format!("{TESTS}/dsa_test"), "accel-config-test") {
        return;
    }
    if let Some(output) = run_as_user("--preload", &each_operation()) {
        succeeds(&output);
    }
}

/// A script with DPDK's test of its DMA devices: a skeleton without hardware, and our dedicated queue.
fn dma_devices(directory: &Path) -> String {
    format!(
        "export RUNTIME_DIRECTORY={}
        printf 'dmadev_autotest\\nquit\\n' |
            {DPDK_TEST} --no-huge -m 512 --no-pci -l 0 --no-telemetry | tr '\\r' '\\n' | grep -v ^Ops",
        directory.display()
    )
}

#[track_caller]
fn dma_devices_passed(told: &str) {
    assert!(told.contains("Test OK") && !told.contains("Test Failed"), "{told}");
    let ours = told.split_once("[wq0.1]").map_or("", |(_, rest)| rest);
    let ours = ours.split("###").next().unwrap_or("");
    let ours = ours.split("DMA Dev 1").next().unwrap_or("");
    for part in ["copy", "burst capacity", "error handling", "fill"] {
        assert!(ours.contains(&format!("Running {part} Tests")), "no test of {part}:\n{told}");
    }
    assert!(!ours.contains("skipping"), "{told}");
}

#[test]
fn dma_devices_of_dpdk() {
    if !is_there(DPDK_TEST, "dpdk-test") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = emulate_script("--preload", &dma_devices(directory.path())).output().unwrap();
    dma_devices_passed(&succeeds(&output));
}

#[test]
fn dma_devices_of_dpdk_for_a_user() {
    if !is_there(DPDK_TEST, "dpdk-test") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    if let Some(output) = run_as_user("--preload", &dma_devices(directory.path())) {
        dma_devices_passed(&succeeds(&output));
    }
}
