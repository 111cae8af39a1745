//! `memferry bench offload`: its rows with redis and without it.

use std::process::Command;

use memferry_testing::{Needs, skip};
use serde_json::Value;

use crate::support::{memferry, prints_json, text};

const QUICK: [&str; 4] = ["bench", "offload", "--quick", "--json"];

fn row<'a>(record: &'a Value, name: &str) -> Option<&'a Value> {
    record["rows"].as_array().unwrap().iter().find(|row| row["name"] == name)
}

#[test]
fn a_server_is_compared_with_itself() {
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !["redis-server", "redis-benchmark"].into_iter().all(is_there) {
        return skip(Needs::Program("redis-server"), "it is not installed; `cargo xtask setup` does it");
    }
    let record = prints_json(&QUICK);
    assert!(record["options"]["server"].as_str().unwrap().starts_with("redis "), "{record}");
    for name in ["server_throughput", "server_set_3_B_throughput", "server_get_262144_B_throughput"] {
        let row = row(&record, name).unwrap_or_else(|| panic!("{name}: {record}"));
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(number("value") > 1.0 && number("peer_value") > 1.0, "{row}");
        assert!(number("ratio_low") <= number("ratio") && number("ratio") <= number("ratio_high"), "{row}");
        assert_eq!((&row["unit"], &row["how"]), (&"requests/s".into(), &"measured".into()), "{row}");
    }
    assert!(row(&record, "small_call_overhead_ns").is_some(), "{record}");
}

#[test]
fn without_a_server_there_is_a_note() {
    let output = memferry(&QUICK).env("PATH", "/nowhere").output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("no row server_throughput, because redis-benchmark is not installed"), "{told}");
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(record["options"]["server"].is_null() && row(&record, "server_throughput").is_none(), "{record}");
    assert!(row(&record, "small_call_overhead_ns").is_some(), "{record}");
}
