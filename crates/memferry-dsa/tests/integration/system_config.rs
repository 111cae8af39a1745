//! Configurations: reading and writing accel-config's files, validation, and the built-in profiles.

use memferry_dsa::internals::system::Json;
use memferry_dsa::system::{
    Config, ConfigError, DeviceId, Limits, Problems, Profile, QueueType, Shape, SystemState, UnknownKeys,
};
use memferry_dsa::{Opcode, OperationSet, QueueMode};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};
use memferry_testing::{Needs, skip};
use proptest::prelude::*;

fn parse(text: &str) -> Config {
    Config::parse(text, UnknownKeys::Refuse).unwrap()
}

fn refused(text: &str) -> String {
    Config::parse(text, UnknownKeys::Refuse).unwrap_err().to_string()
}

/// The application profile of accel-config, in short, with the comma after a last element that its network profile has.
const APP: &str = r#"[
  {
    "dev":"dsa0",
    "read_buffer_limit":0,
    "groups":[
      {
        "dev":"group0.0",
        "grouped_workqueues":[
          {
            "dev":"wq0.0",
            "mode":"shared",
            "size":8,
            "group_id":0,
            "priority":10,
            "block_on_fault":0,
            "max_batch_size":32,
            "max_transfer_size":16384,
            "type":"user",
            "driver_name":"user",
            "name":"app1",
            "threshold":6
          },
        ],
        "grouped_engines":[
          {
            "dev":"engine0.0",
            "group_id":0
          },
        ]
      }
    ]
  }
]"#;

#[test]
fn a_profile_of_accel_config_is_read() {
    let config = parse(APP);
    let queue = &config.devices[0].groups[0].queues[0];
    assert_eq!((queue.mode, queue.size, queue.threshold), (Some(QueueMode::Shared), Some(8), Some(6)));
    assert_eq!((queue.batch_max, queue.transfer_bytes_max), (Some(32), Some(16384)));
    assert_eq!((queue.kind.as_ref(), queue.name.as_deref()), (Some(&QueueType::User), Some("app1")));
    assert_eq!(queue.block_on_fault, Some(false));
    assert_eq!(queue.ats_disable, None);
    assert_eq!(config.devices[0].groups[0].engines[0].id, DeviceId(0).engine(0));
    config.validate(&Limits::dsa_1_0()).unwrap();
    // Its keys are in this order, so the written text differs only in blanks and that comma.
    let squeezed = |text: &str| text.split_whitespace().collect::<String>().replace(",]", "]");
    assert_eq!(squeezed(&config.to_json()), squeezed(APP));
}

/// All profiles and test configurations of accel-config, if it is installed.
#[test]
fn installed_files_of_accel_config_are_read() {
    let mut read = 0;
    for directory in ["/etc/accel-config/contrib/configs", "/usr/libexec/accel-config/test/configs"] {
        let Ok(entries) = std::fs::read_dir(directory) else {
            let why = format!("there is no {directory}; install accel-config and accel-config-test");
            skip(Needs::Program("accel-config"), why);
            continue;
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|extension| extension == "conf") {
                let config = Config::load(&path, UnknownKeys::Refuse)
                    .unwrap_or_else(|error| panic!("{path:?}: {error}"));
                if !config.devices.is_empty() {
                    config.validate(&Limits::dsa_1_0()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                }
                assert_eq!(parse(&config.to_json()), config, "{path:?}");
                read += 1;
            }
        }
    }
    println!("read {read} files");
}

/// A file of `accel-config save-config` 3.5 for a device that lacked two attributes: it has error numbers, and engines in
/// no group.
#[test]
fn saved_files_with_missing_attributes_are_read() {
    let config = parse(
        r#"[{"dev":"dsa0","read_buffer_limit":0,"groups":[{"dev":"group0.0","read_buffers_reserved":0,
        "use_read_buffer_limit":0,"read_buffers_allowed":96,"traffic_class_a":0,"traffic_class_b":1,
        "grouped_workqueues":[{"dev":"wq0.0","mode":"shared","size":128,"group_id":0,"priority":10,"block_on_fault":-6,
        "max_batch_size":1024,"max_transfer_size":2147483648,"type":"user","name":"x","driver_name":"user","threshold":128,
        "ats_disable":-6}],"grouped_engines":[{"dev":"engine0.0","group_id":0}]},{"dev":"group0.1","traffic_class_a":-1}],
        "ungrouped_engines":[{"dev":"engine0.1"},{"dev":"engine0.2","group_id":-1}]}]"#,
    );
    let device = &config.devices[0];
    let queue = &device.groups[0].queues[0];
    assert_eq!((queue.block_on_fault, queue.ats_disable), (None, None));
    assert_eq!(queue.transfer_bytes_max, Some(1 << 31));
    assert_eq!(device.groups[1].traffic_class_a, None);
    assert_eq!(device.ungrouped_engines.len(), 2);
    config.validate(&Limits::dsa_1_0()).unwrap();
}

