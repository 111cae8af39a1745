//! `memferry emulate` as users see it. The crate memferry-emulate tests the view of programs.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::OnceLock;

use memferry_testing::{Needs, skip};

use crate::support::{FAILURE, USAGE, fails, memferry, prints_json, text};

const SIGTERM: i32 = 15;

fn emulate(arguments: &[&str]) -> Output {
    memferry(&[&["emulate"], arguments].concat()).output().unwrap()
}

/// Whether emulation works; if not, reports the calling test as skipped.
fn is_available() -> bool {
    static OUTPUT: OnceLock<Output> = OnceLock::new();
    let output = OUTPUT.get_or_init(|| emulate(&["--", "true"]));
    if !output.status.success() {
        skip(Needs::Namespaces, text(&output.stderr));
    }
    output.status.success()
}

#[test]
fn it_ends_as_the_program_ends() {
    if !is_available() {
        return;
    }
    let script = |script: &str| emulate(&["--", "sh", "-c", script]);
    assert_eq!(script("exit 0").status.code(), Some(0));
    assert_eq!(script("exit 42").status.code(), Some(42));
    assert_eq!(script("kill -TERM $$").status.signal(), Some(SIGTERM));
    let output = script("cat /sys/bus/dsa/devices/dsa0/state; echo told >&2");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("enabled\n".to_owned(), "told\n".to_owned()));
}

/// The whole path from SQL to descriptors in queues of the system.
#[test]
fn a_query_brings_its_columns_near_by_the_machines_devices() {
    let query = "select sum(l_extendedprice * l_discount) from lineitem where l_quantity < 24";
    let sql = ["sql", "--tpch", "0.05", "--prefetch", "always", "--json"];
    let own = [env!("CARGO_BIN_EXE_memferry")];
    let answer = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), text(&output.stderr))
    };
    // Without a device, the error says how to get one.
    let output = memferry(&sql).args(["--dsa", "system", query]).output().unwrap();
    if output.status.success() {
        return skip(Needs::NoDsa, "this machine has a DSA of its own");
    }
    assert!(
        text(&output.stderr).contains("no DSA of this machine can be used: "),
        "{}",
        text(&output.stderr)
    );
    if !is_available() {
        return;
    }
    let (expected, _) = answer(memferry(&sql).arg(query));
    let mut command = memferry(&["emulate", "--devices", "2", "--seed", "5", "--stats", "--"]);
    let (json, told) = answer(command.args(own).args(sql).args(["--dsa", "system", query]));
    assert_eq!(json["rows"], expected["rows"]);
    let by_dsa =
        json["prefetch"]["bytes_by_engine"].as_array().unwrap().iter().find(|it| it["engine"] == "dsa");
    let by_dsa = by_dsa.unwrap_or_else(|| panic!("the devices carried nothing: {json}"));
    assert!(by_dsa["how"] == "emulated" && by_dsa["bytes"].as_u64().unwrap() > 0, "{json}");
    assert!(told.contains("dsa0: ") && told.contains("dsa2: "), "{told}");
}

/// The command uses the preload library that cargo has built with it, and finds emulated devices through it.
#[test]
fn this_command_measures_an_emulated_device() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("t.jsonl");
    let mut command = memferry(&["emulate", "--stats", "--trace", trace.to_str().unwrap(), "--"]);
    command.args([env!("CARGO_BIN_EXE_memferry"), "bench", "dsa", "--dsa", "system", "--quick", "--json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = record["rows"].as_array().unwrap();
    let system: Vec<_> = rows
        .iter()
        .filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with("system_")))
        .collect();
    assert!(system.len() >= 4 && system.iter().all(|row| row["how"] == "emulated"), "{system:?}");
    let told = text(&output.stderr);
    assert!(told.contains("wq0.0: ") && told.contains(" ended: success (status 0x01)"), "{told}");
    let lines = fs::read_to_string(&trace).unwrap();
    assert!(lines.lines().count() > 100);
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line.is_object());
    }
}

/// `bench --on machine` on emulated queues.
#[test]
fn the_papers_benchmarks_find_the_queues() {
    if !is_available() {
        return;
    }
    for (name, options) in [
        ("submit", &["--sizes", "64KiB", "--batches", "1,4", "--data", "memory"][..]),
        ("operations", &["--sizes", "4KiB", "--depths", "4", "--operations", "copy,crc"]),
        ("threads", &["--submitters", "2", "--sizes", "4KiB"]),
        ("latency", &["--sizes", "4KiB", "--batches", "1"]),
        ("wait", &["--sizes", "64KiB", "--batches", "1,8"]),
        ("routes", &["--sizes", "4MiB", "--routes", "single,all"]),
        ("faults", &["--sizes", "64KiB", "--engines", "4"]),
    ] {
        let mut command = memferry(&["emulate", "--devices", "2", "--"]);
        command.args([
            env!("CARGO_BIN_EXE_memferry"),
            "bench",
            name,
            "--ways",
            "shared",
            "--quick",
            "--json",
        ]);
        let output = command.args(options).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for row in record["rows"].as_array().unwrap() {
            assert_eq!((&row["way"], &row["how"]), (&"shared".into(), &"emulated".into()));
            assert!(row["value"].as_f64().is_some_and(|value| value > 0.0), "{row}");
            let note = row["note"].as_str().unwrap_or_default();
            assert!(name == "wait" || note.contains("by dsa0"), "{row}");
            // The pages were absent.
            let is_resumed =
                note.contains("software resumed after ") && !note.contains("after 0 page faults");
            assert_eq!(is_resumed, row["pages"] == "absent-resume", "{row}");
        }
    }
}

