//! The command as users see it: output, errors and exit status.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use memferry::internals::Measured;
use memferry::topology::Machine;
use memferry_testing::{Needs, skip};
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::rates_support::two_tiers_with_rates;
use crate::support::{FAILURE, USAGE, fails, memferry, prints, prints_json, says, text};

/// A Parquet file with the columns `a` (0, 1, 2 ...), `b` (its double) and `name`.
fn parquet_file(directory: &Path, rows: i64) -> PathBuf {
    let schema = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
    ]));
    let batch = RecordBatch::try_new(
        Arc::clone(&schema),
        vec![
            Arc::new(Int64Array::from_iter_values(0..rows)),
            Arc::new(Int64Array::from_iter((0..rows).map(|a| (a != 1).then_some(2 * a)))),
            Arc::new(StringArray::from_iter_values((0..rows).map(|a| format!("row {a}")))),
        ],
    )
    .unwrap();
    let path = directory.join("t.parquet");
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

fn table_of(path: &Path) -> String {
    format!("t={}", path.display())
}

// Output.

#[test]
fn topology_of_this_machine() {
    let drawn = prints(&["topology"]);
    assert!(drawn.contains("node 0"), "{drawn}");
    let json = prints_json(&["topology", "--json"]);
    assert_eq!(json["origin"], "discovered", "{json}");
    assert!(json["nodes"][0]["memory_bytes"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn topology_of_a_profile() {
    let drawn = prints(&["topology", "--profile", "xeon-max-9468-2s-flat"]);
    for part in ["socket 1", "node 15", "HBM", "dsa14", "From a profile"] {
        assert!(drawn.contains(part), "{part} is not in:\n{drawn}");
    }
}

#[test]
fn topology_as_a_picture() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.svg");
    let profile = ["topology", "--profile", "xeon-max-9468-2s-flat", "--svg"];
    let drawn = prints(&[&profile[..], &["-"]].concat());
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{drawn}");
    fs::write(&file, "an older one").unwrap();
    let path = file.to_str().unwrap();
    assert_eq!(prints(&[&profile[..], &[path]].concat()), format!("written to {path}\n"));
    assert_eq!(fs::read_to_string(&file).unwrap(), drawn);
    // --json and --svg FILE together: the picture in the file, the JSON on standard output.
    let json = prints_json(&[&profile[..], &[path, "--json"]].concat());
    assert!(json["references"]["F\u{fc}rst 2024"].as_str().unwrap().contains("bachelor thesis"), "{json}");
}

#[test]
fn sql_over_parquet() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(&parquet_file(directory.path(), 3));
    let printed = prints(&["sql", "--table", &table, "select a, b, name from t order by a"]);
    let expected =
        "a     b  name\n-  ----  -----\n0     0  row 0\n1  NULL  row 1\n2     4  row 2\n\n3 rows in ";
    assert!(printed.starts_with(expected), "{printed}");

    let json = prints_json(&["sql", "--table", &table, "--json", "select a, b, name from t order by a"]);
    assert_eq!(json["rows"], serde_json::json!([[0, 0, "row 0"], [1, null, "row 1"], [2, 4, "row 2"]]));
    assert_eq!(json["columns"][1], serde_json::json!({ "name": "b", "type": "Int64" }));
    assert_eq!(json["plan"], Value::Null);
}

#[test]
fn sql_without_rows_prints_headings() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(&parquet_file(directory.path(), 3));
    let printed = prints(&["sql", "--table", &table, "select a, b from t where a > 5"]);
    assert!(printed.starts_with("a  b\n-  -\n\n0 rows in "), "{printed}");
}