#[test]
fn names_before_read_buffers_are_understood() {
    let config = parse(
        r#"[{"dev":"dsa0","token_limit":5,"groups":[{"dev":"group0.0","tokens_reserved":1,"tokens_allowed":9,
        "use_token_limit":1}]}]"#,
    );
    let group = &config.devices[0].groups[0];
    assert_eq!(config.devices[0].read_buffer_limit, Some(5));
    assert_eq!((group.read_buffers_reserved, group.read_buffers_allowed), (Some(1), Some(9)));
    assert_eq!(group.use_read_buffer_limit, Some(true));
    assert!(config.to_json().contains("\"read_buffers_allowed\": 9"));
    let both = r#"[{"dev":"dsa0","token_limit":5,"read_buffer_limit":5}]"#;
    assert!(refused(both).contains("\"read_buffer_limit\" twice"), "{}", refused(both));
}

#[test]
fn unknown_keys_are_errors_or_are_kept() {
    let text = r#"[{"dev":"dsa0","groups":[{"dev":"group0.0","grouped_workqueues":[{"dev":"wq0.0","treshold":5,"x":[1,{"a":-2.5}]}]}]}]"#;
    let told = refused(text);
    assert!(
        told.starts_with("wq0.0 has the unknown key \"treshold\"") && told.contains("threshold,"),
        "{told}"
    );
    let config = Config::parse(text, UnknownKeys::Keep).unwrap();
    let kept = [("wq0.0".to_owned(), "treshold"), ("wq0.0".to_owned(), "x")];
    assert_eq!(config.kept_keys(), kept);
    let written = config.to_json();
    assert_eq!(Config::parse(&written, UnknownKeys::Keep).unwrap(), config);
    assert!(written.find("\"dev\"") < written.find("treshold"));
}

