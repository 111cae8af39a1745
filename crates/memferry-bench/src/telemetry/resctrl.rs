//! The monitor of last-level caches: a monitoring group of resctrl with all threads of this process.
//!
//! ```text
//! /sys/fs/resctrl/mon_groups/memferry-PID/tasks                           threads; those they start inherit the group
//!                                         mon_data/mon_L3_00/llc_occupancy    now
//!                                                            mbm_total_bytes  since the group was made
//! ```
//!
//! The group is removed on every path: by the drop of [`Group`], and, if this process is killed, by a shell that waits for the
//! end of its standard input. The threads then return to the group from which they came.
//!
//! Source: Linux `Documentation/arch/x86/resctrl.rst`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use memferry_dsa::internals::system::Files;

use super::counts::Series;
use super::error::{Absent, Tree};
use super::kernel::Kernel;
use super::{Count, Monitor, MonitorKind};

const RESCTRL: &str = "sys/fs/resctrl";
const OCCUPANCY: &str = "llc_occupancy";
/// Counters of traffic between the L3 and memory, all of it and that of the own node.
const TRAFFIC: [&str; 2] = ["mbm_total_bytes", "mbm_local_bytes"];

/// Time between two samples of the occupancy. A sample interrupts one CPU of each cache for microseconds.
const PERIOD: Duration = Duration::from_millis(100);

/// What can be monitored, without a group yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// The control group of this process, whose `mon_groups` gets the group.
    parent: String,
    /// Names of the kernel, `llc_occupancy` and others.
    pub(super) events: Vec<&'static str>,
    /// Directories of `mon_data`: `mon_L3_00`.
    pub(super) domains: Vec<String>,
}

/// What this machine can monitor for this process.
pub(super) fn find(files: &dyn Files) -> Result<Plan, Absent> {
    let tree = Tree(files);
    let Some(features) = tree.optional(&format!("{RESCTRL}/info/L3_MON/mon_features"))? else {
        return Err(Absent::NotHere(
            match (files.entries(RESCTRL), files.entries(&format!("{RESCTRL}/info"))) {
                (_, Ok(_)) => "the CPU does not monitor its last-level cache (resctrl has no info/L3_MON)",
                (Ok(_), Err(_)) => "resctrl is not mounted; run: mount -t resctrl resctrl /sys/fs/resctrl",
                (Err(_), _) => {
                    "the kernel has no /sys/fs/resctrl: the CPU has no Resource Director Technology or hides it from this virtual \
                 machine, or the kernel was built without CONFIG_X86_CPU_RESCTRL"
                }
            },
        ));
    };
    let known = [OCCUPANCY].into_iter().chain(TRAFFIC);
    let events = known.filter(|event| features.lines().any(|line| line == *event)).collect();
    // Kernels before 5.6 do not tell; there only the root is tried.
    let groups = tree.optional("proc/self/cpu_resctrl_groups")?.unwrap_or_default();
    let group = |kind: &str| groups.lines().find_map(|line| line.strip_prefix(kind)).unwrap_or_default();
    if !group("mon:").is_empty() {
        return Err(Absent::Monitored(group("mon:").to_owned()));
    }
    let parent = match group("res:").trim_matches('/') {
        "" => RESCTRL.to_owned(),
        control => format!("{RESCTRL}/{control}"),
    };
    let groups = format!("{parent}/mon_groups");
    if let (Ok(directory), Ok(me)) = (files.owner(&groups), files.owner("proc/self"))
        && me.user != 0
        && me.user != directory.user
        && directory.mode & 0o022 == 0
    {
        let source = io::ErrorKind::PermissionDenied.into();
        return Err(Absent::Group { group: groups, what: "made", source, remedy: "; run as root" });
    }
    let mut domains = tree.entries(&format!("{parent}/mon_data"));
    domains.retain(|name| name.starts_with("mon_L3_"));
    Ok(Plan { parent, events, domains })
}

/// A monitoring group, removed when it is dropped.
struct Group {
    kernel: Arc<dyn Kernel>,
    path: String,
    remover: Remover,
}

impl Group {
    /// Makes the group, without threads.
    fn new(kernel: Arc<dyn Kernel>, parent: &str) -> Result<Group, Absent> {
        let path = format!("{parent}/mon_groups/memferry-{}", std::process::id());
        let failed = |what, source: io::Error| {
            let remedy = match source.raw_os_error() {
                Some(libc::EACCES | libc::EPERM | libc::EROFS) => "; run as root",
                Some(libc::ENOSPC) => {
                    "; all groups of the CPU are in use, remove one of them in /sys/fs/resctrl"
                }
                Some(libc::EBUSY) => "; the cache still has bytes of removed groups, try again in a minute",
                _ => "",
            };
            Absent::Group { group: path.clone(), what, source, remedy }
        };
        // Before the group exists, so that a signal cannot come in between.
        let directory = Path::new(&kernel.files().name()).join(&path);
        let remover = Remover::start(directory.as_os_str())
            .map_err(|source| failed("guarded by a process that removes it (sh)", source))?;
        if let Err(source) = kernel.make_group(&path) {
            // Another process may have a group of this name.
            remover.dismiss();
            return Err(failed("made", source));
        }
        Ok(Group { kernel, path, remover })
    }

