//! `memferry calibrate`: what it writes is a profile that other commands take; what it cannot do it says at once.
//!
//! Times of tests that run beside others mean nothing, and may even contradict each other, which is said and ends the
//! command: then it is run again.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::{FAILURE, USAGE, fails, memferry, prints, prints_json, says, text};

/// Runs it until nothing disturbed it too much.
fn calibrate(arguments: &[&str]) -> Output {
    let arguments: Vec<&str> =
        ["calibrate", "--quick"].into_iter().chain(arguments.iter().copied()).collect();
    for _ in 0..30 {
        let output = memferry(&arguments).output().unwrap();
        if output.status.success() {
            return output;
        }
        says(&output, FAILURE, &["other programs disturb it", "run it again"]);
    }
    panic!("disturbed 30 times");
}

#[test]
fn what_is_written_is_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let name = file.to_str().unwrap();
    let printed = text(&calibrate(&["--out", name]).stdout);
    for part in ["latency_", "core_copy_", "memcpy_4096", "filter_mb_per_s", "DSA", "written to"] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["mine.json"], "nothing else is left");

    let profile: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let parameters = profile["parameters"].as_array().unwrap();
    assert!(parameters.iter().all(|it| it["basis"] == "measured"), "{profile}");
    let source = profile["read_mb_per_s"]["source"].as_str().unwrap();
    assert!(profile["references"][source].as_str().unwrap().contains("--quick"), "{profile}");
    let topology = prints_json(&["topology", "--profile", name, "--json"]);
    assert_eq!(topology["parameters"], profile["parameters"]);

    let scenario = directory.path().join("scan.toml");
    let query = "about = 'x'\nmachine = 'spr-56c'\n[query]\ncpus = 0\ngroups = 1\nchunk = '1 MiB'\n\
        [[query.runs]]\nname = 'scan'\ncolumns = [{ name = 'a', size = '64 MiB', node = 0 }]\n\
        stages = [{ name = 'scan', reads = ['a'], threads = 1, thread_mb_per_s = 1000.0 }]\nprefetch = []\n";
    fs::write(&scenario, query).unwrap();
    let node = topology["nodes"][0]["id"].as_u64().unwrap();
    if node == 0 {
        let rows = prints(&["sim", scenario.to_str().unwrap(), "--machine", name]);
        assert!(rows.contains("scan"), "{rows}");
    }

    let checked = calibrate_check(name, directory.path());
    assert!(checked.iter().any(|row| row["name"] == "own_error_median"), "{checked:?}");
    let predicted = checked.iter().filter(|row| row["peer"] == "modelled");
    assert!(predicted.clone().count() >= 15, "{checked:?}");
    assert!(predicted.clone().all(|row| row["peer_value"].as_f64().unwrap() > 0.0), "{checked:?}");
}

/// The rows of a check of that profile, which are also kept.
fn calibrate_check(profile: &str, results: &Path) -> Vec<Value> {
    let results = results.join("results");
    let arguments = ["--check", "--profile", profile, "--json", "--results", results.to_str().unwrap()];
    let json: Value = serde_json::from_slice(&calibrate(&arguments).stdout).unwrap();
    let machine = fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
    let mut kept: Vec<_> = fs::read_dir(machine).unwrap().map(|it| it.unwrap().path()).collect();
    kept.sort();
    assert!(kept[0].to_str().unwrap().ends_with("-calibrate.csv"), "{kept:?}");
    assert!(fs::read_to_string(&kept[0]).unwrap().contains("own_error_median"));
    json["rows"].as_array().unwrap().clone()
}

#[test]
fn what_cannot_be_written_is_said_before_measuring() {
    fails(&["calibrate", "--out", "/no/such/place/x.json"], FAILURE, &["cannot be written", "--out FILE"]);
    fails(&["calibrate", "--out", "/"], FAILURE, &["cannot be written to /", "--out FILE"]);
    fails(&["calibrate", "--check", "--results", "/dev/null/x"], FAILURE, &["/dev/null/x", "--results"]);
}

#[test]
fn what_cannot_be_meant() {
    fails(&["calibrate", "--profile", "spr-56c"], USAGE, &["required arguments"]);
    fails(&["calibrate", "--check", "--profile", "no-such-profile"], USAGE, &["no-such-profile"]);
    fails(&["calibrate", "--quick", "--check", "--profile", "spr-56c"], FAILURE, &["is not known"]);
}

/// Whoever has enough of waiting still has what was there.
#[test]
fn an_interrupted_run_leaves_the_old_profile() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    fs::write(&file, "old").unwrap();
    let mut child = memferry(&["calibrate", "--out", file.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It takes far longer than starting a program does.
    std::thread::sleep(std::time::Duration::from_millis(100));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}