#[test]
fn sql_over_tpch_with_emulated_dsa() {
    let query = "select sum(l_extendedprice * l_discount) from lineitem where l_quantity < 24";
    let always = ["sql", "--tpch", "0.01", "--prefetch", "always", "--dsa", "emulated", "--explain", query];
    let printed = prints(&always);
    for part in ["TieredScanExec", "late=[l_extendedprice, l_discount]", "by emulated DSA", "1 row in "] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }

    let json = prints_json(&[&always[..], &["--json", "--seed", "7"]].concat());
    let prefetch = &json["prefetch"];
    assert!(prefetch["bytes"].as_u64().unwrap() > 0, "{json}");
    let engines = prefetch["bytes_by_engine"].as_array().unwrap();
    assert!(engines.iter().any(|it| it["engine"] == "dsa" && it["how"] == "emulated"), "{json}");
    assert!(json["plan"].as_str().unwrap().contains("TieredScanExec"), "{json}");

    let off = prints_json(&["sql", "--tpch", "0.01", "--prefetch", "off", "--json", query]);
    assert_eq!(off["rows"], json["rows"]);
    assert_eq!(off["prefetch"]["bytes"], 0, "{off}");
}

/// A file with a profile of two tiers, with rates for which a copy by a device during the filter pays.
fn file_with_rates(directory: &Path) -> String {
    let file = directory.join("two-tiers.json");
    fs::write(&file, two_tiers_with_rates(20e3)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn sql_on_a_made_up_machine_prefetches_what_pays() {
    let directory = tempfile::tempdir().unwrap();
    let query = "select sum(l_tax) from lineitem where l_quantity < 24";
    let run = |machine: &str| {
        let json = prints_json(&[
            "sql",
            "--tpch",
            "0.01",
            "--partitions",
            "2",
            "--dsa",
            "emulated",
            "--machine",
            machine,
            "--explain",
            "--json",
            query,
        ]);
        assert_eq!(json["prefetch"]["near_node"], 1, "{json}");
        assert_eq!(json["prefetch"]["machine_origin"], "profile", "{json}");
        let prefetch = json["prefetch"].clone();
        (prefetch, json["plan"].as_str().unwrap().to_owned())
    };
    let (prefetch, plan) = run(&file_with_rates(directory.path()));
    assert!(prefetch["bytes"].as_u64().unwrap() > 0, "{prefetch}");
    assert!(
        plan.contains("prefetch=auto to node 1 (l_tax, ")
            && plan.contains("by one device, same node as the running scan, pays 1."),
        "{plan}"
    );
    let seconds = |name: &str| prefetch[name].as_f64().unwrap();
    assert_eq!(seconds("predicted_seconds"), seconds("predicted_with_seconds"));
    assert!(seconds("predicted_with_seconds") < seconds("predicted_without_seconds"), "{prefetch}");

    let (prefetch, plan) = run("made-up-two-tiers");
    assert_eq!(prefetch["bytes"], 0, "{prefetch}");
    assert!(plan.contains("prefetch=none (the gain of copies to node 1 is unknown: "), "{plan}");
}

/// A calibration of this machine is used; a profile of another machine is refused by every command.
#[test]
fn sql_with_figures_of_this_machine() {
    let here = Machine::discover().unwrap();
    let reference = ("a test".to_owned(), "of this file".to_owned());
    let measured = here.with_measured(Measured { reference, ..Measured::default() }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    fs::write(&file, measured.profile_text("a test").unwrap()).unwrap();
    let mine = file.to_str().unwrap();
    let json = prints_json(&["sql", "--calibration", mine, "--json", "select 1"]);
    assert_eq!(json["prefetch"]["machine_origin"], "discovered", "{json}");

    let other = "xeon-max-9468-2s-flat";
    let words = [other, "are not those of", "in the profile", "memferry calibrate"];
    fails(&["sql", "--calibration", other, "select 1"], USAGE, &words);
    fails(&["bench", "query", "--quick", "--calibration", other], USAGE, &words);
    fails(&["bench", "submit", "--quick", "--calibration", other], USAGE, &words);
    fails(&["bench", "qdp", "--quick", "--calibration", other], USAGE, &words);
    fails(&["bench", "atomics", "--quick", "--calibration", other], USAGE, &words);
    let both = ["sql", "--calibration", mine, "--machine", other, "select 1"];
    fails(&both, USAGE, &["--machine", "leave out --calibration"]);
    fails(&["sql", "--calibration", "nowhere.json", "select 1"], FAILURE, &["nowhere.json"]);

    let by_variable = |name: &str, arguments: &[&str]| {
        memferry(arguments).env("MEMFERRY_CALIBRATION", name).output().unwrap()
    };
    says(&by_variable(other, &["sql", "select 1"]), USAGE, &words);
    for (name, arguments) in [
        ("", &["sql", "select 1"][..]),
        (other, &["sql", "--calibration", mine, "select 1"]),
        // The calibration of this machine is ignored for another machine.
        (mine, &["sql", "--machine", other, "select 1"]),
    ] {
        let output = by_variable(name, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn demo_in_small() {
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let demo = |files: &Path| memferry(&["demo", "--quick", "--files"]).arg(files).output().unwrap();
    let output = demo(files.path());
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let removes = format!("`rm -r {}`", files.path().join("sf0.01").display());
    for part in
        ["node 0", "Cold:", "Warm:", "Q19", "█", &removes, "All answers agree: 7 queries, 4 ways", "Modelled"]
    {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    let no_directory = tempfile::NamedTempFile::new().unwrap();
    let path = no_directory.path().to_str().unwrap();
    says(&demo(no_directory.path()), FAILURE, &["cannot write", path]);
}

/// Pages of tmpfs are the file: they cannot be dropped.
#[test]
fn demo_without_a_disk() {
    let Ok(files) = tempfile::tempdir_in("/dev/shm") else {
        return skip(Needs::Kernel("/dev/shm"), "no directory of tmpfs here");
    };
    let output = memferry(&["demo", "--quick", "--files"]).arg(files.path()).output().unwrap();
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["No cold runs", "page cache", "Warm:", "7 queries, 2 ways", "ratios: warm"] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    assert!(!printed.contains("Cold:"), "{printed}");
}

// Usage errors.

#[test]
fn wrong_options_are_usage_errors() {
    fails(&["sql", "select sha3('a')"], USAGE, &["no SQL function 'sha3' (did you mean", "routines"]);
    fails(&["sql", "--tpch", "0", "select 1"], USAGE, &["--tpch", "above 0"]);
    fails(&["sql", "--tpch", "abc", "select 1"], USAGE, &["abc", "such as 0.1"]);
    fails(&["sql", "--tpch", "-1", "select 1"], USAGE, &["-1"]);
    fails(&["demo", "--scale", "nan"], USAGE, &["nan", "above 0"]);
    fails(&["sql", "--prefetch", "maybe", "select 1"], USAGE, &["maybe", "off, always or auto"]);
    fails(&["sql", "--budget", "lots", "select 1"], USAGE, &["lots", "512MiB"]);
    fails(&["sql", "--near", "hbm", "select 1"], USAGE, &["hbm", "memferry topology"]);
    fails(&["sql", "--seed", "1", "select 1"], USAGE, &["--seed", "--dsa emulated"]);
    fails(&["sql", "--partitions", "0", "select 1"], USAGE, &["--partitions", "1 to 4096"]);
    fails(&["sql", "--table", "t.parquet", "select 1"], USAGE, &["NAME=LOCATION"]);
    fails(&["sql", "--table", "2 t=t.parquet", "select 1"], USAGE, &["2 t", "letters"]);
    fails(&["bench", "query", "--pairs", "3"], USAGE, &["--pairs", "11"]);
    fails(&["fly"], USAGE, &["fly"]);
}

#[test]
fn unknown_nodes_and_machines() {
    fails(&["sql", "--near", "77", "select 1"], USAGE, &["no node 77", "it has node 0"]);
    fails(&["sql", "--home", "77", "select 1"], USAGE, &["no node 77"]);
    fails(&["sql", "--machine", "cray-1", "select 1"], USAGE, &["cray-1", "made-up-two-tiers"]);
    fails(&["topology", "--profile", "cray-1"], USAGE, &["cray-1", "xeon-max-9468-2s-flat"]);
    fails(&["topology", "--json", "--svg", "-"], USAGE, &["--json", "--svg"]);
}

#[test]
fn wrong_sql_is_a_usage_error() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(&parquet_file(directory.path(), 3));
    let sql = |statement, words: &[&str]| fails(&["sql", "--table", &table, statement], USAGE, words);
    sql("selec a from t", &["selec"]);
    sql("select a from", &["cannot parse the statement"]);
    sql("", &["the statement is empty"]);
    sql(" ; -- nothing", &["the statement is empty"]);
    sql("select c from t", &["c", "a", "b", "describe"]);
    sql("select a from u", &["u", "--table"]);
    sql("select nonsense(a) from t", &["nonsense"]);
    fails(&["sql", "--table", &table, "--table", &table, "select 1"], USAGE, &["two tables are called t"]);
}

#[test]
fn budget_smaller_than_a_row_group() {
    let query = "select sum(l_tax) from lineitem where l_quantity < 24";
    let words = ["budget", "row group", "raise"];
    fails(&["sql", "--tpch", "0.01", "--budget", "4096", "--prefetch", "always", query], USAGE, &words);
    fails(&["sql", "--tpch", "0.01", "--budget", "1024", query], USAGE, &["budget", "page"]);
}

// Failures.

#[test]
fn files_that_cannot_be_used() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let sql = |path: &Path, words: &[&str]| {
        fails(&["sql", "--table", &table_of(path), "select * from t"], FAILURE, words);
    };
    sql(&at("missing.parquet"), &["missing.parquet", "No such file"]);
    sql(directory.path(), &[&directory.path().display().to_string()]);
    fs::write(at("text.parquet"), "a,b\n1,2\n").unwrap();
    sql(&at("text.parquet"), &["text.parquet", "Parquet"]);
    fs::write(at("empty.parquet"), "").unwrap();
    sql(&at("empty.parquet"), &["empty.parquet", "Parquet"]);

    // The beginning and the end of a Parquet file with garbage between them.
    let whole = fs::read(parquet_file(directory.path(), 1000)).unwrap();
    fs::write(at("cut.parquet"), &whole[..whole.len() / 2]).unwrap();
    sql(&at("cut.parquet"), &["cut.parquet"]);
    let mut broken = whole.clone();
    broken[4..whole.len() - 600].fill(0xff);
    fs::write(at("broken.parquet"), broken).unwrap();
    sql(&at("broken.parquet"), &["broken.parquet"]);

    fs::write(at("profile.json"), "{").unwrap();
    fails(&["topology", "--profile", at("profile.json").to_str().unwrap()], FAILURE, &["profile.json"]);
    fails(&["topology", "--sysfs", at("nothing").to_str().unwrap()], FAILURE, &["nothing"]);
    let nowhere = at("nowhere").join("a.svg");
    fails(
        &["topology", "--svg", nowhere.to_str().unwrap()],
        FAILURE,
        &["nowhere/a.svg", "--svg FILE", "No such file"],
    );
    let taken = directory.path().to_str().unwrap();
    fails(&["topology", "--svg", taken], FAILURE, &[taken, "Is a directory"]);
}

#[test]
fn a_query_that_fails_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(&parquet_file(directory.path(), 3));
    let statement = "select 10 / (a - 2) from t";
    fails(&["sql", "--table", &table, "--json", statement], FAILURE, &["the query failed", "zero"]);
}

#[test]
fn output_that_cannot_be_written() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = memferry(&["topology"]).stdout(full).output().unwrap();
    says(&output, FAILURE, &["output", "No space left"]);
}

/// As in `memferry ... | head -1`.
#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = memferry(&["sql", "--tpch", "0.01", "select * from lineitem"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("l_orderkey"), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success(), "{}", output.status);
}

// Benchmarks.

#[test]
fn results_directory_that_cannot_be_made() {
    fails(
        &["bench", "query", "--quick", "--out", "/dev/null/results"],
        FAILURE,
        &["/dev/null/results", "--out"],
    );
}

/// The whole benchmark on little data. The disk has one page, so the record does not fit: the numbers are printed, the
/// error is reported, and no file remains.
///
/// The disk is a tmpfs in a separate mount namespace, which some kernels and containers do not allow.
#[test]
fn bench_query_in_small_on_a_full_disk() {
    let disk = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=4k none \"$1\" || exit 77
        \"$0\" bench query --quick --json --out \"$1\"
        status=$?
        test -z \"$(find \"$1\" -type f)\" || exit 78
        exit $status";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_memferry")])
        .arg(disk.path())
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(77) && !output.stdout.is_empty() => {
            says(&output, FAILURE, &["cannot be written", "No space left", "--out"]);
            output
        }
        refused => {
            skip(Needs::Namespaces, format!("the full disk is left out: {refused:?}"));
            let output = memferry(&["bench", "query", "--quick", "--json"]).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            output
        }
    };
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    for part in ["bench", "version", "commit", "machine", "started", "seed", "options", "rows"] {
        assert!(!record[part].is_null(), "{part} is not in {record}");
    }
    let row = |name: &str| {
        let rows = record["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {record}"))
    };
    assert_eq!(row("tpch_answers_equal")["value"], 88.0);
    assert_eq!(row("tpch_answers_equal_always_dsa")["how"], "emulated");
    for name in ["tpch_sf0.01_off_geomean", "tpch_sf0.01_auto_geomean", "tpch_sf0.01_always_geomean"] {
        assert_eq!(row(name)["peer"], "datafusion");
        assert_eq!(row(name)["how"], "measured");
    }
    let selective = row("selective_geomean");
    let figure = |name: &str| selective[name].as_f64().unwrap();
    assert!((figure("peer_value") / figure("value") / figure("ratio") - 1.0).abs() < 0.01, "{selective}");
    assert!(row("selective_ablation_merge_batches")["ratio"].as_f64().unwrap() > 0.0);
    assert!(row("sf0.01_planning")["value"].as_f64().unwrap() > 0.0);
    assert!(
        row("planning_us_max")["value"].as_f64().unwrap() >= row("planning_us")["value"].as_f64().unwrap()
    );
    assert!(row("rss_peak_bytes")["value"].as_f64().unwrap() > 1e6);
}

