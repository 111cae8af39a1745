//! The driver's checks of writes to attributes, and the values of computed attributes.
//!
//! Source: the `_store` and `_show` functions of Linux `drivers/dma/idxd/sysfs.c`.

use libc::{EINVAL, ENOENT, ENXIO, EOPNOTSUPP, EPERM};
use memferry_dsa::OperationSet;
use memferry_dsa::internals::system::{DEVICES, DRIVERS};
use memferry_dsa::system::{DeviceId, EngineId, GroupId, QueueId};

use super::{FakeKernel, Tree};

/// The result of a write: success, or the error number.
pub(super) type WriteResult = Result<(), i32>;

/// `IDXD_ENQCMDS_MAX_RETRIES` in `idxd.h` of the driver.
const ENQCMDS_RETRIES_MAX: u64 = 64;

/// Attributes of a queue that are writable while the queue is disabled, even if its device is enabled. All others
/// except `enqcmds_retries` need a disabled device.
const NEED_QUEUE_DISABLED: [&str; 13] = [
    "mode",
    "threshold",
    "priority",
    "type",
    "name",
    "driver_name",
    "block_on_fault",
    "prs_disable",
    "ats_disable",
    "max_transfer_size",
    "max_batch_size",
    "op_config",
    "enqcmds_retries",
];

/// Whether an attribute is writable in any state; the others have mode 0444.
pub(super) fn is_writable(path: &str) -> bool {
    let Some(place) = path.strip_prefix(DEVICES) else {
        return path.starts_with(DRIVERS);
    };
    let parts: Vec<&str> = place.trim_start_matches('/').split('/').collect();
    match parts[..] {
        [_, attribute] => {
            matches!(attribute, "read_buffer_limit" | "event_log_size" | "cmd_status")
        }
        [_, object, attribute] if object.parse::<QueueId>().is_ok() => {
            matches!(attribute, "group_id" | "size") || NEED_QUEUE_DISABLED.contains(&attribute)
        }
        [_, object, "group_id"] => object.parse::<EngineId>().is_ok(),
        [_, object, attribute] => {
            object.parse::<GroupId>().is_ok() && !matches!(attribute, "engines" | "work_queues")
        }
        _ => false,
    }
}

impl Tree {
    /// The content of an attribute, without the newline at its end.
    pub(super) fn show(&self, path: &str) -> Result<String, i32> {
        let stored = self.files.get(path).ok_or(ENOENT)?;
        let Some(place) = path.strip_prefix(&format!("{DEVICES}/")) else { return Ok(stored.clone()) };
        let parts: Vec<&str> = place.split('/').collect();
        let Ok(device) = parts[0].parse::<DeviceId>() else { return Ok(stored.clone()) };
        let Some(known) = self.devices.get(&device) else { return Ok(stored.clone()) };
        match parts[1..] {
            ["clients"] => {
                let clients = |queue: &String| self.of_device(device, &format!("{queue}/clients"));
                Ok(self.queue_names(device).iter().map(clients).sum::<u64>().to_string())
            }
            [object, attribute @ ("engines" | "work_queues")] => {
                let kind = if attribute == "engines" { "engine" } else { "wq" };
                let group = object.rsplit('.').next().unwrap_or("");
                Ok(self.members(device, kind, group).join(" "))
            }
            [_, "cdev_minor"] if known.kernel == FakeKernel::New && stored == "-1" => Err(ENXIO),
            [object, "enqcmds_retries"] if !self.is_shared(device, object) => Err(EOPNOTSUPP),
            _ => Ok(stored.clone()),
        }
    }

    pub(super) fn store(&mut self, path: &str, text: &str) -> WriteResult {
        // The kernel's parsers accept one newline at the end and no other white space.
        let value = text.strip_suffix('\n').unwrap_or(text);
        if let Some(place) = path.strip_prefix(&format!("{DRIVERS}/")) {
            return match place.split_once('/').ok_or(ENOENT)? {
                (driver, "bind") => self.bind(driver, value),
                (driver, "unbind") => self.unbind(driver, value),
                _ => Err(EPERM),
            };
        }
        let place = path.strip_prefix(&format!("{DEVICES}/")).ok_or(EPERM)?;
        let parts: Vec<&str> = place.split('/').collect();
        let device: DeviceId = parts[0].parse().map_err(|_| EPERM)?;
        let value = match parts[1..] {
            ["cmd_status"] => "0x0".to_owned(),
            _ if !self.devices.get(&device).is_some_and(|device| device.configurable) => return Err(EPERM),
            [object, attribute] if object.parse::<QueueId>().is_ok() => {
                self.queue_attribute(device, object, attribute, value)?
            }
            _ if self.is_enabled(device) => return Err(EPERM),
            [attribute] => self.device_attribute(device, attribute, value)?,
            [object, attribute] if object.parse::<EngineId>().is_ok() => {
                self.group_number(device, attribute, value)?
            }
            [object, attribute] if object.parse::<GroupId>().is_ok() => {
                self.group_attribute(device, object, attribute, value)?
            }
            _ => return Err(EPERM),
        };
        self.put(path, &value);
        Ok(())
    }

