//! Applying configurations through sysfs, to a fake driver with the real driver's rules.

use memferry_dsa::internals::system::{Directory, Files};
use memferry_dsa::system::{
    Action, Activity, ApplyError, ApplyOptions, Config, DeviceId, Plan, PlanError, Profile, SystemState,
    UnknownKeys,
};
use memferry_dsa::{Opcode, OperationSet, QueueMode};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};
use proptest::prelude::*;

const ENABLE: ApplyOptions = ApplyOptions { disable_first: false, enable: true };
const FORCE: ApplyOptions = ApplyOptions { disable_first: true, enable: true };
const SET: ApplyOptions = ApplyOptions { disable_first: false, enable: false };

fn one_device() -> FakeDriver {
    FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)])
}

fn profile(name: &str) -> Config {
    Profile::named(name).unwrap().config()
}

fn state(driver: &FakeDriver) -> SystemState {
    SystemState::read(driver).unwrap()
}

fn plan(driver: &FakeDriver, config: &Config, options: ApplyOptions) -> Plan {
    Plan::new(config, &state(driver), options).unwrap_or_else(|error| panic!("{error}"))
}

fn apply(driver: &FakeDriver, config: &Config, options: ApplyOptions) {
    plan(driver, config, options).apply_to(driver).unwrap_or_else(|error| panic!("{error}"));
}

fn failing(driver: &FakeDriver, config: &Config, options: ApplyOptions) -> ApplyError {
    *plan(driver, config, options).apply_to(driver).unwrap_err()
}

/// Checks that the attributes of devices have the values of the configuration.
fn assert_configured(driver: &FakeDriver, config: &Config) {
    let state = state(driver);
    for settings in &config.devices {
        let device = state.device(settings.id).unwrap();
        assert!(device.is_enabled(), "{}", device.id);
        for (group, wanted) in settings.queues() {
            let queue = device.queue(wanted.id).unwrap();
            assert!(queue.is_enabled(), "{}", queue.id);
            assert_eq!(queue.group, group, "{}", queue.id);
            assert_eq!(queue.mode, wanted.mode);
            assert_eq!(queue.size, wanted.size);
            assert_eq!(queue.threshold, wanted.threshold);
            assert_eq!(queue.priority, wanted.priority);
            assert_eq!(queue.block_on_fault, wanted.block_on_fault);
            assert_eq!(queue.transfer_bytes_max, wanted.transfer_bytes_max);
            assert_eq!(queue.batch_max, wanted.batch_max);
            assert_eq!(queue.kind, wanted.kind);
            assert_eq!(queue.name, wanted.name);
        }
        let configured = device.queues.iter().filter(|queue| queue.is_configured()).count();
        assert_eq!(configured, settings.queues().count(), "nothing else is left over");
        let wanted: Vec<_> = settings.engines().map(|(group, engine)| (engine.id, group)).collect();
        let found: Vec<_> =
            device.engines.iter().filter(|it| it.group.is_some()).map(|it| (it.id, it.group)).collect();
        assert_eq!(found, wanted);
    }
}

#[test]
fn every_profile_on_a_xeon_max() {
    for profile in Profile::all() {
        let driver = FakeDriver::xeon_max();
        let config = profile.config();
        apply(&driver, &config, ENABLE);
        assert_configured(&driver, &config);
    }
}

#[test]
fn every_profile_after_every_other() {
    for first in Profile::all() {
        let driver = FakeDriver::xeon_max();
        apply(&driver, &first.config(), ENABLE);
        for second in Profile::all() {
            apply(&driver, &second.config(), FORCE);
            assert_configured(&driver, &second.config());
        }
    }
}

