//! Commands of the program memferry-cluster, with a script in its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Runs memferry with a script as memferry-cluster.
fn with_script(script: &str, arguments: &[&str]) -> Output {
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("memferry-cluster");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command.args(arguments).env("MEMFERRY_CLUSTER", &program).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn serve_becomes_the_program() {
    let script = "for argument; do echo \"<$argument>\"; done; exit 7";
    let output = with_script(script, &["serve", "--table", "a b=c", "--help", "-x", "--", "-y"]);
    assert_eq!(text(&output.stdout), "<serve>\n<--table>\n<a b=c>\n<--help>\n<-x>\n<-->\n<-y>\n");
    assert_eq!(output.status.code(), Some(7));
    let output = with_script(script, &["serve"]);
    assert_eq!(text(&output.stdout), "<serve>\n");
}

#[test]
fn worker_and_sql_of_clusters_become_the_program() {
    let script = "for argument; do echo \"<$argument>\"; done";
    let output = with_script(script, &["worker", "c.toml", "--name", "a:1", "--help"]);
    assert_eq!(text(&output.stdout), "<worker>\n<c.toml>\n<--name>\n<a:1>\n<--help>\n");
    let all =
        ["sql", "--cluster", "a:1,b:2", "--format", "csv", "--partitions", "3", "--explain", "SELECT -1"];
    let output = with_script(script, &all);
    let expected =
        "<sql>\n<--cluster=a:1,b:2>\n<--format=csv>\n<--partitions=3>\n<--explain>\n<-->\n<SELECT -1>\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let secured = ["sql", "--cluster", "a:1", "--tls-ca", "ca.pem", "--token-file=-t", "SELECT 1"];
    let output = with_script(script, &secured);
    let expected =
        "<sql>\n<--cluster=a:1>\n<--format=table>\n<--tls-ca=ca.pem>\n<--token-file=-t>\n<-->\n<SELECT 1>\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let output = with_script(script, &["sql", "--token-file", "t", "SELECT 1"]);
    assert_eq!(output.status.code(), Some(2), "a token is for a cluster");
    let served = ["sql", "--connect", "a:1", "--tls-ca", "ca.pem", "--format", "json", "SELECT 1"];
    let output = with_script(script, &served);
    let expected = "<sql>\n<--connect=a:1>\n<--format=json>\n<--tls-ca=ca.pem>\n<-->\n<SELECT 1>\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    let both = ["sql", "--connect", "a:1", "--cluster", "a:1", "SELECT 1"];
    assert_eq!(with_script(script, &both).status.code(), Some(2));
    // Tables of this machine are not those of the cluster.
    for refused in [&["--tpch", "1"][..], &["--table", "t=t.parquet"], &["--format", "arrow"], &["--json"]] {
        for remote in ["--cluster", "--connect"] {
            let output = with_script(script, &[&["sql", remote, "a:1", "SELECT 1"], refused].concat());
            assert_eq!(output.status.code(), Some(2), "{remote} {refused:?}");
            assert_eq!(text(&output.stdout), "", "{remote} {refused:?}");
        }
    }
}

#[test]
fn a_missing_program_is_named() {
    // Beside the command there may be one.
    let directory = TempDir::new().unwrap();
    let lonely: PathBuf = directory.path().join("memferry");
    fs::copy(env!("CARGO_BIN_EXE_memferry"), &lonely).unwrap();
    for arguments in
        [&["serve", "--help"][..], &["bench", "serve"], &["worker"], &["sql", "--cluster", "a:1", "SELECT 1"]]
    {
        let mut command = Command::new(&lonely);
        let output = command.args(arguments).env("PATH", "").env_remove("MEMFERRY_CLUSTER").output().unwrap();
        let error = text(&output.stderr);
        assert!(error.contains("cargo build --package memferry-cluster"), "{error}");
        assert_eq!(output.status.code(), Some(2), "{error}");
    }
    let mut command = Command::new(&lonely);
    let output = command.args(["serve"]).env("MEMFERRY_CLUSTER", "/nowhere/program").output().unwrap();
    assert!(text(&output.stderr).contains("cannot execute /nowhere/program"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn bench_serve_keeps_numbers_and_fails_on_faults() {
    let printed = |wrong: u64| {
        format!(
            "[ \"$*\" = 'load --seconds 3 --clients 5 --tpch 0.02 --seed 9' ] || exit 1\n\
             echo '{{\"answers\":10,\"wrong_answers\":{wrong},\"copies_lost\":0.0,\"seconds_p99\":0.25,\"ends_well\":true}}'"
        )
    };
    let arguments =
        ["bench", "serve", "--seconds", "3", "--clients", "5", "--tpch", "0.02", "--seed", "9", "--json"];
    let output = with_script(&printed(0), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row =
        record["rows"].as_array().unwrap().iter().find(|row| row["name"] == "serve_seconds_p99").unwrap();
    assert_eq!(
        (row["value"].as_f64(), row["unit"].as_str(), row["how"].as_str()),
        (Some(0.25), Some("s"), Some("measured"))
    );
    let output = with_script(&printed(2), &arguments);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("2 answers were wrong"), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["bench"], "serve");
    let output = with_script("echo nonsense", &arguments);
    assert!(text(&output.stderr).contains("is of another version"), "{}", text(&output.stderr));
    let output = with_script("exit 3", &arguments);
    assert!(text(&output.stderr).contains("load failed"), "{}", text(&output.stderr));
}

/// A query that reads 1 GB, sends 0.1 GB and takes 0.2 s of a core for each unit of scale.
const WORK: &str = r#"{"scales":[0.025,0.1],"workers":[2,6],"shards":48,"shard_skew":0.02,"queries":[{"query":6,
    "scanned_bytes":[25000000.0,100000000.0],"exchanges":[{"kind":"shuffle","sent_bytes":[2500000.0,10000000.0]}],
    "workers_cpu_s":[0.005,0.02],"coordinator_cpu_s":[0.001,0.001]}]}"#;

#[test]
fn bench_cluster_predicts_other_machines() {
    let script = format!("[ \"$*\" = 'work --tpch 0.1 --rounds 3' ] || exit 1\ncat <<END\n{WORK}\nEND");
    let of = |more: &[&str]| {
        let machine = ["bench", "cluster", "--machine", "xeon-max-9468-2s-flat", "--out", "none"];
        with_script(&script, &[&machine, more].concat())
    };
    let record = |more: &[&str]| -> Value {
        let output = of(&[&["--json"], more].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    };
    let value = |record: &Value, name: &str| {
        let mut rows = record["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == format!("cluster_model_{name}")).unwrap();
        assert_eq!(row["how"], "modelled", "{name}");
        row["value"].as_f64().unwrap()
    };
    let usual = record(&[]);
    assert_eq!(usual["bench"], "cluster-model");
    assert_eq!(
        usual["options"]["work"]["queries"][0]["query"], 6,
        "the record says what it was computed from"
    );
    assert_eq!(value(&usual, "speed_up_w01_far"), 1.0);
    // Each option counts.
    let faster = value(&record(&["--gigabits", "800"]), "w64_far_q06");
    let usual_s = value(&usual, "w64_far_q06");
    assert!(faster < usual_s, "{faster} and {usual_s}");
    assert_eq!(value(&record(&["--gigabits", "100", "--interfaces", "2"]), "w64_far_q06"), usual_s);
    assert!(value(&record(&["--latency-us", "1000000"]), "w64_far_q06") > 2.0);
    assert!(value(&record(&["--shards-per-worker", "1"]), "w01_far_by_cores") > 0.0, "95 cores are idle");
    let small = value(&record(&["--predicted-scale", "10"]), "w01_far_q06");
    assert!(small < value(&usual, "w01_far_q06") / 50.0, "{small}");
    let output = of(&[]);
    let table = text(&output.stdout);
    assert!(table.contains("limited by memory"), "{table}");
    for (refused, part) in [
        (&["--tpch", "0.01"][..], "too small"),
        (&["--gigabits", "0"], "above 0"),
        (&["--kills", "5"], "--machine"),
    ] {
        let output = of(refused);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{refused:?}: {error}");
    }
    let fails = |script: &str, machine: &str, part: &str| {
        let output = with_script(script, &["bench", "cluster", "--machine", machine, "--out", "none"]);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(part), "{machine}: {error}");
    };
    fails(&script, "no-such", "no-such");
    fails("echo '{\"queries\":3}'", "xeon-max-9468-2s-flat", "another version");
}
