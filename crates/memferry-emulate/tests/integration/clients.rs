//! A real client of the distribution, unmodified: accel-config.

use std::fs;
use std::process::Command;

use memferry_dsa::system::{Config, UnknownKeys};
use memferry_testing::{Needs, skip};

use crate::emulator::{emulate, emulate_script, is_available, text};

/// Directory of the configurations in Debian's package of accel-config.
const CONFIGS: &str = "/etc/accel-config/contrib/configs";

fn is_ready() -> bool {
    if Command::new("accel-config").arg("--version").output().is_err() {
        skip(Needs::Program("accel-config"), "accel-config is not installed; `cargo xtask setup` does it");
        return false;
    }
    is_available()
}

/// Runs a script and returns its standard output.
fn run(options: &str, script: &str) -> String {
    let output = emulate_script(options, &format!("set -e; {script}")).output().unwrap();
    assert!(output.status.success(), "{script}:\n{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn list_shows_ready_devices() {
    if !is_ready() {
        return;
    }
    let listed = Config::parse(&run("--devices 2", "accel-config list"), UnknownKeys::Keep).unwrap();
    let numbers: Vec<u32> = listed.devices.iter().map(|device| device.id.0).collect();
    assert_eq!(numbers, [0, 2]);
    for device in &listed.devices {
        let sizes: Vec<_> = device.groups[0].queues.iter().map(|queue| (queue.mode, queue.size)).collect();
        assert_eq!(sizes.len(), 2);
        assert!(sizes.iter().all(|(_, size)| *size == Some(64)) && sizes[0].0 != sizes[1].0, "{sizes:?}");
        assert_eq!(device.groups[0].engines.len(), 4);
    }
    // After boot no device is enabled, so only `list -i`, which includes idle devices, shows them.
    assert!(!run("--disabled", "accel-config list || true").contains("dsa0"));
    assert!(run("--disabled", "accel-config list -i").contains("\"wq0.7\""));
}

#[test]
fn eight_devices_are_listed() {
    if !is_ready() {
        return;
    }
    let listed = run("--devices 8", "accel-config list -i");
    assert_eq!(listed.matches("\"state\":\"enabled\"").count(), 8 + 16);
}

#[test]
fn packaged_configurations_are_loaded_and_enabled() {
    if !is_ready() {
        return;
    }
    for name in ["app", "net", "os", "storage"] {
        let file = format!("{CONFIGS}/{name}_profile.conf");
        let wanted = Config::parse(&fs::read_to_string(&file).unwrap(), UnknownKeys::Keep).unwrap();
        let script = format!("accel-config load-config -c {file} -e >&2; accel-config list");
        let listed = Config::parse(&run("--disabled", &script), UnknownKeys::Keep).unwrap();
        let queues = |config: &Config| {
            let groups = config.devices.iter().flat_map(|device| &device.groups);
            let mut queues: Vec<_> = groups
                .flat_map(|group| &group.queues)
                .map(|queue| {
                    (
                        queue.id,
                        queue.size,
                        queue.mode,
                        queue.kind.clone(),
                        queue.transfer_bytes_max,
                        queue.name.clone(),
                    )
                })
                .collect();
            queues.sort_by_key(|queue| queue.0);
            queues
        };
        assert_eq!(queues(&listed), queues(&wanted), "{name}");
        assert!(!queues(&wanted).is_empty());
        // The same file, read by memferry.
        let ours = run(&format!("--config {file}"), "accel-config list");
        assert_eq!(queues(&Config::parse(&ours, UnknownKeys::Keep).unwrap()), queues(&wanted), "{name}");
    }
}

/// The tool skips enabled devices when it loads a file, so it finds the devices as after boot.
#[test]
fn the_tool_loads_a_file_without_options() {
    if !is_ready() {
        return;
    }
    let file = format!("{CONFIGS}/app_profile.conf");
    let output = emulate("", &["accel-config", "load-config", "-c", &file, "-e"]).output().unwrap();
    let told = text(&output);
    assert!(output.status.success() && told.contains("Enabling wq wq0.1"), "{told}");
}

#[test]
fn a_saved_configuration_can_be_loaded() {
    if !is_ready() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    run("--devices 2", &format!("accel-config save-config -s {first}"));
    run(
        "--devices 2 --disabled",
        &format!("accel-config load-config -c {first} -e >&2; accel-config save-config -s {second}"),
    );
    let saved = fs::read_to_string(first).unwrap();
    assert!(saved.contains("wq2.1"), "{saved}");
    assert_eq!(saved, fs::read_to_string(second).unwrap());
}

#[test]
fn queues_are_configured_and_switched_one_by_one() {
    if !is_ready() {
        return;
    }
    let listed = run(
        "--disabled",
        "accel-config config-engine dsa0/engine0.2 --group-id=1
        accel-config config-wq dsa0/wq0.5 --group-id=1 --mode=shared --wq-size=40 --threshold=30 --priority=7 \
            --type=user --name=mine --driver-name=user --block-on-fault=1 --max-batch-size=64
        accel-config enable-device dsa0
        accel-config enable-wq dsa0/wq0.5
        [ -f /dev/dsa/wq0.5 ]
        accel-config list",
    );
    for part in [
        "\"wq0.5\"",
        "\"size\":40",
        "\"threshold\":30",
        "\"priority\":7",
        "\"name\":\"mine\"",
        "\"max_batch_size\":64",
    ] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    run(
        "",
        "accel-config disable-wq dsa0/wq0.0
        [ ! -e /dev/dsa/wq0.0 ] && [ -e /dev/dsa/wq0.1 ]
        [ $(cat /sys/bus/dsa/devices/wq0.0/state) = disabled ]
        accel-config disable-device dsa0
        [ ! -e /dev/dsa/wq0.1 ] && [ $(cat /sys/bus/dsa/devices/wq0.1/size) = 0 ]",
    );
}

#[test]
fn invalid_values_are_refused_as_by_the_driver() {
    if !is_ready() {
        return;
    }
    for (options, command) in [
        ("--disabled", "accel-config config-wq dsa0/wq0.0 --wq-size=129"),
        ("--disabled", "accel-config config-wq dsa0/wq0.0 --priority=16"),
        ("--disabled", "accel-config config-wq dsa0/wq0.0 --group-id=4"),
        ("--disabled", "accel-config config-wq dsa0/wq0.0 --mode=both"),
        ("--disabled", "accel-config config-wq dsa0/wq0.0 --threshold=1"),
        ("--disabled", "accel-config config-engine dsa0/engine0.0 --group-id=9"),
        ("--disabled", "accel-config config-group dsa0/group0.0 --read-buffers-allowed=1000"),
        ("--disabled", "accel-config enable-device dsa0"),
        ("--disabled", "accel-config enable-wq dsa0/wq0.0"),
        ("", "accel-config config-wq dsa0/wq0.0 --wq-size=1"),
        ("", "accel-config enable-wq dsa0/wq0.0"),
        ("", "accel-config enable-wq dsa0/wq0.7"),
        ("", "accel-config disable-device dsa5"),
    ] {
        let output = emulate_script(options, command).output().unwrap();
        let told = text(&output);
        let is_known = matches!(output.status.code(), Some(code) if code < 125);
        assert!(is_known && (!output.status.success() || told.contains("fail")), "{command}: {told}");
    }
}
