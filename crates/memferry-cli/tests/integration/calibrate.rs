//! `memferry calibrate`: other commands accept its profile, and it reports errors before it measures.
//!
//! Times mean nothing while other tests run, and may contradict each other. The command then fails and is run again.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use memferry_testing::{Needs, skip};
use serde_json::Value;

use crate::support::{FAILURE, USAGE, fails, memferry, prints, prints_json, says, text};

/// Runs the command until it is not disturbed.
fn calibrate(arguments: &[&str]) -> Output {
    let arguments: Vec<&str> =
        ["calibrate", "--quick"].into_iter().chain(arguments.iter().copied()).collect();
    undisturbed(|| memferry(&arguments).output().unwrap())
}

fn undisturbed(run: impl Fn() -> Output) -> Output {
    for _ in 0..30 {
        let output = run();
        if output.status.success() {
            return output;
        }
        says(&output, FAILURE, &["other programs disturb it", "run it again"]);
    }
    panic!("disturbed 30 times");
}

#[test]
fn other_commands_accept_the_profile() {
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
    let what = profile["references"][source].as_str().unwrap();
    assert!(what.contains("--quick") && what.contains(" of each figure; "), "{profile}");
    assert!(printed.contains("hardware threads of a node"), "{printed}");
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

    // Advice on this machine needs the measured rates.
    let advised = ["bench", "qdp", "--quick", "--json", "--variants", "advised", "--sizes", "2MiB"];
    let record = prints_json(&[&advised[..], &["--calibration", name]].concat());
    let row = record["rows"].as_array().unwrap().iter().find(|row| row["name"] == "qdp_advised").unwrap();
    assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["note"].as_str().unwrap().contains("advice: "), "{row}");
    assert_eq!(record["machine"]["origin"], "discovered", "{record}");
    assert_eq!(record["machine"]["parameters"], profile["parameters"], "{record}");

    let checked = calibrate_check(name, directory.path());
    assert!(checked.iter().any(|row| row["name"] == "own_error_median"), "{checked:?}");
    let predicted = checked.iter().filter(|row| row["peer"] == "modelled");
    assert!(predicted.clone().count() >= 15, "{checked:?}");
    assert!(predicted.clone().all(|row| row["peer_value"].as_f64().unwrap() > 0.0), "{checked:?}");
}

