//! The command on a machine with several NUMA nodes.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

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

/// Enough rows for several row groups: fewer are not worth a hop to another domain.
const SNCDB: [&str; 12] = [
    "bench",
    "sncdb",
    "--quick",
    "--json",
    "--rows",
    "600000",
    "--connections",
    "3",
    "--statements",
    "scan",
    "--range-pred",
    "1000000",
];

/// The domains that have read and how far, of each run of `bench sncdb` by its name without the state of NUMA balancing.
fn reads(record: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut reads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in record["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if let Some((run, what)) = name.split_once("_balancing_") {
            let of_run = reads.entry(run.to_owned()).or_default();
            of_run.extend(what.split_once("_read_").map(|(_, read)| read.to_owned()));
        }
    }
    reads
}

/// Values of the rows of each run whose name has `what` before the domain, by domain and distance.
fn counts(record: &Value, what: &str) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut counts: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for row in record["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if let Some((run, rest)) = name.split_once("_balancing_")
            && let Some((_, place)) = rest.split_once(what)
        {
            let value = row["value"].as_f64().unwrap();
            counts.entry(run.to_owned()).or_default().insert(place.to_owned(), value);
        }
    }
    counts
}

/// Row groups and bytes of a query are counts: exact, whatever the speed. Without stealing the domains of the workers read all of
/// both tables; with it, they share the same work.
fn reads_are_exact(record: &Value, name: impl Fn(&str) -> String) {
    let (groups, bytes) = (counts(record, "_row_groups_"), counts(record, "_bytes_"));
    let of = |counts: &BTreeMap<String, BTreeMap<String, f64>>, run: &str| counts[&name(run)].clone();
    let all = of(&groups, "all_6_0")["0_own"];
    assert!(all >= 2.0 && all.fract() == 0.0, "row groups of a table are a number: {all}");
    for (run, wanted) in [
        ("all_6_0", &["0_own"][..]),
        ("all_3_3", &["0_own", "1_own"]),
        ("first_3_3", &["0_neighbour", "0_own"]),
        ("second_6_0", &["1_neighbour"]),
        ("second_3_3", &["1_neighbour", "1_own"]),
    ] {
        let wanted: BTreeMap<String, f64> = wanted.iter().map(|&place| (place.to_owned(), all)).collect();
        assert_eq!(of(&groups, run), wanted, "{run}");
        assert!(of(&bytes, run).keys().eq(wanted.keys()), "{run}: {:?}", of(&bytes, run));
    }
    let sum = |counts: BTreeMap<String, f64>| counts.values().sum::<f64>();
    for (run, alone) in [("all_stealing_6_0", "all_6_0"), ("all_stealing_3_3", "all_3_3")] {
        // Bits of a part of a packed column are rounded to bytes.
        for (counts, tolerance) in [(&groups, 1e-9), (&bytes, 1e-5)] {
            let (stolen, whole) = (sum(of(counts, run)), sum(of(counts, alone)));
            assert!((stolen / whole - 1.0).abs() < tolerance, "{run}: {stolen} of {whole}");
        }
    }
    let workers = counts(record, "_workers_");
    let cpus = |domain: &str| record["options"][domain].as_array().unwrap().len() as f64;
    for (run, wanted) in [
        ("all_3_3", [cpus("first_cpus"), cpus("second_cpus")]),
        ("first_3_3", [cpus("first_cpus"), 0.0]),
        ("second_3_3", [0.0, cpus("second_cpus")]),
    ] {
        assert_eq!(["0", "1"].map(|domain| workers[&name(run)][domain]), wanted, "{run}");
    }
}

/// A guest says that it is one, and a machine does not.
fn is_marked(record: &Value) {
    let is_guest = std::env::var_os("MEMFERRY_GUEST_COMMAND").is_some_and(|command| !command.is_empty());
    assert_eq!(record["options"]["guest"].is_string(), is_guest, "{}", record["options"]);
    let how = if is_guest { "emulated" } else { "measured" };
    assert!(record["rows"].as_array().unwrap().iter().all(|row| row["how"] == how), "{record}");
}