#[test]
fn bench_dsa_in_small() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output = memferry(&["bench", "dsa", "--quick", "--json", "--out", out]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(record["options"]["dsa"], "emulated");
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {record}"))
    };
    for (name, how) in [
        ("emulator_noop_single", "emulated"),
        ("emulator_noop_batch64", "emulated"),
        ("emulator_round_trip_ns", "emulated"),
        ("wait_block_core_share", "emulated"),
        ("crc32c", "measured"),
    ] {
        assert_eq!(row(name)["how"], how, "{name}");
        assert!(row(name)["value"].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(row("wait_block_latency_us")["value"].is_f64());
    for (name, peer) in [
        ("crc32c", "crc-fast"),
        ("compare", "memcmp"),
        ("fill", "memset"),
        ("delta_create", "memcpy"),
        ("delta_apply", "memcpy"),
        ("dif_check", "memcpy"),
    ] {
        assert_eq!(row(name)["peer"], peer);
        assert!(row(name)["ratio"].as_f64().unwrap() > 0.0, "{name}");
    }
    let names: std::collections::BTreeSet<_> = rows.iter().map(|row| row["name"].as_str()).collect();
    assert_eq!(names.len(), rows.len(), "names are unique: {record}");

    if std::arch::is_x86_feature_detected!("avx2") {
        let record = prints_json(&["bench", "dsa", "--quick", "--json", "--isa", "avx2"]);
        assert_eq!(record["options"]["isa"], "avx2");
    }
    fails(&["bench", "dsa", "--queue", "wq0.0"], FAILURE, &["--dsa system"]);
    fails(&["bench", "dsa", "--dsa", "system", "--queue", "queue"], USAGE, &["--queue"]);
}

#[test]
fn bench_cache_in_small() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output = memferry(&["bench", "cache", "--quick", "--json", "--out", out]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {record}"))
    };
    for name in [
        "hit_1_thread",
        "hit_2_threads_vs_thesis",
        "hit_hot_key_vs_thesis",
        "churn_vs_thesis",
        "churn_copies_vs_thesis",
        "churn_64KiB_vs_thesis",
        "evict_after_4000_threads_us",
    ] {
        assert!(row(name)["value"].as_f64().unwrap() > 0.0 && row(name)["ratio"].as_f64().unwrap() > 0.0);
        assert_eq!(row(name)["samples"], 3, "{name}");
    }
    assert_eq!(row("hit_allocations")["value"], 0.0);
    for name in ["first_access_poll_us", "first_access_block_p99_us", "first_access_idle_block_us"] {
        assert!(row(name)["value"].is_f64(), "{name}");
    }
    let scans = row("hit_ratio_scans_0.99_200");
    assert_eq!(scans["peer"], "LRU");
    assert!(scans["ratio"].as_f64().unwrap() > 1.0, "{scans}");

    // The peers depend on the features of the build; the record lists them.
    let peers = record["options"]["peers"].as_array().unwrap();
    assert_eq!(peers[0], "thesis");
    let has_moka = peers.iter().any(|peer| peer == "moka");
    assert_eq!(rows.iter().any(|row| row["name"] == "hit_2_threads_vs_moka"), has_moka, "{record}");
}

