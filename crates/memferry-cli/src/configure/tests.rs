//! Tests over a fake driver, which refuses the same writes as the kernel's.

use clap::Parser;
use memferry_dsa_emulator::{FakeDevice, FakeDriver};
use serde_json::Value;

use super::*;
use crate::error::sentence;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn arguments(line: &str) -> Arguments {
    Line::try_parse_from(["memferry"].into_iter().chain(line.split(' '))).unwrap().arguments
}

#[track_caller]
fn prints(driver: &FakeDriver, line: &str) -> String {
    let mut out = Vec::new();
    on(&arguments(line), driver, &mut out).unwrap_or_else(|error| panic!("{line}: {}", sentence(&error)));
    String::from_utf8(out).unwrap()
}

/// Expects an error of one line with all of `words`, and no output.
#[track_caller]
fn fails(driver: &FakeDriver, line: &str, words: &[&str]) {
    let mut out = Vec::new();
    let output = sentence(&on(&arguments(line), driver, &mut out).unwrap_err());
    for word in words {
        assert!(output.contains(word), "{word:?} is not in: {output}");
    }
    assert!(!output.contains('\n') && out.is_empty(), "{output}");
}

#[track_caller]
fn assert_line(text: &str, parts: &[&str]) {
    let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line has {parts:?}:\n{text}");
}

#[test]
fn profiles_are_applied_one_after_the_other() {
    let driver = FakeDriver::xeon_max();
    for profile in Profile::all() {
        let mut line = format!("--profile {} --apply", profile.name());
        let config = profile.config();
        if profile.for_machine(&SystemState::read(&driver).unwrap()).is_err() {
            fails(
                &driver,
                &line,
                &["does not fit this machine", "1 node with 4 DSA devices", "name the devices"],
            );
            config.devices.iter().for_each(|device| line += &format!(" --device {}", device.id));
        }
        if driver.log().is_empty() {
            prints(&driver, &line);
        } else {
            fails(&driver, &line, &["dsa0 is enabled", "--force"]);
        }
        let output = prints(&driver, &format!("{line} --force"));
        assert!(
            output.contains("writes done. Enabled: dsa0") && output.contains("can use wq0.0"),
            "{output}"
        );
        // All requested devices are there; devices of earlier profiles are unchanged.
        let now = Config::of(&SystemState::read(&driver).unwrap());
        for device in config.devices {
            let found = now.devices.iter().find(|found| found.id == device.id).unwrap();
            assert_eq!(found.queues().count(), device.queues().count(), "{}", profile.name());
            assert_eq!(found.engines().count(), device.engines().count(), "{}", profile.name());
        }
    }
}

#[test]
fn without_apply_nothing_is_written() {
    let driver = FakeDriver::xeon_max();
    let output = prints(&driver, "--profile 2n1d1e1w");
    assert_eq!(driver.log(), []);
    assert!(
        output.contains("What changes in dsa0, and under their own names in dsa2 (2 other settings"),
        "{output}"
    );
    assert_line(&output, &["set ", "wq0.0", "size", "0 ", "128"]);
    assert_line(&output, &["enable", "wq0.0", "state", "disabled", "enabled"]);
    assert!(output.ends_with("Nothing was written: --apply does it, as root.\n"), "{output}");
    // When applied again, nothing changes, but devices must be disabled in between.
    prints(&driver, "--profile 2n1d1e1w --apply");
    let output = prints(&driver, "--profile 2n1d1e1w");
    assert!(output.contains("with --force, because dsa0, dsa2 would be disabled"), "{output}");
    assert!(!output.contains("size "), "{output}");
}

/// Devices with different changes have their own tables.
#[test]
fn different_devices_have_their_own_tables() {
    let driver = FakeDriver::xeon_max();
    prints(&driver, "--profile 1n1d4e8w-dedicated --device dsa2 --apply");
    let output = prints(&driver, "--profile 3n1d1e1w");
    assert!(output.contains("What changes in dsa0, and under their own names in dsa4 ("), "{output}");
    assert!(output.contains("What changes in dsa2 ("), "{output}");
    assert_line(&output, &["reset", "wq2.7", "size", "16 ", "0"]);
    // A queue that is reset and set has one row.
    assert_eq!(
        output.lines().filter(|line| line.contains("wq2.0") && line.contains(" size ")).count(),
        1,
        "{output}"
    );
}

