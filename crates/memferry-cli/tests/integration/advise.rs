//! `memferry advise`: devices for a workload, as text, as JSON and as a configuration; and the nodes of columns for queries.

use std::fs;

use serde_json::{Value, json};

use crate::support::{FAILURE, USAGE, fails, prints, prints_json};

const WORKLOAD: &str = "
[[streams]]
name = 'pages'
size = '4 KiB'
threads = 4
in-flight = 16
source = 0
target = 8

[[streams]]
name = 'records'
size = 600
";

#[test]
fn devices() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (workload, config) = (path("workload.toml"), path("config.json"));
    fs::write(&workload, WORKLOAD).unwrap();
    let advise = ["advise", "devices", &workload, "--machine", "xeon-max-9468-2s-flat"];
    let text = prints(&[&advise[..], &["--save", &config]].concat());
    for part in [
        "pages    device",
        "records  cores",
        "G2 (Kuper et al., 6.1)",
        "G4 (6.2), pages",
        "G5, G6 (6.3)",
        "times",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    // What is saved can be configured, and no device is missing.
    let shown = prints_json(&["configure", "--file", &config, "--json"]);
    let advice = prints_json(&[&advise[..], &["--json"]].concat());
    let configured = shown["config"].as_array().map(Vec::len);
    assert_eq!(advice["shape"]["devices"].as_u64(), configured.map(|count| count as u64), "{shown}");
    assert_eq!(advice["streams"][1]["is_by_device"], false, "{advice}");
    assert!(advice["gain"].as_f64().unwrap() > 2.0, "{advice}");

    fails(
        &["advise", "devices", &workload, "--machine", "skylake-8180-snc-on"],
        FAILURE,
        &["no advice", "device"],
    );
    fails(&["advise", "devices", &path("none.toml")], FAILURE, &["none.toml"]);
    fs::write(&workload, "[[streams]]\nname = 'x'\nsize = 1\nthread = 2\n").unwrap();
    fails(&advise, USAGE, &["thread", "advise devices --help"]);
    fs::write(&workload, "[[streams]]\nname = 'x'\nsize = 1\n").unwrap();
    fails(&[&advise[..], &["--save", &config]].concat(), USAGE, &["nothing to save"]);
}

#[test]
fn placement() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.parquet");
    let copy = format!(
        "copy (select value as a, 2 * value as b from range(0, 400000)) to '{}' stored as parquet",
        file.display()
    );
    prints(&["sql", &copy]);
    let table = format!("t={}", file.display());
    let common = [
        "advise",
        "placement",
        "--machine",
        "xeon-max-9468-2s-flat",
        "--budget",
        "16MiB",
        "--prefetch",
        "off",
    ];
    let advise = [&common[..], &["--table", &table, "select sum(a) from t"]].concat();
    let text = prints(&advise);
    for part in [
        "Modelled on xeon-max-9468-2s-flat, by the reads of 3 runs",
        "a       8         1.5 MiB",
        "a: the CPUs of node 0 read it from node 0 at 67.5 GB/s, and would at 133.8 GB/s.",
        "1.98 times as fast",
        "ALTER TABLE t COLUMN a NUMA NODE (8);",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains("COLUMN b"), "no query reads it: {text}");

    let moved = prints_json(&[&advise[..], &["--runs", "2", "--move", "--share", "50", "--json"]].concat());
    let (before, after) = (&moved["before"]["tables"][0], &moved["after"]["tables"][0]);
    assert_eq!(
        (&before["table"], &before["verdict"], &before["moves"][0]["nodes"]),
        (&json!("t"), &json!("move"), &json!([8]))
    );
    assert_eq!((&after["verdict"], &after["moves"]), (&json!("keep"), &json!([])), "{moved}");
    let seconds = |it: &Value, name: &str| it[name].as_f64().unwrap();
    let ratio = seconds(before, "reads_after_s") / seconds(after, "reads_s");
    assert!((ratio - 1.0).abs() < 0.001, "the reads after the move are those that were predicted: {moved}");

    let never = prints(&[&advise[..], &["--payback", "0.000001"]].concat());
    assert!(
        never.contains("t stays where it is: no move would be 1.05 times as fast and pay soon enough"),
        "{never}"
    );
    let nothing = prints(&[&common[..], &["--table", &table, "select 1"]].concat());
    assert!(nothing.contains("read no table in memory"), "{nothing}");
    fails(&["advise", "placement", "select 1"], USAGE, &["--table NAME=LOCATION"]);
    fails(&[&advise[..], &["--share", "50"]].concat(), USAGE, &["required arguments"]);
    fails(&[&advise[..], &["--payback", "0"]].concat(), USAGE, &["above 0"]);
    fails(
        &[&common[..3], &["made-up-two-tiers", "--table", &table, "select sum(a) from t"]].concat(),
        FAILURE,
        &["no advice", "node 0"],
    );
}
