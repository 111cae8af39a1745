//! `memferry configure`, and DSA devices in `memferry topology`, over file trees of a fake driver.

use std::fs;
use std::path::Path;

use memferry_dsa::system::{ApplyOptions, Config, DeviceId, Plan, Profile, SystemState, UnknownKeys};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};

use crate::support::{FAILURE, USAGE, fails, prints, prints_json};

/// Three devices on three nodes.
fn driver() -> FakeDriver {
    let device = |node| FakeDevice::sapphire_rapids(DeviceId(2 * node), node);
    FakeDriver::new(&[device(0), device(1), device(2)])
}

fn apply(driver: &FakeDriver, profile: &str) {
    let config = Profile::named(profile).unwrap().config();
    let state = SystemState::read(driver).unwrap();
    let plan = Plan::new(&config, &state, ApplyOptions { disable_first: false, enable: true }).unwrap();
    plan.apply_to(driver).unwrap();
}

/// Writes the file tree of a machine with a node for each device.
fn record(driver: &FakeDriver, root: &Path) {
    driver.put("sys/devices/system/node/online", "0-2");
    driver.put("sys/devices/system/cpu/online", "0-2");
    for (node, distances) in ["10 21 21", "21 10 21", "21 21 10"].into_iter().enumerate() {
        let at = format!("sys/devices/system/node/node{node}");
        driver.put(&format!("{at}/cpulist"), &node.to_string());
        driver.put(&format!("{at}/distance"), distances);
        let line = |name: &str| format!("Node {node} {name}: 8388608 kB");
        driver.put(&format!("{at}/meminfo"), &["MemTotal", "MemFree", "Inactive(file)"].map(line).join("\n"));
        driver.put(
            &format!("sys/devices/system/cpu/cpu{node}/topology/physical_package_id"),
            &node.to_string(),
        );
    }
    driver.put("proc/meminfo", "MemTotal: 25165824 kB\nMemFree: 25165824 kB\nInactive(file): 0 kB");
    driver.record_to(root).unwrap();
}

#[test]
fn profiles_are_listed_and_shown_on_any_machine() {
    for arguments in [&["configure"][..], &["configure", "--list"]] {
        let listed = prints(arguments);
        assert!(Profile::all().iter().all(|profile| listed.contains(profile.name())), "{listed}");
    }
    let listed = prints_json(&["configure", "--list", "--json"]);
    assert!(listed[0]["source"].as_str().unwrap().starts_with("Fürst 2024"), "{listed}");

    let empty = tempfile::tempdir().unwrap();
    let root = empty.path().to_str().unwrap();
    let output = prints(&["configure", "--profile", "8n1d1e1w", "--root", root]);
    for part in
        ["dsa14", "wq14.0  shared  128 entries  ──▶  group14.0  ──▶  engine14.0", "idxd is not loaded"]
    {
        assert!(output.contains(part), "{part} is not in:\n{output}");
    }
    fails(
        &["configure", "--profile", "8n1d1e1w", "--root", root, "--apply"],
        FAILURE,
        &["no DSA to configure", "modprobe idxd"],
    );
    fails(&["configure", "--save", "-", "--root", root], FAILURE, &["nothing to save"]);
}

#[test]
fn the_current_configuration_is_saved_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let (root, file) = (directory.path().join("root"), directory.path().join("now.json"));
    let (root, file) = (root.to_str().unwrap(), file.to_str().unwrap());
    let driver = driver();
    apply(&driver, "1n1d4e1w");
    record(&driver, Path::new(root));
    assert_eq!(prints(&["configure", "--save", file, "--root", root]), format!("written to {file}\n"));
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(prints(&["configure", "--save", "-", "--root", root]), text);
    let saved = Config::parse(&text, UnknownKeys::Refuse).unwrap();
    assert_eq!(saved, Config::of(&SystemState::read(&driver).unwrap()));
    // Applying the current configuration changes nothing.
    let changes = prints_json(&["configure", "--file", file, "--root", root, "--json"]);
    for change in changes["changes"].as_array().unwrap().iter().filter(|change| change["action"] == "set") {
        assert_eq!(change["now"], change["value"], "{change}");
    }
    // A profile can be saved as well, for the devices of this machine or others.
    let text = prints(&["configure", "--profile", "2n1d1e1w", "--save", "-", "--root", root]);
    assert_eq!(text, Profile::named("2n1d1e1w").unwrap().config().to_json());
    let text =
        prints(&["configure", "--profile", "2n1d1e1w", "--save", "-", "--root", root, "--device", "dsa4"]);
    assert!(text.contains("wq4.0") && !text.contains("wq0.0"), "{text}");
}