/// The storage of a directory is a part of the profile, and scans of files there predict with its rates.
#[test]
fn storage_is_measured_for_scans_of_files() {
    // A directory of the build is on a disk; /tmp may be memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let file = directory.path().join("mine.json");
    let (name, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let first = memferry(&["calibrate", "--quick", "--storage", data, "--out", name]).output().unwrap();
    if text(&first.stderr).contains("does not read past the page cache") {
        return skip(Needs::Kernel("O_DIRECT"), text(&first.stderr));
    }
    let printed = text(&calibrate(&["--storage", data, "--out", name]).stdout).to_owned();
    for part in ["storage_latency_", "storage_524288_depth_64_", "storage_depth_best_"] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    assert_eq!(fs::read_dir(data).unwrap().count(), 0, "no file is left");
    let mut profile: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let storage = &profile["storage"][0];
    assert_eq!(storage["directory"], fs::canonicalize(data).unwrap().to_str().unwrap());
    assert_eq!(storage["rates"].as_array().unwrap().len(), 21, "{storage}");
    let topology = prints_json(&["topology", "--profile", name, "--json"]);
    assert_eq!(topology["storage"], profile["storage"]);

    let table = format!("{data}/t.parquet");
    prints(&["sql", &format!("copy (select value as a from generate_series(1, 10000)) to '{table}'")]);
    let (table, query) = (format!("t={table}"), "explain select sum(a) from t");
    let explained = |profile: &[&str]| {
        prints(&[&["sql", "--table", &table, "--format", "csv"], profile, &[query]].concat())
    };
    let with = explained(&["--calibration", name]);
    assert!(with.contains(" ms a partition (storage ") && with.contains(" on demand, reading "), "{with}");
    assert!(!explained(&[]).contains("predicted"), "nothing is known of the storage");
    let run = prints(&["sql", "--table", &table, "--calibration", name, "--explain", "select sum(a) from t"]);
    assert!(run.contains("; predicted ") && run.contains(" ms, took "), "{run}");

    let cold =
        ["bench", "cold", "--quick", "--json", "--files", data, "--query", "q06", "--calibration", name];
    let record = prints_json(&cold);
    assert_eq!(record["bench"], "cold-calibrated", "it does not replace the record of the queries");
    let names: Vec<_> = record["rows"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    let geomeans = ["calibrated_geomean", "calibrated_datafusion_geomean", "uncalibrated_datafusion_geomean"];
    assert_eq!(names, [&geomeans[..], &["calibrated_min", "calibrated_q06"]].concat());
    assert!(record["rows"][0]["ratio"].as_f64().unwrap() > 0.0, "{record}");
    assert_eq!(record["rows"][4]["peer"], "memferry without calibration");

    // A profile of an earlier version has no storage.
    profile.as_object_mut().unwrap().remove("storage");
    fs::write(&file, profile.to_string()).unwrap();
    assert!(!explained(&["--calibration", name]).contains("predicted"));
    fails(&cold, FAILURE, &["the calibration has no storage", "memferry calibrate --storage"]);
}

#[test]
fn storage_that_cannot_be_measured_is_an_error_before_the_measurement() {
    let missing = memferry(&["calibrate", "--storage", "/no/such"]).output().unwrap();
    says(&missing, FAILURE, &["cannot use /no/such", "give a directory that can be written"]);
    let is_memory = fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" /dev/shm ");
    if !is_memory {
        return skip(Needs::Kernel("tmpfs"), "/dev/shm is no file system of its own");
    }
    let memory = memferry(&["calibrate", "--storage", "/dev/shm"]).output().unwrap();
    says(
        &memory,
        FAILURE,
        &["/dev/shm does not read past the page cache (it is tmpfs)", "a directory on a disk"],
    );
}

/// Under `memferry emulate` the devices are emulated. They are measured like others, and the profile marks them as
/// emulated.
#[test]
fn devices_are_measured() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let name = file.to_str().unwrap();
    let own = env!("CARGO_BIN_EXE_memferry");
    let probe = memferry(&["emulate", "--", "true"]).output().unwrap();
    if !probe.status.success() {
        return skip(Needs::Namespaces, text(&probe.stderr));
    }
    let calibrate = ["calibrate", "--quick", "--out", name];
    let output =
        undisturbed(|| memferry(&["emulate", "--devices", "2", "--", own]).args(calibrate).output().unwrap());
    let printed = text(&output.stdout);
    for part in ["dsa0, emulated: ", "dsa2, emulated: ", "32 copies under way", "queue wq0.0 by "] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    let profile: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for device in profile["accelerators"]["value"].as_array().unwrap() {
        assert!(device["mb_per_s_max"].as_f64().unwrap() > 0.0, "{device}");
    }
    let parameters = profile["parameters"].as_array().unwrap();
    for name in ["submit_ns", "device_offload_ns", "device_descriptor_ns"] {
        let found = parameters.iter().find(|it| it["name"] == name).expect(name);
        assert_eq!(found["basis"], "emulated");
        let source = found["source"].as_str().unwrap();
        assert!(source.contains("dsa0, which is emulated, queue wq0.0"), "{source}");
    }
    let facts = profile["facts"].as_array().unwrap();
    assert!(facts.iter().any(|it| it["name"] == "copy_dsa2"), "{facts:?}");

    let report = directory.path().join("report");
    prints(&["report", "--machine", name, "--out", report.to_str().unwrap()]);
    let page = fs::read_to_string(report.join("index.html")).unwrap();
    for part in ["One device does at most", "Many copies under way", "The devices were emulated ones"] {
        assert!(page.contains(part), "the advice has no {part}");
    }
    assert!(!page.contains("the rate of a device is not known"));
}

