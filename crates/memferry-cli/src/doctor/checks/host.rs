//! Memory, storage and emulation.

use memferry::topology::Node;

use super::Problem;
use super::device::{are, joined};
use crate::doctor::facts::Facts;

/// The number of the capability `CAP_SYS_ADMIN`. Source: capabilities(7).
const SYS_ADMIN: u32 = 21;
/// The number of the capability `CAP_DAC_OVERRIDE`.
const DAC_OVERRIDE: u32 = 1;
/// The first kernel whose io_uring can read files as memferry does.
const IO_URING_SINCE: (u32, u32) = (5, 6);

pub(super) fn unreadable(facts: &Facts) -> Option<Problem> {
    let error = facts.unreadable.first()?;
    Some(
        Problem::error(
            "unreadable",
            format!("memferry cannot read this machine: {error}."),
            "Make the file readable; if it looks right, report it with a recording of the machine.",
        )
        .command("memferry topology --record machine.json")
        .source("intel/idxd-config 9 and 38"),
    )
}

pub(super) fn without_avx2(facts: &Facts) -> Option<Problem> {
    if facts.has_flag("avx2") != Some(false) {
        return None;
    }
    Some(
        Problem::warning(
            "no-avx2",
            "The CPU shows no AVX2, so operations in software take several times as long.",
            "In a virtual machine, let the host pass it on, for example with `-cpu host`.",
        )
        .command("grep -m1 -ow avx2 /proc/cpuinfo")
        .source("memferry, docs/decisions/software-operations.md"),
    )
}

/// Whether the CPU has HBM on its package.
fn has_hbm(facts: &Facts) -> bool {
    facts.cpu.model.as_ref().is_some_and(|model| model.contains("CPU Max"))
}

pub(super) fn hbm_as_cache(facts: &Facts) -> Option<Problem> {
    let machine = facts.machine.as_ref()?;
    if !has_hbm(facts) || machine.nodes().iter().all(|node| node.side_cache_bytes.is_none()) {
        return None;
    }
    Some(
        Problem::warning(
            "hbm-as-cache",
            "HBM is a cache of DDR, so there is no node to which memferry could copy.",
            "Set 'Memory Hierarchy' to Flat in the BIOS.",
        )
        .command("memferry topology")
        .source("Fürst 2024, 2.5, step 1"),
    )
}

pub(super) fn hbm_as_device(facts: &Facts) -> Option<Problem> {
    if !has_hbm(facts) {
        return None;
    }
    let devices = joined(facts.dax.iter().cloned())?;
    let first = facts.dax.first()?;
    Some(
        Problem::warning(
            "memory-as-device",
            format!("{} memory that the kernel holds as a device instead of a node.", are(&devices)),
            "Make it a node.",
        )
        .command(format!("daxctl reconfigure-device --mode=system-ram {first}"))
        .source("Linux Documentation/ABI/testing/sysfs-bus-dax; daxctl-reconfigure-device(1)"),
    )
}

pub(super) fn memory_not_allowed(facts: &Facts) -> Option<Problem> {
    let machine = facts.machine.as_ref()?;
    let runs_beside = |node: &&Node| {
        let owner = machine.node(node.cpu_node).ok();
        owner.is_some_and(|owner| !owner.allowed_cpus.is_empty())
    };
    let shut = machine.nodes().iter().filter(|node| node.has_memory() && !node.is_allowed);
    let nodes = joined(shut.filter(runs_beside).map(|node| node.id.to_string()))?;
    Some(
        Problem::warning(
            "memory-not-allowed",
            format!("The cpuset refuses this process the memory of node {nodes}, which is beside its CPUs."),
            "Allow the nodes in the cpuset of the container or the service.",
        )
        .command("grep Mems_allowed_list /proc/self/status")
        .source("cpuset(7); vllm-project/vllm 25559"),
    )
}

pub(super) fn numa_balancing(facts: &Facts) -> Option<Problem> {
    let machine = facts.machine.as_ref()?;
    let memories = machine.nodes().iter().filter(|node| node.has_memory()).count();
    if memories < 2 || machine.is_numa_balancing_on() != Some(true) {
        return None;
    }
    Some(
        Problem::warning(
            "numa-balancing",
            "The kernel moves pages between nodes by itself (numa_balancing), also those that memferry placed.",
            "Switch it off while memferry runs.",
        )
        .command("sysctl kernel.numa_balancing=0")
        .source("Linux Documentation/admin-guide/sysctl/kernel.rst; memferry, docs/decisions/preferred-memory.md"),
    )
}