#[test]
fn bench_mover_in_small() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output = memferry(&["bench", "mover", "--quick", "--json", "--out", out]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {record}"))
    };
    for name in ["copy_hot_4KiB", "copy_hot_64KiB", "copy_hot_1MiB", "copy_cold_1MiB", "copy_2_workers"] {
        assert!(row(name)["ratio"].as_f64().unwrap() > 0.0 && row(name)["how"] == "measured", "{record}");
    }
    for name in ["copy_call_ns", "async_4KiB_overhead_ns"] {
        assert!(row(name)["value"].is_f64(), "{record}");
    }
    for (name, how) in [
        ("ordered_512B", "modelled"),
        ("ordered_512B_forwarding", "modelled"),
        ("ordered_512B_measured", "measured"),
    ] {
        assert!(row(name)["ratio"].as_f64().unwrap() > 0.0 && row(name)["how"] == how, "{record}");
    }
    // The record contains the table of copy methods.
    assert_eq!(record["options"]["methods"]["warm"].as_array().unwrap().len(), 5, "{record}");
}

#[test]
fn bench_cases_in_small() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let command =
        ["bench", "cases", "--quick", "--json", "--case", "digests", "--case", "packets", "--out", out];
    let output = memferry(&command).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    // In the order of the publication, whatever the order of the options.
    assert_eq!(record["options"]["cases"], serde_json::json!(["packets", "digests"]));
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {record}"))
    };
    for (name, how) in [
        ("packets_64B", "measured"),
        ("packets_512B_emulated", "emulated"),
        ("digests_16KiB", "measured"),
        ("digests_16KiB_emulated", "emulated"),
        ("digests_16KiB_cores_emulated [K109]", "emulated"),
        ("cores of a storage target, 16 KB random reads [K109]", "modelled"),
    ] {
        assert!(row(name)["value"].as_f64().unwrap() > 0.0 && row(name)["how"] == how, "{record}");
    }
    assert!(rows.iter().all(|row| !row["name"].as_str().unwrap().starts_with("cache")), "{record}");
    fails(&["bench", "cases", "--case", "dice"], USAGE, &["dice"]);
}