#[test]
fn the_writes_follow_the_driver_s_dependencies() {
    let steps = plan(&one_device(), &profile("1n1d1e1w"), ENABLE);
    let told: Vec<String> = steps.steps().iter().map(ToString::to_string).collect();
    let at = "/sys/bus/dsa/devices/dsa0";
    let expected = [
        format!("{at}/engine0.0/group_id = 0"),
        format!("{at}/wq0.0/group_id = 0"),
        format!("{at}/wq0.0/mode = shared"),
        format!("{at}/wq0.0/size = 128"),
        format!("{at}/wq0.0/threshold = 128"),
        format!("{at}/wq0.0/priority = 10"),
        format!("{at}/wq0.0/type = user"),
        format!("{at}/wq0.0/name = memferry0_0"),
        format!("{at}/wq0.0/driver_name = user"),
        format!("{at}/wq0.0/block_on_fault = 1"),
        format!("{at}/wq0.0/max_transfer_size = 2147483648"),
        format!("{at}/wq0.0/max_batch_size = 1024"),
        format!("{at}/cmd_status = 0x0"),
        "/sys/bus/dsa/drivers/idxd/bind = dsa0".to_owned(),
        "/sys/bus/dsa/drivers/user/bind = wq0.0".to_owned(),
    ];
    assert_eq!(told, expected);
    let json = serde_json::to_value(&steps).unwrap();
    assert_eq!(json["steps"][0]["path"], format!("{at}/engine0.0/group_id"));
    assert_eq!(json["steps"][13]["action"], "enable");
}

#[test]
fn a_dry_run_and_a_refused_plan_change_nothing() {
    let driver = one_device();
    let before = state(&driver);
    plan(&driver, &profile("1n1d1e1w"), ENABLE);
    let mut wrong = profile("1n1d1e1w");
    wrong.devices[0].groups[0].queues[0].size = Some(200);
    let error = Plan::new(&wrong, &before, ENABLE).unwrap_err();
    assert!(matches!(error, PlanError::Invalid(_)), "{error}");
    assert_eq!(driver.log(), []);
    assert_eq!(state(&driver), before);
}

#[test]
fn nothing_is_enabled_without_request() {
    let driver = one_device();
    apply(&driver, &profile("1n1d1e1w"), SET);
    let device = state(&driver).devices.remove(0);
    assert_eq!(device.state, Some(Activity::Disabled));
    assert_eq!(device.queues[0].size, Some(128));
    // Again, from the current state, and with enabling.
    apply(&driver, &profile("1n1d4e1w"), ENABLE);
    assert_configured(&driver, &profile("1n1d4e1w"));
}

/// Settings left over in a disabled device would make the sum of sizes too large, and leave engines without a queue.
#[test]
fn leftovers_are_reset_first() {
    let driver = one_device();
    apply(&driver, &profile("1n1d4e8w-dedicated"), SET);
    apply(&driver, &profile("1n1d1e1w"), ENABLE);
    assert_configured(&driver, &profile("1n1d1e1w"));

    // Sizes that fit before and after, and not in between: 96 + 32 to 32 + 96.
    let mut two = profile("1n1d1e1w");
    let mut other = two.devices[0].groups[0].queues[0].clone();
    other.id.index = 1;
    two.devices[0].groups[0].queues.push(other);
    let sized = |first: u32, second: u32| {
        let mut config = two.clone();
        for (queue, size) in config.devices[0].groups[0].queues.iter_mut().zip([first, second]) {
            (queue.size, queue.threshold) = (Some(size), Some(size));
        }
        config
    };
    let driver = one_device();
    apply(&driver, &sized(96, 32), SET);
    apply(&driver, &sized(32, 96), SET);
    apply(&driver, &sized(96, 32), ENABLE);
    assert_configured(&driver, &sized(96, 32));
}

#[test]
fn enabled_devices_are_disabled_only_on_request() {
    let driver = one_device();
    apply(&driver, &profile("1n1d1e1w"), ENABLE);
    let error = Plan::new(&profile("1n1d4e1w"), &state(&driver), ENABLE).unwrap_err();
    assert_eq!(error, PlanError::Enabled { device: DeviceId(0) });
    let steps = plan(&driver, &profile("1n1d4e1w"), FORCE);
    let first: Vec<String> = steps.steps()[..2].iter().map(ToString::to_string).collect();
    assert_eq!(
        first,
        ["/sys/bus/dsa/drivers/user/unbind = wq0.0", "/sys/bus/dsa/drivers/idxd/unbind = dsa0"]
    );

    driver.put("sys/bus/dsa/devices/dsa0/wq0.0/clients", "2");
    let error = Plan::new(&profile("1n1d4e1w"), &state(&driver), FORCE).unwrap_err();
    assert_eq!(error, PlanError::InUse { object: "wq0.0".to_owned(), clients: 2 });
    assert!(error.to_string().contains("fuser"), "{error}");
}