/// Speed means nothing in a guest, and places do: each domain reads what its workers should.
#[test]
fn sncdb_reads_where_its_workers_are() {
    if several_nodes().is_none() {
        return;
    }
    let run = |options: &[&str]| prints_json(&[&SNCDB[..], options].concat());
    let record = run(&[
        "--binding",
        "always",
        "--workers",
        "all,first,second",
        "--stealing",
        "off,neighbour",
        "--on-first",
        "6,3",
    ]);
    if record["options"]["parts_of_one_node"] == true {
        return skip(Needs::Nodes, "the first socket has one domain");
    }
    let reads_of_runs = reads(&record);
    let end =
        if record["options"]["elsewhere_cpus"] == serde_json::json!([]) { "anywhere" } else { "elsewhere" };
    let name = |run: &str| format!("scan_1000000_{run}_always_{end}");
    is_marked(&record);
    reads_are_exact(&record, name);
    let of = |run: &str| -> BTreeSet<String> {
        let name = name(run);
        reads_of_runs.get(&name).unwrap_or_else(|| panic!("{name} is not in {record}")).clone()
    };
    assert_eq!(reads_of_runs.len(), 8, "{record}");
    for (run, wanted) in [
        ("all_6_0", &["0_own"][..]),
        ("all_3_3", &["0_own", "1_own"]),
        ("first_6_0", &["0_own"]),
        ("first_3_3", &["0_neighbour", "0_own"]),
        ("second_6_0", &["1_neighbour"]),
        ("second_3_3", &["1_neighbour", "1_own"]),
    ] {
        assert!(of(run).iter().eq(wanted), "{run}: {record}");
    }
    // How much is stolen is a matter of chance, and from whom is not.
    let read = of("all_stealing_6_0");
    let is_of_first = |it: &String| it == "0_own" || it == "1_neighbour";
    assert!(read.contains("0_own") && read.iter().all(is_of_first), "{record}");
    // Half of a domain's CPUs, if each has two.
    let cpus = |name: &str| record["options"][name].as_array().unwrap().len();
    let workers = if cpus("first_cpus") > 1 && cpus("second_cpus") > 1 { "half" } else { "all" };
    let others = run(&[
        "--binding",
        "none,preferred,opportunistic",
        "--workers",
        workers,
        "--on-first",
        "3",
        "--stealing",
        "neighbour",
    ]);
    let others = reads(&others);
    assert_eq!(others.len(), 3, "{others:?}");
    for (run, read) in &others {
        assert!(read.iter().all(|it| !it.contains("other_socket")), "{run}: {read:?}");
    }
}

/// CPUs of a list such as `0-3,8`.
fn cpus_of(list: &str) -> BTreeSet<u64> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u64>().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(range).collect()
}

/// The CPUs that each thread of a process may run on, by its name.
fn threads_of(process: u32) -> BTreeMap<String, BTreeSet<u64>> {
    let mut threads: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        // It may have ended.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let (Some(name), Some(cpus)) = (field("Name:"), field("Cpus_allowed_list:")) else { continue };
        threads.entry(name.trim().to_owned()).or_default().extend(cpus_of(cpus));
    }
    threads
}

/// Threads of the server run on the CPUs of the workers, whatever binds them, and those of clients elsewhere.
#[test]
fn sncdb_runs_where_its_workers_are() {
    if several_nodes().is_none() {
        return;
    }
    let mut is_another = false;
    for (workers, binding) in [("second", "none"), ("first", "opportunistic"), ("all", "always")] {
        let options = [
            "--on-first",
            "3",
            "--workers",
            workers,
            "--binding",
            binding,
            "--seconds",
            "3",
            "--stealing",
            "off",
        ];
        let mut running = memferry(&[&SNCDB[..], &options].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(100);
        // Threads of all kinds are there while clients are.
        let mut seen: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        while running.try_wait().unwrap().is_none() && Instant::now() < deadline {
            let threads = threads_of(running.id());
            if threads.contains_key("sncdb clients") {
                // A thread is confined by itself, right after its start.
                sleep(Duration::from_millis(300));
                for (name, cpus) in threads_of(running.id()) {
                    seen.entry(name).or_default().extend(cpus);
                }
            }
            sleep(Duration::from_millis(50));
        }
        let output = running.wait_with_output().unwrap();
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        let cpus = |name: &str| -> BTreeSet<u64> {
            record["options"][name].as_array().unwrap().iter().map(|cpu| cpu.as_u64().unwrap()).collect()
        };
        let (first, second, elsewhere) = (cpus("first_cpus"), cpus("second_cpus"), cpus("elsewhere_cpus"));
        let allowed = match workers {
            "first" => first,
            "second" => second,
            _ => first.union(&second).copied().collect(),
        };
        let is_within = |name: &str, allowed: &BTreeSet<u64>| {
            let cpus = seen.get(name).unwrap_or_else(|| panic!("no thread is called {name}: {seen:?}"));
            assert!(
                cpus.is_subset(allowed),
                "{workers}, {binding}: {name} on {cpus:?}, which is not in {allowed:?}"
            );
        };
        is_within("sncdb server", &allowed);
        if !elsewhere.is_empty() {
            is_within("sncdb clients", &elsewhere);
        }
        for name in seen.keys().filter(|name| name.starts_with("domain-") || *name == "free") {
            is_within(name, &allowed);
            is_another = true;
        }
    }
    assert!(is_another, "no thread of the domains was seen");
}
