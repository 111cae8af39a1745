//! A fake `idxd` driver in memory: its files and their rules, for tests and for trying configurations.
//!
//! It accepts and refuses writes as the driver does, with the same error numbers and command statuses. The rules
//! include the states in which an attribute is writable, the sum of sizes at each write, complete groups when a device
//! is enabled, and the attributes that disabling resets. A test can inject failing files and changed values.
//!
//! Source: Linux `drivers/dma/idxd/sysfs.c` (writes), `device.c` (enabling), `bus.c` (binding); Intel DSA Architecture
//! Specification 3.0, chapter 9 (what the device checks).

mod binding;
mod device;
mod platform;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use memferry_dsa::internals::system::{DEVICES, DRIVERS, Files, Owner};
use memferry_dsa::system::DeviceId;

pub use self::device::{FakeDevice, FakeKernel};
pub use self::platform::FakePlatform;

/// A fake driver and its files.
///
/// ```
/// use memferry_dsa::system::{DeviceId, SystemState};
/// use memferry_dsa_emulator::{FakeDevice, FakeDriver};
///
/// let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
/// let state = SystemState::read(&driver)?;
/// assert_eq!(state.devices.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct FakeDriver {
    tree: Mutex<Tree>,
}

/// The content of the files.
#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<String, String>,
    directories: BTreeSet<String>,
    links: BTreeMap<String, String>,
    owners: BTreeMap<String, Owner>,
    devices: BTreeMap<DeviceId, FakeDevice>,
    reads_that_fail: BTreeMap<String, i32>,
    writes_that_fail: BTreeMap<String, i32>,
    log: Vec<(String, String)>,
    is_root: bool,
}

impl FakeDriver {
    /// A machine with these devices, disabled and not configured, and a root process.
    pub fn new(devices: &[FakeDevice]) -> FakeDriver {
        let mut tree = Tree { is_root: true, ..Tree::default() };
        for driver in ["idxd", "user", "dmaengine", "dsa"] {
            for file in ["bind", "unbind"] {
                tree.put(&format!("{DRIVERS}/{driver}/{file}"), "");
            }
        }
        tree.directories.insert("sys/module/idxd".to_owned());
        tree.directories.insert(DEVICES.to_owned());
        tree.put("proc/sys/kernel/osrelease", "6.12.0");
        for device in devices {
            tree.add(device);
            tree.devices.insert(device.id, device.clone());
        }
        let driver = FakeDriver { tree: Mutex::new(tree) };
        driver.become_user(0, u64::MAX);
        driver
    }

    /// The eight devices of a Xeon Max with two sockets, on eight nodes: `dsa0`, `dsa2` and so on.
    pub fn xeon_max() -> FakeDriver {
        let device = |node| FakeDevice::sapphire_rapids(DeviceId(2 * node), node);
        let driver = FakeDriver::new(&(0..8).map(device).collect::<Vec<_>>());
        for number in (1..16).step_by(2) {
            driver.lock().put(&format!("{DEVICES}/iax{number}/state"), "disabled");
        }
        driver
    }

    /// Changes the user id and the capabilities of the process.
    pub fn become_user(&self, user: u32, capabilities: u64) {
        let mut tree = self.lock();
        let ids = [user; 4].map(|id| id.to_string()).join("\t");
        let status =
            format!("Name:\tx\nUid:\t{ids}\nGid:\t{ids}\nGroups:\t{user} \nCapEff:\t{capabilities:016x}");
        tree.put("proc/self/status", &status);
        tree.is_root = user == 0;
    }

    /// Sets the content of a file without any checks, as the kernel would.
    pub fn put(&self, path: &str, content: &str) {
        self.lock().put(path, content);
    }

    /// The permission bits that the kernel gives a file of sysfs.
    pub fn mode(&self, path: &str) -> u32 {
        match path.rsplit('/').next() {
            Some("bind" | "unbind") => 0o200,
            _ if rules::is_writable(path) => 0o644,
            _ => 0o444,
        }
    }