#[test]
fn devices_that_are_fixed() {
    let device = FakeDevice { configurable: false, ..FakeDevice::sapphire_rapids(DeviceId(0), 0) };
    let driver = FakeDriver::new(&[device]);
    let error = Plan::new(&profile("1n1d1e1w"), &state(&driver), ENABLE).unwrap_err();
    assert_eq!(error, PlanError::NotConfigurable { device: DeviceId(0) });

    let driver = one_device();
    driver.remove("sys/bus/dsa/drivers/user");
    let error = Plan::new(&profile("1n1d1e1w"), &state(&driver), ENABLE).unwrap_err();
    assert_eq!(error, PlanError::NoDriver { object: "wq0.0".to_owned(), driver: "user".to_owned() });
    apply(&driver, &profile("1n1d1e1w"), SET);
}

#[test]
fn an_old_kernel_has_fewer_attributes() {
    let driver = FakeDriver::new(&[FakeDevice::on_old_kernel(DeviceId(0), 0)]);
    let mut config = profile("1n1d1e1w");
    config.devices[0].read_buffer_limit = Some(16);
    config.devices[0].groups[0].read_buffers_allowed = Some(32);
    config.devices[0].groups[0].use_read_buffer_limit = Some(true);
    config.devices[0].groups[0].desc_progress_limit = Some(1);
    config.devices[0].groups[0].queues[0].operations = Some(OperationSet::of(&[Opcode::Memmove]));
    let plan = plan(&driver, &config, ENABLE);
    let told = plan.steps().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(!told.contains("driver_name"), "{told}");
    let left_out = plan.notes().join("\n");
    for part in ["group0.0: desc_progress_limit = 1 is skipped", "wq0.0: op_config = "] {
        assert!(left_out.contains(part), "{left_out}");
    }
    plan.apply_to(&driver).unwrap();
    assert_configured(&driver, &config);
    let device = state(&driver).devices.remove(0);
    assert_eq!((device.read_buffer_limit, device.groups[0].read_buffers_allowed), (Some(16), Some(32)));
}

/// Saved files have traffic classes, which the driver refuses to set even to their current value.
#[test]
fn current_values_are_not_written() {
    let driver = one_device();
    let mut config = profile("1n1d1e1w");
    config.devices[0].groups[0].traffic_class_a = Some(1);
    config.devices[0].groups[0].use_read_buffer_limit = Some(false);
    apply(&driver, &config, ENABLE);
    assert_configured(&driver, &config);
}

/// The same if the device is disabled first, which resets its groups.
#[test]
fn a_saved_configuration_is_applied_again_and_again() {
    for device in [FakeDevice::sapphire_rapids(DeviceId(0), 0), FakeDevice::on_old_kernel(DeviceId(0), 0)] {
        let driver = FakeDriver::new(&[device]);
        let mut config = profile("1n1d4e1w");
        let group = &mut config.devices[0].groups[0];
        (group.traffic_class_a, group.traffic_class_b) = (Some(1), Some(1));
        (group.use_read_buffer_limit, group.read_buffers_reserved) = (Some(false), Some(0));
        group.read_buffers_allowed = Some(32);
        let has_progress_limits = state(&driver).devices[0].groups[0].desc_progress_limit.is_some();
        group.desc_progress_limit = has_progress_limits.then_some(2);
        for _ in 0..3 {
            apply(&driver, &config, FORCE);
            assert_configured(&driver, &config);
            let found = state(&driver).devices.remove(0).groups.remove(0);
            assert_eq!(found.read_buffers_allowed, Some(32));
            assert_eq!(found.desc_progress_limit, has_progress_limits.then_some(2));
            assert_eq!(plan(&driver, &config, FORCE).notes(), [""; 0]);
        }
    }
}