/// A collection measures the emulated devices, and its records say what they are.
#[test]
fn a_collection_has_the_devices() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let own = env!("CARGO_BIN_EXE_memferry");
    let collect = [own, "report", "--collect", file.to_str().unwrap(), "--quick"];
    let output = emulate(&[&["--"], &collect[..], &["--only", "topology", "--only", "engines"]].concat());
    let lines = text(&output.stdout);
    assert!(lines.contains("engines: done"), "{lines}{}", text(&output.stderr));
    assert!(!lines.contains("changed meanwhile"), "{lines}");
    let collection: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let files = collection["files"].as_object().unwrap();
    let (_, record) = files.iter().find(|(name, _)| name.ends_with("-engines.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(record.as_str().unwrap()).unwrap();
    assert!(record["rows"].as_array().unwrap().iter().any(|row| row["how"] == "emulated"), "{record}");
}

#[test]
fn measurements() {
    if !is_available() {
        return;
    }
    if Command::new("accel-config").arg("--version").output().is_err() {
        return skip(
            Needs::Program("accel-config"),
            "accel-config is missing; `cargo xtask setup` installs it",
        );
    }
    let record = prints_json(&["bench", "emulate", "--quick", "--json"]);
    let value = |name: &str| {
        let rows = record["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["value"].as_f64()).unwrap_or_else(|| panic!("no {name} in {record}"))
    };
    for name in ["trap_bare_ns", "patched_submit_ns", "patched_submit_4_threads_ns"] {
        assert!(value(name) > 0.0, "{name}: {}", value(name));
    }
    assert!(value("trap_submit_overhead_ns").is_finite());
    // In virtual time of the device, in which a copy takes a millisecond. Other load does not matter.
    for name in ["share_priority_12_ms", "share_priority_4_ms", "share_threshold_32_alone_ms"] {
        assert!(value(name) > 1.0, "{name}: {record}");
    }
    // Only an idle machine can show which of two tenants waits longer.
    for name in ["share_threshold_32_ms", "share_threshold_4_ms"] {
        assert!(value(name) > 0.0, "{name}: {record}");
    }
    for name in ["idle_10ms_round_trip_us", "idle_10ms_round_trip_p99_us", "pollers_4_on_2_cpus"] {
        assert!(value(name) > 0.0, "{name}: {record}");
    }
    assert!(value("idle_core_share").is_finite());
    assert!(value("startup_ms").is_finite() && value("accel_config_list_8_devices_ms") > 0.0);
}

/// `cargo install` installs the command without the library.
#[test]
fn needs_no_file_beside_it() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let command = directory.path().join("memferry");
    fs::hard_link(env!("CARGO_BIN_EXE_memferry"), &command).unwrap();
    let script = "echo $LD_PRELOAD; cat /proc/self/maps";
    let output = Command::new(&command).args(["emulate", "--", "sh", "-c", script]).output().unwrap();
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(told.lines().skip(1).any(|line| line.ends_with("libmemferry_emulate_preload.so")), "{told}");
}

#[test]
fn mistakes_are_told() {
    fails(&["emulate", "true"], USAGE, &["unexpected argument"]);
    fails(&["emulate", "--faults", "pages", "--", "true"], USAGE, &["thousandths"]);
    // The subcommand needs a process under the emulation: without it there is no queue or no instruction.
    fails(&["bench", "emulate", "--inside", "1"], FAILURE, &[]);
    fails(&["bench", "emulate", "--idle"], FAILURE, &[]);
    fails(&["bench", "emulate", "--together", "wq0.0,many"], USAGE, &["such as wq0.0,100"]);
    let wrong = [
        (vec!["--", "no-such-program"], 127, "PATH"),
        (vec!["--", "/"], 126, "executable"),
        (vec!["--devices", "9", "--", "true"], 2, "1 to 8"),
        (vec!["--seed", "-1", "--", "true"], 2, "a seed is a number"),
        (vec!["--config", "/nowhere", "--", "true"], 125, "/nowhere"),
    ];
    for (arguments, status, word) in wrong {
        fails(&[&["emulate"], &arguments[..]].concat(), status, &[word]);
    }
    if is_available() {
        fails(&["emulate", "--trace", "/nowhere/t", "--", "true"], 125, &["/nowhere/t", "directory"]);
    }
}
