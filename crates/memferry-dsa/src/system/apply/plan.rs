//! The plan of writes that configures devices.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::operation::OperationSet;
use crate::portal::QueueMode;
use crate::system::config::{
    Config, DeviceSettings, GroupSettings, Problems, QueueSettings, READ_BUFFERS_PER_ENGINE,
};
use crate::system::discover::{DEVICES, DRIVERS};
use crate::system::id::{DeviceId, QueueId};
use crate::system::state::{Device, Queue, QueueType, SystemState};

/// Options of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApplyOptions {
    /// Disable devices that are enabled. Without it, an enabled device is an error.
    pub disable_first: bool,
    /// Enable the devices and their queues at the end.
    pub enable: bool,
}

/// The error of planning. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The configuration is invalid for these devices.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// A device is enabled and can be configured only while it is disabled.
    #[error(
        "{device} is enabled, and only a disabled device can be configured: request that it is disabled first"
    )]
    Enabled {
        /// The device.
        device: DeviceId,
    },
    /// A device or queue that must be disabled is in use.
    #[error("{object} is in use ({clients} open files): stop its users first, see `fuser -v /dev/dsa/*`")]
    InUse {
        /// The device or queue.
        object: String,
        /// Its open files.
        clients: u32,
    },
    /// The configuration is fixed, as in some virtual machines.
    #[error("{device} cannot be configured here (configurable is 0): configure it on the host")]
    NotConfigurable {
        /// The device.
        device: DeviceId,
    },
    /// The driver of a device or queue is not loaded.
    #[error(
        "there is no driver {driver} for {object}: load its module (idxd provides idxd, user and dmaengine)"
    )]
    NoDriver {
        /// The device or queue.
        object: String,
        /// The driver.
        driver: String,
    },
}

/// The purpose of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Unbinds a queue or a device.
    Disable,
    /// Removes a setting of an earlier configuration.
    Reset,
    /// Sets an attribute.
    Set,
    /// Clears the status of the last command, so that a later status is that of the next command.
    ClearStatus,
    /// Binds a device or a queue.
    Enable,
}

/// A write to sysfs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Step {
    /// Its purpose.
    pub action: Action,
    /// Its device.
    pub device: DeviceId,
    /// The device, group, engine or queue that it changes.
    pub object: String,
    /// The file, below the root.
    #[serde(serialize_with = "absolute")]
    pub path: String,
    /// The written value.
    pub value: String,
}

fn absolute<S: Serializer>(path: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("/{path}"))
}

impl Step {
    /// The last component of the path.
    pub fn attribute(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The directory of the object.
    fn directory(&self) -> String {
        let device = self.device.to_string();
        match self.object == device {
            true => format!("{DEVICES}/{device}"),
            false => format!("{DEVICES}/{device}/{}", self.object),
        }
    }

    /// The attribute `state` of the device or queue, below the root.
    pub fn state_path(&self) -> String {
        format!("{}/state", self.directory())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{} = {}", self.path, self.value)
    }
}

/// A sequence of writes to sysfs.
///
/// ```no_run
/// use memferry_dsa::system::{ApplyOptions, Plan, Profile, SystemState};
///
/// let state = SystemState::discover()?;
/// let config = Profile::named("1n1d1e1w")?.for_machine(&state)?;
/// let plan = Plan::new(&config, &state, ApplyOptions { disable_first: true, enable: true })?;
/// plan.steps().iter().for_each(|step| println!("{step}"));
/// let enabled = plan.apply()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Plan {
    steps: Vec<Step>,
    notes: Vec<String>,
}

impl Plan {
    /// Plans the writes that configure the devices of `state` by `config`.
    ///
    /// # Errors
    /// [`PlanError`]: the configuration is invalid, or a device cannot be configured now.
    pub fn new(config: &Config, state: &SystemState, options: ApplyOptions) -> Result<Plan, PlanError> {
        config.validate_on(state)?;
        let mut plan = Plan { steps: Vec::new(), notes: Vec::new() };
        // Validated: each device exists.
        let devices: Vec<(&DeviceSettings, &Device)> = (config.devices.iter())
            .filter_map(|settings| Some((settings, state.device(settings.id)?)))
            .collect();
        for (_, device) in &devices {
            plan.disable(device, state, options)?;
        }
        for (settings, device) in &devices {
            plan.reset(settings, device);
        }
        for (settings, device) in &devices {
            plan.configure(settings, device);
        }
        if options.enable {
            for (_, device) in &devices {
                plan.enable_device(device, state)?;
            }
            for (settings, _) in &devices {
                plan.enable_queues(settings, state)?;
            }
        }
        plan.note_skipped_keys(config);
        Ok(plan)
    }