/// In plain files no driver enables a bound device. Without a file `state`, `configure` does not notice that.
#[test]
fn applied_settings_are_in_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let driver = driver();
    for object in ["dsa0", "dsa0/wq0.0", "dsa2", "dsa2/wq2.0"] {
        driver.remove(&format!("sys/bus/dsa/devices/{object}/state"));
    }
    record(&driver, directory.path());
    let output = prints(&["configure", "--profile", "2n1d1e1w", "--root", root, "--apply"]);
    assert!(output.contains("Enabled: dsa0, dsa2, wq0.0, wq2.0."), "{output}");
    let content = |path: &str| fs::read_to_string(directory.path().join("sys/bus/dsa").join(path)).unwrap();
    assert_eq!(content("devices/dsa2/wq2.0/size").trim(), "128");
    assert_eq!(content("devices/dsa2/wq2.0/mode").trim(), "shared");
    assert_eq!(content("drivers/user/bind").trim(), "wq2.0");
    // A file `state` that shows no effect is an error.
    fails(
        &["configure", "--profile", "1n1d1e1w", "--device", "dsa4", "--root", root, "--apply"],
        FAILURE,
        &["idxd/bind = dsa4", "should be enabled", "writes were done and stay"],
    );
}

#[test]
fn wrong_files_and_options_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    record(&driver(), &root);
    let root = root.to_str().unwrap();
    let good = Profile::named("1n1d4e1w").unwrap().text();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from));
        let file = directory.path().join("wrong.json");
        fs::write(&file, good.replace(from, to)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let file = |file: &str, words: &[&str]| {
        fails(&["configure", "--file", file, "--root", root], FAILURE, words);
    };
    file(&with("\"size\"", "\"sise\""), &["wrong.json", "\"sise\"", "known keys are", "--ignore-unknown"]);
    file(&with("128", "200"), &["200 entries together", "the device has 128"]);
    file(&with("engine0.3", "engine0.4"), &["engine0.4", "the device has 4 engines"]);
    file(&with("engine0.3", "engine0.2"), &["engine0.2", "twice"]);
    file(&with("dsa0", "dsa7"), &["belongs to dsa0"]);
    file(&with("[", "{"), &["wrong.json", "not JSON"]);
    file("/nowhere/at/all.json", &["/nowhere/at/all.json", "accel-config's format"]);
    // An unknown key can be ignored.
    let unknown = with("\"mode\"", "\"colour\": 7, \"mode\"");
    file(&unknown, &["colour"]);
    let output = prints(&["configure", "--file", &unknown, "--root", root, "--ignore-unknown"]);
    assert!(output.contains("Note: wq0.0: colour is skipped"), "{output}");

    fails(
        &["configure", "--profile", "8n1d1e1w", "--root", root],
        FAILURE,
        &["8 nodes with 1 DSA device", "3 have"],
    );
    fails(&["configure", "--profile", "cray-1"], USAGE, &["cray-1", "8n1d1e1w", "--file"]);
    fails(&["configure", "--profile", "1n1d5e1w"], USAGE, &["1n1d5e1w", "at most 4 engines"]);
    fails(
        &["configure", "--profile", "1n1d1e1w", "--device", "iax1"],
        USAGE,
        &["iax1", "an example is dsa0"],
    );
    fails(
        &["configure", "--file", &unknown, "--ignore-unknown", "--device", "dsa2"],
        USAGE,
        &["dsa2 is not in"],
    );
    fails(&["configure", "--device", "dsa0"], USAGE, &["--profile", "--file", "--save"]);
    fails(&["configure", "--apply"], USAGE, &["required"]);
    fails(&["configure", "--profile", "1n1d1e1w", "--file", "x"], USAGE, &["--profile", "--file"]);
    fails(&["configure", "--profile", "1n1d1e1w", "--root", "/nowhere"], FAILURE, &["/nowhere"]);
    let nowhere = ["configure", "--profile", "1n1d1e1w", "--root", root, "--save", "/nowhere/x.json"];
    fails(&nowhere, FAILURE, &["error: cannot write the configuration to /nowhere/x.json", "--save"]);
}

