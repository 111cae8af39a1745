//! The devices before the program starts: number, nodes and configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memferry_dsa::system::{
    ApplyOptions as Apply, Config, ConfigError, DeviceId, Plan, PlanError, Problems, SystemState, UnknownKeys,
};
use memferry_dsa_emulator::{FakeDevice, FakeDriver};

use crate::error::Error;
use crate::options::{Options, Setup};

/// The devices, in order, and their driver.
pub(crate) struct Machine {
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) driver: FakeDriver,
}

impl Machine {
    /// Creates the devices and configures them by the options.
    ///
    /// # Errors
    /// The options name impossible devices, or the configuration does not work on them.
    pub(crate) fn new(options: &Options) -> Result<Machine, Error> {
        let (config, path) = match &options.setup {
            Setup::File(path) => (Some(read(path)?), path.as_path()),
            Setup::Ready | Setup::Disabled => (None, Path::new("the default configuration")),
        };
        let devices = devices(options.devices, config.as_ref())?;
        let driver = driver(&devices);
        let config = match (&options.setup, config) {
            (Setup::Disabled, _) => return Ok(Machine { devices, driver }),
            (_, Some(config)) => config,
            (_, None) => Config::parse(&default_config(&devices), UnknownKeys::Refuse)
                .map_err(|error| Error::Config { path: path.to_owned(), problem: error.to_string() })?,
        };
        let failed = |problem: String| Error::Config { path: path.to_owned(), problem };
        let state = SystemState::read(&driver).map_err(|error| failed(error.to_string()))?;
        let plan = Plan::new(&config, &state, Apply { disable_first: false, enable: true });
        let plan = plan.map_err(|error| match error {
            PlanError::Invalid(problems) => failed(in_one_line(&problems)),
            error => failed(error.to_string()),
        })?;
        plan.apply_to(&driver).map_err(|error| failed(error.to_string()))?;
        Ok(Machine { devices, driver })
    }
}

fn in_one_line(problems: &Problems) -> String {
    let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    format!("the configuration cannot work: {}", problems.join("; "))
}

fn read(path: &Path) -> Result<Config, Error> {
    let config = Config::load(path, UnknownKeys::Keep).map_err(|error| Error::Config {
        path: path.to_owned(),
        problem: match error {
            ConfigError::Read { source, .. } => format!("cannot be read: {source}"),
            error => error.to_string(),
        },
    })?;
    if config.others.is_empty() {
        return Ok(config);
    }
    let problem = "analytics accelerators (iax) are not emulated and are left out";
    if config.devices.is_empty() {
        return Err(Error::Config {
            path: path.to_owned(),
            problem: format!("{problem}; it has no DSA device"),
        });
    }
    eprintln!("memferry: note: {}: {problem}", path.display());
    Ok(config)
}

/// Returns the devices: the requested number, or those of the configuration.
fn devices(requested: Option<u32>, config: Option<&Config>) -> Result<Vec<DeviceId>, Error> {
    let named: BTreeSet<DeviceId> =
        config.into_iter().flat_map(|config| &config.devices).map(|device| device.id).collect();
    let fail = |requested| Err(Error::DeviceCount { requested, max: Options::DEVICES_MAX });
    let Some(count) = requested else {
        return match named.len() as u32 {
            0 => Ok(vec![DeviceId(0)]),
            1..=Options::DEVICES_MAX => Ok(named.into_iter().collect()),
            count => fail(count),
        };
    };
    if !(1..=Options::DEVICES_MAX).contains(&count) {
        return fail(count);
    }
    // Analytics accelerators have the odd numbers.
    let devices: Vec<DeviceId> = (0..count).map(|index| DeviceId(2 * index)).collect();
    match named.into_iter().find(|device| !devices.contains(device)) {
        Some(found) => {
            let devices = devices.iter().map(DeviceId::to_string).collect::<Vec<_>>().join(", ");
            Err(Error::NoSuchDevice { found, devices })
        }
        None => Ok(devices),
    }
}

/// Distributes the devices over the nodes of this machine, so that a search for the nearest device finds one.
fn driver(devices: &[DeviceId]) -> FakeDriver {
    let text = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let mut nodes = parse_node_list(text.trim());
    if nodes.is_empty() {
        nodes.push(0);
    }
    let node = |index: usize| nodes[index * nodes.len() / devices.len().max(nodes.len())];
    let device = |(index, id): (usize, &DeviceId)| FakeDevice::complete(*id, node(index));
    FakeDriver::new(&devices.iter().enumerate().map(device).collect::<Vec<_>>())
}

