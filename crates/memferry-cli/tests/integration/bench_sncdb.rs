//! `memferry bench sncdb`: its rows, and runs that this machine cannot have.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use memferry_testing::{Needs, skip};
use serde_json::Value;

use crate::support::{USAGE, fails, memferry, prints_json, text};

const BENCH: [&str; 3] = ["bench", "sncdb", "--quick"];

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

fn names(record: &Value) -> Vec<&str> {
    record["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn random_accesses_and_scans_are_counted() {
    if !has_two_cpus() {
        return skip(Needs::Cpus(2), "the tables are on two domains");
    }
    let record = prints_json(&[&BENCH[..], &["--json"]].concat());
    let names = names(&record);
    for start in ["random_all_stealing_opportunistic_", "scan_1000000_all_stealing_2_4_opportunistic_"] {
        let of_run: Vec<&&str> = names.iter().filter(|name| name.starts_with(start)).collect();
        let ends = |end: &str| of_run.iter().any(|name| name.ends_with(end));
        assert!(ends("_deviation") && ends("_fairness") && ends("_connection"), "{names:?}");
        assert!(of_run.iter().all(|name| name.contains("_balancing_")), "{names:?}");
    }
    for row in record["rows"].as_array().unwrap() {
        assert!(row["value"].as_f64().unwrap() >= 0.0 && row["how"] == "measured", "{row}");
    }
    assert_eq!(record["options"]["connections"], 4);
    assert_eq!(record["options"]["rows"], 20_000);
}

#[test]
fn impossible_runs_are_left_out_and_named() {
    if !has_two_cpus() {
        return skip(Needs::Cpus(2), "the tables are on two domains");
    }
    // On a machine with other CPUs than those of the tables both clients run.
    let clients = ["--statements", "scan", "--clients", "anywhere,elsewhere", "--json"];
    let output = memferry(&[&BENCH[..], &clients].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_elsewhere = record["options"]["elsewhere_cpus"].as_array().is_some_and(|cpus| !cpus.is_empty());
    assert_eq!(names(&record).iter().any(|name| name.contains("_elsewhere_")), is_elsewhere);
    assert_eq!(text(&output.stderr).contains("left out scan_1000000_"), !is_elsewhere);
    for (options, says) in [
        (["--workers", "third"], "all, half, first, second"),
        (["--on-first", "7"], "0..=6"),
        (["--stealing", "some"], "bulk(N)"),
        (["--balancing", "auto"], "kept, off, on"),
        (["--rows", "0"], "--rows"),
    ] {
        fails(&[&BENCH[..], &options].concat(), USAGE, &[says]);
    }
}

/// A machine that need not be here: all settings of its socket, modelled.
#[test]
fn another_machine_is_modelled() {
    let record =
        prints_json(&["bench", "sncdb", "--machine", "skylake-8180-snc-on", "--out", "none", "--json"]);
    assert_eq!(record["bench"], "sncdb-model");
    let names = names(&record);
    for name in ["random_wait", "scan_10000_all_stealing_2_4", "scan_1000000_first_0_6_away"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(record["rows"].as_array().unwrap().iter().all(|row| row["how"] == "modelled"), "{record}");
    fails(&["bench", "sncdb", "--machine", "skylake-8180-snc-on", "--quick"], USAGE, &["--machine"]);
}

/// A signal in mid-run left NUMA balancing switched.
#[test]
fn a_signal_restores_numa_balancing() {
    const SWITCH: &str = "/proc/sys/kernel/numa_balancing";
    if !has_two_cpus() {
        return skip(Needs::Cpus(2), "the tables are on two domains");
    }
    let Ok(before) = fs::read_to_string(SWITCH) else {
        return skip(Needs::Kernel("NUMA balancing"), "it has no switch");
    };
    if fs::write(SWITCH, &before).is_err() {
        return skip(Needs::Root, "switching NUMA balancing");
    }
    let other = if before.trim() == "0" { ["on", "1"] } else { ["off", "0"] };
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let long = ["--seconds", "600", "--statements", "random", "--balancing", other[0]];
        let mut running = memferry(&[&BENCH[..], &long].concat()).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(SWITCH).unwrap().trim() != other[1] {
            assert!(Instant::now() < deadline && running.try_wait().unwrap().is_none(), "{signal}");
            sleep(Duration::from_millis(20));
        }
        assert!(Command::new("kill").args([signal, &running.id().to_string()]).status().unwrap().success());
        assert_eq!(running.wait().unwrap().code(), Some(status), "{signal}");
        assert_eq!(fs::read_to_string(SWITCH).unwrap(), before, "{signal}");
    }
}