#[test]
fn bench_soak_for_a_second() {
    let record = prints_json(&["bench", "soak", "--seconds", "1", "--seed", "3", "--json"]);
    assert_eq!((&record["seed"], &record["options"]["threads"]), (&Value::from(3), &Value::from(4)));
    let rows = record["rows"].as_array().unwrap();
    for name in ["soak_steps", "soak_checked_bytes", "soak_hits_ready", "soak_evictions"] {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert!(row["value"].as_f64().unwrap() > 0.0 && row["how"] == "emulated", "{row}");
    }
    fails(&["bench", "soak", "--threads", "0"], USAGE, &["1 to 1024"]);
    fails(&["bench", "soak", "--seconds", "0"], USAGE, &["1..=31536000"]);
    fails(&["bench", "soak", "--seconds", "18446744073709551615"], USAGE, &["1..=31536000"]);
}

#[test]
fn bench_domains_measures_claims_and_tasks() {
    let record = prints_json(&["bench", "domains", "--quick", "--json"]);
    let rows = record["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let summaries = [
        "claims_per_second",
        "steals_per_second",
        "spawn_overhead",
        "domains_answers_equal",
        "domains_geomean",
    ];
    // One domain has nothing to compare.
    let expected = if record["options"]["domains"] == 1 { 3 } else { summaries.len() };
    assert_eq!(names[..expected], summaries[..expected]);
    if expected > 3 {
        assert_eq!(rows[3]["value"], 352.0, "22 queries, 4 bindings, 4 ways of stealing");
        assert_eq!(names.len(), 6 + 22, "the time of planning, and each query");
    }
    assert!(rows.iter().all(|row| row["value"].as_f64().unwrap() > 0.0), "{record}");
    assert!(rows[2]["ratio"].as_f64().unwrap() > 0.0, "{record}");
}

