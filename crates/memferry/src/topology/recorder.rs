//! Records the files of a machine.
//!
//! The files are listed here instead of observed during reading: a recording is most useful of a machine that the reader
//! refuses. Tests check that the list is complete.

use std::path::Path;

use memferry_dsa::internals::system::{self, Directory, Owner};

use super::TopologyError;
use super::files::Files;
use super::recording::{CharacterDevice, Entry, Link, Recording, is_path};
use super::sysfs::{self, CGROUPS, CPUS, DAX, DSA, NODES, NUMA, TIERS, WEIGHTS};

const DSA_DRIVERS: &str = "sys/bus/dsa/drivers";
/// The parameters of its module, such as `sva`.
const DSA_PARAMETERS: &str = "sys/module/idxd/parameters";
/// The character devices of its work queues.
const DSA_FILES: &str = "dev/dsa";
const HOST_NAME: &str = "proc/sys/kernel/hostname";

impl Recording {
    /// An empty recording.
    pub fn new() -> Recording {
        Recording::default()
    }

    /// Records the tree below `root`; `/` is this machine.
    ///
    /// It takes all small text attributes of DSA devices, except unreadable ones. The recording contains the host name and
    /// the path of this process' cgroup, which may contain a user id and the name of a program. If there is a DSA, it also
    /// contains the user, the groups and the capabilities of this process, which decide what it may open.
    ///
    /// # Errors
    /// [`TopologyError::Read`] for a required file that is unreadable. Contradicting files are recorded as they are.
    pub fn of(root: impl AsRef<Path>) -> Result<Recording, TopologyError> {
        record(&Directory::below(root.as_ref()))
    }

    /// This recording with another host name.
    pub fn with_name(mut self, name: &str) -> Recording {
        self.insert(HOST_NAME, &format!("{name}\n"));
        self
    }

    /// Inserts a file, with the directories it needs. Replaces existing and conflicting ones.
    ///
    /// # Panics
    /// If `path` is not relative, or has `.` or `..` in it.
    pub fn insert(&mut self, path: &str, text: &str) {
        self.put(path, Entry::Text(text.to_owned()));
    }

    /// Inserts a symbolic link, like [`insert`](Recording::insert) a file.
    ///
    /// # Panics
    /// Those of [`insert`](Recording::insert).
    pub fn insert_link(&mut self, path: &str, target: &str) {
        self.put(path, Entry::Link(Link { link: target.to_owned() }));
    }

    /// Inserts the character device of a work queue, like [`insert`](Recording::insert) a file.
    ///
    /// # Panics
    /// Those of [`insert`](Recording::insert).
    pub fn insert_owner(&mut self, path: &str, owner: Owner) {
        let Owner { mode, user, group, .. } = owner;
        self.put(path, Entry::Device(CharacterDevice { mode, user, group }));
    }

    /// Removes a file, a link, or a directory with its content. Returns whether it existed.
    pub fn remove(&mut self, path: &str) -> bool {
        let count = self.entries.len();
        let below = format!("{path}/");
        self.entries.retain(|at, _| at != path && !at.starts_with(&below));
        self.entries.len() < count
    }

    /// The text of the file with exactly this path.
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.entries.get(path) {
            Some(Entry::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn put(&mut self, path: &str, entry: Entry) {
        assert!(is_path(path), "{path:?} is not a path below a root");
        let below = format!("{path}/");
        self.entries.retain(|at, _| {
            let around = path.strip_prefix(at.as_str()).is_some_and(|rest| rest.starts_with('/'));
            !around && !at.starts_with(&below)
        });
        self.entries.insert(path.to_owned(), entry);
    }
}

fn record(files: &dyn system::Files) -> Result<Recording, TopologyError> {
    let mut recorder = Recorder { files: Files::new(files), recording: Recording::new() };
    recorder.nodes()?;
    recorder.cpus()?;
    recorder.tiers()?;
    recorder.dax()?;
    recorder.dsa()?;
    recorder.settings()?;
    recorder.limits()?;
    Ok(recorder.recording)
}

/// Copies files, one subsystem after another. Invalid content is copied as it is.
struct Recorder<'a> {
    files: Files<'a>,
    recording: Recording,
}

type Outcome = Result<(), TopologyError>;

impl Recorder<'_> {
    fn nodes(&mut self) -> Outcome {
        const STATES: [&str; 6] =
            ["online", "possible", "has_cpu", "has_memory", "has_normal_memory", "has_generic_initiator"];
        self.copy(NODES, &STATES)?;
        for id in self.files.numbered(NODES, "node")? {
            let node = format!("{NODES}/node{id}");
            self.copy(&node, &["cpulist", "distance", "meminfo"])?;
            for class in sysfs::ACCESS_CLASSES {
                let directory = format!("{node}/{class}/initiators");
                let figures = ["read_bandwidth", "write_bandwidth", "read_latency", "write_latency"];
                self.copy(&directory, &figures)?;
                for initiator in self.files.numbered(&directory, "node")? {
                    let link = format!("{directory}/node{initiator}");
                    let target = self.files.link(&link);
                    // In a copied tree it may be an empty directory, which a recording cannot have.
                    let target = target.unwrap_or(format!("../../../node{initiator}"));
                    self.recording.insert_link(&link, &target);
                }
            }
            for index in self.files.numbered(&format!("{node}/memory_side_cache"), "index")? {
                let cache = format!("{node}/memory_side_cache/index{index}");
                self.copy(&cache, &["size", "line_size", "indexing", "write_policy"])?;
            }
        }
        Ok(())
    }

