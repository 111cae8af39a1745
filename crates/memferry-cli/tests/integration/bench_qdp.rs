//! `memferry bench qdp` and `memferry bench atomics`: their rows on each backend, their options, and continuation after an
//! interruption.

#[allow(dead_code, reason = "a part of it is enough here")]
use std::fs;

use serde_json::Value;

use crate::support::{FAILURE, USAGE, fails, prints, prints_json};

const MODEL: [&str; 2] = ["--machine", "xeon-max-9468-2s-flat"];

fn quick(name: &str, options: &[&str]) -> Value {
    prints_json(&[&["bench", name, "--quick", "--json"], options].concat())
}

fn rows(record: &Value) -> &[Value] {
    record["rows"].as_array().unwrap()
}

#[track_caller]
fn row<'a>(record: &'a Value, name: &str) -> &'a Value {
    let found = rows(record).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {record:#}"))
}

/// A row has a value or says why not.
#[track_caller]
fn is_whole(name: &str, record: &Value, how: &str) {
    assert_eq!(record["bench"], name);
    assert!(!rows(record).is_empty());
    for row in rows(record) {
        assert!(
            row["value"].is_number() || row["note"].as_str().is_some_and(|note| !note.is_empty()),
            "{row}"
        );
        assert_eq!(row["how"], how, "{row}");
    }
}

#[test]
fn table_6_2_with_its_published_peers() {
    let record = quick("qdp", &MODEL);
    is_whole("qdp", &record, "modelled");
    // Times, hit rates and speed-ups as printed, those that were calibrated on within 0.1 %.
    for (name, printed, tolerance) in [
        ("qdp_baseline", 131.18, 0.001),
        ("qdp_upper-limit", 93.09, 0.001),
        ("qdp_prefetching", 159.72, 0.07),
        ("qdp_distributed", 106.52, 0.07),
        ("qdp_hit_rate_prefetching", 0.8938, 0.07),
        ("qdp_hit_rate_distributed", 0.932, 0.005),
        ("qdp_speed_up_upper-limit", 1.41, 0.01),
        ("qdp_speed_up_prefetching", 0.82, 0.03),
        ("qdp_speed_up_distributed", 1.23, 0.1),
    ] {
        let row = row(&record, name);
        let value = row["value"].as_f64().unwrap();
        assert!((value / printed - 1.0).abs() < tolerance, "{row}");
        assert!((row["peer_value"].as_f64().unwrap() - printed).abs() < 1e-9, "{row}");
        assert!(row["peer"].as_str().unwrap().starts_with("published (Fürst 2024, F0"), "{row}");
        assert!((row["ratio"].as_f64().unwrap() - 1.0).abs() < 2.0 * tolerance, "{row}");
    }
    // A longer time is worse, a higher hit rate better.
    let prefetching = row(&record, "qdp_prefetching");
    let is_slower = prefetching["value"].as_f64() > prefetching["peer_value"].as_f64();
    assert_eq!(prefetching["ratio"].as_f64().unwrap() < 1.0, is_slower, "{prefetching}");
    for name in ["qdp_speed_up_advised", "qdp_speed_up_advised-distributed", "qdp_speed_up_cache-mode"] {
        assert!(row(&record, name)["value"].as_f64().unwrap() > 0.999, "{record:#}");
    }
    assert!(row(&record, "qdp_cache-mode")["note"].as_str().unwrap().contains("assumed"));
}

#[test]
fn the_query_here_and_with_an_emulated_device() {
    for (options, how) in [(&["--on", "machine"][..], "measured"), (&["--on", "emulated"][..], "emulated")] {
        let options = [options, &["--sync", "barrier", "--sizes", "2MiB", "--chunks", "256KiB"]].concat();
        let record = quick("qdp", &options);
        is_whole("qdp", &record, how);
        for name in ["qdp_baseline", "qdp_prefetching", "qdp_scan_b_prefetching", "qdp_speed_up_prefetching"]
        {
            assert!(row(&record, name)["value"].as_f64().unwrap() > 0.0, "{record:#}");
        }
        assert_eq!(row(&record, "qdp_hit_rate_prefetching")["value"], 1.0);
        assert_eq!(row(&record, "qdp_baseline")["samples"], 2);
        assert_eq!(row(&record, "qdp_baseline")["sync"], "barrier");
    }
}