    /// Moves all threads of this process into it. A thread that starts meanwhile is found in the next round, or inherits the
    /// group.
    fn join_all_threads(&self) -> Result<(), Absent> {
        let mut joined = Vec::new();
        loop {
            let threads = Tree(self.kernel.files()).entries("proc/self/task");
            let threads = threads.iter().filter_map(|thread| thread.parse::<u32>().ok());
            let new: Vec<u32> = threads.filter(|thread| !joined.contains(thread)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for thread in new {
                match self.kernel.join_group(&self.path, thread) {
                    Err(source) if source.raw_os_error() != Some(libc::ESRCH) => {
                        let (group, what) = (self.path.clone(), "given the threads of this process");
                        return Err(Absent::Group { group, what, source, remedy: "" });
                    }
                    _ => joined.push(thread),
                }
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If it fails, the shell tries it again.
        if self.kernel.remove_group(&self.path).is_ok() {
            self.remover.dismiss_in_place();
        }
    }
}

/// A shell that removes a directory when this process ends, by whatever means, or when it is dropped undismissed.
struct Remover(Child);

impl Remover {
    /// A group of processes of its own, so that Ctrl-C does not end it.
    fn start(directory: &OsStr) -> io::Result<Remover> {
        let script = "read -r dismissed || rmdir \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(directory).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Remover)
    }

    /// Ends it without removing anything.
    fn dismiss(mut self) {
        self.dismiss_in_place();
    }

    fn dismiss_in_place(&mut self) {
        if let Some(stdin) = &mut self.0.stdin {
            // It fails only if the shell has ended.
            let _ended = stdin.write_all(b"dismissed\n");
        }
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends at the end of its input; nobody waits for its status.
        let _status = self.0.wait();
    }
}

/// The group of this process, and what was read at the start of the window.
pub(super) struct ResctrlMonitor {
    group: Group,
    domains: Vec<Domain>,
}

/// An L3 cache.
struct Domain {
    /// `L3 0`
    place: String,
    directory: String,
    has_occupancy: bool,
    occupancy: Series,
    /// Name, value at the start of the window.
    traffic: Vec<(&'static str, Option<u64>)>,
}

impl ResctrlMonitor {
    /// Makes the group, with all threads of this process.
    pub(super) fn open(kernel: Arc<dyn Kernel>, plan: &Plan) -> Result<ResctrlMonitor, Absent> {
        let group = Group::new(kernel, &plan.parent)?;
        group.join_all_threads()?;
        let has = |event: &str| plan.events.contains(&event);
        let domain = |name: &String| Domain {
            place: format!("L3 {}", number_of(name)),
            directory: format!("{}/mon_data/{name}", group.path),
            has_occupancy: has(OCCUPANCY),
            occupancy: Series::default(),
            traffic: TRAFFIC.into_iter().filter(|event| has(event)).map(|event| (event, None)).collect(),
        };
        let domains = plan.domains.iter().map(domain).collect();
        Ok(ResctrlMonitor { group, domains })
    }
}

/// `00` of `mon_L3_00` as `0`.
fn number_of(domain: &str) -> &str {
    let digits = domain.trim_start_matches("mon_L3_").trim_start_matches('0');
    if digits.is_empty() { "0" } else { digits }
}

impl Domain {
    /// `None` if the kernel says `Unavailable` or `Error`: the hardware has no value at this moment.
    fn read(&self, tree: &Tree<'_>, event: &str) -> Option<u64> {
        tree.number(&format!("{}/{event}", self.directory)).ok()
    }

    fn sample(&mut self, tree: &Tree<'_>, at: Duration) {
        if self.has_occupancy
            && let Some(bytes) = self.read(tree, OCCUPANCY)
        {
            self.occupancy.push(at, bytes as f64);
        }
    }
}

impl Monitor for ResctrlMonitor {
    fn begin(&mut self) {
        let tree = Tree(self.group.kernel.files());
        for domain in &mut self.domains {
            let starts = domain.traffic.iter().map(|(event, _)| (*event, domain.read(&tree, event)));
            domain.traffic = starts.collect();
            domain.occupancy = Series::default();
            domain.sample(&tree, Duration::ZERO);
        }
    }

    fn sample(&mut self, at: Duration) {
        let tree = Tree(self.group.kernel.files());
        for domain in &mut self.domains {
            domain.sample(&tree, at);
        }
    }

    fn end(&mut self, at: Duration) -> Vec<Count> {
        self.sample(at);
        let tree = Tree(self.group.kernel.files());
        let mut counts = Vec::new();
        for domain in &mut self.domains {
            let place = Some(domain.place.clone());
            let occupancy = std::mem::take(&mut domain.occupancy);
            counts.extend(occupancy.count(MonitorKind::Cache, OCCUPANCY, place.clone(), "bytes"));
            for (event, start) in &domain.traffic {
                // A smaller value than before: somebody has reset the counters.
                let counted = start.and_then(|start| domain.read(&tree, event)?.checked_sub(start));
                let count =
                    |bytes: u64| Count::new(MonitorKind::Cache, event, place.clone(), "bytes", bytes as f64);
                counts.extend(counted.map(count));
            }
        }
        counts
    }

    fn period(&self) -> Option<Duration> {
        self.domains.iter().any(|domain| domain.has_occupancy).then_some(PERIOD)
    }
}

#[cfg(test)]
mod tests;
