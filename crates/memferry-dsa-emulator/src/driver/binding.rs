//! Binding and unbinding: the driver enables devices and queues when they are bound.
//!
//! Source: Linux `drivers/dma/idxd/bus.c`, `compat.c`, `device.c` (`idxd_drv_enable_wq`, `idxd_device_drv_probe`,
//! `idxd_wq_disable_cleanup`), `cdev.c` (`idxd_user_drv_probe`).

use libc::{EBUSY, ENODEV, ENXIO, EOPNOTSUPP};
use memferry_dsa::internals::system::{DEVICES, DRIVERS, Owner};
use memferry_dsa::system::{DeviceId, QueueId};

use super::rules::WriteResult;
use super::{FakeKernel, Tree};

/// The attributes of a queue that is not configured.
pub(super) const QUEUE_DEFAULTS: [(&str, &str); 13] = [
    ("group_id", "-1"),
    ("mode", "shared"),
    ("size", "0"),
    ("threshold", "0"),
    ("priority", "0"),
    ("type", "none"),
    ("name", ""),
    ("block_on_fault", "0"),
    ("max_transfer_size", "2097152"),
    ("max_batch_size", "32"),
    ("ats_disable", "0"),
    ("cdev_minor", "-1"),
    ("occupancy", "0"),
];

/// The attributes of a group that is not configured; `None` stands for the number of all read buffers.
pub(super) const GROUP_DEFAULTS: [(&str, Option<&str>); 9] = [
    ("engines", Some("")),
    ("work_queues", Some("")),
    ("use_read_buffer_limit", Some("0")),
    ("read_buffers_reserved", Some("0")),
    ("read_buffers_allowed", None),
    ("traffic_class_a", Some("1")),
    ("traffic_class_b", Some("1")),
    ("desc_progress_limit", Some("0")),
    ("batch_progress_limit", Some("0")),
];

impl Tree {
    pub(super) fn bind(&mut self, driver: &str, name: &str) -> WriteResult {
        if let Ok(device) = name.parse::<DeviceId>() {
            if !matches!(driver, "idxd" | "dsa") || !self.devices.contains_key(&device) {
                return Err(ENODEV);
            }
            return self.enable_device(device);
        }
        let queue: QueueId = name.parse().map_err(|_| ENODEV)?;
        let is_known = self.devices.get(&queue.device).is_some_and(|device| queue.index < device.counts.2);
        if !is_known {
            return Err(ENODEV);
        }
        self.enable_queue(queue, driver)
    }

    fn refuse(&mut self, device: DeviceId, status: u32, errno: i32) -> WriteResult {
        self.put(&format!("{DEVICES}/{device}/cmd_status"), &format!("{status:#x}"));
        Err(errno)
    }

    fn enable_device(&mut self, device: DeviceId) -> WriteResult {
        if self.is_enabled(device) {
            return Err(EBUSY);
        }
        let of = |tree: &Tree, queue: &str, attribute: &str| {
            tree.number(&format!("{DEVICES}/{device}/{queue}/{attribute}"))
        };
        // The driver does not write a queue without a group to the device.
        let mut queues = self.queue_names(device);
        queues.retain(|queue| of(self, queue, "group_id") >= 0);
        if queues.iter().any(|queue| of(self, queue, "size") == 0) {
            return self.refuse(device, 0x800e_0000, ENXIO);
        }
        if queues.is_empty() {
            return self.refuse(device, 0x800d_0000, ENXIO);
        }
        let sizes: i64 = queues.iter().map(|queue| of(self, queue, "size")).sum();
        if sizes > i64::from(self.devices[&device].entries) {
            return self.refuse(device, 0x14, ENXIO);
        }
        for group in 0..self.devices[&device].counts.0 {
            let index = group.to_string();
            let engines = self.members(device, "engine", &index).len();
            if (engines == 0) != self.members(device, "wq", &index).is_empty() {
                return self.refuse(device, 0x15, ENXIO);
            }
            let at = format!("{DEVICES}/{device}/{}", device.group(group));
            if self.number(&format!("{at}/read_buffers_allowed")) < 4 * engines as i64 {
                return self.refuse(device, 0x18, ENXIO);
            }
        }
        self.put(&format!("{DEVICES}/{device}/state"), "enabled");
        self.put(&format!("{DEVICES}/{device}/cmd_status"), "0x0");
        self.links.insert(format!("{DEVICES}/{device}/driver"), format!("/{DRIVERS}/idxd"));
        Ok(())
    }