/// A saved file gives the same state on a machine without configuration, and the same file when saved there.
#[test]
fn settings_of_devices_are_saved_and_applied() {
    for profile in Profile::all() {
        for make in [FakeDevice::sapphire_rapids, FakeDevice::on_old_kernel, FakeDevice::version_2] {
            let config = profile.config();
            let devices: Vec<_> = config.devices.iter().map(|settings| make(settings.id, 0)).collect();
            let (driver, other) = (FakeDriver::new(&devices), FakeDriver::new(&devices));
            apply(&driver, &config, ENABLE);
            let saved = Config::of(&state(&driver));
            assert_eq!(Config::parse(&saved.to_json(), UnknownKeys::Refuse).unwrap(), saved);
            apply(&other, &saved, ENABLE);
            assert_eq!(state(&other), state(&driver), "{}", profile.name());
            assert_eq!(Config::of(&state(&other)), saved);
        }
    }
    // Devices without settings are not saved.
    assert_eq!(Config::of(&state(&FakeDriver::xeon_max())), Config::default());
}

/// Saving a queue with all operations does not restrict it, although the driver hides Batch.
#[test]
fn operations_are_saved_where_they_are_restricted() {
    let driver = one_device();
    let mut config = profile("1n1d1e1w");
    apply(&driver, &config, ENABLE);
    assert_eq!(Config::of(&state(&driver)).devices[0].groups[0].queues[0].operations, None);
    let moves = Some(OperationSet::of(&[Opcode::Memmove]));
    config.devices[0].groups[0].queues[0].operations = moves;
    apply(&driver, &config, FORCE);
    assert_eq!(Config::of(&state(&driver)).devices[0].groups[0].queues[0].operations, moves);
}

/// A saved file has these switches, and devices without them refuse even their current value.
#[test]
fn current_values_of_switches_are_not_written() {
    let driver = one_device();
    for attribute in ["ats_disable", "prs_disable"] {
        driver.fail_write(&format!("sys/bus/dsa/devices/dsa0/wq0.0/{attribute}"), 95);
    }
    let mut config = profile("1n1d1e1w");
    let queue = &mut config.devices[0].groups[0].queues[0];
    (queue.ats_disable, queue.prs_disable) = (Some(false), Some(false));
    for _ in 0..2 {
        apply(&driver, &config, FORCE);
    }
    // Disabling clears settings of others.
    driver.put("sys/bus/dsa/devices/dsa0/wq0.0/ats_disable", "1");
    apply(&driver, &config, FORCE);
    driver.put("sys/bus/dsa/devices/dsa0/wq0.0/ats_disable", "1");
    for object in ["dsa0/wq0.0", "dsa0"] {
        driver.put(&format!("sys/bus/dsa/devices/{object}/state"), "disabled");
    }
    assert_eq!(failing(&driver, &config, FORCE).step.attribute(), "ats_disable");
}

/// Four engines need 16 read buffers; 8 are left over from a configuration with two.
#[test]
fn too_few_leftover_read_buffers_are_replaced() {
    let driver = one_device();
    let mut narrow = profile("1n1d1e1w");
    narrow.devices[0].groups[0].read_buffers_allowed = Some(8);
    apply(&driver, &narrow, SET);
    let allowed = |driver: &FakeDriver| state(driver).devices[0].groups[0].read_buffers_allowed;
    apply(&driver, &profile("1n1d1e1w"), SET);
    assert_eq!(allowed(&driver), Some(8), "what is not in the file stays");
    apply(&driver, &profile("1n1d4e1w"), ENABLE);
    assert_eq!(allowed(&driver), Some(96));
}

#[test]
fn unknown_keys_are_skipped_with_a_note() {
    let text = Profile::named("1n1d1e1w").unwrap().text().replacen("\"size\"", "\"magic\": 5, \"size\"", 1);
    let text = text.trim_end().trim_end_matches(']').to_owned() + ", {\"dev\": \"iax1\"}]";
    let config = Config::parse(&text, UnknownKeys::Keep).unwrap();
    let driver = one_device();
    let plan = plan(&driver, &config, ENABLE);
    let notes =
        ["wq0.0: magic is skipped: the key is unknown", "an accelerator that is not a DSA stays unchanged"];
    assert_eq!(plan.notes(), notes);
    assert!(plan.steps().iter().all(|step| !step.path.contains("magic")));
}

// When the driver refuses.

#[test]
fn without_permission_nothing_is_changed() {
    let driver = one_device();
    driver.become_user(1000, 0);
    let error = failing(&driver, &profile("1n1d1e1w"), ENABLE);
    assert_eq!(error.what_was_done(), "nothing was changed");
    assert!(error.advice.contains("run as root"), "{error}");
    assert_eq!(driver.log(), []);
}

