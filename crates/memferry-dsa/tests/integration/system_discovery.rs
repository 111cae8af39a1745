//! Discovery of complete, incomplete and broken trees of sysfs, and the diagnostics.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use memferry_dsa::internals::system::{Files, Owner};
use memferry_dsa::system::{
    Activity, ApplyOptions, Config, Device, DeviceId, Diagnostic, GeneralCapabilities, Plan, Profile,
    QueueFilter, QueueType, SystemError, SystemState, Version,
};
use memferry_dsa::{Opcode, OperationSet, QueueMode};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};
use proptest::prelude::*;

const ENABLE: ApplyOptions = ApplyOptions { disable_first: false, enable: true };
const QUEUE: &str = "sys/bus/dsa/devices/dsa0/wq0.0";

fn apply(driver: &FakeDriver, config: &Config) {
    let state = SystemState::read(driver).unwrap();
    Plan::new(config, &state, ENABLE).unwrap().apply_to(driver).unwrap();
}

/// A machine with one device, configured by a profile.
fn configured(profile: &str) -> FakeDriver {
    let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
    apply(&driver, &Config::for_devices(&[DeviceId(0)], &Profile::named(profile).unwrap().shape()));
    driver
}

fn read(driver: &FakeDriver) -> SystemState {
    SystemState::read(driver).unwrap()
}

fn recorded(driver: &FakeDriver) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    driver.record_to(root.path()).unwrap();
    root
}

#[test]
fn a_two_socket_xeon_max_with_one_device_configured() {
    let driver = FakeDriver::xeon_max();
    apply(&driver, &Config::for_devices(&[DeviceId(2)], &Profile::named("1n1d4e1w").unwrap().shape()));
    let root = recorded(&driver);
    let state = SystemState::discover_at(root.path()).unwrap();

    let numbers: Vec<u32> = state.devices.iter().map(|device| device.id.0).collect();
    assert_eq!(numbers, [0, 2, 4, 6, 8, 10, 12, 14], "by number, and no iax");
    assert_eq!(state.others.len(), 8);
    assert_eq!(state.drivers, ["dmaengine", "dsa", "idxd", "user"]);
    assert_eq!(state.kernel.as_deref(), Some("6.12.0"));

    let device = state.device(DeviceId(2)).unwrap();
    assert_eq!(device.version, Some(Version::V1_0));
    assert_eq!(device.node, Some(1));
    assert_eq!(device.state, Some(Activity::Enabled));
    assert_eq!(device.driver.as_deref(), Some("idxd"));
    assert_eq!(device.capabilities, Some(GeneralCapabilities(0x40915f0107)));
    assert_eq!(device.has_pasid, Some(true));
    assert_eq!((device.groups_max, device.engines_max, device.queues_max), (Some(4), Some(4), Some(8)));
    assert_eq!((device.entries_max, device.read_buffers_max), (Some(128), Some(96)));
    assert_eq!((device.batch_max, device.transfer_bytes_max), (Some(1024), Some(1 << 31)));
    assert_eq!(device.hides_batch(), Some(true));
    assert_eq!(device.error, None);
    assert_eq!(device.groups[0].engines.len(), 4);
    assert_eq!(device.groups[0].queues, [DeviceId(2).queue(0)]);
    assert!(device.engines.iter().all(|engine| engine.group == Some(0)));
    assert_eq!(device.queues.len(), 8);
    assert_eq!(device.queues[1].group, None);

    let queue = &device.queues[0];
    assert_eq!(queue.kind, Some(QueueType::User));
    assert_eq!(queue.name.as_deref(), Some("memferry2_0"));
    assert_eq!(queue.minor, Some(0));
    assert_eq!(device.queues[1].minor, None, "the kernel says -1");
    let path = root.path().join("dev/dsa/wq2.0");
    assert_eq!(queue.file.as_ref().map(|file| Path::new(&file.path)), Some(&*path));
    assert_eq!(queue.file.as_ref().map(|file| file.owner.mode), Some(0o600));

    let info = queue.info(device).unwrap();
    assert_eq!((info.name.as_str(), info.mode, info.size), ("wq2.0", QueueMode::Shared, 128));
    assert_eq!((info.threshold, info.priority, info.block_on_fault), (128, 10, true));
    assert_eq!((info.transfer_bytes_max, info.batch_max, info.node), (1 << 31, 1024, Some(1)));
    assert!(info.operations.contains(Opcode::Memmove) && !info.operations.contains(Opcode::Batch));

    let usable: Vec<String> = state
        .diagnose(&QueueFilter::default())
        .usable
        .iter()
        .map(|(_, queue)| queue.id.to_string())
        .collect();
    assert_eq!(usable, ["wq2.0"]);
}