#[test]
fn topology_shows_queues_and_their_problems() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let driver = driver();
    apply(&driver, "1n1d4e8w-dedicated");
    record(&driver, &root);
    // A recording of the same machine in one file.
    let recording = memferry::internals::Recording::of(&root).unwrap();
    let file = directory.path().join("machine.json");
    fs::write(&file, serde_json::to_string(&recording).unwrap()).unwrap();
    for path in [&root, &file] {
        let path = path.to_str().unwrap();
        let output = prints(&["topology", "--sysfs", path]);
        for part in [
            "│ dsa0  node 0  enabled  wq0.0  dedicated  16 entries  ─┬▶  group0.0  ─┬▶  engine0.0 │",
            "wq0.3  dedicated  16 entries  ─┤              └▶  engine0.3 │",
            "wq0.7  dedicated  16 entries  ─┘                            │",
            "No work queue on nodes 1-2 can be used",
            "- dsa2 is disabled",
        ] {
            assert!(output.contains(part), "{part} is not in:\n{output}");
        }
        let widest = output.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}:\n{output}");
        let json = prints_json(&["topology", "--sysfs", path, "--json"]);
        assert_eq!(json["accelerators"][1]["name"], "dsa2", "{json}");
        assert_eq!(json["dsa"]["devices"][0]["queues"][7]["mode"], "dedicated", "{json}");
        assert_eq!(json["dsa"]["usable"].as_array().unwrap().len(), 8, "{json}");
        assert!(json["dsa"]["troubles"][0].as_str().unwrap().starts_with("dsa2 is disabled"), "{json}");
        let svg = prints(&["topology", "--sysfs", path, "--svg", "-"]);
        assert!(
            svg.contains("wq0.0 (dedicated, 16 entries)") && svg.contains("DSA: dsa2 is disabled"),
            "{svg}"
        );
        // The writes can be shown for both, but only a directory can be changed.
        let plan = prints(&["configure", "--profile", "1n1d1e1w", "--root", path]);
        assert!(plan.contains("wq0.0") && plan.contains("--force"), "{plan}");
    }
    let file = file.to_str().unwrap();
    let apply = ["configure", "--profile", "1n1d1e1w", "--root", file, "--apply"];
    fails(&apply, USAGE, &["cannot change a recording"]);
}

/// The findings are those of the recorded user and kernel.
#[test]
fn topology_without_permission_or_shared_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let driver = driver();
    apply(&driver, "1n1d1e1w");
    driver.become_user(1000, 0);
    driver.put("sys/bus/dsa/devices/dsa2/pasid_enabled", "0");
    driver.put("sys/bus/dsa/devices/dsa4/numa_node", "-1");
    driver.put("proc/sys/kernel/osrelease", "5.15.0");
    record(&driver, directory.path());
    let output = prints(&["topology", "--sysfs", directory.path().to_str().unwrap()]);
    let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "No work queue of a DSA can be used:",
        "dev/dsa/wq0.0 has mode 0600",
        "dsa2 shares no address spaces (pasid_enabled is 0)",
        "use Linux 5.18 or newer",
        "Copy engines on no known node: dsa4.",
    ] {
        assert!(output.contains(part), "{part} is not in:\n{output}");
    }
}