#[test]
fn the_first_error_stops_and_reports_the_finished_steps() {
    let driver = FakeDriver::xeon_max();
    apply(&driver, &profile("2n1d1e1w"), ENABLE);
    driver.fail_write("sys/bus/dsa/devices/dsa2/wq2.0/size", 22);
    let before = driver.log().len();
    // The reset of dsa2's queue fails, since it is the first write of that size.
    let error = failing(&driver, &profile("2n1d1e1w"), FORCE);
    assert_eq!(error.step.attribute(), "size");
    assert_eq!(error.step.action, Action::Reset);
    let done = error.what_was_done();
    assert!(done.contains("disabled: wq0.0, dsa0, wq2.0, dsa2"), "{done}");
    assert!(done.contains("settings written: those of dsa0"), "{done}");
    assert_eq!(driver.log().len(), before + error.done.len(), "nothing was tried after it");
    assert!(error.advice.contains("more entries than the device"), "{error}");
}

#[test]
fn error_numbers_become_sentences() {
    let config = {
        let mut config = profile("1n1d1e1w");
        config.devices[0].read_buffer_limit = Some(8);
        config.devices[0].groups[0].traffic_class_a = Some(2);
        config.devices[0].groups[0].use_read_buffer_limit = Some(true);
        config.devices[0].groups[0].queues[0].ats_disable = Some(true);
        config
    };
    let at = "sys/bus/dsa/devices/dsa0";
    for (path, errno, told) in [
        (format!("{at}/wq0.0/size"), 22, "wq0.0: all work queues together"),
        (format!("{at}/wq0.0/mode"), 22, "intel_iommu=on,sm_on"),
        (format!("{at}/wq0.0/threshold"), 22, "1 to the size"),
        (format!("{at}/wq0.0/name"), 1, "the device is enabled, or must not be configured"),
        (format!("{at}/wq0.0/name"), 6, "the queue is enabled"),
        (format!("{at}/wq0.0/block_on_fault"), 95, "cannot block on faults"),
        (format!("{at}/wq0.0/ats_disable"), 95, "remove the key"),
        (format!("{at}/wq0.0/driver_name"), 2, "does not have this attribute"),
        (format!("{at}/group0.0/use_read_buffer_limit"), 1, "set read_buffer_limit first"),
        (format!("{at}/engine0.0/group_id"), 30, "read-only, as in most containers"),
        ("sys/bus/dsa/drivers/idxd/bind".to_owned(), 16, "in use or already bound"),
        ("sys/bus/dsa/drivers/user/bind".to_owned(), 19, "type and driver_name"),
        ("sys/bus/dsa/drivers/user/bind".to_owned(), 12, "memory is short"),
    ] {
        let driver = one_device();
        let mut config = config.clone();
        // On version 1.0 this would fail before all else.
        config.devices[0].groups[0].traffic_class_a = None;
        driver.fail_write(&path, errno);
        let error = failing(&driver, &config, ENABLE);
        assert_eq!(error.step.path, path);
        assert!(error.to_string().contains(told), "{error}\n  not: {told}");
        assert!(error.to_string().starts_with(&format!("/{path} = ")), "{error}");
        assert_eq!(error.cause.raw_os_error(), Some(errno));
    }
    let error = failing(&one_device(), &config, ENABLE);
    assert!(error.advice.contains("tc_override=1"), "{error}");
}

