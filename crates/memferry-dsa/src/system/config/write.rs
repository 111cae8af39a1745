//! Writes the files of accel-config: "dev" first, then the keys in the order of `accel-config save-config`.
//!
//! `load-config` applies settings in the order of the file, and some depend on others: the threshold on mode and size, the
//! name on the type.

use serde::{Serialize, Serializer};
use serde_json::Number;

use super::json::{Entries, Json};
use super::{Config, DeviceSettings, EngineSettings, GroupSettings, QueueSettings};
use crate::operation::OperationSet;
use crate::portal::QueueMode;

impl Config {
    /// The text of a file for `accel-config load-config -c FILE`, with a newline at the end.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        // All keys are strings and no number is infinite, so serialization cannot fail.
        text.expect("a configuration is representable") + "\n"
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.devices.iter().map(device).chain(self.others.iter().cloned()))
    }
}

impl Entries {
    fn of(id: impl ToString) -> Entries {
        Entries(vec![("dev".to_owned(), Json::String(id.to_string()))])
    }

    fn number(mut self, key: &str, value: Option<impl Into<Number>>) -> Entries {
        self.0.extend(value.map(|value| (key.to_owned(), Json::Number(value.into()))));
        self
    }

    fn toggle(self, key: &str, value: Option<bool>) -> Entries {
        self.number(key, value.map(u8::from))
    }

    fn string(mut self, key: &str, value: Option<&str>) -> Entries {
        self.0.extend(value.map(|value| (key.to_owned(), Json::String(value.to_owned()))));
        self
    }

    fn objects(mut self, key: &str, objects: Vec<Json>) -> Entries {
        if !objects.is_empty() {
            self.0.push((key.to_owned(), Json::Array(objects)));
        }
        self
    }

    fn kept(mut self, kept: &[(String, Json)]) -> Json {
        self.0.extend_from_slice(kept);
        Json::Object(self)
    }
}

fn device(device: &DeviceSettings) -> Json {
    Entries::of(device.id)
        .number("read_buffer_limit", device.read_buffer_limit)
        .number("event_log_size", device.event_log_size)
        .objects("groups", device.groups.iter().map(group).collect())
        .objects("ungrouped_workqueues", device.ungrouped_queues.iter().map(|it| queue(it, None)).collect())
        .objects("ungrouped_engines", device.ungrouped_engines.iter().map(|it| engine(it, None)).collect())
        .kept(&device.kept)
}

fn group(group: &GroupSettings) -> Json {
    let number = Some(group.id.index);
    Entries::of(group.id)
        .number("read_buffers_reserved", group.read_buffers_reserved)
        .toggle("use_read_buffer_limit", group.use_read_buffer_limit)
        .number("read_buffers_allowed", group.read_buffers_allowed)
        .number("traffic_class_a", group.traffic_class_a)
        .number("traffic_class_b", group.traffic_class_b)
        .number("desc_progress_limit", group.desc_progress_limit)
        .number("batch_progress_limit", group.batch_progress_limit)
        .objects("grouped_workqueues", group.queues.iter().map(|it| queue(it, number)).collect())
        .objects("grouped_engines", group.engines.iter().map(|it| engine(it, number)).collect())
        .kept(&group.kept)
}

fn queue(queue: &QueueSettings, group: Option<u32>) -> Json {
    let operations = queue.operations.map(OperationSet::to_sysfs);
    Entries::of(queue.id)
        .string("mode", queue.mode.map(QueueMode::as_str))
        .number("size", queue.size)
        .number("group_id", group)
        .number("priority", queue.priority)
        .toggle("block_on_fault", queue.block_on_fault)
        .number("max_batch_size", queue.batch_max)
        .number("max_transfer_size", queue.transfer_bytes_max)
        .string("type", queue.kind.as_ref().map(|kind| kind.as_str()))
        .string("driver_name", queue.driver_name.as_deref())
        .string("name", queue.name.as_deref())
        .number("threshold", queue.threshold)
        .toggle("ats_disable", queue.ats_disable)
        .toggle("prs_disable", queue.prs_disable)
        .string("op_config", operations.as_deref())
        .kept(&queue.kept)
}

fn engine(engine: &EngineSettings, group: Option<u32>) -> Json {
    Entries::of(engine.id).number("group_id", group).kept(&engine.kept)
}
