//! The benchmarks of the papers: each on each backend, their options, and continuation after an interruption.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{FAILURE, USAGE, fails, prints, prints_json};

const NAMES: [&str; 16] = [
    "submit",
    "threads",
    "queues",
    "routes",
    "operations",
    "depth",
    "engines",
    "latency",
    "wait",
    "pages",
    "faults",
    "remote",
    "target",
    "priority",
    "interference",
    "pollution",
];
const MODEL: [&str; 2] = ["--machine", "xeon-max-9468-2s-flat"];
const EMULATED: [&str; 4] = ["--on", "emulated", "--machine", "xeon-max-9468-2s-flat"];

fn quick(name: &str, options: &[&str]) -> Value {
    prints_json(&[&["bench", name, "--quick", "--json"], options].concat())
}

fn rows(record: &Value) -> &[Value] {
    record["rows"].as_array().unwrap()
}

fn row<'a>(record: &'a Value, name: &str) -> &'a Value {
    let found = rows(record).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {record:#}"))
}

fn value(record: &Value, name: &str) -> f64 {
    row(record, name)["value"].as_f64().unwrap()
}

/// A row has a value or says why not.
#[track_caller]
fn is_whole(name: &str, record: &Value, how: &str) {
    assert_eq!(record["bench"], name);
    assert!(!rows(record).is_empty());
    for row in rows(record) {
        let has_value = row["value"].as_f64().is_some_and(|value| value.is_finite());
        assert!(has_value != row["value"].is_null(), "{row}");
        assert!(has_value || row["note"].as_str().is_some_and(|note| !note.is_empty()), "{row}");
        assert_eq!(row["how"], how, "{row}");
    }
}

#[test]
fn all_on_the_emulated_device() {
    for name in NAMES {
        let record = quick(name, &EMULATED);
        is_whole(name, &record, "emulated");
        let valued = rows(&record).iter().filter(|row| row["value"].is_number()).count();
        // The device refuses points that it does not model, with a reason, and runs all others.
        let is_unknown = |row: &&Value| match name {
            "pollution" => true,
            "pages" => row["pages"] == "huge",
            // The core's own work.
            "latency" => matches!(row["figure"].as_str(), Some("allocate" | "prepare")),
            "remote" => row["name"] == "remote_cxl",
            _ => false,
        };
        let unknown = rows(&record).iter().filter(is_unknown).count();
        assert_eq!(valued, rows(&record).len() - unknown, "{name}: {record:#}");
        let has_unknown = ["pollution", "pages", "latency", "remote"];
        assert_eq!(unknown > 0, has_unknown.contains(&name), "{name}");
    }
}

#[test]
fn all_in_the_model() {
    for name in NAMES {
        let record = quick(name, &MODEL);
        is_whole(name, &record, "modelled");
        let has_values = rows(&record).iter().any(|row| row["value"].is_number());
        assert_eq!(has_values, name != "pollution", "{name}: {record:#}");
    }
}

/// On any machine: it has cores.
#[test]
fn some_on_this_machine() {
    for name in ["submit", "threads", "faults", "routes", "target"] {
        let record = prints_json(&["bench", name, "--quick", "--sizes", "64KiB", "--json"]);
        for row in rows(&record).iter().filter(|row| row["way"] == "core") {
            let is_short_of_memory = row["note"].as_str().is_some_and(|note| note.contains("MiB are free"));
            assert!(row["value"].as_f64().is_some_and(|value| value > 0.0) || is_short_of_memory, "{row}");
            assert_eq!(row["how"], "measured");
        }
        assert!(
            rows(&record).iter().all(|row| row["value"].is_number() || row["note"].is_string()),
            "{record:#}"
        );
    }
    let record = prints_json(&["bench", "submit", "--quick", "--sizes", "64KiB", "--ways", "core", "--json"]);
    assert!(
        row(&record, "submit_core_64KiB_batch1_memory")["overhead"].as_f64().is_some_and(|share| share > 0.0)
    );
}

#[test]
fn figures_of_the_papers() {
    let gib = f64::from(1 << 30);
    let record = quick("routes", &[&MODEL[..], &["--sizes", "1GiB"]].concat());
    let name = "routes_any_1GiB_single_from0_to8";
    assert!((value(&record, name) / gib - 30.0).abs() < 0.5, "{record:#}");
    assert_eq!(row(&record, name)["peer"], "published (Fürst 2024, F049)");
    let ratio = row(&record, "routes_any_1GiB_socket_from0_to8")["ratio"].as_f64().unwrap();
    assert!((0.95..1.05).contains(&ratio), "the peak of the thesis: {ratio}");

    // One submitter waits for each; a batch, or several of them, keep the device busy.
    let emulated = quick("queues", &["--on", "emulated", "--sizes", "1KiB"]);
    let [single, batched, shared] = [
        "queues_dedicated_1KiB_batch1_submitters1_queues1_engines1",
        "queues_dedicated_1KiB_batch4_submitters1_queues1_engines1",
        "queues_shared_1KiB_batch1_submitters1_queues1_engines1",
    ]
    .map(|name| value(&emulated, name));
    assert!(shared < single && batched > 0.5 * single, "{shared} {single} {batched}");
    let text = prints(&["bench", "queues", "--quick", "--on", "emulated"]);
    assert!(text.contains("queues_shared_1KiB") && !text.contains("Not run"), "{text}");
}

