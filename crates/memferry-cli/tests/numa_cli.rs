//! The command on a machine with several NUMA nodes.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use memferry::topology::{Machine, Node, NodeId};
use memferry_testing::{Needs, skip};
use numa_support::{pairs, several_nodes, with_figures};
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

/// The command; a guest has it at another path.
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

/// A calibration shows that a copy by the scanning CPUs does not pay within one query over one node's columns. Without a
/// calibration nothing is known. `always` copies in both cases, to the same node.
#[test]
fn auto_follows_a_calibration_and_copies_nothing_without() {
    let Some((machine, _)) = several_nodes() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.parquet");
    parquet(&file);
    let table = format!("t={}", file.display());
    let calibration = directory.path().join("figures.json");
    fs::write(&calibration, with_figures(&machine).profile_text("made up").unwrap()).unwrap();
    let calibrated = ["--calibration", calibration.to_str().unwrap()];
    let run = |prefetch: &str, home: NodeId, figures: &[&str]| {
        let home_text = home.to_string();
        let query = ["sql", "--load", "--table", &table, "--prefetch", prefetch, "--home", &home_text];
        let json = prints_json(&[&query, figures, &["--explain", "--json", QUERY]].concat());
        assert_eq!(json["prefetch"]["machine_origin"], "discovered");
        assert_eq!(json["prefetch"]["home_node"], home.0);
        json
    };
    let plan = |json: &Value| json["plan"].as_str().unwrap().to_owned();
    let follows = |home: NodeId| {
        let known = run("auto", home, &calibrated);
        assert_eq!(known["prefetch"]["bytes"], 0);
        if let Some(Node { id, .. }) = machine.nearest_faster(home) {
            let words = [
                "prefetch=none (b, ",
                &format!("to node {id} by the CPU, same node as the running scan, would "),
            ];
            assert!(words.iter().all(|word| plan(&known).contains(word)), "{known}");
            let seconds = |name: &str| known["prefetch"][name].as_f64().unwrap();
            assert!(seconds("predicted_seconds") > 0.0, "{known}");
            let always = run("always", home, &calibrated);
            assert_eq!(always["prefetch"]["near_node"], id.0, "{always}");
            assert!(always["prefetch"]["bytes"].as_u64().unwrap() > 0, "{always}");
            assert_eq!(always["rows"], known["rows"]);
        }
        known["rows"].clone()
    };
    // The default home node, and the last one.
    let homes = pairs(&machine);
    let (first, last) = (homes[0].0, homes[homes.len() - 1].0);
    let (unknown, off) = (run("auto", first, &[]), run("off", first, &calibrated));
    assert_eq!(unknown["prefetch"]["bytes"], 0);
    if let Some(Node { id, .. }) = machine.nearest_faster(first) {
        let words = format!("prefetch=none (the gain of copies to node {id} is unknown: ");
        assert!(plan(&unknown).contains(&words), "{unknown}");
        assert!(plan(&unknown).contains("`memferry calibrate --out FILE`"), "{unknown}");
    }
    for rows in [&unknown["rows"], &follows(first), &follows(last)] {
        assert_eq!(*rows, off["rows"]);
    }
}

/// The guest has the nodes of its profile, but other CPUs.
#[test]
fn figures_of_another_machine_are_refused() {
    let Some((machine, _)) = several_nodes() else { return };
    let published = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let Err(error) = Machine::clone(&machine).with_profile(&published) else {
        return skip(Needs::Nodes, "this machine is the published one");
    };
    let output = memferry(&["sql", "--calibration", published.name(), "select 1"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&error.to_string()), "{stderr}");
}

#[test]
fn missing_nodes_are_named() {
    let Some((machine, _)) = several_nodes() else { return };
    let missing = (machine.nodes().last().unwrap().id.0 + 1).to_string();
    let arguments = ["sql", "--near", &missing, "select 1"];
    let output = memferry(&arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(&format!("no node {missing}")), "{stderr}");
}

/// A calibration covers all nodes, and `report` accepts it. (Times mean nothing in the guest and may contradict each other;
/// then it is calibrated again.)
#[test]
#[ignore = "takes emulated CPUs a minute on an idle host, and on a busy one longer than a guest may"]
fn a_calibration_of_all_nodes_is_a_profile_for_reports() {
    let Some((machine, _)) = several_nodes() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let name = file.to_str().unwrap();
    let arguments = ["calibrate", "--quick", "--out", name];
    let printed = (0..5)
        .find_map(|_| {
            let output = memferry(&arguments).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || stderr.contains("other programs disturb it"), "{stderr}");
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        })
        .expect("one of five is not disturbed");
    assert!(printed.contains("hardware threads of a node"), "{printed}");
    let profile: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for figure in ["read_mb_per_s", "write_mb_per_s", "read_latency_ns"] {
        let rows = profile[figure]["value"].as_array().unwrap();
        for (row, cpus) in rows.iter().zip(machine.nodes()).filter(|(_, node)| !node.cpus.is_empty()) {
            for (value, memory) in row.as_array().unwrap().iter().zip(machine.nodes()) {
                let is_known = value.as_f64().is_some_and(|value| value > 0.0);
                assert_eq!(is_known, memory.has_memory(), "{figure} from node {} to {}", cpus.id, memory.id);
            }
        }
    }
    let report = directory.path().join("report");
    prints(&["report", "--machine", name, "--out", report.to_str().unwrap()]);
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("Bandwidth of reads") && page.contains("Recommended settings"));
}
