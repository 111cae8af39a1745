//! Discovery: reads the state from sysfs, of this machine or of a recorded tree.
//!
//! Any attribute may be missing, since kernels differ. An attribute that cannot be parsed is an error that names the file.
//! A device or queue that vanishes meanwhile keeps the attributes read so far.
//!
//! Kernels before 5.17 name some attributes differently. They are not read: programs can use a DSA since 5.18.
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd` and `drivers/dma/idxd/sysfs.c`, since 5.18.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use super::SystemError;
use super::capability::{GeneralCapabilities, Version, hexadecimal};
use super::error::shorten;
use super::files::{Directory, Files};
use super::id::{DeviceId, EngineId, GroupId, QueueId};
use super::state::{Activity, Device, Engine, Group, Process, Queue, QueueFile, QueueType, SystemState};
use super::status::{CommandStatus, SoftwareError};
use crate::operation::OperationSet;
use crate::portal::QueueMode;

/// The directory of sysfs with a directory for each device, relative to the root.
pub const DEVICES: &str = "sys/bus/dsa/devices";
/// The directory of sysfs with the drivers that devices and queues are bound to, relative to the root.
pub const DRIVERS: &str = "sys/bus/dsa/drivers";

impl SystemState {
    /// Reads the state of this machine.
    ///
    /// A machine without the driver or without a device is not an error; [`diagnose`](SystemState::diagnose) reports it.
    ///
    /// # Errors
    /// An existing file cannot be read or parsed.
    pub fn discover() -> Result<SystemState, SystemError> {
        read(&Directory::system())
    }

    /// Reads the state below another root: `root/sys`, `root/dev`, `root/proc`.
    ///
    /// # Errors
    /// As [`discover`](SystemState::discover).
    pub fn discover_at(root: &Path) -> Result<SystemState, SystemError> {
        read(&Directory::below(root))
    }

    /// Reads the state through a seam.
    ///
    /// # Errors
    /// As [`discover`](SystemState::discover).
    #[cfg(feature = "internals")]
    pub fn read(files: &dyn Files) -> Result<SystemState, SystemError> {
        read(files)
    }
}

fn read(files: &dyn Files) -> Result<SystemState, SystemError> {
    let tree = Tree { files };
    let mut devices = Vec::new();
    let mut others = Vec::new();
    for name in tree.entries(DEVICES)? {
        match name.parse::<DeviceId>() {
            Ok(id) => devices.push(tree.device(id)?),
            Err(_) if name.strip_prefix("iax").and_then(super::id::number).is_some() => others.push(name),
            Err(_) => {} // groups, engines and queues, which are links here
        }
    }
    devices.sort_by_key(|device| device.id);
    let drivers = tree.entries(DRIVERS)?;
    Ok(SystemState {
        kernel: tree.text("proc/sys/kernel/osrelease")?,
        module_loaded: !drivers.is_empty() || tree.is_directory("sys/module/idxd"),
        drivers,
        devices,
        others,
        process: tree.process()?,
    })
}

struct Tree<'a> {
    files: &'a dyn Files,
}

/// A directory of attributes.
struct Object<'a> {
    tree: &'a Tree<'a>,
    path: String,
}

impl Tree<'_> {
    fn device(&self, id: DeviceId) -> Result<Device, SystemError> {
        let device = Object { tree: self, path: format!("{DEVICES}/{id}") };
        // The objects of a device lie in its directory and, as links, next to it. A recorded tree may have either.
        let mut names = BTreeSet::new();
        names.extend(self.entries(&device.path)?);
        names.extend(self.entries(DEVICES)?);
        let node: Option<i64> = device.number("numa_node")?;
        Ok(Device {
            id,
            driver: device.driver(),
            state: device.text("state")?.map(|word| Activity::from(word.as_str())),
            version: device.hexadecimal("version")?.map(Version),
            // The kernel answers -1 if the firmware does not report the node.
            node: node.and_then(|node| u32::try_from(node).ok()),
            capabilities: device.hexadecimal("gen_cap")?.map(GeneralCapabilities),
            operations: device.operations("op_cap")?,
            is_configurable: device.toggle("configurable")?,
            has_pasid: device.toggle("pasid_enabled")?,
            groups_max: device.number("max_groups")?,
            engines_max: device.number("max_engines")?,
            queues_max: device.number("max_work_queues")?,
            entries_max: device.number("max_work_queues_size")?,
            transfer_bytes_max: device.number("max_transfer_size")?,
            batch_max: device.number("max_batch_size")?,
            read_buffers_max: device.number("max_read_buffers")?,
            read_buffer_limit: device.number("read_buffer_limit")?,
            event_log_size: device.number("event_log_size")?,
            interrupt_messages_max: device.number("ims_size")?,
            major: device.number("cdev_major")?,
            clients: device.number("clients")?,
            command_status: device.hexadecimal("cmd_status")?.map(CommandStatus),
            error: device.operations("errors")?.and_then(|bits| SoftwareError::from_words(bits.to_words())),
            groups: own(&names, |it: &GroupId| it.device == id, |it| device.inside(it).group(it))?,
            engines: own(&names, |it: &EngineId| it.device == id, |it| device.inside(it).engine(it))?,
            queues: own(&names, |it: &QueueId| it.device == id, |it| device.inside(it).queue(it))?,
        })
    }

    /// The effective user, groups and capabilities; unknown if `/proc` is not mounted.
    fn process(&self) -> Result<Process, SystemError> {
        const FILE: &str = "proc/self/status";
        let Some(status) = self.text(FILE)? else { return Ok(Process::default()) };
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        // Four ids: real, effective, saved, file system.
        let effective = |key| line(key).and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
        let further = line("Groups").unwrap_or("").split_whitespace().filter_map(|id| id.parse().ok());
        Ok(Process {
            user: effective("Uid"),
            groups: effective("Gid").into_iter().chain(further).collect(),
            capabilities: line("CapEff")
                .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
                .unwrap_or(0),
        })
    }

    /// The trimmed content of a file; `None` if it is absent or does not apply.
    fn text(&self, path: &str) -> Result<Option<String>, SystemError> {
        match self.files.read(path) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(error) => {
                    let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                    Err(self.unparsable(path, &text, "text"))
                }
            },
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(self.unreadable(path, source)),
        }
    }

    /// The sorted names in a directory; none if it does not exist.
    fn entries(&self, directory: &str) -> Result<Vec<String>, SystemError> {
        match self.files.entries(directory) {
            Ok(mut names) => {
                names.sort_unstable();
                Ok(names)
            }
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            Err(source) => Err(self.unreadable(directory, source)),
        }
    }

    fn is_directory(&self, path: &str) -> bool {
        self.files.entries(path).is_ok()
    }

    fn unreadable(&self, path: &str, source: io::Error) -> SystemError {
        let advice = match source.kind() {
            ErrorKind::PermissionDenied => "make it readable for this user, or run as root",
            _ => "see the kernel log; if the device is being configured, try again",
        };
        SystemError::Read { path: self.files.display(path), source, advice }
    }

    fn unparsable(&self, path: &str, text: &str, expected: &'static str) -> SystemError {
        SystemError::Parse { path: self.files.display(path), found: shorten(text), expected }
    }
}

/// Reads the objects among `names` that belong to a device, by number.
fn own<I: FromStr + Copy + Ord, T>(
    names: &BTreeSet<String>,
    is_own: impl Fn(&I) -> bool,
    read: impl Fn(I) -> Result<T, SystemError>,
) -> Result<Vec<T>, SystemError> {
    let mut ids: Vec<I> = names.iter().filter_map(|name| name.parse().ok()).filter(is_own).collect();
    ids.sort_unstable();
    ids.into_iter().map(read).collect()
}

/// Whether an error means that an attribute is absent: the kernel lacks it (`ENOENT`), it does not apply (`EOPNOTSUPP`,
/// `ENXIO`, `EPERM`), or the device was just removed (`ENODEV`). In a recorded tree, a file in place of a directory
/// (`ENOTDIR`), or the reverse, counts as absent too.
fn is_absent(error: &io::Error) -> bool {
    use libc::{ENODEV, ENOENT, ENXIO, EOPNOTSUPP, EPERM};
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory)
        || matches!(error.raw_os_error(), Some(ENOENT | ENXIO | ENODEV | EOPNOTSUPP | EPERM))
}

impl Object<'_> {
    /// An object of this device: in its directory, or else next to it.
    fn inside(&self, id: impl std::fmt::Display) -> Object<'_> {
        let inside = format!("{}/{id}", self.path);
        let path = if self.tree.is_directory(&inside) { inside } else { format!("{DEVICES}/{id}") };
        Object { tree: self.tree, path }
    }

    fn group(&self, id: GroupId) -> Result<Group, SystemError> {
        Ok(Group {
            id,
            engines: self.members("engines")?,
            queues: self.members("work_queues")?,
            use_read_buffer_limit: self.toggle("use_read_buffer_limit")?,
            read_buffers_allowed: self.number("read_buffers_allowed")?,
            read_buffers_reserved: self.number("read_buffers_reserved")?,
            traffic_class_a: self.natural("traffic_class_a")?,
            traffic_class_b: self.natural("traffic_class_b")?,
            desc_progress_limit: self.natural("desc_progress_limit")?,
            batch_progress_limit: self.natural("batch_progress_limit")?,
        })
    }

    fn engine(&self, id: EngineId) -> Result<Engine, SystemError> {
        Ok(Engine { id, group: self.natural("group_id")? })
    }

    fn queue(&self, id: QueueId) -> Result<Queue, SystemError> {
        Ok(Queue {
            id,
            driver: self.driver(),
            state: self.text("state")?.map(|word| Activity::from(word.as_str())),
            group: self.natural("group_id")?,
            mode: self.parsed("mode", "shared or dedicated", QueueMode::from_word)?,
            size: self.number("size")?,
            threshold: self.number("threshold")?,
            priority: self.number("priority")?,
            block_on_fault: self.toggle("block_on_fault")?,
            kind: self.text("type")?.map(|word| QueueType::from(word.as_str())),
            name: self.text("name")?.filter(|name| !name.is_empty()),
            driver_name: self.text("driver_name")?,
            transfer_bytes_max: self.number("max_transfer_size")?,
            batch_max: self.number("max_batch_size")?,
            ats_disable: self.toggle("ats_disable")?,
            prs_disable: self.toggle("prs_disable")?,
            operations: self.operations("op_config")?,
            occupancy: self.number("occupancy")?,
            enqcmds_retries: self.number("enqcmds_retries")?,
            clients: self.number("clients")?,
            minor: self.natural("cdev_minor")?,
            file: self.file(id),
        })
    }

    /// The character device; `None` if its metadata cannot be read.
    fn file(&self, id: QueueId) -> Option<QueueFile> {
        let path = format!("dev/dsa/{id}");
        let owner = self.tree.files.owner(&path).ok()?;
        Some(QueueFile { path: self.tree.files.display(&path).display().to_string(), owner })
    }

    fn driver(&self) -> Option<String> {
        let target = self.tree.files.link(&self.at("driver")).ok()?;
        Some(Path::new(&target).file_name()?.to_string_lossy().into_owned())
    }

    fn at(&self, attribute: &str) -> String {
        format!("{}/{attribute}", self.path)
    }

    fn text(&self, attribute: &str) -> Result<Option<String>, SystemError> {
        self.tree.text(&self.at(attribute))
    }

    fn parsed<T>(
        &self,
        attribute: &str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SystemError> {
        let Some(text) = self.text(attribute)? else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| self.tree.unparsable(&self.at(attribute), &text, expected))
    }

    fn number<T: FromStr>(&self, attribute: &str) -> Result<Option<T>, SystemError> {
        self.parsed(attribute, "a number", |text| text.parse().ok())
    }

    /// A number; a negative one means `None`.
    fn natural(&self, attribute: &str) -> Result<Option<u32>, SystemError> {
        let number: Option<i64> = self.number(attribute)?;
        match number {
            Some(number) if number > i64::from(u32::MAX) => {
                Err(self.tree.unparsable(&self.at(attribute), &number.to_string(), "a number of 32 bits"))
            }
            number => Ok(number.and_then(|number| u32::try_from(number).ok())),
        }
    }

    fn toggle(&self, attribute: &str) -> Result<Option<bool>, SystemError> {
        self.parsed(attribute, "0 or 1", |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })
    }

    fn hexadecimal<T: TryFrom<u64>>(&self, attribute: &str) -> Result<Option<T>, SystemError> {
        let parse = |text: &str| T::try_from(hexadecimal(text)?).ok();
        self.parsed(attribute, "a hexadecimal number such as 0x100", parse)
    }

    /// All bitmaps have the format of a set of operations.
    fn operations(&self, attribute: &str) -> Result<Option<OperationSet>, SystemError> {
        self.parsed(attribute, "256 bits in hexadecimal words", OperationSet::from_sysfs)
    }

    /// Names separated by blanks.
    fn members<T: FromStr>(&self, attribute: &str) -> Result<Vec<T>, SystemError> {
        let members = self.parsed(attribute, "names such as engine0.0 engine0.1", |text| {
            text.split_whitespace().map(|name| name.parse().ok()).collect::<Option<Vec<T>>>()
        })?;
        Ok(members.unwrap_or_default())
    }
}