#[test]
fn listings_of_accel_config_are_refused() {
    let told = refused(r#"[{"dev":"dsa0","state":"enabled"}]"#);
    assert!(told.contains("save-config"), "{told}");
    let told = refused(r#"[{"dev":"dsa0","max_batch_size":1024}]"#);
    assert!(told.starts_with("dsa0 has the read-only key \"max_batch_size\""), "{told}");
}

#[test]
fn analytics_accelerators_pass_through() {
    let text = r#"[{"dev":"iax1","groups":[{"dev":"group1.0","foo":1}]},{"dev":"dsa0"}]"#;
    let config = parse(text);
    assert_eq!((config.devices.len(), config.others.len()), (1, 1));
    let written = config.to_json();
    assert!(written.contains("\"foo\": 1"), "{written}");
    assert_eq!(parse(&written), config);
}

#[test]
fn errors_name_the_object_and_the_key() {
    for (text, told) in [
        ("{", "not JSON"),
        ("{}", "the file contains an object; expected an array"),
        ("[5]", "the file contains a number; expected objects"),
        ("[{}]", "an object in the file has no \"dev\""),
        (r#"[{"dev":5}]"#, "dev of an object in the file is 5; expected a string"),
        (r#"[{"dev":"dsa"}]"#, "in the file: \"dsa\" is not the name of a DSA device; an example is dsa0"),
        (r#"[{"dev":"dsa0","dev":"dsa0"}]"#, "the key \"dev\" twice"),
        (r#"[{"dev":"dsa0","groups":{}}]"#, "groups of dsa0 contains an object"),
        (
            r#"[{"dev":"dsa0","groups":[{"dev":"group2.0"}]}]"#,
            "group2.0 is in dsa0, where it does not belong",
        ),
        (r#"[{"dev":"dsa0","ungrouped_engines":[{"dev":"wq0.0"}]}]"#, "not the name of an engine"),
        (
            r#"[{"dev":"dsa0","groups":[{"dev":"group0.0","grouped_engines":[{"dev":"engine0.0","group_id":1}]}]}]"#,
            "engine0.0 is in group0.0, where it does not belong: its group_id is 1",
        ),
        (r#"[{"dev":"dsa0","ungrouped_engines":[{"dev":"engine0.0","group_id":1}]}]"#, "is in no group"),
        (
            r#"[{"dev":"dsa0","read_buffer_limit":1.5}]"#,
            "read_buffer_limit of dsa0 is 1.5; expected a whole number",
        ),
        (r#"[{"dev":"dsa0","read_buffer_limit":99999999999}]"#, "is 99999999999"),
        (r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","size":-5}]}]"#, "size of wq0.0 is -5"),
        (r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","size":"5"}]}]"#, "size of wq0.0 is \"5\""),
        (
            r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","mode":"both"}]}]"#,
            "expected shared or dedicated",
        ),
        (
            r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","type":"mdev"}]}]"#,
            "type of wq0.0 is \"mdev\"",
        ),
        (
            r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","block_on_fault":2}]}]"#,
            "expected 0 or 1",
        ),
        (
            r#"[{"dev":"dsa0","ungrouped_workqueues":[{"dev":"wq0.0","op_config":"x"}]}]"#,
            "op_config of wq0.0 is \"x\"",
        ),
    ] {
        let found = refused(text);
        assert!(found.contains(told), "{text}\n  says: {found}\n  not: {told}");
    }
    let told = Config::load("/does/not/exist".as_ref(), UnknownKeys::Refuse).unwrap_err().to_string();
    assert!(told.starts_with("cannot read /does/not/exist"), "{told}");
}

// Validation.

fn one(change: impl FnOnce(&mut Config)) -> Vec<String> {
    one_within(&Limits::dsa_1_0(), change)
}

/// The problems of a configuration of one queue after a change.
fn one_within(limits: &Limits, change: impl FnOnce(&mut Config)) -> Vec<String> {
    let mut config = Profile::named("1n1d1e1w").unwrap().config();
    change(&mut config);
    match config.validate(limits) {
        Ok(()) => Vec::new(),
        Err(Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
    }
}

macro_rules! queue {
    ($config:ident) => {
        $config.devices[0].groups[0].queues[0]
    };
}

macro_rules! assert_one {
    ($change:expr, $told:literal) => {{
        let found = one($change);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains($told), "{found:?}");
    }};
}

#[test]
fn a_queue_is_within_its_limits() {
    assert_eq!(one(|_| ()), [""; 0]);
    assert_one!(|it| queue!(it).priority = Some(0), "wq0.0: its priority is 0; it can be 1 to 15");
    assert_one!(|it| queue!(it).priority = Some(16), "priority is 16");
    assert_one!(|it| queue!(it).priority = None, "no priority");
    assert_one!(
        |it| queue!(it).threshold = Some(129),
        "threshold is 129; that of a shared queue can be 1 to its size, 128"
    );
    assert_one!(|it| queue!(it).threshold = Some(0), "threshold is 0");
    assert_one!(|it| queue!(it).threshold = None, "no threshold");
    assert_one!(|it| queue!(it).mode = None, "no mode");
    assert_one!(|it| queue!(it).mode = Some(QueueMode::Dedicated), "a dedicated queue has none: set 0");
    assert_one!(|it| queue!(it).batch_max = Some(0), "max_batch_size is 0; it can be 1 to 1024");
    assert_one!(|it| queue!(it).batch_max = Some(2048), "max_batch_size is 2048");
    assert_one!(|it| queue!(it).batch_max = Some(100), "the driver would use 128");
    assert_one!(|it| queue!(it).transfer_bytes_max = Some(1 << 32), "max_transfer_size is 4294967296");
    assert_one!(|it| queue!(it).transfer_bytes_max = Some(u64::MAX), "it can be 1 to 2147483648");
    assert_one!(|it| queue!(it).transfer_bytes_max = Some(3), "the driver would use 4");
    assert_one!(|it| queue!(it).name = None, "no name");
    assert_one!(|it| queue!(it).name = Some(String::new()), "no name");
    assert_one!(|it| queue!(it).name = Some("x".repeat(1025)), "1025 bytes; it can have at most 1024");
    assert_one!(|it| queue!(it).name = Some("a\nb".to_owned()), "control character");
    assert_one!(|it| queue!(it).name = Some(" a".to_owned()), "blank");
    assert_one!(|it| queue!(it).kind = None, "no type");
    assert_one!(|it| queue!(it).driver_name = Some("dmaengine".to_owned()), "type user is \"user\"");
    assert_one!(|it| queue!(it).kind = Some(QueueType::Kernel), "type kernel is for example \"dmaengine\"");
    assert_one!(
        |it| {
            queue!(it).prs_disable = Some(true);
            queue!(it).block_on_fault = Some(false);
        },
        "needs an event log"
    );
    assert_eq!(one(|it| queue!(it).prs_disable = Some(true)).len(), 2);
    let found = one(|it| queue!(it).size = Some(0));
    assert!(found[0].contains("its size is 0"), "{found:?}");
    let found = one(|it| queue!(it).size = None);
    assert!(found[0].contains("it has no size"), "{found:?}");
}

#[test]
fn a_device_is_within_its_limits() {
    let entries = |it: &mut Config| {
        queue!(it).size = Some(129);
    };
    assert_one!(entries, "dsa0: its work queues have 129 entries together; the device has 128");
    assert_one!(
        |it| {
            for _ in 0..2 {
                queue!(it).size = Some(u32::MAX);
                let mut other = queue!(it).clone();
                other.id = DeviceId(0).queue(1);
                it.devices[0].groups[0].queues.truncate(1);
                it.devices[0].groups[0].queues.push(other);
            }
        },
        "8589934590 entries"
    );
    assert_one!(|it| it.devices[0].groups[0].engines.clear(), "group0.0: it has work queues and no engine");
    assert_one!(
        |it| it.devices[0].groups[0].engines[0].id.index = 4,
        "engine0.4: the device has 4 engines, numbered 0 to 3"
    );
    assert_one!(|it| queue!(it).id.index = 8, "wq0.8: the device has 8 work queues");
    assert_one!(|it| it.devices[0].groups[0].id.index = 4, "group0.4: the device has 4 groups");
    assert_one!(|it| it.devices.push(it.devices[0].clone()), "dsa0: it is configured twice");
    assert_one!(|it| it.devices.clear(), "no DSA device");
    assert_one!(|it| it.devices[0].read_buffer_limit = Some(97), "the device has 96 read buffers");
    assert_one!(|it| it.devices[0].event_log_size = Some(64), "no event log");
    let found = one(|it| it.devices[0].groups[0].queues.clear());
    assert!(
        found[0].contains("engines and no work queue") && found[1].contains("cannot be enabled"),
        "{found:?}"
    );
    assert_one!(
        |it| {
            let engine = it.devices[0].groups[0].engines[0].clone();
            it.devices[0].groups[0].engines.push(engine);
        },
        "engine0.0: it is in the configuration twice"
    );
    let found = one(|it| {
        let queue = it.devices[0].groups[0].queues.remove(0);
        it.devices[0].groups[0].engines.clear();
        it.devices[0].ungrouped_queues.push(queue);
    });
    assert!(found[0].contains("it has a size and is in no group"), "{found:?}");
}

#[test]
fn a_group_is_within_its_limits() {
    assert_one!(|it| it.devices[0].groups[0].read_buffers_allowed = Some(3), "it can be 4 to 96");
    assert_one!(|it| it.devices[0].groups[0].read_buffers_allowed = Some(97), "it can be 4 to 96");
    assert_one!(|it| it.devices[0].groups[0].read_buffers_reserved = Some(97), "reserve 97 read buffers");
    assert_one!(
        |it| {
            it.devices[0].groups[0].read_buffers_reserved = Some(50);
            it.devices[0].groups[0].read_buffers_allowed = Some(49);
        },
        "it can be 50 to 96"
    );
    assert_one!(
        |it| it.devices[0].groups[0].use_read_buffer_limit = Some(true),
        "read_buffer_limit of the device is not set"
    );
    assert_one!(
        |it| it.devices[0].groups[0].traffic_class_b = Some(8),
        "traffic_class_b is 8; it can be 0 to 7"
    );
    assert_one!(|it| it.devices[0].groups[0].desc_progress_limit = Some(4), "desc_progress_limit is 4");
    // The read buffers that other groups reserve are not available.
    let mut config = Profile::named("1n1d4g1e1w-dedicated").unwrap().config();
    config.devices[0].groups[1].read_buffers_reserved = Some(60);
    config.devices[0].groups[0].read_buffers_allowed = Some(37);
    let told = config.validate(&Limits::dsa_1_0()).unwrap_err().to_string();
    assert!(told.contains("it can be 4 to 36"), "{told}");
}

#[test]
fn limits_are_those_of_the_device() {
    let no_pasid = Limits { pasid: false, ..Limits::dsa_1_0() };
    let found = one_within(&no_pasid, |_| ());
    assert!(found[0].contains("pasid_enabled is 0"), "{found:?}");
    let found = one_within(&no_pasid, |it| {
        queue!(it).mode = Some(QueueMode::Dedicated);
        queue!(it).threshold = Some(0);
    });
    assert!(found[0].contains("type user"), "{found:?}");
    let found = one_within(&Limits { block_on_fault: false, ..Limits::dsa_1_0() }, |_| ());
    assert!(found[0].contains("cannot block on faults"), "{found:?}");
    let operations = Some(OperationSet::of(&[Opcode::Noop]));
    let limits = Limits { operations, event_log: true, ..Limits::dsa_1_0() };
    let found = one_within(&limits, |it| {
        queue!(it).operations = Some(OperationSet::of(&[Opcode::Noop, Opcode::Fill]));
        it.devices[0].event_log_size = Some(63);
    });
    assert!(found[0].contains("lacks: Memory Fill") && found[1].contains("64 to 65535"), "{found:?}");

    let state = SystemState::read(&FakeDriver::new(&[FakeDevice::version_2(DeviceId(0), 0)])).unwrap();
    let mut config = Profile::named("1n1d1e1w").unwrap().config();
    config.devices[0].event_log_size = Some(128);
    config.validate_on(&state).unwrap();
    config.devices[0].id = DeviceId(4);
    let told = config.validate_on(&state).unwrap_err().to_string();
    assert!(told.contains("dsa4: there is no such device; there are dsa0"), "{told}");
    let told = config.validate_on(&SystemState::default()).unwrap_err().to_string();
    assert!(told.contains("this machine has no DSA device"), "{told}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = one(|it| {
        queue!(it).priority = Some(0);
        queue!(it).name = None;
        it.devices[0].groups[0].engines.clear();
    });
    assert_eq!(found.len(), 3, "{found:?}");
}

// Profiles.

#[test]
fn profiles_have_the_shapes_of_their_names() {
    assert_eq!(Profile::all().len(), 9);
    for profile in Profile::all() {
        let name = profile.name();
        let config = profile.config();
        config.validate(&Limits::dsa_1_0()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shape = profile.shape();
        assert_eq!(shape.to_string(), name);

        // Counted, rather than generated by what generates them.
        assert_eq!(config.devices.len() as u32, shape.nodes() * shape.devices_per_node(), "{name}");
        for (number, device) in config.devices.iter().enumerate() {
            assert_eq!(device.id, DeviceId(2 * number as u32), "{name}");
            assert_eq!(device.groups.len() as u32, shape.groups(), "{name}");
            assert_eq!(device.engines().count() as u32, shape.engines(), "{name}");
            assert_eq!(device.queues().count() as u32, shape.queues(), "{name}");
            let entries: u32 = device.queues().map(|(_, queue)| queue.size.unwrap()).sum();
            assert_eq!(entries, 128, "{name}: no entry is left over");
            for (_, queue) in device.queues() {
                assert_eq!(queue.mode, Some(shape.mode()), "{name}");
                assert_eq!(queue.mode == Some(QueueMode::Dedicated), name.ends_with("-dedicated"), "{name}");
                assert_eq!(queue.kind, Some(QueueType::User), "{name}");
            }
        }
        let generated = Config::for_devices(&shape.usual_devices(), &shape);
        assert_eq!(
            generated.to_json(),
            profile.text(),
            "{name}: devices/{name}.json is not what is generated"
        );
        assert!(!profile.purpose().is_empty() && !profile.source().is_empty());
    }
    let told = Profile::named("9n").unwrap_err().to_string();
    assert!(told.contains("8n1d1e1w, 4n1d1e1w"), "{told}");
}

#[test]
fn the_thesis_configuration() {
    let config = Profile::named("8n1d1e1w").unwrap().config();
    let ids: Vec<String> = config.devices.iter().map(|device| device.id.to_string()).collect();
    assert_eq!(ids, ["dsa0", "dsa2", "dsa4", "dsa6", "dsa8", "dsa10", "dsa12", "dsa14"]);
    for device in &config.devices {
        let [group] = &device.groups[..] else { panic!("{device:?}") };
        let [queue] = &group.queues[..] else { panic!("{group:?}") };
        assert_eq!(group.engines.len(), 1);
        assert_eq!(
            (queue.size, queue.threshold, queue.mode),
            (Some(128), Some(128), Some(QueueMode::Shared))
        );
    }
}

#[test]
fn profiles_for_the_devices_of_a_machine() {
    let profile = |name| Profile::named(name).unwrap();
    let ids = |config: &Config| config.devices.iter().map(|device| device.id.0).collect::<Vec<_>>();
    let config = Config::for_devices(&[DeviceId(3), DeviceId(7)], &profile("1n1d4e1w").shape());
    assert_eq!(ids(&config), [3, 7]);
    config.validate(&Limits::dsa_1_0()).unwrap();

    let state = SystemState::read(&FakeDriver::xeon_max()).unwrap();
    for name in ["8n1d1e1w", "4n1d1e1w", "1n1d4e8w-dedicated"] {
        let config = profile(name).for_machine(&state).unwrap();
        assert_eq!(config, profile(name).config(), "{name}");
        config.validate_on(&state).unwrap();
    }
    let error = profile("1n4d1e1w-dedicated").for_machine(&state).unwrap_err();
    let ConfigError::TooFewDevices { shape, found } = &error else { panic!("{error}") };
    assert_eq!((shape.devices_per_node(), shape.nodes(), *found), (4, 1, 0));

    // Two sockets without sub-NUMA clusters: four devices on each node.
    let devices: Vec<_> = (0..8).map(|n| FakeDevice::sapphire_rapids(DeviceId(n), n / 4)).collect();
    let state = SystemState::read(&FakeDriver::new(&devices)).unwrap();
    assert_eq!(ids(&profile("1n4d1e1w-dedicated").for_machine(&state).unwrap()), [0, 1, 2, 3]);
    assert_eq!(ids(&profile("2n1d1e1w").for_machine(&state).unwrap()), [0, 4], "one on each node");
}

// Any configuration survives writing and reading; any text is refused or understood.

fn operations() -> impl Strategy<Value = OperationSet> {
    any::<[u64; 4]>().prop_map(OperationSet::from_words)
}

prop_compose! {
    fn kept()(
        numbers in prop::collection::btree_map("x[a-z]{0,5}", any::<i64>(), 0..3),
        text in prop::option::of(".{0,8}"),
    ) -> Vec<(String, Json)> {
        let numbers = numbers.into_iter().map(|(key, number)| (key, Json::Number(number.into())));
        let text = text.map(|text| ("y".to_owned(), Json::Array(vec![Json::String(text), Json::Null, Json::Bool(true)])));
        numbers.chain(text).collect()
    }
}

prop_compose! {
    fn queue_settings(device: u32)(
        index in 0u32..9,
        mode in prop::option::of(prop_oneof![Just(QueueMode::Shared), Just(QueueMode::Dedicated)]),
        (size, priority, batch_max, threshold) in any::<(Option<u32>, Option<u32>, Option<u32>, Option<u32>)>(),
        (block_on_fault, ats_disable, prs_disable) in any::<(Option<bool>, Option<bool>, Option<bool>)>(),
        transfer_bytes_max in any::<Option<u64>>(),
        kind in prop::option::of(prop_oneof![Just(QueueType::User), Just(QueueType::Kernel), Just(QueueType::None)]),
        (name, driver_name) in (prop::option::of(".{0,9}"), prop::option::of("[a-z]{0,9}")),
        operations in prop::option::of(operations()),
        kept in kept(),
    ) -> memferry_dsa::internals::system::QueueSettings {
        memferry_dsa::internals::system::QueueSettings {
            id: DeviceId(device).queue(index), mode, size, priority, block_on_fault, batch_max, transfer_bytes_max, kind,
            name, driver_name, threshold, ats_disable, prs_disable, operations, kept,
        }
    }
}

fn engine_settings(device: u32) -> impl Strategy<Value = memferry_dsa::internals::system::EngineSettings> {
    (0u32..5, kept()).prop_map(move |(index, kept)| memferry_dsa::internals::system::EngineSettings {
        id: DeviceId(device).engine(index),
        kept,
    })
}

prop_compose! {
    fn group_settings(device: u32)(
        index in 0u32..5,
        (read_buffers_reserved, read_buffers_allowed) in any::<(Option<u32>, Option<u32>)>(),
        (traffic_class_a, traffic_class_b) in any::<(Option<u32>, Option<u32>)>(),
        (desc_progress_limit, batch_progress_limit) in any::<(Option<u32>, Option<u32>)>(),
        use_read_buffer_limit in any::<Option<bool>>(),
        queues in prop::collection::vec(queue_settings(device), 0..3),
        engines in prop::collection::vec(engine_settings(device), 0..3),
        kept in kept(),
    ) -> memferry_dsa::internals::system::GroupSettings {
        memferry_dsa::internals::system::GroupSettings {
            id: DeviceId(device).group(index), read_buffers_reserved, use_read_buffer_limit, read_buffers_allowed,
            traffic_class_a, traffic_class_b, desc_progress_limit, batch_progress_limit, queues, engines, kept,
        }
    }
}

fn config() -> impl Strategy<Value = Config> {
    let device = (0u32..20).prop_flat_map(|id| {
        (
            any::<(Option<u32>, Option<u32>)>(),
            prop::collection::vec(group_settings(id), 0..3),
            prop::collection::vec(queue_settings(id), 0..2),
            prop::collection::vec(engine_settings(id), 0..2),
            kept(),
        )
            .prop_map(move |(numbers, groups, ungrouped_queues, ungrouped_engines, kept)| {
                memferry_dsa::internals::system::DeviceSettings {
                    id: DeviceId(id),
                    read_buffer_limit: numbers.0,
                    event_log_size: numbers.1,
                    groups,
                    ungrouped_queues,
                    ungrouped_engines,
                    kept,
                }
            })
    });
    prop::collection::vec(device, 0..3).prop_map(|devices| Config { devices, others: Vec::new() })
}

proptest! {
    #[test]
    fn configurations_survive_writing_and_reading(config in config()) {
        let text = config.to_json();
        let read = Config::parse(&text, UnknownKeys::Keep).unwrap_or_else(|error| panic!("{error}\n{text}"));
        prop_assert_eq!(&read, &config);
        // accel-config wants the name first, in each object.
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].ends_with('{')) {
            prop_assert!(pair[1].starts_with("\"dev\""), "{:?}", pair);
        }
        // None of it makes validation panic.
        let _ = config.validate(&Limits::dsa_1_0());
        let kept = config.kept_keys().len();
        match Config::parse(&text, UnknownKeys::Refuse) {
            Ok(_) => prop_assert_eq!(kept, 0),
            Err(ConfigError::UnknownKey { .. }) => prop_assert!(kept > 0),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn any_text_is_refused_or_understood(text in ".{0,200}", cut in any::<prop::sample::Index>(), junk in any::<char>()) {
        let _ = Config::parse(&text, UnknownKeys::Keep);
        let mut broken: Vec<char> = APP.chars().collect();
        let at = cut.index(broken.len());
        broken[at] = junk;
        let broken: String = broken.into_iter().collect();
        for unknown in [UnknownKeys::Keep, UnknownKeys::Refuse] {
            if let Ok(config) = Config::parse(&broken, unknown) {
                let _ = config.validate(&Limits::dsa_1_0());
            }
        }
    }

    #[test]
    fn shapes_that_are_understood_validate(text in "[0-9]{1,2}n[0-9]d(|[0-9]g)[0-9]e[0-9]w(|-dedicated)") {
        if let Ok(shape) = text.parse::<Shape>() {
            let config = Config::for_devices(&shape.usual_devices(), &shape);
            prop_assert_eq!(config.validate(&Limits::dsa_1_0()), Ok(()));
        }
    }
}