#[test]
fn a_directory_and_the_seam_show_the_same() {
    let driver = FakeDriver::xeon_max();
    apply(&driver, &Profile::named("8n1d1e1w").unwrap().config());
    let root = recorded(&driver);
    let (mut mine, mut recorded) = (read(&driver), SystemState::discover_at(root.path()).unwrap());
    for state in [&mut mine, &mut recorded] {
        for queue in state.devices.iter_mut().flat_map(|device| &mut device.queues) {
            assert_eq!(queue.file.is_some(), queue.id.index == 0);
            queue.file = None; // path and owner differ
        }
    }
    assert_eq!(mine, recorded);
}

/// The kernel shows the objects of a device both in its directory and next to it; a recorded tree may have one of them.
#[test]
fn objects_next_to_their_device_are_found() {
    let driver = configured("1n1d4e1w");
    let root = recorded(&driver);
    let devices = root.path().join("sys/bus/dsa/devices");
    for entry in fs::read_dir(devices.join("dsa0")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            fs::rename(entry.path(), devices.join(entry.file_name())).unwrap();
        }
    }
    let state = SystemState::discover_at(root.path()).unwrap();
    let expected = SystemState::discover_at(recorded(&driver).path()).unwrap();
    let ids =
        |state: &SystemState| state.queues().map(|(_, queue)| (queue.id, queue.size)).collect::<Vec<_>>();
    assert_eq!(ids(&state), ids(&expected));
    assert_eq!(state.devices[0].groups, expected.devices[0].groups);
    assert_eq!(state.devices[0].engines, expected.devices[0].engines);
    // The kernel's links back do not duplicate objects.
    symlink("../wq0.0", devices.join("dsa0/wq0.0")).unwrap();
    assert_eq!(ids(&SystemState::discover_at(root.path()).unwrap()), ids(&expected));
}

#[test]
fn an_old_kernel_has_less() {
    let driver = FakeDriver::new(&[FakeDevice::on_old_kernel(DeviceId(0), 0)]);
    let state = read(&driver);
    let device = &state.devices[0];
    assert_eq!(device.groups[0].desc_progress_limit, None);
    assert_eq!(device.queues[0].driver_name, None);
    assert_eq!(device.queues[0].operations, None);
    let operations = device.operations.unwrap();
    assert!(operations.contains(Opcode::Batch) && operations.contains(Opcode::CacheFlush));
    assert_eq!(device.hides_batch(), Some(false));
    // Without op_config, the queue has the operations of the device; without limits, the driver's defaults.
    driver.put(&format!("{QUEUE}/mode"), "dedicated");
    driver.remove(&format!("{QUEUE}/max_transfer_size"));
    driver.remove(&format!("{QUEUE}/max_batch_size"));
    let state = read(&driver);
    let info = state.devices[0].queues[0].info(&state.devices[0]).unwrap();
    assert_eq!((info.operations, info.transfer_bytes_max, info.batch_max), (operations, 2 << 20, 32));
    assert_eq!(info.threshold, 0);
}

#[test]
fn a_part_of_version_2() {
    let driver = FakeDriver::new(&[FakeDevice::version_2(DeviceId(0), 0)]);
    driver.put("sys/bus/dsa/devices/dsa0/numa_node", "-1");
    let device = read(&driver).devices.remove(0);
    assert_eq!(device.version, Some(Version::V2_0));
    assert_eq!(device.node, None);
    assert_eq!(device.event_log_size, Some(64));
    assert_eq!(device.capabilities.unwrap().event_log_entry_bytes(), Some(64));
    assert!(device.limits().event_log);
    assert_eq!(device.hides_batch(), None);
    let operations = device.operations.unwrap();
    assert!(operations.contains(Opcode::Batch) && operations.contains_code(0x17));
    let json = serde_json::to_value(&device).unwrap();
    assert_eq!(json["version"], "2.0");
    assert!(json["operations"].as_array().unwrap().contains(&"0x17".into()), "{json}");
}

