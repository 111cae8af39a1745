//! The checks: each looks at the facts for one problem.
//!
//! A problem hinders something that memferry does on this machine. A machine without a DSA is healthy. A check is silent
//! if the cause of its symptom is the problem of another check: one cause, one diagnosis.
//!
//! The checks come from reports of users; `source` names the report, as `intel/idxd-config 5` an issue on GitHub.

mod device;
mod host;
mod pasid;
mod queue;

use serde::Serialize;

use super::facts::Facts;

/// How bad a problem is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Something works less well, or in another way.
    Warning,
    /// A device that this machine has cannot be used, or memferry cannot read the machine.
    Error,
}

/// A diagnosis: a sentence for the cause and one for the cure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Problem {
    /// Its name, which stays the same between releases.
    pub(crate) name: &'static str,
    pub(crate) severity: Severity,
    pub(crate) cause: String,
    pub(crate) cure: String,
    /// The command that cures it; for settings of the BIOS and the host, the one that shows whether it is cured.
    pub(crate) command: String,
    pub(crate) source: &'static str,
}

impl Problem {
    fn error(name: &'static str, cause: impl Into<String>, cure: impl Into<String>) -> Problem {
        let (cause, cure) = (cause.into(), cure.into());
        Problem { name, severity: Severity::Error, cause, cure, command: String::new(), source: "" }
    }

    fn warning(name: &'static str, cause: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(name, cause, cure) }
    }

    fn command(self, command: impl Into<String>) -> Problem {
        Problem { command: command.into(), ..self }
    }

    fn source(self, source: &'static str) -> Problem {
        Problem { source, ..self }
    }
}

type Check = fn(&Facts) -> Option<Problem>;

/// All checks, from the hardware to the process.
const CHECKS: &[Check] = &[
    host::unreadable,
    device::on_another_driver,
    device::kernel_without_driver,
    device::driver_not_loaded,
    device::not_bound,
    pasid::no_shared_addresses,
    device::halted,
    device::refused,
    device::disabled,
    device::nothing_configured,
    device::unreported_error,
    queue::of_the_kernel,
    queue::without_name,
    queue::of_another_driver,
    queue::refused,
    queue::disabled,
    queue::without_engine,
    queue::without_threshold,
    queue::without_move,
    queue::not_in_container,
    queue::without_file,
    queue::without_permission,
    queue::in_use,
    queue::failing,
    queue::on_another_node,
    queue::not_mappable,
    queue::without_instruction,
    queue::without_wait,
    host::without_avx2,
    host::hbm_as_cache,
    host::hbm_as_device,
    host::memory_not_allowed,
    host::numa_balancing,
    host::no_huge_pages,
    host::io_uring_disabled,
    host::io_uring_filtered,
    host::no_fuse,
    host::fuse_not_permitted,
    host::no_user_namespaces,
];

/// The problems of a machine, worst first.
pub(crate) fn problems(facts: &Facts) -> Vec<Problem> {
    let mut problems: Vec<Problem> = CHECKS.iter().filter_map(|check| check(facts)).collect();
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    problems
}