/// Parses a list such as `0-1,4`. Invalid parts are left out.
fn parse_node_list(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The configuration of [`Setup::Ready`]. The dedicated queues have the names that DPDK requires; other programs use
/// queues of any name.
fn default_config(devices: &[DeviceId]) -> String {
    let queue = |id: &DeviceId, index: u32, mode: &str, threshold: u32, name: &str| {
        format!(
            r#"{{"dev": "{}", "mode": "{mode}", "size": 64, "group_id": 0, "priority": 10, "block_on_fault": 1,
            "max_batch_size": 1024, "max_transfer_size": 2147483648, "type": "user", "driver_name": "user",
            "name": "{name}{}", "threshold": {threshold}}}"#,
            id.queue(index),
            id.0
        )
    };
    let device = |id: &DeviceId| {
        let engine = |index| format!(r#"{{"dev": "{}", "group_id": 0}}"#, id.engine(index));
        format!(
            r#"{{"dev": "{id}", "groups": [{{"dev": "{}", "grouped_workqueues": [{}, {}],
            "grouped_engines": [{}]}}]}}"#,
            id.group(0),
            queue(id, 0, "shared", 64, "shared"),
            queue(id, 1, "dedicated", 0, "dpdk_dedicated"),
            (0..4).map(engine).collect::<Vec<_>>().join(", ")
        )
    };
    format!("[{}]", devices.iter().map(device).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_devices_is_as_requested() {
        let options = |count| Options { devices: Some(count), ..Options::new("true") };
        for count in [1, 2, 8] {
            let machine = Machine::new(&options(count)).unwrap();
            let state = SystemState::read(&machine.driver).unwrap();
            let numbers: Vec<u32> = state.devices.iter().map(|device| device.id.0).collect();
            assert_eq!(numbers, (0..count).map(|index| 2 * index).collect::<Vec<_>>());
            assert!(state.devices.iter().all(|device| device.is_enabled()));
            assert_eq!(state.queues().filter(|(_, queue)| queue.is_enabled()).count(), 2 * count as usize);
        }
        for count in [0, 9, u32::MAX] {
            assert!(matches!(Machine::new(&options(count)), Err(Error::DeviceCount { .. })), "{count}");
        }
    }

    #[test]
    fn after_boot_nothing_is_configured() {
        let machine = Machine::new(&Options { setup: Setup::Disabled, ..Options::new("true") }).unwrap();
        let state = SystemState::read(&machine.driver).unwrap();
        assert!(state.queues().all(|(_, queue)| !queue.is_enabled() && queue.size == Some(0)));
    }

    #[test]
    fn errors_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file.conf");
        let try_it = |text: &str, devices| {
            fs::write(&file, text).unwrap();
            let options = Options { devices, setup: Setup::File(file.clone()), ..Options::new("true") };
            Machine::new(&options).map(|machine| machine.devices).map_err(|error| error.to_string())
        };
        let good = default_config(&[DeviceId(3)]);
        assert_eq!(try_it(&good, None), Ok(vec![DeviceId(3)]));
        let told = try_it(&good, Some(2)).unwrap_err();
        assert!(told.contains("has dsa3") && told.contains("dsa0, dsa2"), "{told}");
        for (text, part) in [
            ("", "file.conf"),
            ("[{]", "file.conf"),
            (&good.replace("\"size\": 64", "\"size\": 65"), "128"),
            (&good.replace("\"priority\": 10", "\"priority\": 16"), "priority"),
            (&good.replace("engine3.1", "engine3.9"), "engine"),
            (&good.replace("\"priority\": 10", "\"priority\": 16"), "; wq3.1: its priority"),
            (r#"[{"dev": "iax1"}]"#, "not emulated"),
        ] {
            let told = try_it(text, None).unwrap_err();
            assert!(told.starts_with(&*file.to_string_lossy()) && told.contains(part), "{told}");
        }
        let mixed = good.replacen('[', r#"[{"dev": "iax1"}, "#, 1);
        assert_eq!(try_it(&mixed, None), Ok(vec![DeviceId(3)]));
        for (path, part) in [("/nowhere", "No such file"), ("/dev/zero", "larger than 16 MiB")] {
            let options = Options { setup: Setup::File(path.into()), ..Options::new("true") };
            let told = Machine::new(&options).err().unwrap().to_string();
            assert!(told.starts_with(&format!("{path}: cannot be read: ")) && told.contains(part), "{told}");
        }
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!(parse_node_list("0-1,4"), [0, 1, 4]);
        assert_eq!(parse_node_list(""), [0; 0]);
        assert_eq!(parse_node_list("x,2-"), [0; 0]);
    }
}