#[test]
fn json_has_each_write() {
    let driver = FakeDriver::xeon_max();
    let report: Value =
        serde_json::from_str(&prints(&driver, "--profile 1n1d1e1w --device dsa6 --json")).unwrap();
    let changes = report["changes"].as_array().unwrap();
    assert_eq!(changes[0]["path"], "/sys/bus/dsa/devices/dsa6/engine6.0/group_id");
    assert_eq!((&changes[0]["now"], &changes[0]["value"]), (&"-1".into(), &"0".into()));
    assert_eq!(changes.last().unwrap()["path"], "/sys/bus/dsa/drivers/user/bind");
    assert_eq!(changes.last().unwrap()["now"], "disabled");
    // accel-config can load the configuration in the report.
    let config = Config::parse(&report["config"].to_string(), UnknownKeys::Refuse).unwrap();
    assert_eq!(config.devices[0].id, DeviceId(6));
    assert_eq!(report["applied"], Value::Null);
    let line = "--profile 1n1d1e1w --device dsa6 --json --apply";
    let report: Value = serde_json::from_str(&prints(&driver, line)).unwrap();
    assert_eq!(report["applied"]["enabled"], serde_json::json!(["dsa6", "wq6.0"]));
    assert_eq!(report["usable"], serde_json::json!(["wq6.0"]));
}

#[test]
fn refused_writes_are_explained() {
    let driver = FakeDriver::xeon_max();
    driver.become_user(1000, 0);
    fails(
        &driver,
        "--profile 1n1d1e1w --apply",
        &["Permission denied", "run as root", "nothing was changed"],
    );
    driver.become_user(0, u64::MAX);
    driver.fail_write("sys/bus/dsa/drivers/user/bind", 19);
    let words =
        ["drivers/user/bind = wq0.0", "type and driver_name", "writes were done and stay", "enabled: dsa0"];
    fails(&driver, "--profile 1n1d1e1w --apply", &words);

    let fixed = FakeDevice { configurable: false, ..FakeDevice::sapphire_rapids(DeviceId(0), 0) };
    fails(&FakeDriver::new(&[fixed]), "--profile 1n1d1e1w", &["dsa0 cannot be configured here"]);
    fails(&FakeDriver::xeon_max(), "--profile 1n2d1e1w", &["does not fit this machine", "0 have"]);
    fails(&FakeDriver::xeon_max(), "--profile 1n1d1e1w --device dsa1", &["dsa1: there is no such device"]);
    fails(
        &FakeDriver::new(&[]),
        "--profile 1n1d1e1w --apply",
        &["no DSA to configure", "found no DSA device"],
    );
    let little = FakeDevice { counts: (4, 2, 8), entries: 64, ..FakeDevice::sapphire_rapids(DeviceId(0), 0) };
    let words =
        ["nothing was changed: engine0.2: the device has 2 engines", "; dsa0: ", "128 entries together"];
    fails(&FakeDriver::new(&[little]), "--profile 1n1d4e1w", &words);
}

#[test]
fn permission_problems_are_explained() {
    let driver = FakeDriver::xeon_max();
    prints(&driver, "--profile 2n1d1e1w --apply");
    driver.become_user(1000, 0);
    let findings = Findings::of(&SystemState::read(&driver).unwrap());
    let output = findings.text();
    assert!(
        output.starts_with("No work queue of a DSA can be used:\n- /dev/dsa/wq0.0 has mode 0600"),
        "{output}"
    );
    let flowing = output.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flowing.contains("(likewise wq2.0)"), "{output}");
    assert!(flowing.contains("- dsa4 is disabled") && flowing.contains("(likewise dsa6, dsa8,"), "{output}");
}

#[test]
fn values_with_the_number_of_a_device() {
    assert_eq!(changes::without("memferry2_2", DeviceId(2)), "memferry#_2");
    assert_eq!(changes::without("memferry12_2", DeviceId(2)), "memferry12_2");
    assert_eq!(changes::without("app", DeviceId(2)), "app");
}