pub(super) fn no_huge_pages(facts: &Facts) -> Option<Problem> {
    if facts.huge_pages.as_deref() != Some("never") {
        return None;
    }
    Some(
        Problem::warning(
            "no-huge-pages",
            "Transparent huge pages are off, so large tables and caches have small pages.",
            "Allow programs to request them.",
        )
        .command("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        .source("memferry, docs/decisions/huge-pages.md; Linux Documentation/admin-guide/mm/transhuge.rst"),
    )
}

const THREADS: &str = "so files are read by threads, which takes more CPU time";

/// Whether a setting or the age of the kernel refuses io_uring.
fn is_io_uring_off(facts: &Facts) -> Option<&'static str> {
    let is_member = facts.io_uring.group.is_some_and(|group| facts.dsa.process.groups.contains(&group));
    match facts.io_uring.disabled {
        Some(2) => return Some("kernel.io_uring_disabled is 2"),
        Some(1) if !is_member && !facts.has_capability(SYS_ADMIN) => {
            return Some("kernel.io_uring_disabled is 1 and this process is not privileged");
        }
        _ => {}
    }
    let is_old = facts.kernel.version.is_some_and(|version| version < IO_URING_SINCE);
    is_old.then_some("the kernel is older than 5.6")
}

pub(super) fn io_uring_disabled(facts: &Facts) -> Option<Problem> {
    let why = is_io_uring_off(facts)?;
    Some(
        Problem::warning(
            "io-uring-disabled",
            format!("io_uring is not available, because {why}, {THREADS}."),
            "Allow io_uring, or join the group of kernel.io_uring_group.",
        )
        .command("sysctl kernel.io_uring_disabled=0")
        .source("Linux Documentation/admin-guide/sysctl/kernel.rst"),
    )
}

pub(super) fn io_uring_filtered(facts: &Facts) -> Option<Problem> {
    if facts.io_uring.works != Some(false) || is_io_uring_off(facts).is_some() {
        return None;
    }
    let who = match facts.container.has_seccomp {
        true => "the seccomp filter of this container or service refuses it",
        false => "the kernel refuses it",
    };
    Some(
        Problem::warning(
            "io-uring-refused",
            format!("io_uring is not available, because {who}, {THREADS}."),
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile.",
        )
        .command("docker run --security-opt seccomp=PROFILE.json ...")
        .source("moby/moby, profiles/seccomp: without io_uring since 2023; io_uring_setup(2)"),
    )
}

pub(super) fn no_fuse(facts: &Facts) -> Option<Problem> {
    if facts.emulation.fuse.is_some() || facts.emulation.is_here {
        return None;
    }
    let (cure, command) = match facts.container.is_here {
        true => ("Start the container with the file.", "docker run --device /dev/fuse ..."),
        false => ("Load the module fuse.", "modprobe fuse"),
    };
    Some(
        Problem::warning("no-fuse", "There is no /dev/fuse, so `memferry emulate` cannot run.", cure)
            .command(command)
            .source("memferry, docs/guides/emulate.md"),
    )
}

pub(super) fn fuse_not_permitted(facts: &Facts) -> Option<Problem> {
    let fuse = facts.emulation.fuse.filter(|_| !facts.emulation.is_here)?;
    let process = &facts.dsa.process;
    let bits = match () {
        () if facts.has_capability(DAC_OVERRIDE) => 6,
        () if process.user == Some(fuse.user) => fuse.mode >> 6,
        () if process.groups.contains(&fuse.group) => fuse.mode >> 3,
        () => fuse.mode,
    };
    if bits & 6 == 6 {
        return None;
    }
    Some(
        Problem::warning(
            "fuse-not-permitted",
            "This user may not open /dev/fuse, so `memferry emulate` cannot run.",
            "Give the file the mode that most distributions give it.",
        )
        .command("chmod 0666 /dev/fuse")
        .source("memferry, docs/guides/emulate.md"),
    )
}

pub(super) fn no_user_namespaces(facts: &Facts) -> Option<Problem> {
    let emulation = &facts.emulation;
    if emulation.is_here || facts.has_capability(SYS_ADMIN) {
        return None;
    }
    let (why, command) = match () {
        () if emulation.unprivileged_user_namespaces == Some(0) => {
            ("they are off for users", "sysctl kernel.unprivileged_userns_clone=1")
        }
        () if emulation.apparmor_restricts == Some(1) => {
            ("AppArmor restricts them", "sysctl kernel.apparmor_restrict_unprivileged_userns=0")
        }
        () if emulation.user_namespaces_max == Some(0) => {
            ("their limit is 0", "sysctl user.max_user_namespaces=15000")
        }
        () => return None,
    };
    Some(
        Problem::warning(
            "no-user-namespaces",
            format!(
                "This user cannot make user namespaces, because {why}, so `memferry emulate` cannot run."
            ),
            "Allow user namespaces, or run `memferry emulate` as root.",
        )
        .command(command)
        .source("memferry, docs/guides/emulate.md"),
    )
}