    pub(super) fn is_enabled(&self, device: DeviceId) -> bool {
        self.get(&format!("{DEVICES}/{device}/state")) == "enabled"
    }

    fn is_shared(&self, device: DeviceId, queue: &str) -> bool {
        self.get(&format!("{DEVICES}/{device}/{queue}/mode")) == "shared"
    }

    /// [`Tree::number`] of an unsigned field.
    fn of_device(&self, device: DeviceId, attribute: &str) -> u64 {
        self.get(&format!("{DEVICES}/{device}/{attribute}")).parse::<u32>().map_or(0, u64::from)
    }

    fn device_attribute(&self, device: DeviceId, attribute: &str, value: &str) -> Result<String, i32> {
        let buffers = u64::from(self.devices[&device].read_buffers);
        let value = number(value)?;
        match attribute {
            "read_buffer_limit" if value <= buffers => Ok(value.to_string()),
            "event_log_size" if (64..=65535).contains(&value) => Ok(value.to_string()),
            "read_buffer_limit" | "event_log_size" => Err(EINVAL),
            _ => Err(EPERM), // the file is read-only; its mode does not stop root
        }
    }

    /// Checks `group_id` of an engine or a queue.
    fn group_number(&self, device: DeviceId, attribute: &str, value: &str) -> Result<String, i32> {
        if attribute != "group_id" {
            return Err(EPERM);
        }
        let groups = i64::from(self.devices[&device].counts.0);
        let group: i64 = value.parse().map_err(|_| EINVAL)?;
        if (-1..groups).contains(&group) { Ok(group.to_string()) } else { Err(EINVAL) }
    }

    fn group_attribute(
        &self,
        device: DeviceId,
        group: &str,
        attribute: &str,
        value: &str,
    ) -> Result<String, i32> {
        let (version, total) = (self.devices[&device].version, u64::from(self.devices[&device].read_buffers));
        let index = group.rsplit('.').next().unwrap_or("");
        let value = number(value)?;
        let taken = match attribute {
            "read_buffers_allowed" => {
                let engines = self.members(device, "engine", index).len() as u64;
                (4 * engines..=self.buffers_left(device, group)).contains(&value)
            }
            "read_buffers_reserved" => value <= self.buffers_left(device, group).min(total),
            "use_read_buffer_limit" if self.of_device(device, "read_buffer_limit") == 0 => return Err(EPERM),
            "use_read_buffer_limit" => value <= 1,
            "traffic_class_a" | "traffic_class_b" if version <= 0x200 => return Err(EPERM),
            "traffic_class_a" | "traffic_class_b" => value <= 7,
            "desc_progress_limit" | "batch_progress_limit" => value <= 3,
            _ => return Err(EPERM),
        };
        if taken { Ok(value.to_string()) } else { Err(EINVAL) }
    }

    /// Read buffers that no other group has reserved.
    fn buffers_left(&self, device: DeviceId, group: &str) -> u64 {
        let others = (0..self.devices[&device].counts.0).map(|index| device.group(index).to_string());
        let others = others.filter(|other| other != group);
        let reserved = others.map(|other| self.of_device(device, &format!("{other}/read_buffers_reserved")));
        u64::from(self.devices[&device].read_buffers).saturating_sub(reserved.sum())
    }

    /// Whether the states of queue and device allow a write to an attribute.
    fn may_write(&self, device: DeviceId, queue: &str, attribute: &str) -> WriteResult {
        let is_enabled = self.get(&format!("{DEVICES}/{device}/{queue}/state")) == "enabled";
        let is_old = self.devices[&device].kernel == FakeKernel::Old;
        let is_frozen = match attribute {
            "enqcmds_retries" => false,
            _ if NEED_QUEUE_DISABLED.contains(&attribute) && !is_old => is_enabled,
            _ => self.is_enabled(device),
        };
        match attribute {
            "block_on_fault" | "threshold" if is_frozen => Err(ENXIO),
            _ if is_frozen => Err(EPERM),
            _ => Ok(()),
        }
    }

