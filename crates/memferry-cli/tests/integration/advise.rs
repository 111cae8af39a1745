//! `memferry advise devices`: advice for a workload, as text, as JSON and as a configuration.

use std::fs;

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