/// The selective queries and the parts that are no query. The files lie beside the build, on a disk: a temporary directory may be in memory.
#[test]
fn bench_cold_measures_files() {
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files = files.path().to_str().unwrap();
    let selective = ["q06", "q12", "q14", "q19", "selective", "first_query", "load_lineitem"];
    let selective = selective.iter().flat_map(|name| ["--query", name]).collect::<Vec<_>>();
    let bench = ["bench", "cold", "--quick", "--json", "--files", files];
    let record = prints_json(&[&bench[..], &selective].concat());
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}: {record}"))
    };
    for name in ["disk_bytes_per_s", "cold_geomean", "cold_query_min", "cold_bytes_ratio", "cold_over_floor"]
    {
        assert!(row(name)["value"].as_f64().unwrap() > 0.0, "{record}");
    }
    assert!(row("cold_selective")["ratio"].as_f64().unwrap() > 0.0, "{record}");
    assert!(row("cold_q06_bytes")["value"].as_f64().unwrap() > 0.0, "its pages were dropped: {record}");
    // Each request of the slow store takes 30 ms.
    assert!(row("cold_30ms_store")["value"].as_f64().unwrap() > 30.0, "{record}");
    assert!(row("cold_30ms_store")["ratio"].as_f64().unwrap() > 0.0, "{record}");
    for name in ["planning_us", "planning_us_max"] {
        assert!(row(name)["value"].as_f64().unwrap() > 0.0, "{record}");
    }
    assert!(row("cold_q12_plan_ahead")["ratio"].as_f64().unwrap() > 0.0, "{record}");
    // Q12 and others have two late columns or more.
    assert!(row("cold_read_ahead")["ratio"].as_f64().unwrap() > 0.0, "{record}");
    // The rows of a table take their memory.
    assert!(row("load_memory_ratio")["value"].as_f64().unwrap() > 0.5, "{record}");
    for (name, peer) in [
        ("cold_q06_duckdb", "DuckDB"),
        ("first_query_cold", "DuckDB in Python"),
        ("first_query_cold_after_import", "DuckDB in Python"),
        ("first_query_warm", "DuckDB in Python"),
        ("first_query_warm_after_import", "DuckDB in Python"),
        ("load_lineitem", "pyarrow"),
        ("cold_selective_vs_best", "DuckDB and Polars"),
    ] {
        assert!(row(name)["value"].as_f64().unwrap() > 0.0, "{record}");
        assert_eq!(row(name)["peer"], format!("{peer}: not run, see --peers"));
        assert_eq!(row(name).get("peer_value"), None);
    }
}

