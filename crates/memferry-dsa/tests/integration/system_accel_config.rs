//! Files and writes of this library compared with those of accel-config.
//!
//! There is no device: in a mount namespace of its own, accel-config finds a recorded tree of plain files in the place of
//! sysfs. Without accel-config or such namespaces, the test is skipped with a message.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use memferry_dsa::QueueMode;
use memferry_dsa::internals::system::QueueSettings;
use memferry_dsa::system::{Action, ApplyOptions, Config, Plan, Profile, SystemState, UnknownKeys};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};
use memferry_testing::{Needs, skip};

/// Runs a command with the tree's `sys` in the place of `/sys`.
fn with_tree(root: &Path, command: &str) -> Output {
    let script = format!("mount --bind {}/sys /sys && {command}", root.display());
    let mut shell = Command::new("unshare");
    shell.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output().expect("unshare runs")
}

fn is_possible() -> bool {
    let runs = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    if Command::new("accel-config").output().is_err() {
        skip(Needs::Program("accel-config"), "accel-config is not installed");
        return false;
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = format!("mount --bind {} /sys", directory.path().display());
    if !runs("unshare", &["--user", "--map-root-user", "--mount", "sh", "-c", &mount]) {
        skip(Needs::Namespaces, "this user may not make mount namespaces");
        return false;
    }
    true
}

/// The devices that are configured.
fn machine(config: &Config) -> FakeDriver {
    let devices = config.devices.iter().map(|device| FakeDevice::sapphire_rapids(device.id, 0));
    FakeDriver::new(&devices.collect::<Vec<_>>())
}

/// Attributes of queues and engines whose plain files must be empty before accel-config writes to them.
const EMPTIED: [&str; 7] =
    ["group_id", "size", "threshold", "priority", "max_transfer_size", "max_batch_size", "block_on_fault"];

/// Prepares a tree of plain files. sysfs replaces an attribute at each write. accel-config does not truncate, so in a plain
/// file the rest of a longer value would stay. Values that it reads first must be valid.
fn prepare(root: &Path, config: &Config) {
    machine(config).record_to(root).unwrap();
    let devices = root.join("sys/bus/dsa/devices");
    let found: Vec<_> = fs::read_dir(&devices).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in found {
        fs::write(path.join("ims_size"), "0").unwrap();
        for object in
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
        {
            let name = object.file_name().unwrap().to_string_lossy().into_owned();
            std::os::unix::fs::symlink(object.strip_prefix(&devices).unwrap(), devices.join(&name)).unwrap();
            if name.starts_with("group") {
                continue;
            }
            for attribute in EMPTIED {
                if object.join(attribute).exists() {
                    fs::write(object.join(attribute), "").unwrap();
                }
            }
            if name.starts_with("wq") {
                fs::write(object.join("type"), "none").unwrap();
                let mode = match config.devices[0].groups[0].queues[0].mode {
                    Some(QueueMode::Shared) => "shared",
                    _ => {
                        fs::write(object.join("threshold"), "0").unwrap(); // which nobody writes then
                        "dedicated"
                    }
                };
                fs::write(object.join("mode"), mode).unwrap();
            }
        }
    }
}

/// Restores the values that [`prepare`] has removed and accel-config has not written.
fn fill(root: &Path, config: &Config) {
    for device in &config.devices {
        let at = root.join(format!("sys/bus/dsa/devices/{}", device.id));
        // To which "1" was written, over the first of three digits.
        fs::write(at.join("cmd_status"), "0x0").unwrap();
        for object in fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).filter(|it| it.is_dir()) {
            for attribute in EMPTIED {
                let file = object.join(attribute);
                if fs::read_to_string(&file).is_ok_and(|text| text.is_empty()) {
                    fs::write(&file, if attribute == "group_id" { "-1" } else { "0" }).unwrap();
                }
            }
        }
    }
}

#[test]
fn accel_config_writes_what_the_plan_writes() {
    if !is_possible() {
        return;
    }
    for profile in Profile::all() {
        let name = profile.name();
        let config = profile.config();
        let root = tempfile::tempdir().unwrap();
        prepare(root.path(), &config);
        fs::write(root.path().join("our.json"), config.to_json()).unwrap();

        let file = root.path().join("our.json");
        let output = with_tree(root.path(), &format!("accel-config load-config -c {}", file.display()));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {told}");

        let state = SystemState::read(&machine(&config)).unwrap();
        let plan = Plan::new(&config, &state, ApplyOptions { disable_first: false, enable: false }).unwrap();
        assert!(plan.steps().len() >= 11 * config.devices.len());
        for step in plan.steps() {
            assert_eq!(step.action, Action::Set);
            let found = fs::read_to_string(root.path().join(&step.path)).unwrap();
            assert_eq!(found.trim(), step.value, "{name}: {step}\n{told}");
        }

        // What it saves of that is what was loaded.
        for device in &config.devices {
            let at = root.path().join(format!("sys/bus/dsa/devices/{}", device.id));
            fs::write(at.join("state"), "enabled").unwrap();
            for (_, queue) in device.queues() {
                fs::write(at.join(format!("{}/state", queue.id)), "enabled").unwrap();
            }
        }
        let file = root.path().join("saved.json");
        let output = with_tree(root.path(), &format!("accel-config save-config -s {}", file.display()));
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = fs::read_to_string(&file).unwrap();
        let saved = Config::parse(&text, UnknownKeys::Refuse)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        fill(root.path(), &config);
        let ours = Config::of(&SystemState::discover_at(root.path()).unwrap());
        assert!(
            ours.devices.iter().map(|device| device.id).eq(config.devices.iter().map(|device| device.id))
        );
        let mut queues = 0;
        for (device, ours) in config.devices.iter().zip(&ours.devices) {
            let found = saved.devices.iter().find(|found| found.id == device.id);
            let found = found.unwrap_or_else(|| panic!("{name}: {} is not in\n{text}", device.id));
            for (group, wanted) in device.queues() {
                let (in_group, queue) =
                    found.queues().find(|(_, queue)| queue.id == wanted.id).expect("each queue is saved");
                assert_eq!(in_group, group, "{name}: {}", wanted.id);
                let saved = QueueSettings { ats_disable: None, ..queue.clone() };
                assert_eq!(&saved, wanted, "{name}");
                let (our_group, ours) =
                    ours.queues().find(|(_, queue)| queue.id == wanted.id).expect("ours too");
                let plain = QueueSettings { ats_disable: None, prs_disable: None, ..ours.clone() };
                assert_eq!((our_group, &plain), (group, wanted), "{name}");
                queues += 1;
            }
            for (group, wanted) in device.engines() {
                let is_there =
                    found.engines().any(|(in_group, engine)| in_group == group && engine.id == wanted.id);
                assert!(is_there, "{name}: {} in {text}", wanted.id);
            }
        }
        println!("{name}: {} writes, {queues} queues", plan.steps().len());
    }
}
