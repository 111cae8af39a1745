//! The records in results/: comparisons are of equal work.

use std::fs;
use std::path::Path;

use memferry_bench::harness::{WORK, check_equal_work};
use serde_json::Value;

/// Peers of rows without `peer_how`: the same work, measured in the same run, by benchmark. Without their versions.
const EQUAL: &[(&str, &[&str])] = &[
    ("cache", &["LRU", "before the threads", "moka", "quick_cache", "thesis"]),
    ("cases", &["this core"]),
    (
        "cold",
        &[
            "DataFusion",
            "DataFusion with pushdown_filters",
            "DuckDB",
            "DuckDB in Python, whole process",
            "Polars",
            "memferry with plan-ahead",
            "pyarrow",
            "the faster of the other engines",
        ],
    ),
    ("cold-calibrated", &["DataFusion"]),
    ("cold-pushdown", &["pushdown off"]),
    ("domains", &["a tokio runtime with as many workers"]),
    ("dsa", &["crc-fast", "memcmp", "memcpy", "memcpy, then crc-fast", "memset", "two memcpy"]),
    ("emulate", &["UMWAIT", "a thread on a futex"]),
    (
        "memory",
        &[
            "STREAM's copy in C",
            "a 2:1 loop in C",
            "a dependent-load loop in C",
            "a fill loop in C",
            "a read loop in C",
        ],
    ),
    (
        "mover",
        &["memcpy", "non_temporal", "rep_movsb", "two threads with memcpy", "copying on the core of spr-56c"],
    ),
    ("offload", &["the same server without the library"]),
    ("pollution", &["alone"]),
    ("processes", &["alone"]),
    ("query", &["DuckDB", "Polars", "datafusion", "the faster of the other engines"]),
    ("query-model", &["the same placement without copies", "threads on no domain"]),
    ("sncdb", &["after the first second", "columns of 32 bits"]),
    ("sncdb-postgres", &["after the first second", "columns of 32 bits"]),
    ("workload", &["DataFusion", "the first fifth"]),
];

/// Whether the name of a peer says how its number was obtained, or what it lacks.
fn is_named(peer: &str) -> bool {
    peer.starts_with("published (")
        || peer == "modelled"
        || peer.starts_with("memferry without ")
        || peer.contains(", without ")
}

fn without_version(peer: &str) -> &str {
    peer.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.').trim_end()
}

#[test]
fn no_record_compares_unequal_work() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let mut compared = 0;
    for machine in fs::read_dir(results).unwrap().map(|entry| entry.unwrap().path()).filter(|it| it.is_dir())
    {
        for path in fs::read_dir(machine).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            let bench = record["bench"].as_str().unwrap().trim_end_matches("-sf10");
            for row in record["rows"].as_array().unwrap().iter().filter(|row| !row["ratio"].is_null()) {
                compared += 1;
                check_equal_work(row).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let peer = row["peer"].as_str().unwrap();
                let is_described = WORK.iter().any(|column| row.get(format!("peer_{column}")).is_some());
                let is_equal =
                    EQUAL.iter().any(|(of, peers)| *of == bench && peers.contains(&without_version(peer)));
                assert!(is_described || is_equal || is_named(peer), "{}: {row}", path.display());
                if peer.starts_with("published (") {
                    let operation = &row["operation"];
                    assert!(operation.is_null() || operation == "copy", "{}: {row}", path.display());
                }
            }
        }
    }
    assert!(compared > 100, "{compared} rows with a ratio");
}
