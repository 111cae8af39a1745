//! `memferry sim`: scenarios on machines that are not here, and how far the model is from what was published.

use std::fs;

use serde_json::Value;

use crate::support::{FAILURE, USAGE, fails, prints, prints_json};

fn value(json: &Value, name: &str) -> f64 {
    let rows = json["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("{name} is not in {json}"))["value"].as_f64().unwrap()
}

#[test]
fn the_thesis_table() {
    let text = prints(&["sim", "table-6.2"]);
    for part in ["Fürst 2024, table 6.2", "Modelled on xeon-max-9468-2s-flat", "Prefetching: hit rate"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = prints_json(&["sim", "table-6.2", "--json"]);
    assert_eq!(json["bench"], "sim");
    assert_eq!(json["machine"]["name"], "xeon-max-9468-2s-flat");
    assert_eq!(json["options"]["scenario"], "table-6.2");
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["how"] == "modelled"), "{json}");
    assert!((value(&json, "DDR-SDRAM (Baseline)") / 131.18 - 1.0).abs() < 1e-3, "{json}");
}

#[test]
fn other_values_and_machines() {
    let own = prints_json(&["sim", "thesis-routes", "--json"]);
    let small = prints_json(&["sim", "thesis-routes", "--set", "copy.size=1 MiB", "--json"]);
    let name = "Single (1 devices) 0 to 8";
    assert!(value(&small, name) < value(&own, name), "{small}");
    assert_eq!(small["options"]["set"][0], "copy.size=1 MiB");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("copy.toml");
    let text =
        "about = 'x'\nmachine = 'spr-56c'\n[submit]\nsizes = ['4 KiB']\nbatches = [1]\nunder_way = [1]\n";
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let spr = prints_json(&["sim", file, "--json"]);
    let xeon_max = prints_json(&["sim", file, "--machine", "xeon-max-9468-2s-flat", "--json"]);
    let name = "4096 B, batch 1, 1 under way";
    assert!(value(&xeon_max, name) > value(&spr, name), "its devices are faster: {xeon_max}");
}

#[test]
fn scenarios_are_listed() {
    assert!(prints(&["sim"]).contains("snc-scans (on skylake-8180-snc-on)"));
    let json = prints_json(&["sim", "--json"]);
    assert!(json.as_array().unwrap().iter().any(|it| it["name"] == "table-6.1"), "{json}");
}

/// Records are compared by the names of the rows.
#[test]
fn validation_has_known_rows() {
    let json = prints_json(&["sim", "validate", "--json"]);
    for (name, at_most) in [
        ("t62_prefetch_error", 15.0),
        ("t62_distributed_error", 15.0),
        ("t62_hit_error_points", 7.0),
        ("peak_error", 5.0),
        ("break_even_waited_error", 1.0),
        ("break_even_pipelined_error", 1.0),
        ("saturation_error", 1.0),
        ("snc_error", 25.0),
    ] {
        assert!(value(&json, name) <= at_most, "{name}: {json}");
    }
    assert_eq!(value(&json, "table_6_2_order"), 1.0);
    let measured = json["rows"].as_array().unwrap().iter().filter(|row| row["how"] == "measured");
    assert_eq!(measured.count(), 2, "advise_us and scenarios_s: {json}");
    let prediction = &json["predictions"][0];
    for field in ["error_percent", "calibrated_on", "is_fit", "unexplained"] {
        assert!(prediction.get(field).is_some(), "{field}: {prediction}");
    }
    assert!(json["others"].as_array().unwrap().iter().all(|it| it["reason"].is_string()), "{json}");

    let text = prints(&["sim", "validate", "--variants"]);
    for part in
        ["advise_us", "calibrated on", "Where the model is off", "K085 ... K108", "each stream counts one"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    // Each prediction names its calibration; a row that was calibrated on is marked.
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect(name);
    assert!(line("baseline [F072, F076]").contains("F072, F073, F084  "), "{text}");
    assert!(line("baseline [F072, F076]").ends_with("this row"), "{text}");
    assert!(line("prefetching [F082]").ends_with("F072, F073, F084"), "{text}");
}

#[test]
fn wrong_scenarios_and_settings_are_errors() {
    fails(&["sim", "table-7"], USAGE, &["table-7", "table-6.2", "TOML file"]);
    fails(&["sim", "table-6.2", "--machine", "cray-1"], USAGE, &["cray-1", "xeon-max-9468-2s-flat"]);
    fails(&["sim", "table-6.2", "--set", "query.grups=4"], USAGE, &["grups"]);
    fails(&["sim", "table-6.2", "--set", "query.runs.9.name=x"], USAGE, &["no 9"]);
    fails(&["sim", "table-6.2", "--set", "groups"], USAGE, &["query.groups=4"]);
    fails(&["sim", "validate", "--set", "query.groups=4"], USAGE, &["--set", "table-6.2"]);
    fails(&["sim", "table-6.2", "--variants"], USAGE, &["validate"]);
    fails(&["sim", "nowhere.toml"], FAILURE, &["nowhere.toml", "No such file"]);
    // This profile has no rates.
    fails(&["sim", "table-6.2", "--machine", "made-up-two-tiers"], FAILURE, &["node"]);
    fails(&["sim", "table-6.2", "--set", "query.chunk=1"], FAILURE, &["larger"]);
}
