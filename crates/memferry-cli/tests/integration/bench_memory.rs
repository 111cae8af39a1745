//! `memferry bench memory`: its rows, its output, its errors.

use std::fs;

use serde_json::Value;

use crate::support::{USAGE, fails, memferry, prints, prints_json, text};

fn rows<'a>(record: &'a Value, figure: &'a str) -> Vec<&'a Value> {
    record["rows"].as_array().unwrap().iter().filter(|row| row["figure"] == figure).collect()
}

#[test]
fn a_record_has_comparisons_matrices_and_curves() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output = memferry(&["bench", "memory", "--quick", "--json", "--out", out]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let compared = rows(&record, "compared");
    for (name, peer) in [
        ("idle_latency", "a dependent-load loop in C"),
        ("read_bandwidth", "a read loop in C"),
        ("write_bandwidth", "a fill loop in C"),
        ("stream_copy", "STREAM's copy in C"),
        ("mix_bandwidth", "a 2:1 loop in C"),
    ] {
        let row =
            compared.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {record}"));
        assert_eq!(row["peer"], peer);
        assert!(row["ratio"].as_f64().unwrap() > 0.0 && row["how"] == "measured", "{row}");
    }
    assert!(record["options"]["compiler"].as_str().unwrap().contains("-march=native"), "{record}");
    let latencies = rows(&record, "latency");
    assert_eq!(rows(&record, "bandwidth").len(), 4 * latencies.len());
    assert!(latencies.iter().any(|row| row["pages"] == "small"), "{record}");
    for row in rows(&record, "loaded_latency") {
        assert!(row["delay"].is_u64() && row["load_mb_per_s"].is_f64() && row["unit"] == "ns", "{row}");
    }

    // The report draws the record; the CSV has the same rows.
    let machine = fs::read_dir(out).unwrap().next().unwrap().unwrap().path();
    let csv = fs::read_dir(machine).unwrap().map(|entry| entry.unwrap().path());
    let csv = csv.into_iter().find(|path| path.extension().is_some_and(|it| it == "csv")).unwrap();
    let lines = fs::read_to_string(csv).unwrap();
    assert!(lines.starts_with("name,value,unit") && lines.contains(",cpus,memory,pages,traffic,"), "{lines}");
    assert_eq!(lines.lines().count(), 1 + record["rows"].as_array().unwrap().len());
    let report = tempfile::tempdir().unwrap();
    prints(&["report", "--results", out, "--out", report.path().to_str().unwrap()]);
    for name in ["memory-latency.svg", "memory-bandwidth.csv", "memory-compared.svg"] {
        assert!(report.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn options_restrict_the_work() {
    let options = ["--threads", "1", "--size", "3MiB", "--pages", "small", "--nodes", "0", "--seed", "7"];
    let arguments = [&["bench", "memory", "--quick"], &options[..]].concat();
    let record = prints_json(&[&arguments[..], &["--json"]].concat());
    assert_eq!(record["seed"], 7);
    assert_eq!(record["options"]["size_bytes"], 4 << 20, "a multiple of huge pages");
    for row in record["rows"].as_array().unwrap() {
        assert!(row["threads"] == 1 && row["pages"] == "small" && row["memory"] == 0, "{row}");
    }
    let notes = record["options"]["notes"].to_string();
    assert!(notes.contains("no latency under load") && rows(&record, "loaded_latency").is_empty(), "{notes}");
    let text = prints(&arguments);
    for words in ["idle, ns", "2:1 mix, MB/s", "STREAM's copy in C", "no latency under load"] {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}

#[test]
fn without_a_compiler_there_is_a_note() {
    let arguments = ["bench", "memory", "--quick", "--json", "--pages", "small", "--threads", "1"];
    let output = memferry(&arguments).env("PATH", "/nonexistent").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let compared = rows(&record, "compared");
    assert_eq!(compared.len(), 5);
    for row in compared {
        assert!(row["value"].as_f64().unwrap() > 0.0 && row["ratio"].is_null(), "{row}");
        assert!(row["peer"].as_str().unwrap().contains("without a number: cc cannot be run"), "{row}");
    }
    assert!(record["options"]["notes"].to_string().contains("install a C compiler"), "{record}");
    assert!(record["options"]["compiler"].is_null(), "{record}");
}

#[test]
fn wrong_options_are_usage_errors() {
    let bench = ["bench", "memory", "--quick"];
    for (options, words) in [
        (["--nodes", "999"], "999"),
        (["--nodes", "zero"], "--nodes"),
        (["--threads", "0"], "--threads"),
        (["--threads", "100000"], "100000 threads are more than"),
        (["--size", "0"], "--size"),
        (["--size", "1TiB"], "128 GiB"),
        (["--pages", "large"], "--pages"),
    ] {
        fails(&[&bench[..], &options].concat(), USAGE, &[words]);
    }
}
