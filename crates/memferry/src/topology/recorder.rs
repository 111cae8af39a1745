//! Takes those files of a machine into a recording that are of use.
//!
//! Which those are is written out here rather than found by watching the reader: a machine whose files make
//! the reader give up is the one that somebody should see. That nothing is forgotten is what the tests
//! compare.

use std::path::Path;

use super::TopologyError;
use super::recording::{Recording, is_path};
use super::sysfs::{self, CGROUPS, CPUS, DAX, DSA, NODES, NUMA, TIERS, WEIGHTS};
use super::sysfs::{DSA_DRIVERS, DSA_FILES, DSA_PARAMETERS};
use super::tree::{Files, Tree};

pub(super) fn record(tree: &dyn Tree) -> Result<Recording, TopologyError> {
    let mut recorder = Recorder { files: Files::new(tree), recording: Recording::new() };
    recorder.nodes()?;
    recorder.cpus()?;
    recorder.tiers()?;
    recorder.dax()?;
    recorder.dsa()?;
    recorder.settings()?;
    recorder.limits()?;
    Ok(recorder.recording)
}

/// Copies files, a subsystem at a time. What the reader would report as broken is copied as it is.
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
                    // In a copied tree it may have become an empty directory, which a recording does not
                    // have.
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

    /// Devices, and as they have them their groups, engines and work queues; drivers, and who may use a queue.
    fn dsa(&mut self) -> Outcome {
        for name in self.files.entries(DSA)? {
            let device = self.device(DSA, &name);
            self.copy_attributes(&device);
        }
        for driver in self.files.entries(DSA_DRIVERS)? {
            // They can only be written; that they are there says that the driver is.
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

    /// What this process may use.
    fn limits(&mut self) -> Outcome {
        if let Some(status) = self.files.optional("proc/self/status")? {
            // Who we are is asked only where a queue may be opened.
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

    /// The place of a device that a bus lists, with the link that leads there.
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
                // A device, its queues, and what those have.
                if self.files.directory(&path).is_ok_and(|names| names.is_some()) {
                    todo.extend((depth < 2).then_some((path, depth + 1)));
                } else {
                    self.copy_attribute(&path);
                }
            }
        }
    }

    /// A text of at most a page, as all of sysfs are; many may only be written, or read by root.
    fn copy_attribute(&mut self, path: &str) {
        const PAGE_BYTES: usize = 4096;
        if let Ok(Some(text)) = self.files.optional(path)
            && text.len() <= PAGE_BYTES
        {
            self.recording.insert(path, &format!("{text}\n"));
        }
    }
}
