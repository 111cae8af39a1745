//! The command on a machine with several NUMA nodes: what the README says of it.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use memferry::topology::NodeId;
use numa_support::{pairs, several_nodes};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

const QUERY: &str = "select sum(b), count(*) from t where a < 300";

/// A table of two columns. (Generating TPC-H takes the emulated CPUs of the guest half a minute, at any scale.)
fn parquet(file: &Path) {
    let integers = |salt: i64| -> ArrayRef {
        let value = move |row: i64| (row.wrapping_mul(2_654_435_761) + salt).rem_euclid(1000);
        Arc::new(Int64Array::from_iter_values((0..100_000).map(value)))
    };
    let rows = RecordBatch::try_from_iter([("a", integers(1)), ("b", integers(2))]).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(file).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

/// The command; in the guest it lies elsewhere than where cargo built it.
fn memferry(arguments: &[&str]) -> Command {
    let built = env!("CARGO_BIN_EXE_memferry").into();
    let mut command = Command::new(std::env::var_os("MEMFERRY_GUEST_COMMAND").unwrap_or(built));
    command.args(arguments);
    command
}

#[track_caller]
fn prints(arguments: &[&str]) -> String {
    let output = memferry(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn prints_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&prints(arguments)).unwrap()
}

#[test]
fn topology_shows_every_node_and_where_auto_copies() {
    let Some((machine, _)) = several_nodes() else { return };
    let text = prints(&["topology"]);
    for node in machine.nodes() {
        assert!(text.contains(&format!("node {}", node.id)), "node {} is not in:\n{text}", node.id);
    }
    // Lines are filled, so the words may stand on two of them.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (home, _) in pairs(&machine) {
        let Some(near) = machine.nearest_faster(home) else { continue };
        let wanted = format!("{home} to {}", near.id);
        assert!(words.contains(&wanted), "{wanted:?} is not in:\n{text}");
    }
    let json = prints_json(&["topology", "--json"]);
    assert_eq!(json["origin"], "discovered");
    assert_eq!(json["nodes"].as_array().unwrap().len(), machine.node_count());
}

#[test]
fn auto_prefetches_where_a_faster_node_is_and_only_there() {
    let Some((machine, _)) = several_nodes() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.parquet");
    parquet(&file);
    let table = format!("t={}", file.display());
    let run = |prefetch: &str, home: NodeId| {
        let home = home.to_string();
        prints_json(&["sql", "--table", &table, "--prefetch", prefetch, "--home", &home, "--json", QUERY])
    };
    let homes = pairs(&machine);
    // The first is what users get without --home; the last is as far from it as it can be.
    for (home, _) in [homes[0], homes[homes.len() - 1]] {
        let json = run("auto", home);
        let prefetch = &json["prefetch"];
        assert_eq!(prefetch["machine_origin"], "discovered");
        assert_eq!(prefetch["home_node"], home.0);
        match machine.nearest_faster(home) {
            Some(near) => {
                assert_eq!(prefetch["near_node"], near.id.0, "{json}");
                assert!(prefetch["bytes"].as_u64().unwrap() > 0, "{json}");
            }
            None => assert_eq!(prefetch["bytes"], 0, "{json}"),
        }
        assert_eq!(run("off", home)["rows"], json["rows"]);
    }
}

#[test]
fn nodes_that_are_not_there_are_named() {
    let Some((machine, _)) = several_nodes() else { return };
    let missing = (machine.nodes().last().unwrap().id.0 + 1).to_string();
    let arguments = ["sql", "--near", &missing, "select 1"];
    let output = memferry(&arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&format!("no node {missing}")), "{stderr}");
}