#[test]
fn the_status_of_the_device_has_precedence() {
    // A driver that loses a setting of the plan: the queue's name is lost before the queue is enabled.
    struct Forgetful<'a>(&'a FakeDriver, &'a str, &'a str);
    impl Files for Forgetful<'_> {
        fn name(&self) -> String {
            self.0.name()
        }
        fn head(&self, path: &str, size_bytes_max: usize) -> std::io::Result<Vec<u8>> {
            self.0.head(path, size_bytes_max)
        }
        fn entries(&self, path: &str) -> std::io::Result<Vec<String>> {
            self.0.entries(path)
        }
        fn link(&self, path: &str) -> std::io::Result<String> {
            self.0.link(path)
        }
        fn owner(&self, path: &str) -> std::io::Result<memferry_dsa::internals::system::Owner> {
            self.0.owner(path)
        }
        fn write(&self, path: &str, value: &str) -> std::io::Result<()> {
            if path.ends_with("/bind") {
                self.0.put(self.1, self.2);
            }
            self.0.write(path, value)
        }
    }
    let at = "sys/bus/dsa/devices/dsa0";
    for (path, content, status, told) in [
        ("wq0.0/name", "", 0x8004_0000, "wq0.0: set its name"),
        ("wq0.0/driver_name", "dmaengine", 0x8020_0000, "wq0.0: set its driver_name to user"),
        ("wq0.0/priority", "0", 0x23, "wq0.0: set its priority, 1 to 15"),
        ("wq0.0/size", "129", 0x14, "dsa0: make queues smaller"),
        ("engine0.0/group_id", "-1", 0x15, "dsa0: give each group both or neither"),
        ("group0.0/read_buffers_allowed", "1", 0x18, "dsa0: allow each group at least 4"),
    ] {
        let driver = one_device();
        let (plan, path) = (plan(&driver, &profile("1n1d1e1w"), ENABLE), format!("{at}/{path}"));
        let error = plan.apply_to(&Forgetful(&driver, &path, content)).unwrap_err();
        assert_eq!(error.status.map(|status| status.0), Some(status), "{error}");
        assert_eq!(error.step.action, Action::Enable);
        assert!(error.advice.starts_with(told), "{error}");
        assert!(error.to_string().contains("dsa0 says: "), "{error}");
    }
}

/// Some kernels accept the write to `bind` and report the failure in cmd_status.
#[test]
fn a_write_without_effect_is_an_error() {
    let driver = one_device();
    apply(&driver, &profile("1n1d1e1w"), SET);
    let root = tempfile::tempdir().unwrap();
    driver.record_to(root.path()).unwrap();
    // Plain files accept any value and have no effect.
    let files = Directory::below(root.path());
    let state = SystemState::discover_at(root.path()).unwrap();
    let plan = Plan::new(&profile("1n1d1e1w"), &state, ENABLE).unwrap();
    let error = plan.apply_to(&files).unwrap_err();
    assert_eq!(error.cause.raw_os_error(), None);
    assert_eq!(error.step, plan.steps()[error.done.len()]);
    assert_eq!(error.step.path, "sys/bus/dsa/drivers/idxd/bind");
    assert!(error.to_string().contains("the state should be enabled and is disabled"), "{error}");
    assert!(serde_json::to_string(&error).unwrap().contains("should be enabled"));
    // The settings themselves are in the files.
    let state = SystemState::discover_at(root.path()).unwrap();
    assert_eq!(state.devices[0].queues[0].name.as_deref(), Some("memferry0_0"));
}

#[test]
fn a_directory_creates_no_attributes() {
    let root = tempfile::tempdir().unwrap();
    let error = Directory::below(root.path()).write("size", "1").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The driver accepts all configurations that pass validation and planning, in any order, on old and new kernels.
    #[test]
    fn what_validates_is_taken(
        shapes in prop::collection::vec((1u32..=4, 1u32..=8, any::<bool>(), 0u32..8, any::<bool>()), 1..5),
        is_old in any::<bool>(),
    ) {
        let device = if is_old { FakeDevice::on_old_kernel } else { FakeDevice::sapphire_rapids };
        let driver = FakeDriver::new(&[device(DeviceId(0), 0), device(DeviceId(2), 0)]);
        for (engines, queues, is_shared, less, enable) in shapes {
            let mode = if is_shared { QueueMode::Shared } else { QueueMode::Dedicated };
            let shape = memferry_dsa::system::Shape::one_device(engines, queues, mode).unwrap();
            let mut config = Config::for_devices(&[DeviceId(0), DeviceId(2)], &shape);
            for queue in &mut config.devices[1].groups[0].queues {
                queue.size = queue.size.map(|size| size - less);
                queue.threshold = queue.threshold.map(|threshold| threshold.saturating_sub(less));
                queue.id.index = 7 - queue.id.index;
            }
            config.devices[1].groups[0].queues.reverse();
            apply(&driver, &config, ApplyOptions { disable_first: true, enable });
            if enable {
                assert_configured(&driver, &config);
            }
        }
    }
}