#[test]
fn options_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("options.toml");
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        "on = 'emulated'\nquick = true\nsizes = [4096, '64 KiB']\nways = ['shared']\nbatches = [1]\ndata = ['memory']\n",
    )
    .unwrap();
    let record = prints_json(&["bench", "submit", "--options", path, "--sizes", "1MiB,16KiB", "--json"]);
    let names: Vec<&str> = rows(&record).iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["submit_shared_1MiB_batch1_memory", "submit_shared_16KiB_batch1_memory"]);
    assert_eq!(record["options"]["sizes"], serde_json::json!([1 << 20, 16384]));

    fs::write(&file, "sizes = [4096\n").unwrap();
    fails(&["bench", "submit", "--options", path], USAGE, &["options.toml", "line"]);
    fs::write(&file, "seizes = [4096]\n").unwrap();
    fails(&["bench", "submit", "--options", path], USAGE, &["options.toml", "seizes"]);
    fs::write(&file, "on = 'moon'\n").unwrap();
    fails(&["bench", "threads", "--options", path], USAGE, &["moon", "emulated", "bench threads --help"]);
    fails(&["bench", "submit", "--options", "/nowhere.toml"], FAILURE, &["/nowhere.toml"]);
}

#[test]
fn mistakes() {
    fails(&["bench", "submit", "--sizes", "big"], USAGE, &["--sizes", "big"]);
    fails(&["bench", "submit", "--on", "model"], USAGE, &["--machine"]);
    fails(&["bench", "submit", "--on", "machine", "--machine", "spr-56c"], USAGE, &["--on machine"]);
    fails(&["bench", "submit", "--machine", "cray-1"], USAGE, &["cray-1"]);
    fails(
        &["bench", "queues", "--on", "emulated", "--ways", "dedicated", "--submitters", "3", "--queues", "2"],
        USAGE,
        &["combination"],
    );
    // Values that are in no row.
    fails(&["bench", "submit", "--ways", "core", "--entries", "16"], USAGE, &["16 as entries", "--ways"]);
    fails(&["bench", "submit", "--ways", "write,shared", "--batches", "8"], USAGE, &["write as way"]);
}

#[test]
fn devices_that_a_machine_does_not_have() {
    let record = quick("submit", &["--on", "emulated", "--machine", "skylake-8180-snc-off"]);
    is_whole("submit", &record, "emulated");
    for row in rows(&record) {
        assert!(row["value"].is_null(), "{row}");
        let note = row["note"].as_str().unwrap();
        assert!(row["way"] == "write" || note.contains("has no DSA"), "{row}");
    }
}

/// Measurements have an overhead; computations have none.
#[test]
fn each_row_says_what_measuring_cost() {
    for (backend, expected) in [(&EMULATED[..], 0.0), (&MODEL[..], 0.0)] {
        let record = quick("threads", backend);
        let mut valued = rows(&record).iter().filter(|row| row["value"].is_number()).peekable();
        assert!(valued.peek().is_some());
        assert!(valued.all(|row| row["overhead"] == expected), "{record:#}");
        assert_eq!(record["options"]["iterations"], 1);
    }
    let text = prints(&["bench", "submit", "--quick", "--sizes", "64KiB", "--ways", "core"]);
    assert!(text.contains("Measuring took "), "{text}");
}

/// The only file below a directory whose name ends like this.
fn file(directory: &Path, ending: &str) -> Option<PathBuf> {
    let machine = fs::read_dir(directory).ok()?.next()?.ok()?.path();
    let files = fs::read_dir(machine).ok()?.map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.to_str().is_some_and(|path| path.ends_with(ending)))
}

#[test]
fn an_interrupted_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let command = ["bench", "submit", "--quick", "--on", "emulated", "--out", out, "--json"];
    let whole = prints_json(&command);
    let json = file(directory.path(), "-submit-emulated.json").unwrap();
    let csv = fs::read_to_string(json.with_extension("csv")).unwrap();
    assert_eq!(csv.lines().count(), rows(&whole).len() + 1, "{csv}");
    assert!(csv.starts_with("name,value,unit,how,samples,"), "{csv}");
    assert_eq!(file(directory.path(), ".unfinished.json"), None);

    // The file of a run that was killed after three rows. One of them is marked, to recognise it.
    let mut left: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    left["rows"].as_array_mut().unwrap().truncate(3);
    left["rows"][1]["value"] = 123.0.into();
    left["started"] = "2026-01-02T03:04:05Z".into();
    let unfinished = json.with_file_name("submit-emulated.unfinished.json");
    fs::write(&unfinished, left.to_string()).unwrap();
    let continued = prints_json(&command);
    assert_eq!(rows(&continued)[1]["value"], 123.0);
    assert_eq!(rows(&continued)[3..], rows(&whole)[3..]);
    assert_eq!(continued["started"], "2026-01-02T03:04:05Z");
    assert!(!unfinished.exists());

    // Other options, another version, and no record at all.
    fs::write(&unfinished, left.to_string()).unwrap();
    let other = [&command[..], &["--sizes", "4KiB"]].concat();
    fails(&other, FAILURE, &["other options", "--restart"]);
    assert!(unfinished.exists(), "it can still be finished");
    left["version"] = "0.0.1".into();
    fs::write(&unfinished, left.to_string()).unwrap();
    fails(&command, FAILURE, &["0.0.1", "finish it with that version", "--restart"]);
    fs::write(&unfinished, "{}").unwrap();
    fails(&command, FAILURE, &["no unfinished run", "--restart"]);
    let anew = prints_json(&[&command[..], &["--restart"]].concat());
    assert_eq!(rows(&anew), rows(&whole));
    assert!(!unfinished.exists());
}