    /// The target of a symbolic link, an absolute path.
    pub fn target(&self, path: &str) -> Option<String> {
        self.lock().links.get(path).cloned()
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<String> {
        self.lock().files.keys().cloned().collect()
    }

    /// Removes a file, or a directory with all below it.
    pub fn remove(&self, path: &str) {
        let mut tree = self.lock();
        let below = format!("{path}/");
        let keep = |name: &String| name != path && !name.starts_with(&below);
        tree.files.retain(|name, _| keep(name));
        tree.directories.retain(keep);
        tree.links.retain(|name, _| keep(name));
        tree.owners.retain(|name, _| keep(name));
    }

    /// Lets reads of the file fail with this error number from now on.
    pub fn fail_read(&self, path: &str, errno: i32) {
        self.lock().reads_that_fail.insert(path.to_owned(), errno);
    }

    /// Lets writes to the file fail with this error number from now on.
    pub fn fail_write(&self, path: &str, errno: i32) {
        self.lock().writes_that_fail.insert(path.to_owned(), errno);
    }

    /// Sets owner and mode of the character device of a queue.
    pub fn set_owner(&self, path: &str, owner: Owner) {
        self.lock().owners.insert(path.to_owned(), owner);
    }

    /// All successful writes, in order.
    pub fn log(&self) -> Vec<(String, String)> {
        self.lock().log.clone()
    }

    /// Writes the files below a directory, like a recording of a real machine. Files of the same mode stand for
    /// character devices.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn record_to(&self, root: &Path) -> io::Result<()> {
        let tree = self.lock();
        for directory in &tree.directories {
            fs::create_dir_all(root.join(directory))?;
        }
        for path in tree.files.keys() {
            // Unreadable files are left out, as in a recording of a real machine.
            let Ok(content) = tree.show(path) else { continue };
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            fs::write(path, format!("{content}\n"))?;
        }
        for (path, owner) in &tree.owners {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            fs::write(&path, "")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(owner.mode))?;
        }
        for (path, target) in &tree.links {
            std::os::unix::fs::symlink(target, root.join(path))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        // After a panic in a test that held the lock, the files are still usable.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Files for FakeDriver {
    fn name(&self) -> String {
        "/".to_owned()
    }

    fn head(&self, path: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        let tree = self.lock();
        if let Some(number) = tree.reads_that_fail.get(path) {
            return Err(errno(*number));
        }
        let mut content = format!("{}\n", tree.show(path).map_err(errno)?).into_bytes();
        content.truncate(size_bytes_max);
        Ok(content)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        let tree = self.lock();
        let below = format!("{directory}/");
        let of = |path: &String| Some(path.strip_prefix(&below)?.split('/').next()?.to_owned());
        let mut names = BTreeSet::new();
        names.extend(tree.files.range(below.clone()..).map_while(|(path, _)| of(path)));
        names.extend(tree.directories.range(below.clone()..).map_while(of));
        names.extend(tree.links.range(below.clone()..).map_while(|(path, _)| of(path)));
        match names.is_empty() && !tree.directories.contains(directory) {
            true => Err(errno(libc::ENOENT)),
            false => Ok(names.into_iter().collect::<Vec<String>>()),
        }
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.target(path).ok_or_else(|| errno(libc::ENOENT))
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        self.lock().owners.get(path).copied().ok_or_else(|| errno(libc::ENOENT))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut tree = self.lock();
        if let Some(number) = tree.writes_that_fail.get(path) {
            return Err(errno(*number));
        }
        if !tree.is_root {
            return Err(errno(libc::EACCES));
        }
        if !tree.files.contains_key(path) {
            return Err(errno(libc::ENOENT));
        }
        tree.store(path, value).map_err(errno)?;
        tree.log.push((path.to_owned(), value.to_owned()));
        Ok(())
    }
}

impl Tree {
    fn put(&mut self, path: &str, content: &str) {
        self.files.insert(path.to_owned(), content.to_owned());
    }

    fn get(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// The number in a file. The kernel's fields have 32 bits, so sums of a few values do not overflow 64 bits.
    fn number(&self, path: &str) -> i64 {
        self.get(path).parse::<i32>().map_or(0, i64::from)
    }

    fn add(&mut self, device: &FakeDevice) {
        let id = device.id;
        let old = device.kernel == FakeKernel::Old;
        let (groups, engines, queues) = device.counts;
        let at = format!("{DEVICES}/{id}");
        let mut put = |object: &str, attribute: &str, value: &str| {
            self.put(&format!("{at}{object}/{attribute}"), value);
        };
        for (attribute, value) in [
            ("version", format!("{:#x}", device.version)),
            ("max_groups", groups.to_string()),
            ("max_engines", engines.to_string()),
            ("max_work_queues", queues.to_string()),
            ("max_work_queues_size", device.entries.to_string()),
            ("numa_node", device.node.map_or("-1".to_owned(), |node| node.to_string())),
            ("max_batch_size", "1024".to_owned()),
            ("max_transfer_size", "2147483648".to_owned()),
            ("op_cap", device.op_cap.to_owned()),
            ("gen_cap", format!("{:#x}", device.gen_cap)),
            ("configurable", u8::from(device.configurable).to_string()),
            ("clients", "0".to_owned()),
            ("pasid_enabled", u8::from(device.pasid).to_string()),
            ("state", "disabled".to_owned()),
            ("cdev_major", "240".to_owned()),
            ("cmd_status", "0x0".to_owned()),
            ("max_read_buffers", device.read_buffers.to_string()),
            ("read_buffer_limit", "0".to_owned()),
            ("errors", if old { "0x000000000000000000 ".repeat(4) } else { ["00000000"; 8].join(",") }),
        ] {
            put("", attribute, &value);
        }
        if device.gen_cap >> 13 & 3 != 0 {
            put("", "event_log_size", "64");
        }
        for index in 0..groups {
            let group = format!("/group{}.{index}", id.0);
            for (attribute, value) in binding::GROUP_DEFAULTS {
                if !(old && attribute.contains("progress")) {
                    put(&group, attribute, value.unwrap_or(&device.read_buffers.to_string()));
                }
            }
        }
        for index in 0..engines {
            put(&format!("/engine{}.{index}", id.0), "group_id", "-1");
        }
        for index in 0..queues {
            let queue = format!("/wq{}.{index}", id.0);
            for (attribute, value) in binding::QUEUE_DEFAULTS {
                put(&queue, attribute, value);
            }
            put(&queue, "clients", "0");
            put(&queue, "state", "disabled");
            if !old {
                put(&queue, "driver_name", "");
                put(&queue, "op_config", device.op_cap);
                put(&queue, "enqcmds_retries", "32");
                if device.version >= 0x200 {
                    put(&queue, "prs_disable", "0");
                }
            }
        }
    }
}
