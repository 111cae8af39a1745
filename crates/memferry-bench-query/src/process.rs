//! The memory of this process, as the kernel counts it.

use std::fs;

use crate::QueryError;

/// A size in `/proc/self/status`, in bytes: `VmRSS` is the resident memory, `VmHWM` its peak. Source: proc_pid_status(5).
///
/// # Errors
/// [`QueryError::Invalid`]: the kernel does not report it.
pub(crate) fn status_bytes(field: &str) -> Result<u64, QueryError> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    let missing = || QueryError::Invalid(format!("/proc/self/status has no {field}; is this Linux?"));
    Ok(kib.ok_or_else(missing)? * 1024)
}