    /// The writes, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The skipped settings, each with the reason.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn disable(
        &mut self,
        device: &Device,
        state: &SystemState,
        options: ApplyOptions,
    ) -> Result<(), PlanError> {
        if device.is_configurable == Some(false) {
            return Err(PlanError::NotConfigurable { device: device.id });
        }
        let in_use = |object: &dyn fmt::Display, clients: Option<u32>| match clients {
            Some(clients) if clients > 0 => Err(PlanError::InUse { object: object.to_string(), clients }),
            _ => Ok(()),
        };
        if !device.is_enabled() {
            return Ok(());
        }
        if !options.disable_first {
            return Err(PlanError::Enabled { device: device.id });
        }
        for queue in device.queues.iter().filter(|queue| queue.is_enabled()) {
            in_use(&queue.id, queue.clients)?;
        }
        in_use(&device.id, device.clients)?;
        for queue in device.queues.iter().filter(|queue| queue.is_enabled()) {
            let driver = match &queue.driver {
                Some(driver) => driver.clone(),
                None => queue_driver(queue.id, queue.kind.as_ref(), queue.driver_name.as_deref(), state)?,
            };
            self.bind(Action::Disable, device.id, &queue.id, &driver);
        }
        let driver = match &device.driver {
            Some(driver) => driver.clone(),
            None => known_driver(&device.id, "idxd", state)?,
        };
        self.bind(Action::Disable, device.id, &device.id, &driver);
        Ok(())
    }

    /// Releases the entries and engines of an earlier configuration; only new kernels do so when a device is disabled. Also
    /// sets the size of each reconfigured queue to 0 first: the sum of sizes must fit after each single write.
    fn reset(&mut self, settings: &DeviceSettings, device: &Device) {
        let wanted: BTreeSet<QueueId> =
            settings.groups.iter().flat_map(|it| &it.queues).map(|it| it.id).collect();
        for queue in &device.queues {
            if queue.size.unwrap_or(0) > 0 {
                self.set(Action::Reset, device.id, &queue.id, "size", 0);
            }
            if queue.group.is_some() && !wanted.contains(&queue.id) {
                self.set(Action::Reset, device.id, &queue.id, "group_id", -1);
            }
        }
        let engines: BTreeSet<_> =
            settings.groups.iter().flat_map(|it| &it.engines).map(|it| it.id).collect();
        for engine in &device.engines {
            if engine.group.is_some() && !engines.contains(&engine.id) {
                self.set(Action::Reset, device.id, &engine.id, "group_id", -1);
            }
        }
    }

    fn configure(&mut self, settings: &DeviceSettings, device: &Device) {
        let id = device.id;
        let (limit, found) = (settings.read_buffer_limit, device.read_buffer_limit);
        self.set_if_other(id, &id, "read_buffer_limit", limit, found);
        self.set_if_other(id, &id, "event_log_size", settings.event_log_size, device.event_log_size);
        // Engines before groups: the read buffers that a group needs depend on its engines.
        for (group, engine) in settings.engines() {
            if let Some(group) = group {
                self.set(Action::Set, id, &engine.id, "group_id", group);
            }
        }
        for group in &settings.groups {
            for queue in &group.queues {
                self.configure_queue(group.id.index, queue, device);
            }
        }
        for group in &settings.groups {
            self.configure_group(group, device);
        }
    }

    /// Writes the settings of a queue in the order of their dependencies: the size after the mode (which clears the
    /// threshold), the threshold after mode and size, the name after the type (which clears it), block_on_fault after
    /// prs_disable (which clears it).
    fn configure_queue(&mut self, group: u32, settings: &QueueSettings, device: &Device) {
        let id = settings.id;
        let found = device.queue(id);
        let set = |plan: &mut Plan, attribute: &str, value: Option<String>| {
            if let Some(value) = value {
                plan.set(Action::Set, device.id, &id, attribute, value);
            }
        };
        set(self, "group_id", Some(group.to_string()));
        set(self, "mode", settings.mode.map(|mode| mode.as_str().to_owned()));
        set(self, "size", settings.size.map(|size| size.to_string()));
        if settings.mode == Some(QueueMode::Shared) {
            set(self, "threshold", settings.threshold.map(|threshold| threshold.to_string()));
        }
        set(self, "priority", settings.priority.map(|priority| priority.to_string()));
        set(self, "type", settings.kind.as_ref().map(|kind| kind.as_str().to_owned()));
        set(self, "name", settings.name.clone());
        // Kernels since 6.7 have the attribute and bind no queue without it.
        if found.is_some_and(|queue| queue.driver_name.is_some()) {
            let meant = settings
                .driver_name
                .clone()
                .or_else(|| (settings.kind == Some(QueueType::User)).then(|| "user".to_owned()));
            set(self, "driver_name", meant);
        }
        let toggle = |value: Option<bool>| value.map(|value| u8::from(value).to_string());
        let has = |what: fn(&Queue) -> bool| found.is_some_and(what);
        // On devices without these features, the driver refuses even to set the current value; disabling clears them.
        let is_reset = self.will_be_reset(device.id);
        let changed = |wanted: Option<bool>, is: fn(&Queue) -> Option<bool>| {
            let after = found.and_then(is).map(|is| is && !is_reset);
            toggle(wanted.filter(|wanted| after != Some(*wanted)))
        };
        let rest: [(&str, Option<String>, bool); 6] = [
            (
                "prs_disable",
                changed(settings.prs_disable, |queue| queue.prs_disable),
                has(|queue| queue.prs_disable.is_some()),
            ),
            ("block_on_fault", toggle(settings.block_on_fault), has(|queue| queue.block_on_fault.is_some())),
            (
                "max_transfer_size",
                settings.transfer_bytes_max.map(|bytes| bytes.to_string()),
                has(|queue| queue.transfer_bytes_max.is_some()),
            ),
            (
                "max_batch_size",
                settings.batch_max.map(|batch| batch.to_string()),
                has(|queue| queue.batch_max.is_some()),
            ),
            (
                "ats_disable",
                changed(settings.ats_disable, |queue| queue.ats_disable),
                has(|queue| queue.ats_disable.is_some()),
            ),
            (
                "op_config",
                settings.operations.map(OperationSet::to_sysfs),
                has(|queue| queue.operations.is_some()),
            ),
        ];
        for (attribute, value, is_there) in rest {
            match value {
                Some(value) if !is_there => self.note_absent(&id, attribute, &value),
                value => set(self, attribute, value),
            }
        }
    }

    fn configure_group(&mut self, settings: &GroupSettings, device: &Device) {
        let id = settings.id;
        let Some(found) = device.group(id) else { return };
        // Disabling a device resets its groups, and the driver refuses to set some attributes even to the current value.
        let is_reset = self.will_be_reset(device.id);
        let after = |is: Option<u32>| if is_reset { is.map(|_| 0) } else { is };
        let number = |toggle: Option<bool>| toggle.map(u32::from);
        for (attribute, wanted, is) in [
            ("read_buffers_reserved", settings.read_buffers_reserved, after(found.read_buffers_reserved)),
            (
                "read_buffers_allowed",
                self.read_buffers_allowed(settings, device),
                found.read_buffers_allowed.map(|is| match is_reset {
                    true => device.read_buffers_max.unwrap_or(is),
                    false => is,
                }),
            ),
            (
                "use_read_buffer_limit",
                number(settings.use_read_buffer_limit),
                after(number(found.use_read_buffer_limit)),
            ),
            // Kernels differ in the values after disabling; they are those that could not be changed before either.
            ("traffic_class_a", settings.traffic_class_a, found.traffic_class_a),
            ("traffic_class_b", settings.traffic_class_b, found.traffic_class_b),
            ("desc_progress_limit", settings.desc_progress_limit, after(found.desc_progress_limit)),
            ("batch_progress_limit", settings.batch_progress_limit, after(found.batch_progress_limit)),
        ] {
            self.set_if_other(device.id, &id, attribute, wanted, is);
        }
    }

    /// The setting of the file. Without one, all read buffers of the device, if the earlier setting is too small for the
    /// engines of the group.
    fn read_buffers_allowed(&mut self, settings: &GroupSettings, device: &Device) -> Option<u32> {
        let left_over = device.group(settings.id)?.read_buffers_allowed?;
        let needed = READ_BUFFERS_PER_ENGINE * u32::try_from(settings.engines.len()).unwrap_or(u32::MAX / 4);
        let is_short = left_over < needed && !self.will_be_reset(device.id);
        settings.read_buffers_allowed.or_else(|| device.read_buffers_max.filter(|_| is_short))
    }

    fn will_be_reset(&self, device: DeviceId) -> bool {
        self.steps.iter().any(|step| step.action == Action::Disable && step.object == device.to_string())
    }

    fn enable_device(&mut self, device: &Device, state: &SystemState) -> Result<(), PlanError> {
        if device.command_status.is_some() {
            // Any written value clears it.
            self.set(Action::ClearStatus, device.id, &device.id, "cmd_status", "0x0");
        }
        self.bind(Action::Enable, device.id, &device.id, &known_driver(&device.id, "idxd", state)?);
        Ok(())
    }

    fn enable_queues(&mut self, settings: &DeviceSettings, state: &SystemState) -> Result<(), PlanError> {
        for queue in settings.groups.iter().flat_map(|group| &group.queues) {
            let driver = queue_driver(queue.id, queue.kind.as_ref(), queue.driver_name.as_deref(), state)?;
            self.bind(Action::Enable, settings.id, &queue.id, &driver);
        }
        Ok(())
    }

    fn set(
        &mut self,
        action: Action,
        device: DeviceId,
        object: &dyn fmt::Display,
        attribute: &str,
        value: impl fmt::Display,
    ) {
        let mut step = Step {
            action,
            device,
            object: object.to_string(),
            path: String::new(),
            value: value.to_string(),
        };
        step.path = format!("{}/{attribute}", step.directory());
        self.steps.push(step);
    }

    /// Sets an attribute unless it has the value already. The driver refuses some writes that would change nothing, such as
    /// those of traffic classes, which saved files always have.
    fn set_if_other(
        &mut self,
        device: DeviceId,
        object: &dyn fmt::Display,
        attribute: &str,
        wanted: Option<u32>,
        is: Option<u32>,
    ) {
        match (wanted, is) {
            (None, _) => {}
            (Some(wanted), None) => self.note_absent(object, attribute, &wanted.to_string()),
            (Some(wanted), Some(is)) if wanted == is => {}
            (Some(wanted), Some(_)) => self.set(Action::Set, device, object, attribute, wanted),
        }
    }

    fn bind(&mut self, action: Action, device: DeviceId, object: &dyn fmt::Display, driver: &str) {
        let file = if action == Action::Disable { "unbind" } else { "bind" };
        let object = object.to_string();
        let value = object.clone();
        self.steps.push(Step { action, device, object, path: format!("{DRIVERS}/{driver}/{file}"), value });
    }

    fn note_absent(&mut self, object: &dyn fmt::Display, attribute: &str, value: &str) {
        self.notes.push(format!(
            "{object}: {attribute} = {value} is skipped: the driver does not have the attribute here"
        ));
    }

    fn note_skipped_keys(&mut self, config: &Config) {
        for (object, key) in config.kept_keys() {
            self.notes.push(format!("{object}: {key} is skipped: the key is unknown"));
        }
        for _ in &config.others {
            self.notes.push("an accelerator that is not a DSA stays unchanged".to_owned());
        }
    }
}

/// The driver with this name, for an object.
fn known_driver(object: &dyn fmt::Display, driver: &str, state: &SystemState) -> Result<String, PlanError> {
    let driver = driver.to_owned();
    match state.drivers.contains(&driver) {
        true => Ok(driver),
        false => Err(PlanError::NoDriver { object: object.to_string(), driver }),
    }
}

fn queue_driver(
    queue: QueueId,
    kind: Option<&QueueType>,
    driver_name: Option<&str>,
    state: &SystemState,
) -> Result<String, PlanError> {
    let usual = if kind == Some(&QueueType::Kernel) { "dmaengine" } else { "user" };
    let driver = driver_name.filter(|name| !name.is_empty()).unwrap_or(usual);
    known_driver(&queue, driver, state)
}