    fn cpus(&mut self) -> Outcome {
        self.copy(CPUS, &["online", "offline", "possible", "present"])?;
        for cpu in self.files.numbered(CPUS, "cpu")? {
            self.copy(
                &format!("{CPUS}/cpu{cpu}/topology"),
                &["physical_package_id", "die_id", "cluster_id"],
            )?;
        }
        Ok(())
    }

    fn tiers(&mut self) -> Outcome {
        for tier in self.files.numbered(TIERS, "memory_tier")? {
            self.copy(&format!("{TIERS}/memory_tier{tier}"), &["nodelist"])?;
        }
        Ok(())
    }

    fn dax(&mut self) -> Outcome {
        for name in self.files.entries(DAX)? {
            let device = self.device(DAX, &name);
            self.copy(&device, &["target_node", "numa_node", "size", "align"])?;
        }
        Ok(())
    }

    /// Devices with their groups, engines and work queues; drivers; owners of queues.
    fn dsa(&mut self) -> Outcome {
        for name in self.files.entries(DSA)? {
            let device = self.device(DSA, &name);
            self.copy_attributes(&device);
        }
        for driver in self.files.entries(DSA_DRIVERS)? {
            // They are write-only. Their presence shows that the driver is loaded.
            for file in ["bind", "unbind"] {
                self.recording.insert(&format!("{DSA_DRIVERS}/{driver}/{file}"), "");
            }
        }
        for name in self.files.entries(DSA_PARAMETERS)? {
            self.copy_attribute(&format!("{DSA_PARAMETERS}/{name}"));
        }
        for name in self.files.entries(DSA_FILES)? {
            let path = format!("{DSA_FILES}/{name}");
            if let Some(owner) = self.files.owner(&path) {
                self.recording.insert_owner(&path, owner);
            }
        }
        Ok(())
    }

    fn settings(&mut self) -> Outcome {
        self.copy(NUMA, &["demotion_enabled"])?;
        for name in self.files.entries(WEIGHTS)? {
            self.copy(WEIGHTS, &[&name])?;
        }
        self.copy("proc/sys/kernel", &["hostname", "osrelease", "numa_balancing"])?;
        self.copy("proc", &["meminfo"])?;
        if let Some(cpus) = self.files.head("proc/cpuinfo", sysfs::CPUINFO_BYTES)? {
            let first = cpus.split("\n\n").next().unwrap_or_default();
            self.recording.insert("proc/cpuinfo", &format!("{}\n", first.trim_end()));
        }
        Ok(())
    }

    /// The limits of this process.
    fn limits(&mut self) -> Outcome {
        if let Some(status) = self.files.optional("proc/self/status")? {
            // The user matters only if there are queues to open.
            let has_dsa = self.recording.paths().any(|path| path.starts_with(DSA));
            let is_asked = |line: &&str| {
                let whose = || ["Uid:", "Gid:", "Groups:", "CapEff:"].iter().any(|key| line.starts_with(key));
                line.contains("_allowed_list:") || has_dsa && whose()
            };
            let lines: String = status.lines().filter(is_asked).map(|line| format!("{line}\n")).collect();
            self.recording.insert("proc/self/status", &lines);
        }
        let Some(cgroups) = self.files.optional("proc/self/cgroup")? else { return Ok(()) };
        let Some(own) = cgroups.lines().find_map(|line| line.strip_prefix("0::/")) else { return Ok(()) };
        self.recording.insert("proc/self/cgroup", &format!("0::/{own}\n"));
        if !own.is_empty() && !is_path(own) {
            return Ok(());
        }
        for cgroup in Path::new(own).ancestors() {
            let cgroup = match cgroup.to_string_lossy() {
                root if root.is_empty() => CGROUPS.to_owned(),
                path => format!("{CGROUPS}/{path}"),
            };
            for name in ["memory.max", "memory.current", "memory.stat"] {
                self.copy_attribute(&format!("{cgroup}/{name}"));
            }
        }
        Ok(())
    }

    /// Records the link of a bus to a device. Returns the path of the device.
    fn device(&mut self, bus: &str, name: &str) -> String {
        let path = format!("{bus}/{name}");
        let Some(target) = self.files.link(&path) else { return path };
        self.recording.insert_link(&path, &target);
        match self.recording.resolve(&path, true) {
            Ok(device) if !device.is_empty() => device,
            _ => path,
        }
    }

    fn copy(&mut self, directory: &str, names: &[&str]) -> Outcome {
        for name in names {
            let path = format!("{directory}/{name}");
            if let Some(text) = self.files.optional(&path)? {
                self.recording.insert(&path, &format!("{text}\n"));
            }
        }
        Ok(())
    }

    /// All attributes of a device and of the devices below it.
    fn copy_attributes(&mut self, device: &str) {
        let mut todo = vec![(device.to_owned(), 0)];
        while let Some((directory, depth)) = todo.pop() {
            for name in self.files.entries(&directory).unwrap_or_default() {
                let path = format!("{directory}/{name}");
                if let Some(target) = self.files.link(&path) {
                    if name == "driver" {
                        self.recording.insert_link(&path, &target);
                    }
                    continue;
                }
                if name == "power" {
                    continue;
                }
                // A device, its queues, and their parts.
                if self.files.directory(&path).is_ok_and(|names| names.is_some()) {
                    todo.extend((depth < 2).then_some((path, depth + 1)));
                } else {
                    self.copy_attribute(&path);
                }
            }
        }
    }

    /// Copies a readable text of at most a page, the limit of sysfs. Many attributes are write-only or for root.
    fn copy_attribute(&mut self, path: &str) {
        const PAGE_BYTES: usize = 4096;
        if let Ok(Some(text)) = self.files.optional(path)
            && text.len() <= PAGE_BYTES
        {
            self.recording.insert(path, &format!("{text}\n"));
        }
    }
}