    fn enable_queue(&mut self, queue: QueueId, driver: &str) -> WriteResult {
        let device = queue.device;
        let at = |attribute: &str| format!("{DEVICES}/{device}/{queue}/{attribute}");
        let is_old = self.devices[&device].kernel == FakeKernel::Old;
        // Kernels since 5.15 keep the driver `dsa` for old scripts: it forwards to the driver of the queue's type.
        let kind = self.get(&at("type")).to_owned();
        let driver = match (driver, kind.as_str()) {
            ("user", _) | ("dsa", "user") => "user",
            ("dmaengine", _) | ("dsa", "kernel") => "dmaengine",
            _ => return Err(ENODEV),
        };
        if self.links.contains_key(&at("driver")) {
            return Err(EBUSY);
        }
        if !self.is_enabled(device) {
            return self.refuse(device, 0x8000_0020, ENXIO);
        }
        if !is_old && self.get(&at("driver_name")) != driver {
            return self.refuse(device, 0x8020_0000, ENODEV);
        }
        let is_shared = self.get(&at("mode")) == "shared";
        let is_user = driver == "user";
        let pasid = self.devices[&device].pasid;
        let wrong = match () {
            () if is_user && !pasid => Some((0x8011_0000, EOPNOTSUPP)),
            () if self.number(&at("group_id")) < 0 => Some((0x8003_0000, ENXIO)),
            () if self.get(&at("name")).is_empty() => Some((0x8004_0000, ENXIO)),
            () if is_shared && !pasid => Some((0x8005_0000, ENXIO)),
            () if is_shared && self.number(&at("threshold")) == 0 => Some((0x8006_0000, ENXIO)),
            () if self.number(&at("size")) == 0 => Some((0x22, ENXIO)),
            () if self.number(&at("priority")) == 0 => Some((0x23, ENXIO)),
            () if self.number(&at("block_on_fault")) == 1 && self.devices[&device].gen_cap & 1 == 0 => {
                Some((0x25, ENXIO))
            }
            () => None,
        };
        if let Some((status, errno)) = wrong {
            return self.refuse(device, status, errno);
        }
        self.put(&at("state"), "enabled");
        self.put(&format!("{DEVICES}/{device}/cmd_status"), "0x0");
        self.links.insert(at("driver"), format!("/{DRIVERS}/{driver}"));
        self.put(&at("type"), if is_user { "user" } else { "kernel" });
        if is_user {
            self.put(&at("cdev_minor"), &self.free_minor().to_string());
            let owner = Owner { mode: 0o600, user: 0, group: 0, is_device: true };
            self.owners.insert(format!("dev/dsa/{queue}"), owner);
        }
        Ok(())
    }

    /// The lowest free minor number of all devices, which the kernel assigns next.
    fn free_minor(&self) -> i64 {
        let names = self.devices.keys().flat_map(|device| {
            self.queue_names(*device)
                .into_iter()
                .map(move |queue| format!("{DEVICES}/{device}/{queue}/cdev_minor"))
        });
        let mut taken: Vec<i64> = names.map(|path| self.number(&path)).filter(|minor| *minor >= 0).collect();
        taken.sort_unstable();
        (0..).zip(&taken).find(|(free, taken)| free != *taken).map_or(taken.len() as i64, |(free, _)| free)
    }

    pub(super) fn unbind(&mut self, driver: &str, name: &str) -> WriteResult {
        if let Ok(device) = name.parse::<DeviceId>() {
            if !self.devices.contains_key(&device) || !self.is_bound(&format!("{DEVICES}/{device}"), driver) {
                return Err(ENODEV);
            }
            self.disable_device(device);
            return Ok(());
        }
        let queue: QueueId = name.parse().map_err(|_| ENODEV)?;
        if !self.is_bound(&format!("{DEVICES}/{}/{queue}", queue.device), driver) {
            return Err(ENODEV);
        }
        self.disable_queue(queue.device, name);
        Ok(())
    }

    /// Whether an object is bound to this driver; the driver for old scripts may unbind everything.
    fn is_bound(&self, path: &str, driver: &str) -> bool {
        let target = self.links.get(&format!("{path}/driver"));
        let bound = target.and_then(|target| target.rsplit('/').next());
        bound.is_some_and(|bound| bound == driver || driver == "dsa")
    }

    fn disable_device(&mut self, device: DeviceId) {
        for queue in self.queue_names(device) {
            self.disable_queue(device, &queue);
            for (attribute, value) in QUEUE_DEFAULTS {
                self.put(&format!("{DEVICES}/{device}/{queue}/{attribute}"), value);
            }
            let driver_name = format!("{DEVICES}/{device}/{queue}/driver_name");
            if self.files.contains_key(&driver_name) {
                self.put(&driver_name, "");
            }
        }
        let total = self.devices[&device].read_buffers.to_string();
        for group in 0..self.devices[&device].counts.0 {
            for (attribute, value) in GROUP_DEFAULTS {
                let path = format!("{DEVICES}/{device}/{}/{attribute}", device.group(group));
                if self.files.contains_key(&path) {
                    self.put(&path, value.unwrap_or(&total));
                }
            }
        }
        for engine in 0..self.devices[&device].counts.1 {
            self.put(&format!("{DEVICES}/{device}/{}/group_id", device.engine(engine)), "-1");
        }
        self.put(&format!("{DEVICES}/{device}/state"), "disabled");
        self.links.remove(&format!("{DEVICES}/{device}/driver"));
    }

    /// Disables a queue. This resets its configuration except for size and group, which belong to the device.
    fn disable_queue(&mut self, device: DeviceId, queue: &str) {
        let at = |attribute: &str| format!("{DEVICES}/{device}/{queue}/{attribute}");
        let was_enabled = self.get(&at("state")) == "enabled";
        self.put(&at("state"), "disabled");
        self.links.remove(&at("driver"));
        self.owners.remove(&format!("dev/dsa/{queue}"));
        if !was_enabled {
            return;
        }
        for (attribute, value) in QUEUE_DEFAULTS {
            if !matches!(attribute, "size" | "group_id") {
                self.put(&at(attribute), value);
            }
        }
        let op_cap = self.devices[&device].op_cap;
        for (attribute, value) in [("op_config", op_cap), ("prs_disable", "0"), ("enqcmds_retries", "32")] {
            if self.files.contains_key(&at(attribute)) {
                self.put(&at(attribute), value);
            }
        }
    }
}