#[test]
fn attributes_that_do_not_apply_are_missing() {
    let driver = configured("1n1d1e1w");
    driver.fail_read(&format!("{QUEUE}/occupancy"), 95);
    driver.fail_read(&format!("{QUEUE}/cdev_minor"), 6);
    driver.fail_read(&format!("{QUEUE}/op_config"), 95);
    driver.fail_read(&format!("{QUEUE}/state"), 19);
    let state = read(&driver);
    let queue = &state.devices[0].queues[0];
    assert_eq!((queue.occupancy, queue.minor, queue.operations, &queue.state), (None, None, None, &None));
    assert!(queue.info(&state.devices[0]).unwrap().operations.contains(Opcode::Memmove));

    driver.remove(&format!("{QUEUE}/size"));
    let state = read(&driver);
    let error = state.devices[0].queues[0].info(&state.devices[0]).unwrap_err();
    assert!(error.to_string().starts_with("wq0.0 has no attribute size"), "{error}");
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let driver = configured("1n1d1e1w");
    driver.fail_read(&format!("{QUEUE}/size"), 13);
    let told = SystemState::read(&driver).unwrap_err().to_string();
    assert!(told.contains("/sys/bus/dsa/devices/dsa0/wq0.0/size") && told.contains("root"), "{told}");

    for (file, content) in [
        ("dsa0/version", "one"),
        ("dsa0/version", "0x100000000"),
        ("dsa0/numa_node", "x"),
        ("dsa0/op_cap", "zz"),
        ("dsa0/gen_cap", "0x10000000000000000"),
        ("dsa0/configurable", "2"),
        ("dsa0/max_work_queues", "-1"),
        ("dsa0/group0.0/engines", "engine0.0 wq0.0"),
        ("dsa0/engine0.0/group_id", "99999999999"),
        ("dsa0/wq0.0/mode", "both"),
        ("dsa0/wq0.0/size", "1.5"),
    ] {
        // As files: the driver computes some of them.
        let root = recorded(&configured("1n1d1e1w"));
        fs::write(root.path().join("sys/bus/dsa/devices").join(file), content).unwrap();
        match SystemState::discover_at(root.path()).unwrap_err() {
            SystemError::Parse { path, found, .. } => {
                assert!(path.ends_with(file), "{path:?}");
                assert_eq!(found, content);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_error_register_is_decoded() {
    let driver = configured("1n1d1e1w");
    // valid, queue index valid; a full dedicated queue, number 0
    driver.put(
        "sys/bus/dsa/devices/dsa0/errors",
        "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00005309",
    );
    driver.put("sys/bus/dsa/devices/dsa0/cmd_status", "0x14");
    let state = read(&driver);
    let json = serde_json::to_value(&state).unwrap();
    let device = &json["devices"][0];
    assert!(device["error"]["status"].as_str().unwrap().contains("full dedicated queue"), "{device}");
    assert_eq!(device["error"]["queue"], 0);
    assert!(device["command_status"]["text"].as_str().unwrap().contains("more than the device has"));
}

#[test]
fn the_state_as_json() {
    let driver = configured("1n1d1e1w");
    let json = serde_json::to_value(read(&driver)).unwrap();
    let device = &json["devices"][0];
    assert_eq!(device["id"], "dsa0");
    assert_eq!(device["state"], "enabled");
    assert_eq!(device["capabilities"]["register"], "0x40915f0107");
    let queue = &device["queues"][0];
    assert_eq!((&queue["mode"], &queue["type"]), (&"shared".into(), &"user".into()));
    assert_eq!(queue["operations"][0], "No-op");
    assert_eq!(queue["file"]["path"], "/dev/dsa/wq0.0");
    assert_eq!(device["groups"][0]["engines"][0], "engine0.0");
}

// What is in the way.

/// The diagnostics of a driver without a usable queue.
fn diagnostics(driver: &FakeDriver, wanted: &QueueFilter) -> Vec<Diagnostic> {
    let state = read(driver);
    let diagnosis = state.diagnose(wanted);
    assert!(diagnosis.usable.is_empty(), "{:?}", diagnosis.usable);
    assert!(diagnosis.diagnostics.iter().all(Diagnostic::is_fatal));
    diagnosis.diagnostics
}

fn all_diagnostics(driver: &FakeDriver) -> Vec<Diagnostic> {
    diagnostics(driver, &QueueFilter::default())
}

#[test]
fn no_module_and_no_device() {
    let root = tempfile::tempdir().unwrap();
    let state = SystemState::discover_at(root.path()).unwrap();
    assert_eq!(state, SystemState::default());
    assert_eq!(state.diagnose(&QueueFilter::default()).diagnostics, [Diagnostic::ModuleNotLoaded]);

    let driver = FakeDriver::new(&[]);
    let found = all_diagnostics(&driver);
    assert_eq!(found, [Diagnostic::NoDevice { others: 0, in_virtual_machine_perhaps: true }]);
    assert!(found[0].to_string().contains("virtual machine"), "{}", found[0]);
}

#[test]
fn devices_that_are_not_ready() {
    let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
    let device = DeviceId(0);
    assert_eq!(all_diagnostics(&driver), [Diagnostic::DeviceDisabled { device, status: None }]);
    driver.put("sys/bus/dsa/devices/dsa0/cmd_status", "0x15");
    let told = all_diagnostics(&driver)[0].to_string();
    assert!(told.starts_with("dsa0 is disabled (last command: a group has queues but no engine"), "{told}");
    driver.put("sys/bus/dsa/devices/dsa0/state", "halted");
    assert!(matches!(all_diagnostics(&driver)[..], [Diagnostic::DeviceHalted { .. }]));
    driver.put("sys/bus/dsa/devices/dsa0/state", "enabled");
    assert_eq!(all_diagnostics(&driver), [Diagnostic::NothingConfigured { device }]);
}

#[test]
fn queues_that_are_not_ready() {
    let queue = DeviceId(0).queue(0);
    let with = |attribute: &str, value: &str| {
        let driver = configured("1n1d1e1w");
        driver.put(&format!("{QUEUE}/{attribute}"), value);
        all_diagnostics(&driver)
    };
    assert_eq!(with("state", "disabled"), [Diagnostic::QueueDisabled { queue, status: None }]);
    assert_eq!(with("type", "kernel"), [Diagnostic::NotForUsers { queue, kind: QueueType::Kernel }]);
    assert_eq!(with("threshold", "0"), [Diagnostic::NoThreshold { queue }]);

    let driver = configured("1n1d1e1w");
    for (attribute, value) in [("state", "disabled"), ("name", ""), ("driver_name", "")] {
        driver.put(&format!("{QUEUE}/{attribute}"), value);
    }
    driver.put("sys/bus/dsa/devices/dsa0/pasid_enabled", "0");
    let found = all_diagnostics(&driver);
    let expected = [
        Diagnostic::NoSharedAddresses { device: DeviceId(0), is_kernel_old: false },
        Diagnostic::NoName { queue },
        Diagnostic::OtherDriver { queue, found: String::new() },
        Diagnostic::QueueDisabled { queue, status: None },
    ];
    assert_eq!(found, expected);
}

/// Without shared address spaces, neither enabled nor disabled queues are usable.
#[test]
fn devices_that_share_no_address_spaces() {
    let driver = configured("1n1d1e1w-dedicated");
    driver.put("sys/bus/dsa/devices/dsa0/pasid_enabled", "0");
    let device = DeviceId(0);
    assert_eq!(all_diagnostics(&driver), [Diagnostic::NoSharedAddresses { device, is_kernel_old: false }]);
    driver.put("proc/sys/kernel/osrelease", "5.15.0-91-generic");
    driver.put("sys/bus/dsa/devices/dsa0/state", "disabled");
    let found = all_diagnostics(&driver);
    let disabled = Diagnostic::DeviceDisabled { device, status: None };
    assert_eq!(found, [Diagnostic::NoSharedAddresses { device, is_kernel_old: true }, disabled]);
    assert!(found[0].to_string().contains("Linux 5.18 or newer"), "{}", found[0]);
    assert_eq!(found[0].object().as_deref(), Some("dsa0"));
}

#[test]
fn files_of_queues_that_cannot_be_opened() {
    let driver = configured("1n1d1e1w");
    driver.become_user(1000, 0);
    let found = all_diagnostics(&driver);
    let owner = Owner { mode: 0o600, user: 0, group: 0, is_device: true };
    assert_eq!(found, [Diagnostic::NoPermission { path: "/dev/dsa/wq0.0".to_owned(), owner }]);
    assert!(found[0].to_string().contains("mode 0600 and belongs to 0:0"), "{}", found[0]);

    let usable = |owner: Owner| {
        driver.set_owner("dev/dsa/wq0.0", owner);
        !read(&driver).diagnose(&QueueFilter::default()).usable.is_empty()
    };
    assert!(usable(Owner { mode: 0o666, ..owner }));
    assert!(usable(Owner { mode: 0o660, group: 1000, ..owner }));
    assert!(!usable(Owner { mode: 0o640, group: 1000, ..owner }));
    assert!(usable(Owner { mode: 0o600, user: 1000, ..owner }));
    assert!(!usable(Owner { mode: 0o066, user: 1000, ..owner }), "the owner's bits count, and no others");

    driver.remove("dev/dsa/wq0.0");
    assert_eq!(all_diagnostics(&driver), [Diagnostic::NoFile { queue: DeviceId(0).queue(0) }]);
}

#[test]
fn mapping_needs_a_capability_and_writing_does_not() {
    let driver = configured("1n1d1e1w");
    driver.set_owner("dev/dsa/wq0.0", Owner { mode: 0o666, user: 0, group: 0, is_device: true });
    let limits = |driver: &FakeDriver| {
        let state = read(driver);
        let diagnosis = state.diagnose(&QueueFilter::default());
        assert_eq!(diagnosis.usable.len(), 1);
        diagnosis.diagnostics
    };
    assert_eq!(limits(&driver), []);
    driver.become_user(1000, 0);
    assert_eq!(limits(&driver), [Diagnostic::NoRawIo { is_certain: true }]);
    driver.become_user(1000, 1 << 17);
    assert_eq!(limits(&driver), []);
    // Without op_cap, the kernel's release suggests it.
    driver.become_user(1000, 0);
    driver.remove("sys/bus/dsa/devices/dsa0/op_cap");
    assert_eq!(limits(&driver), [Diagnostic::NoRawIo { is_certain: false }]);
    driver.put("proc/sys/kernel/osrelease", "6.1.0-22-amd64");
    assert_eq!(limits(&driver), []);
}

#[test]
fn requirements_that_no_queue_meets() {
    let driver = configured("1n1d1e1w");
    let wanted = QueueFilter { mode: Some(QueueMode::Dedicated), ..QueueFilter::default() };
    let found = diagnostics(&driver, &wanted);
    assert_eq!(found, [Diagnostic::NoQueueOfMode { wanted: QueueMode::Dedicated }]);
    assert!(found[0].to_string().starts_with("no usable work queue is dedicated"), "{}", found[0]);

    let wanted = QueueFilter { node: Some(3), ..QueueFilter::default() };
    let found = diagnostics(&driver, &wanted);
    assert_eq!(found, [Diagnostic::OtherNode { wanted: 3, found: vec![Some(0)] }]);
    assert!(found[0].to_string().contains("only on node 0"), "{}", found[0]);

    let operations = OperationSet::of(&[Opcode::Memmove, Opcode::CreateDelta]);
    let wanted = QueueFilter { operations, ..QueueFilter::default() };
    let missing = vec!["Create Delta Record".to_owned()];
    let queue = DeviceId(0).queue(0);
    assert_eq!(diagnostics(&driver, &wanted), [Diagnostic::MissingOperations { queue, missing }]);
}

#[test]
fn a_dedicated_queue_has_one_user() {
    let driver = configured("1n1d1e1w-dedicated");
    assert_eq!(read(&driver).diagnose(&QueueFilter::default()).usable.len(), 1);
    driver.put(&format!("{QUEUE}/clients"), "1");
    assert_eq!(all_diagnostics(&driver), [Diagnostic::InUse { queue: DeviceId(0).queue(0) }]);
}

// Anything may be in the files, and any of them may be gone.

fn everything(state: &SystemState) {
    let wanted = QueueFilter {
        node: Some(0),
        mode: Some(QueueMode::Shared),
        operations: OperationSet::of(&Opcode::ALL),
    };
    for diagnostic in state.diagnose(&wanted).diagnostics {
        assert!(!diagnostic.to_string().is_empty());
    }
    for (device, queue) in state.queues() {
        let _ = queue.info(device);
    }
    serde_json::to_string(state).unwrap();
    for profile in Profile::all() {
        if let Ok(config) = profile.for_machine(state) {
            let _ = Plan::new(&config, state, ApplyOptions { disable_first: true, enable: true });
        }
    }
    let _ = state.devices.iter().map(Device::limits).collect::<Vec<_>>();
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,40}",
        "[0-9a-fx, .\\-]{0,24}",
        Just("18446744073709551615".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("4294967295".to_owned()),
        Just("0".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_contents_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), content()), 1..12),
    ) {
        let driver = configured("1n1d4e8w-dedicated");
        let paths = driver.paths();
        for (index, content) in changes {
            let path: &String = index.get(&paths);
            driver.put(path, &content);
            if let Ok(state) = SystemState::read(&driver) {
                everything(&state);
            }
        }
    }

    #[test]
    fn half_trees_are_read_as_far_as_they_go(gone in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4), 1..40)) {
        let driver = configured("1n1d4e8w-dedicated");
        let paths = driver.paths();
        for (index, up) in gone {
            // The file, or a directory above it; not all of sysfs each time.
            let path = Path::new::<String>(index.get(&paths));
            let above = path.ancestors().nth(up).filter(|path| path.components().count() > 4).unwrap_or(path);
            driver.remove(above.to_str().unwrap());
        }
        everything(&SystemState::read(&driver).expect("what is missing is missing"));
    }
}