/// Of the filters, one; and the names that `--query` knows.
#[test]
fn bench_workload_compares_and_counts() {
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files = files.path().to_str().unwrap();
    let bench = ["bench", "workload", "--quick", "--json", "--files", files, "--sessions", "3"];
    let record = prints_json(&bench);
    let rows = record["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}: {record}"))
    };
    for name in ["workload_warming", "workload_vs_datafusion", "workload_vs_stored", "workload_rss_bytes"] {
        assert!(row(name)["ratio"].as_f64().unwrap() > 0.0, "{name}: {record}");
    }
    let value = |name: &str| row(name)["value"].as_f64().unwrap();
    let budget_bytes = row("workload_peak_bytes")["peer_value"].as_f64().unwrap();
    assert!(value("workload_peak_bytes") <= budget_bytes, "{record}");
    assert_eq!(budget_bytes, (value("workload_working_set_bytes") / 2.0).floor(), "{record}");
    assert!(value("workload_warming_by_query") > 0.0, "{record}");
    // Each session runs a query in each of the five sections.
    assert!(value("workload_queries") >= 15.0, "{record}");
    for section in 1..=5 {
        assert!(value(&format!("workload_speed_{section:02}")) > 0.0, "{record}");
        assert!(value(&format!("workload_decoded_share_{section:02}")) <= 1.0, "{record}");
    }
    // The disturbed part: the kernel has counted memory of the budget, and each kind of disturbance meets queries, given time.
    let kernel_bytes = value("workload_disturbed_kernel_bytes");
    assert!(kernel_bytes > 0.0 && kernel_bytes <= budget_bytes, "{record}");
    assert!(row("workload_disturbed_rss_bytes")["ratio"].as_f64().unwrap() > 0.0, "{record}");
    let kinds = ["answered", "cancelled", "changed", "read_failed", "failed_reads", "short_reads"];
    let count = |record: &Value, kind: &str| {
        let name = format!("workload_disturbed_{kind}");
        let mut rows = record["rows"].as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).unwrap()["value"].as_f64().unwrap()
    };
    let mut longer = ["10", "60"].into_iter();
    let mut last = record.clone();
    while let Some(kind) = kinds.iter().find(|kind| count(&last, kind) < 1.0) {
        let seconds = longer.next().unwrap_or_else(|| panic!("{kind}: {last}"));
        last = prints_json(&[&bench[..], &["--disturbed-seconds", seconds]].concat());
    }
    let left: Vec<_> = std::fs::read_dir(files).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["sf0.01"], "the linked files are gone");

    let budget = [&bench[..], &["--budget", "1MiB", "--disturbed-seconds", "0"]].concat();
    let record = prints_json(&budget);
    assert!(!record.to_string().contains("disturbed_answered"), "{record}");
    let peak = record["rows"].as_array().unwrap().iter().find(|row| row["name"] == "workload_peak_bytes");
    assert_eq!(peak.unwrap()["peer_value"].as_f64(), Some(1_048_576.0), "{record}");
    fails(&["bench", "workload", "--seconds", "0"], USAGE, &["1..=604800"]);
    fails(&["bench", "workload", "--quick", "--budget", "many"], USAGE, &["512MiB"]);
}