/// Where the gain comes from: in the model, and why a machine without tiers cannot tell.
#[test]
fn a_verdict_about_the_gain() {
    let decide = ["bench", "qdp", "--quick", "--decide"];
    let text = prints(&[&decide[..], &MODEL].concat());
    assert!(text.contains("columns on two nodes gain 1.23 without any copy"), "{text}");
    let record = prints_json(&[&decide[..], &MODEL, &["--json"]].concat());
    assert_eq!(record["bench"], "qdp-decide");
    assert!((row(&record, "decide_places")["ratio"].as_f64().unwrap() - 1.233).abs() < 0.001);
    assert_eq!(row(&record, "decide_gain")["how"], "modelled");
    assert!(record["options"]["decide"].as_str().unwrap().starts_with("Both"), "{record}");
    let flat = [&decide[..], &["--machine", "skylake-8180-snc-off"]].concat();
    fails(&flat, FAILURE, &["cannot decide", "no faster memory"]);
    fails(&[&decide[..], &["--near", "0", "--other", "0"]].concat(), FAILURE, &["at the same time"]);
    fails(&[&decide[..], &MODEL, &["--groups", "4,8"]].concat(), USAGE, &["one value"]);
}

/// The baseline runs first in any order of variants.
#[test]
fn the_speed_up_is_not_lost() {
    let of = |variants| quick("qdp", &[&MODEL[..], &["--variants", variants]].concat());
    let (last, first) = (of("prefetching,baseline"), of("baseline,prefetching"));
    assert_eq!(rows(&last), rows(&first));
    assert!(row(&last, "qdp_speed_up_prefetching")["value"].as_f64().is_some_and(|value| value < 1.0));
    let alone = of("prefetching");
    let missing = row(&alone, "qdp_speed_up_prefetching");
    assert!(
        missing["value"].is_null() && missing["note"].as_str().unwrap().contains("baseline"),
        "{missing}"
    );
}

#[test]
fn sharing_on_each_backend() {
    let record = quick("atomics", &[]);
    is_whole("atomics", &record, "measured");
    for name in ["atomics_hit_threads1", "atomics_entry_threads1_churn", "atomics_own_threads1"] {
        assert!(row(&record, name)["value"].as_f64().unwrap() > 0.0, "{record:#}");
    }
    let modelled = quick("atomics", &["--machine", "skylake-8180-snc-on"]);
    is_whole("atomics", &modelled, "modelled");
    let latency =
        |distance: &str| row(&modelled, &format!("atomics_shared_threads2_{distance}"))["value"].as_f64();
    assert!(latency("node") < latency("sockets") && latency("nodes") < latency("sockets"), "{modelled:#}");
    let emulated = quick("atomics", &["--on", "emulated"]);
    is_whole("atomics", &emulated, "emulated");
    assert!(rows(&emulated).iter().all(|row| row["value"].is_null()));
    let text = prints(&["bench", "atomics", "--quick", "--on", "emulated"]);
    assert!(text.starts_with("\nNot run:"), "{text}");
}

