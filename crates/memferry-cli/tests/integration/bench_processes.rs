//! `memferry bench processes`: its rows, and mixes that cannot run.

use serde_json::Value;

use crate::support::{USAGE, fails, memferry, prints_json, text};

const BENCH: [&str; 3] = ["bench", "processes", "--quick"];

fn row<'a>(record: &'a Value, name: &str) -> &'a Value {
    let found = record["rows"].as_array().unwrap().iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {record}"))
}

#[test]
fn the_default_mixes_are_emulated_and_modelled() {
    let record = prints_json(&[&BENCH[..], &["--json"]].concat());
    for (name, how) in [
        ("emulated_8device", "emulated"),
        ("modelled_2device_0_8", "modelled"),
        ("modelled_12core_0_8_beside_device_0_8", "modelled"),
    ] {
        let row = row(&record, name);
        assert_eq!((row["how"].as_str(), row["peer"].as_str()), (Some(how), Some("alone")));
        assert!(row["ratio"].as_f64().unwrap() < 1.0, "they share: {row}");
    }
}

/// Real processes: one core runs on any machine, beside another only where there are two CPUs.
#[test]
fn processes_of_this_machine_are_measured() {
    let arguments = [&BENCH[..], &["--mix", "core", "--mix", "1024*core", "--json"]].concat();
    let record = prints_json(&arguments);
    let alone = row(&record, "processes_core");
    assert!(alone["value"].as_f64().unwrap() > 1e8 && alone["samples"] == 2, "{alone}");
    let notes = record["options"]["notes"].to_string();
    assert!(notes.contains("1024*core") && notes.contains("each process has one of its own"), "{notes}");
    assert!(notes.contains("not emulated, core"), "{notes}");
}

#[test]
fn what_cannot_run_has_a_reason() {
    fails(&[&BENCH[..], &["--mix", "gpu"]].concat(), USAGE, &["gpu", "neither core nor device"]);
    fails(&[&BENCH[..], &["--size", "2GiB"]].concat(), USAGE, &["1 byte to 1 GiB"]);
    let output = memferry(&[&BENCH[..], &["--mix", "core:77:78"]].concat()).output().unwrap();
    let told = text(&output.stderr);
    assert!(!output.status.success() && told.contains("no mix can run") && told.contains("77"), "{told}");
}

/// A process that has no queue says so; under an emulation its copies are emulated.
#[test]
fn devices_are_those_that_the_process_can_use() {
    let inside = ["emulate", "--", env!("CARGO_BIN_EXE_memferry")];
    let arguments = [&inside[..], &BENCH, &["--mix", "device", "--json"]].concat();
    let output = memferry(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(row(&record, "processes_device")["how"], "emulated");
}