/// The notes contain the diagnosis of devices that cannot be used, and there are no rows for them.
#[test]
fn missing_devices_are_noted() {
    if std::path::Path::new("/sys/bus/dsa").exists() {
        return skip(Needs::NoDsa, "this machine has a DSA of its own");
    }
    let output = calibrate(&["--json"]);
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = record["options"]["notes"].to_string();
    assert!(notes.contains("no DSA was measured") && notes.contains("idxd"), "{notes}");
    let rows = record["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| !row["name"].as_str().unwrap().contains("dsa")), "{rows:?}");
}

/// Predictions follow from the profile alone: a slower filter makes the scans proportionally longer.
#[test]
fn predictions_follow_from_the_profile() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let name = file.to_str().unwrap();
    calibrate(&["--out", name]);
    let mut profile: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let mut predicted = |values: &[(&str, f64)]| {
        for (name, value) in values {
            let parameters = profile["parameters"].as_array_mut().unwrap();
            parameters.iter_mut().find(|it| it["name"] == *name).expect(name)["value"] = (*value).into();
        }
        fs::write(&file, profile.to_string()).unwrap();
        let checked = calibrate_check(name, directory.path());
        move |name: &str| {
            let row = checked.iter().find(|row| row["name"] == name).expect("a row");
            row["peer_value"].as_f64().unwrap()
        }
    };
    // So slow a filter that the rates of memory and cores do not matter, even from a calibration of a busy machine; all
    // other costs are 0.
    let slow = [
        ("filter_mb_per_s", 1.0),
        ("filter_together_mb_per_s", 0.5),
        ("late_mb_per_s", 1e6),
        ("late_together_mb_per_s", 1e6),
        ("query_ns", 0.0),
        ("query_partition_ns", 0.0),
        ("new_memory_mb_per_s", 0.1),
    ];
    let of = predicted(&slow);
    let is_near = |us: f64, expected_s: f64| (us / 1e6 / expected_s - 1.0).abs() < 0.02;
    assert!(is_near(of("scan_2x12MB_by_1"), 12.0), "{}", of("scan_2x12MB_by_1"));
    // A pool keeps 16 MiB; the rest comes from the kernel, a megabyte in ten seconds.
    assert!(is_near(of("pipeline_2x12MB_by_1"), 12.0), "{}", of("pipeline_2x12MB_by_1"));
    let new_s = (40.0 - 16.777_216) / 0.1;
    assert!(is_near(of("pipeline_2x40MB_by_1"), 40.0 + new_s), "{}", of("pipeline_2x40MB_by_1"));
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus != 2 {
        return skip(Needs::Cpus(2), format!("the scan by two CPUs is not checked on {cpus}"));
    }
    assert!(is_near(of("scan_2x12MB_by_2"), 12.0), "two at half the rate: {}", of("scan_2x12MB_by_2"));
}

/// The rows of a check of this profile, which are also saved.
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
fn unwritable_files_are_reported_before_measuring() {
    fails(
        &["calibrate", "--out", "/no/such/place/x.json"],
        FAILURE,
        &["cannot write the profile", "--out FILE"],
    );
    fails(&["calibrate", "--out", "/"], FAILURE, &["cannot write the profile to /", "--out FILE"]);
    fails(&["calibrate", "--check", "--results", "/dev/null/x"], FAILURE, &["/dev/null/x", "--results"]);
}

#[test]
fn wrong_options_are_usage_errors() {
    fails(&["calibrate", "--profile", "spr-56c"], USAGE, &["required arguments"]);
    fails(&["calibrate", "--check", "--profile", "no-such-profile"], USAGE, &["no-such-profile"]);
    fails(&["calibrate", "--quick", "--check", "--profile", "spr-56c"], FAILURE, &["is not known"]);
}

/// The old profile stays until the new one is complete.
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
    // The measurement takes far longer than 100 ms.
    std::thread::sleep(std::time::Duration::from_millis(100));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}