#[test]
fn bench_cold_measures_pushdown() {
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files = files.path().to_str().unwrap();
    let bench = ["bench", "cold", "--quick", "--json", "--files", files, "--query"];
    fails(&[&bench[..], &["q23"]].concat(), USAGE, &["q23", "q01, q02", "first_query"]);
    fails(
        &[&bench[..], &["q23", "--pushdown"]].concat(),
        USAGE,
        &["q23", "q06, integer_sorted_narrow_0.001"],
    );
    assert_eq!(
        std::fs::read_dir(files).unwrap().count(),
        0,
        "nothing is written for a query that is unknown"
    );
    let filter = ["--pushdown", "--query", "text_sorted_narrow_0.1"];
    let record = prints_json(&[&bench[..], &["q06"], &filter].concat());
    assert_eq!(record["bench"], "cold-pushdown", "it does not replace the record of the queries");
    let names: Vec<_> = record["rows"].as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    let filter = ["pushdown_text_sorted_narrow_0.1", "pushdown_text_sorted_narrow_0.1_on"];
    assert_eq!(names, [&["pushdown_q06", "pushdown_q06_on"], &filter[..], &["pushdown_min"]].concat());
    assert!(record["rows"][2]["ratio"].as_f64().unwrap() > 0.0, "{record}");
}