    /// Checks a write and performs its side effects; returns the new content of the file.
    fn queue_attribute(
        &mut self,
        device: DeviceId,
        queue: &str,
        attribute: &str,
        value: &str,
    ) -> Result<String, i32> {
        let at = |attribute: &str| format!("{DEVICES}/{device}/{queue}/{attribute}");
        self.may_write(device, queue, attribute)?;
        let is_shared = self.is_shared(device, queue);
        let pasid = self.devices[&device].pasid;
        match attribute {
            "group_id" => return self.group_number(device, attribute, value),
            "mode" => match value {
                "dedicated" => self.put(&at("threshold"), "0"),
                "shared" if pasid => {}
                _ => return Err(EINVAL),
            },
            "size" => {
                let others: u64 = self
                    .queue_names(device)
                    .iter()
                    .filter(|name| *name != queue)
                    .map(|name| self.of_device(device, &format!("{name}/size")))
                    .sum();
                let size = number(value)?;
                if size.saturating_add(others) > u64::from(self.devices[&device].entries) {
                    return Err(EINVAL);
                }
                return Ok(size.to_string());
            }
            "threshold" => {
                let size = self.of_device(device, &format!("{queue}/size"));
                let threshold = number(value)?;
                if !is_shared || threshold == 0 || threshold > size {
                    return Err(EINVAL);
                }
                return Ok(threshold.to_string());
            }
            "priority" => {
                let priority = number(value)?;
                return if priority <= 15 { Ok(priority.to_string()) } else { Err(EINVAL) };
            }
            "type" => {
                if !matches!(value, "none" | "kernel" | "user") {
                    return Err(EINVAL);
                }
                if self.get(&at("type")) != value {
                    self.put(&at("name"), "");
                }
            }
            "name" if (1..=1024).contains(&value.len()) => return Ok(value.trim().to_owned()),
            "driver_name" if (1..=128).contains(&value.len()) => return Ok(value.trim().to_owned()),
            "name" | "driver_name" => return Err(EINVAL),
            "block_on_fault" => {
                let on = toggle(value)?;
                let is_off = self.devices[&device].gen_cap & 1 == 0;
                if is_off || on == "1" && self.get(&at("prs_disable")) == "1" {
                    return Err(EOPNOTSUPP);
                }
                return Ok(on.to_owned());
            }
            "prs_disable" => {
                let on = toggle(value)?;
                if on == "1" {
                    self.put(&at("block_on_fault"), "0");
                }
                return Ok(on.to_owned());
            }
            "ats_disable" => return Ok(toggle(value)?.to_owned()),
            "enqcmds_retries" if is_shared => return Ok(number(value)?.min(ENQCMDS_RETRIES_MAX).to_string()),
            "enqcmds_retries" => return Err(EINVAL),
            "max_transfer_size" | "max_batch_size" => {
                let wanted = number(value)?;
                let rounded = wanted.checked_next_power_of_two().ok_or(EINVAL)?;
                if wanted == 0 || rounded > self.of_device(device, attribute) {
                    return Err(EINVAL);
                }
                return Ok(rounded.to_string());
            }
            "op_config" => {
                let has = OperationSet::from_sysfs(self.devices[&device].op_cap).unwrap_or_default();
                let wanted = OperationSet::from_sysfs(value).ok_or(EINVAL)?;
                if !wanted.is_subset_of(has) {
                    return Err(EINVAL);
                }
                return Ok(wanted.to_sysfs());
            }
            _ => return Err(EPERM),
        }
        Ok(value.to_owned())
    }

    pub(super) fn queue_names(&self, device: DeviceId) -> Vec<String> {
        (0..self.devices[&device].counts.2).map(|index| device.queue(index).to_string()).collect()
    }

    /// The engines (`engine`) or queues (`wq`) of a group, by name.
    pub(super) fn members(&self, device: DeviceId, kind: &str, group: &str) -> Vec<String> {
        let (_, engines, queues) = self.devices[&device].counts;
        let count = if kind == "engine" { engines } else { queues };
        let names = (0..count).map(|index| format!("{kind}{}.{index}", device.0));
        names.filter(|name| self.get(&format!("{DEVICES}/{device}/{name}/group_id")) == group).collect()
    }
}

/// Parses a number like `kstrtoul`.
fn number(value: &str) -> Result<u64, i32> {
    value.parse().map_err(|_| EINVAL)
}

/// Parses a boolean like `kstrtobool`.
fn toggle(value: &str) -> Result<&'static str, i32> {
    match value.get(..2).unwrap_or(value) {
        "on" | "On" | "oN" | "ON" => Ok("1"),
        "of" | "Of" | "oF" | "OF" => Ok("0"),
        _ => match value.bytes().next() {
            Some(b'1' | b'y' | b'Y' | b't' | b'T') => Ok("1"),
            Some(b'0' | b'n' | b'N' | b'f' | b'F') => Ok("0"),
            _ => Err(EINVAL),
        },
    }
}