#[test]
fn options_from_a_file_and_what_varies_in_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("options.toml");
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "machine = 'xeon-max-9468-2s-flat'\nvariants = ['baseline', 'prefetching']\ngroups = [4, 8]\nwarm-ups = 3\n",
    )
    .unwrap();
    let record =
        prints_json(&["bench", "qdp", "--quick", "--options", path, "--chunks", "4MiB,8MiB", "--json"]);
    let totals = rows(&record).iter().filter(|row| row["figure"] == "total");
    let names: Vec<&str> = totals.map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 8);
    assert_eq!(names[1], "qdp_prefetching_groups4_chunk4MiB");
    assert_eq!(row(&record, names[1])["chunk_bytes"], 4 << 20);
    // Each is compared with the baseline of its own groups and chunks.
    let ms = |name: &str| row(&record, name)["value"].as_f64().unwrap();
    let expected = ms("qdp_baseline_groups8_chunk4MiB") / ms("qdp_prefetching_groups8_chunk4MiB");
    assert!((ms("qdp_speed_up_prefetching_groups8_chunk4MiB") - expected).abs() < 1e-12);
    assert_eq!(record["options"]["warm-ups"], 0, "the model has no noise");

    fs::write(&file, "variants = 1\n").unwrap();
    fails(&["bench", "qdp", "--options", path], USAGE, &["options.toml", "bench qdp --help"]);
    fs::write(&file, "thread = [1]\n").unwrap();
    fails(&["bench", "atomics", "--options", path], USAGE, &["options.toml", "thread"]);
}

#[test]
fn mistakes() {
    fails(&["bench", "qdp", "--variants", "best"], USAGE, &["--variants", "best", "upper-limit"]);
    fails(&["bench", "qdp", "--sync", "never"], USAGE, &["--sync", "relaxed"]);
    fails(&["bench", "qdp", "--groups", "0"], USAGE, &["--groups", "from 1 on"]);
    fails(&["bench", "qdp", "--home", "4000"], USAGE, &["--home", "4000"]);
    fails(&[&["bench", "qdp", "--home", "8"], &MODEL[..]].concat(), USAGE, &["node 8", "CPUs"]);
    fails(&["bench", "qdp", "--warm-ups", "1000000"], USAGE, &["--warm-ups"]);
    fails(&["bench", "qdp", "--iterations", "0"], USAGE, &["--iterations"]);
    fails(&["bench", "qdp", "--on", "model"], USAGE, &["--machine"]);
    fails(&["bench", "atomics", "--threads", "some"], USAGE, &["--threads", "or all"]);
    fails(&["bench", "atomics", "--works", "own", "--churn", "on"], USAGE, &["counters have no churn"]);
    // A contradiction is a row with a reason.
    let record = quick("qdp", &["--groups", "3", "--scan-threads", "4"]);
    assert!(rows(&record).iter().all(|row| row["note"].as_str().unwrap().contains("divided evenly")));
}

#[test]
fn an_interrupted_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let command = [&["bench", "qdp", "--quick", "--out", out, "--json"], &MODEL[..]].concat();
    let whole = prints_json(&command);
    let machine = fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    let kept: Vec<_> = fs::read_dir(&machine).unwrap().map(|entry| entry.unwrap().path()).collect();
    let csv = kept.iter().find(|path| path.extension().is_some_and(|it| it == "csv")).unwrap();
    assert!(csv.to_str().unwrap().ends_with("-qdp-modelled.csv"), "{csv:?}");
    let text = fs::read_to_string(csv).unwrap();
    assert!(text.lines().next().unwrap().contains(",figure,variant,column_bytes,groups,"), "{text}");
    assert_eq!(text.lines().count(), rows(&whole).len() + 1);
    // The file of a run that was killed after the baseline, whose time is marked: others are compared with it.
    let mut left = whole.clone();
    left["rows"].as_array_mut().unwrap().truncate(3);
    left["rows"][0]["value"] = 1000.0.into();
    fs::write(machine.join("qdp-modelled.unfinished.json"), left.to_string()).unwrap();
    let continued = prints_json(&command);
    assert_eq!(rows(&continued).len(), rows(&whole).len());
    assert_eq!(rows(&continued)[0]["value"], 1000.0);
    let limit = row(&continued, "qdp_upper-limit")["value"].as_f64().unwrap();
    let speed_up = row(&continued, "qdp_speed_up_upper-limit")["value"].as_f64().unwrap();
    assert!((speed_up - 1000.0 / limit).abs() < 1e-9);
    fs::write(machine.join("qdp-modelled.unfinished.json"), left.to_string()).unwrap();
    fails(&[&command[..], &["--groups", "4"]].concat(), FAILURE, &["other options", "--restart"]);
}
