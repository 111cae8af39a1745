//! The CPUs and nodes that cpusets and affinity allow this process.
//!
//! Source: `proc_pid_status(5)`, `cpuset(7)`.

use super::files::Files;
use super::{TopologyError, list};

const STATUS: &str = "proc/self/status";

/// Allowed CPUs and nodes. A missing list, as in a recording, allows all.
///
/// LXC shows a container its own CPUs in `cpu/online`, but all CPUs in the `cpulist` of nodes. So a CPU in a node that is
/// not online is not a contradiction; it is not allowed.
pub(super) struct Allowed {
    cpus: Option<Vec<u32>>,
    online_cpus: Option<Vec<u32>>,
    nodes: Option<Vec<u32>>,
}

impl Allowed {
    pub(super) fn read(files: &Files<'_>, online_cpus: &str) -> Result<Allowed, TopologyError> {
        let status = files.optional(STATUS)?.unwrap_or_default();
        let find = |name: &str| {
            let Some(line) = status.lines().find(|line| line.starts_with(name)) else { return Ok(None) };
            match line[name.len()..].strip_prefix(':').and_then(list::parse) {
                Some(ids) => Ok(Some(ids)),
                None => Err(files.nonsense(STATUS, line, "a list such as 0-3,8")),
            }
        };
        Ok(Allowed {
            cpus: find("Cpus_allowed_list")?,
            online_cpus: files.optional_list(online_cpus)?,
            nodes: find("Mems_allowed_list")?,
        })
    }

    /// The allowed ones of `cpus`.
    pub(super) fn cpus(&self, cpus: &[u32]) -> Vec<u32> {
        let is_allowed = |cpu: &u32| allows(&self.cpus, *cpu) && allows(&self.online_cpus, *cpu);
        cpus.iter().copied().filter(is_allowed).collect()
    }

    /// Whether memory of a node is allowed.
    pub(super) fn node(&self, id: u32) -> bool {
        allows(&self.nodes, id)
    }
}

fn allows(list: &Option<Vec<u32>>, id: u32) -> bool {
    list.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok())
}
