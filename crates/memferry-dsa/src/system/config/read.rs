//! Reads the files of accel-config.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use serde::de::DeserializeOwned;

use super::json::{Entries, Json};
use super::{Config, ConfigError, DeviceSettings, EngineSettings, GroupSettings, QueueSettings};
use crate::operation::OperationSet;
use crate::portal::QueueMode;
use crate::system::error::shorten;
use crate::system::id::{DeviceId, EngineId, GroupId, QueueId, UnknownName};
use crate::system::state::QueueType;

/// The size limit of a file: some hundred times the settings of the largest machine.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The treatment of unknown keys. accel-config ignores them silently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnknownKeys {
    /// Unknown keys are errors: a mistyped key would otherwise leave its setting at the driver's default.
    #[default]
    Refuse,
    /// Unknown keys are kept and written back, and never applied.
    Keep,
}

/// Read-only keys that `accel-config list` prints. Source: the output of accel-config 3.5, and attributes of the driver.
const READ_ONLY: [&str; 24] = [
    "max_groups",
    "max_work_queues",
    "max_engines",
    "work_queue_size",
    "max_work_queues_size",
    "numa_node",
    "op_cap",
    "gen_cap",
    "iaa_cap",
    "version",
    "state",
    "max_read_buffers",
    "max_tokens",
    "ims_size",
    "configurable",
    "pasid_enabled",
    "cdev_major",
    "cdev_minor",
    "clients",
    "errors",
    "occupancy",
    "cmd_status",
    "engines",
    "work_queues",
];

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`]: the file cannot be read, or is not a configuration.
    pub fn load(path: &Path, unknown: UnknownKeys) -> Result<Config, ConfigError> {
        let text = read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Config::parse(&text, unknown)
    }

    /// Reads the text of a file: an array of devices.
    ///
    /// Like accel-config, this accepts commas after last elements, comments, and the names of settings before Linux 5.17
    /// (`token_limit` for `read_buffer_limit` and so on). A negative number for an optional setting means that the machine
    /// where the file was saved did not have it: accel-config saves error numbers.
    ///
    /// # Errors
    /// The first error in the text. [`validate`](Config::validate) checks whether a device accepts the settings.
    pub fn parse(text: &str, unknown: UnknownKeys) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let file = "the file";
        for device in array(file, Json::parse(text)?)? {
            let name = match &device {
                Json::Object(Entries(entries)) => {
                    entries.iter().find(|(key, _)| key == "dev").map(|(_, name)| name)
                }
                _ => None,
            };
            match name {
                Some(Json::String(name)) if name.starts_with("iax") => config.others.push(device),
                _ => config.devices.push(read_device(device, unknown)?),
            }
        }
        Ok(config)
    }
}

/// The text of a file; limited, since the path may be a pipe or a device without end.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is larger than 16 MiB, which no configuration is"));
    }
    Ok(text)
}

/// A JSON object whose keys are taken one after another.
struct Object {
    /// Its name in errors.
    name: String,
    /// The keys that are not taken yet.
    entries: Vec<(String, Json)>,
    /// The keys that this kind of object may have.
    known: Vec<&'static str>,
}

impl Object {
    fn new<T: FromStr<Err = UnknownName> + fmt::Display>(
        inside: &str,
        value: Json,
    ) -> Result<(T, Object), ConfigError> {
        let Json::Object(Entries(entries)) = value else {
            return Err(ConfigError::Shape {
                object: inside.to_owned(),
                found: kind(&value),
                expected: "objects with a key \"dev\"",
            });
        };
        let mut object = Object { name: format!("an object in {inside}"), entries, known: Vec::new() };
        let name = object.string("dev")?.ok_or_else(|| ConfigError::NoName { inside: inside.to_owned() })?;
        let id: T =
            name.parse().map_err(|source| ConfigError::BadName { inside: inside.to_owned(), source })?;
        object.name = name;
        Ok((id, object))
    }

    fn take(&mut self, key: &'static str) -> Result<Option<Json>, ConfigError> {
        self.known.push(key);
        let mut found = None;
        while let Some(at) = self.entries.iter().position(|(name, _)| name == key) {
            if found.replace(self.entries.remove(at).1).is_some() {
                return Err(ConfigError::RepeatedKey { object: self.name.clone(), key });
            }
        }
        Ok(found)
    }

    /// Takes a setting that had another name before.
    fn take_renamed(&mut self, key: &'static str, old: &'static str) -> Result<Option<Json>, ConfigError> {
        let renamed = self.take(old)?;
        self.known.pop(); // errors list only the current name
        match (self.take(key)?, renamed) {
            (Some(_), Some(_)) => Err(ConfigError::RepeatedKey { object: self.name.clone(), key }),
            (known, renamed) => Ok(known.or(renamed)),
        }
    }

    fn wrong(&self, key: &'static str, found: &Json, expected: &'static str) -> ConfigError {
        let found = match found {
            Json::Number(number) => number.to_string(),
            Json::String(text) => format!("{:?}", shorten(text)),
            other => kind(other).to_owned(),
        };
        ConfigError::Value { object: self.name.clone(), key, found, expected }
    }

    fn string(&mut self, key: &'static str) -> Result<Option<String>, ConfigError> {
        match self.take(key)? {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, &other, "a string")),
        }
    }

    /// Takes a string and parses it.
    fn parsed<T>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.string(key)? else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| self.wrong(key, &Json::String(text), expected))
    }

    fn number<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<Option<T>, ConfigError> {
        let value = self.take(key)?;
        self.as_number(key, value)
    }

    fn as_number<T: DeserializeOwned>(
        &self,
        key: &'static str,
        value: Option<Json>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let number = match &value {
            Json::Number(number) => T::deserialize(number).ok(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.wrong(key, &value, "a whole number, not negative and not huge"))
    }

    /// Takes a number, which accel-config saves as a negative one if the driver does not have it.
    fn number_or_missing(&mut self, key: &'static str) -> Result<Option<u32>, ConfigError> {
        let value = self.take(key)?;
        self.as_number(key, value.filter(is_present))
    }

    fn renamed(&mut self, key: &'static str, old: &'static str) -> Result<Option<u32>, ConfigError> {
        let value = self.take_renamed(key, old)?;
        self.as_number(key, value.filter(is_present))
    }

    fn toggle(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let value = self.take(key)?;
        self.as_toggle(key, value)
    }

    fn as_toggle(&self, key: &'static str, value: Option<Json>) -> Result<Option<bool>, ConfigError> {
        let Some(value) = value.filter(is_present) else { return Ok(None) };
        match self.as_number(key, Some(value.clone())) {
            Ok(Some(0)) => Ok(Some(false)),
            Ok(Some(1)) => Ok(Some(true)),
            _ => Err(self.wrong(key, &value, "0 or 1")),
        }
    }

    fn objects(&mut self, key: &'static str) -> Result<Vec<Json>, ConfigError> {
        match self.take(key)? {
            None => Ok(Vec::new()),
            Some(value) => array(&format!("{key} of {}", self.name), value),
        }
    }

    /// The remaining keys, which are unknown.
    fn finish(self, unknown: UnknownKeys) -> Result<Vec<(String, Json)>, ConfigError> {
        match self.entries.first() {
            Some((key, _)) if unknown == UnknownKeys::Refuse => {
                let (object, key) = (self.name, key.clone());
                // `max_batch_size` of a device is read-only, that of a queue is a setting.
                let of_device =
                    object.starts_with("dsa") && matches!(&*key, "max_batch_size" | "max_transfer_size");
                Err(match READ_ONLY.contains(&&*key) || of_device {
                    true => ConfigError::ReadOnlyKey { object, key },
                    false => ConfigError::UnknownKey { object, key, known: self.known },
                })
            }
            _ => Ok(self.entries),
        }
    }
}

fn is_present(value: &Json) -> bool {
    !matches!(value, Json::Number(number) if number.as_i64().is_some_and(i64::is_negative))
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn array(object: &str, value: Json) -> Result<Vec<Json>, ConfigError> {
    match value {
        Json::Array(values) => Ok(values),
        other => Err(ConfigError::Shape {
            object: object.to_owned(),
            found: kind(&other),
            expected: "an array of objects",
        }),
    }
}

fn read_device(value: Json, unknown: UnknownKeys) -> Result<DeviceSettings, ConfigError> {
    let (id, mut object) = Object::new::<DeviceId>("the file", value)?;
    let mut device = DeviceSettings {
        id,
        read_buffer_limit: object.renamed("read_buffer_limit", "token_limit")?,
        event_log_size: object.number_or_missing("event_log_size")?,
        ..DeviceSettings::default()
    };
    for group in object.objects("groups")? {
        device.groups.push(read_group(id, group, unknown)?);
    }
    // `accel-config list` prints the key with a blank.
    let mut queues = object.objects("ungrouped_workqueues")?;
    queues.extend(object.objects("ungrouped workqueues")?);
    object.known.pop();
    for queue in queues {
        device.ungrouped_queues.push(read_queue(id, None, queue, unknown)?);
    }
    for engine in object.objects("ungrouped_engines")? {
        device.ungrouped_engines.push(read_engine(id, None, engine, unknown)?);
    }
    device.kept = object.finish(unknown)?;
    Ok(device)
}

fn read_group(device: DeviceId, value: Json, unknown: UnknownKeys) -> Result<GroupSettings, ConfigError> {
    let (id, mut object) = Object::new::<GroupId>(&device.to_string(), value)?;
    of_device(&id, id.device, device)?;
    let use_limit = object.take_renamed("use_read_buffer_limit", "use_token_limit")?;
    let mut group = GroupSettings {
        id,
        read_buffers_reserved: object.renamed("read_buffers_reserved", "tokens_reserved")?,
        use_read_buffer_limit: object.as_toggle("use_read_buffer_limit", use_limit)?,
        read_buffers_allowed: object.renamed("read_buffers_allowed", "tokens_allowed")?,
        traffic_class_a: object.number_or_missing("traffic_class_a")?,
        traffic_class_b: object.number_or_missing("traffic_class_b")?,
        desc_progress_limit: object.number_or_missing("desc_progress_limit")?,
        batch_progress_limit: object.number_or_missing("batch_progress_limit")?,
        ..GroupSettings::default()
    };
    for queue in object.objects("grouped_workqueues")? {
        group.queues.push(read_queue(device, Some(id), queue, unknown)?);
    }
    for engine in object.objects("grouped_engines")? {
        group.engines.push(read_engine(device, Some(id), engine, unknown)?);
    }
    group.kept = object.finish(unknown)?;
    Ok(group)
}

/// Reads the name of a queue or an engine, inside a group or not.
fn member<T: FromStr<Err = UnknownName> + fmt::Display>(
    device: DeviceId,
    group: Option<GroupId>,
    value: Json,
    device_of: impl Fn(&T) -> DeviceId,
) -> Result<(T, Object), ConfigError> {
    let inside = group.map_or(device.to_string(), |group| group.to_string());
    let (id, mut object) = Object::new::<T>(&inside, value)?;
    of_device(&id, device_of(&id), device)?;
    in_group(&mut object, group)?;
    Ok((id, object))
}

fn read_queue(
    device: DeviceId,
    group: Option<GroupId>,
    value: Json,
    unknown: UnknownKeys,
) -> Result<QueueSettings, ConfigError> {
    let (id, mut object) = member(device, group, value, |id: &QueueId| id.device)?;
    let mode = object.parsed("mode", "shared or dedicated", QueueMode::from_word)?;
    let operations = object.parsed(
        "op_config",
        "words of 8 hexadecimal digits with commas between",
        OperationSet::from_sysfs,
    )?;
    let kind = object.parsed("type", "user, kernel or none", |word| match QueueType::from(word) {
        QueueType::Other(_) => None,
        kind => Some(kind),
    })?;
    Ok(QueueSettings {
        id,
        mode,
        size: object.number("size")?,
        priority: object.number("priority")?,
        block_on_fault: object.toggle("block_on_fault")?,
        batch_max: object.number("max_batch_size")?,
        transfer_bytes_max: object.number("max_transfer_size")?,
        kind,
        name: object.string("name")?,
        driver_name: object.string("driver_name")?,
        threshold: object.number("threshold")?,
        ats_disable: object.toggle("ats_disable")?,
        prs_disable: object.toggle("prs_disable")?,
        operations,
        kept: object.finish(unknown)?,
    })
}

fn read_engine(
    device: DeviceId,
    group: Option<GroupId>,
    value: Json,
    unknown: UnknownKeys,
) -> Result<EngineSettings, ConfigError> {
    let (id, object) = member(device, group, value, |id: &EngineId| id.device)?;
    Ok(EngineSettings { id, kept: object.finish(unknown)? })
}

fn of_device(object: &dyn fmt::Display, mine: DeviceId, device: DeviceId) -> Result<(), ConfigError> {
    if mine == device {
        return Ok(());
    }
    Err(ConfigError::Misplaced {
        object: object.to_string(),
        inside: device.to_string(),
        why: format!("its name says that it belongs to {mine}"),
    })
}

/// Checks `group_id`, which repeats the group around the object.
fn in_group(object: &mut Object, group: Option<GroupId>) -> Result<(), ConfigError> {
    let said: Option<i64> = object.number("group_id")?;
    let meant = group.map_or(-1, |group| i64::from(group.index));
    match said {
        Some(said) if said.max(-1) != meant => Err(ConfigError::Misplaced {
            object: object.name.clone(),
            inside: group.map_or("no group".to_owned(), |group| group.to_string()),
            why: format!("its group_id is {said}"),
        }),
        _ => Ok(()),
    }
}