/// The fake driver adds up the values of its files, and the property above rarely puts a large number into two of a kind.
#[test]
fn the_largest_numbers_in_every_file() {
    const LARGEST: [&str; 4] =
        ["18446744073709551615", "9223372036854775807", "-9223372036854775808", "4294967295"];
    for large in LARGEST {
        let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
        let mut paths = driver.paths();
        paths.retain(|path| driver.read(path).is_ok_and(|text| text.iter().any(u8::is_ascii_digit)));
        paths.iter().for_each(|path| driver.put(path, large));
        for path in &paths {
            for value in [large, "1", "0"] {
                let _refused_or_not = driver.write(path, value);
            }
            let _no_panic = driver.read(path);
        }
        if let Ok(state) = SystemState::read(&driver) {
            everything(&state);
        }
    }
}

/// The oddities of real trees: bytes that are not text, a directory in the place of a file and the reverse, a link to
/// nowhere or to itself, a file without end.
#[test]
fn strange_files() {
    let at = "sys/bus/dsa/devices/dsa0";
    let strange = |change: &dyn Fn(&Path)| {
        let root = recorded(&configured("1n1d1e1w"));
        change(&root.path().join(at));
        let state = SystemState::discover_at(root.path());
        if let Ok(state) = &state {
            everything(state);
        }
        state.map(|state| state.devices[0].clone())
    };
    let error = strange(&|at| fs::write(at.join("version"), [0xff, 0xfe, b'1']).unwrap()).unwrap_err();
    assert!(matches!(error, SystemError::Parse { .. }), "{error}");
    let device = strange(&|at| {
        fs::remove_file(at.join("version")).unwrap();
        fs::create_dir(at.join("version")).unwrap();
        fs::remove_dir_all(at.join("engine0.0")).unwrap();
        fs::write(at.join("engine0.0"), "").unwrap();
        fs::remove_file(at.join("wq0.0/size")).unwrap();
        symlink("nowhere", at.join("wq0.0/size")).unwrap();
    });
    let device = device.unwrap();
    assert_eq!((device.version, device.engines[0].group, device.queues[0].size), (None, None, None));
    let error = strange(&|at| {
        fs::remove_file(at.join("wq0.0/size")).unwrap();
        symlink("size", at.join("wq0.0/size")).unwrap();
    });
    assert!(matches!(error, Err(SystemError::Read { .. })), "{error:?}");
    let error = strange(&|at| {
        fs::remove_file(at.join("wq0.0/size")).unwrap();
        symlink("/dev/zero", at.join("wq0.0/size")).unwrap();
    });
    assert!(matches!(error, Err(SystemError::Read { .. })), "not a regular file: {error:?}");
}
