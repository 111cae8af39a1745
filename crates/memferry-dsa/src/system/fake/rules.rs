//! What the driver checks when an attribute is written.

use super::Tree;
use crate::system::capability::parse_bitmap;
use crate::system::discover::{DEVICES, DRIVERS};
use crate::system::error::errno::{EINVAL, ENOENT, EOPNOTSUPP, EPERM};
use crate::system::id::{DeviceId, EngineId, GroupId, QueueId};

/// Whether a write is taken, or the error number.
pub(super) type Answer = Result<(), i32>;

impl Tree {
    pub(super) fn store(&mut self, path: &str, value: &str) -> Answer {
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
        if let ["cmd_status"] = parts[1..] {
            self.put(path, "0x0");
            return Ok(());
        }
        if !self.devices.get(&device).is_some_and(|device| device.configurable) || self.is_enabled(device) {
            return Err(EPERM);
        }
        match parts[1..] {
            [attribute] => self.device_attribute(device, attribute, value)?,
            [object, attribute] => {
                if object.parse::<EngineId>().is_ok() {
                    self.group_number(device, attribute, value)?;
                } else if object.parse::<GroupId>().is_ok() {
                    self.group_attribute(device, object, attribute, value)?;
                } else if object.parse::<QueueId>().is_ok() {
                    let value = self.queue_attribute(device, object, attribute, value)?;
                    self.put(path, &value);
                    return Ok(());
                } else {
                    return Err(EPERM);
                }
            }
            _ => return Err(EPERM),
        }
        self.put(path, value);
        Ok(())
    }

    pub(super) fn is_enabled(&self, device: DeviceId) -> bool {
        self.get(&format!("{DEVICES}/{device}/state")) == "enabled"
    }

    fn of_device(&self, device: DeviceId, attribute: &str) -> u64 {
        self.get(&format!("{DEVICES}/{device}/{attribute}")).parse().unwrap_or(0)
    }

    fn device_attribute(&mut self, device: DeviceId, attribute: &str, value: &str) -> Answer {
        let buffers = u64::from(self.devices[&device].read_buffers);
        match attribute {
            "read_buffer_limit" | "token_limit" if number(value)? <= buffers => Ok(()),
            "event_log_size" if (64..=65535).contains(&number(value)?) => Ok(()),
            "read_buffer_limit" | "token_limit" | "event_log_size" => Err(EINVAL),
            _ => Err(EPERM), // the file is read-only; root gets past its mode
        }
    }

    /// `group_id` of an engine.
    fn group_number(&mut self, device: DeviceId, attribute: &str, value: &str) -> Answer {
        match attribute {
            "group_id" if value == "-1" || number(value)? < self.of_device(device, "max_groups") => Ok(()),
            "group_id" => Err(EINVAL),
            _ => Err(EPERM),
        }
    }

    fn group_attribute(&mut self, device: DeviceId, group: &str, attribute: &str, value: &str) -> Answer {
        let (version, total) = (self.devices[&device].version, u64::from(self.devices[&device].read_buffers));
        let index = group.rsplit('.').next().unwrap_or("");
        let value = number(value)?;
        match attribute {
            "read_buffers_allowed" | "tokens_allowed" => {
                let engines = self.members(device, "engine", index).len() as u64;
                if value >= 4 * engines && value <= total { Ok(()) } else { Err(EINVAL) }
            }
            "read_buffers_reserved" | "tokens_reserved" => {
                if value <= total {
                    Ok(())
                } else {
                    Err(EINVAL)
                }
            }
            "use_read_buffer_limit" | "use_token_limit" => {
                let limit =
                    self.of_device(device, "read_buffer_limit") + self.of_device(device, "token_limit");
                match (limit, value) {
                    (0, _) => Err(EPERM),
                    (_, 0 | 1) => Ok(()),
                    _ => Err(EINVAL),
                }
            }
            "traffic_class_a" | "traffic_class_b" if version <= 0x200 => Err(EPERM),
            "traffic_class_a" | "traffic_class_b" if value <= 7 => Ok(()),
            "desc_progress_limit" | "batch_progress_limit" if value <= 3 => Ok(()),
            "traffic_class_a" | "traffic_class_b" | "desc_progress_limit" | "batch_progress_limit" => {
                Err(EINVAL)
            }
            _ => Err(EPERM),
        }
    }

    /// Checks, does what a write does besides, and says what the file holds then.
    fn queue_attribute(
        &mut self,
        device: DeviceId,
        queue: &str,
        attribute: &str,
        value: &str,
    ) -> Result<String, i32> {
        let at = |attribute: &str| format!("{DEVICES}/{device}/{queue}/{attribute}");
        let is_shared = self.get(&at("mode")) == "shared";
        let pasid = self.devices[&device].pasid;
        match attribute {
            "group_id" => self.group_number(device, attribute, value)?,
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
                if number(value)?.saturating_add(others) > u64::from(self.devices[&device].entries) {
                    return Err(EINVAL);
                }
            }
            "threshold" => {
                let size = self.of_device(device, &format!("{queue}/size"));
                if !is_shared || number(value)? == 0 || number(value)? > size {
                    return Err(EINVAL);
                }
            }
            "priority" if number(value)? <= 15 => {}
            "type" => {
                if !matches!(value, "none" | "kernel" | "user") {
                    return Err(EINVAL);
                }
                if self.get(&at("type")) != value {
                    self.put(&at("name"), "");
                }
            }
            "name" if self.get(&at("type")) != "none" && (1..=1024).contains(&value.len()) => {}
            "driver_name" if value.len() <= 128 => {}
            "block_on_fault" => {
                if self.devices[&device].gen_cap & 1 == 0
                    || self.get(&at("prs_disable")) == "1" && value == "1"
                {
                    return Err(EOPNOTSUPP);
                }
                toggle(value)?;
            }
            "prs_disable" => {
                toggle(value)?;
                if value == "1" {
                    self.put(&at("block_on_fault"), "0");
                }
            }
            "ats_disable" => toggle(value)?,
            "max_transfer_size" | "max_batch_size" => {
                let value = number(value)?;
                if value == 0 || value > self.of_device(device, attribute) {
                    return Err(EINVAL);
                }
                return Ok(value.next_power_of_two().to_string());
            }
            "op_config" => {
                let has = parse_bitmap(self.devices[&device].op_cap).unwrap_or_default();
                let wanted = parse_bitmap(value).ok_or(EINVAL)?;
                if wanted.iter().zip(has).any(|(wanted, has)| wanted & !has != 0) {
                    return Err(EINVAL);
                }
            }
            "priority" | "name" | "driver_name" => return Err(EINVAL),
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

fn number(value: &str) -> Result<u64, i32> {
    value.parse().map_err(|_| EINVAL)
}

fn toggle(value: &str) -> Answer {
    if matches!(value, "0" | "1") { Ok(()) } else { Err(EINVAL) }
}
