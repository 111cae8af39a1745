//! The memory policy and the CPUs of this process, which the executed program inherits.
//!
//! Source: set_mempolicy(2): "A thread memory policy is preserved across an execve(2)"; sched_setaffinity(2).

use std::io;

use libc::{c_int, c_long, c_ulong};

/// Bits of the kernel's node mask: `CONFIG_NODES_SHIFT` is at most 10.
const NODES_MAX: u32 = 1024;
/// MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES, MPOL_F_NUMA_BALANCING: flags in a mode.
const MODE_FLAGS: c_int = 7 << 13;

/// A policy of a process. Linux `include/uapi/linux/mempolicy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessPolicy {
    Interleave = 3,
    /// Linux 6.9.
    WeightedInterleave = 6,
}

/// The kernel's name of the policy of this thread; `None` for the default, and without NUMA.
pub(crate) fn own_policy() -> Option<String> {
    let mut mode: c_int = 0;
    let (nothing, zero) = (std::ptr::null::<c_ulong>(), 0 as c_ulong);
    // SAFETY: it writes one number.
    let answer =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nothing, zero, nothing, zero) };
    (answer == 0).then(|| policy_name(mode & !MODE_FLAGS))?
}

fn policy_name(mode: c_int) -> Option<String> {
    let names = ["preferred", "bind", "interleave", "local", "preferred many", "weighted interleave"];
    match usize::try_from(mode).ok()?.checked_sub(1) {
        None => None,
        Some(index) => {
            Some(names.get(index).map_or(format!("with the number {mode}"), |&name| name.to_owned()))
        }
    }
}

/// Sets the policy of this thread.
pub(crate) fn set_policy(policy: ProcessPolicy, nodes: impl IntoIterator<Item = u32>) -> io::Result<()> {
    let mut mask = [0 as c_ulong; NODES_MAX as usize / 64];
    for node in nodes {
        if node >= NODES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        mask[node as usize / 64] |= 1 << (node % 64);
    }
    // The kernel reads one bit fewer than the given length.
    let bits = c_ulong::from(NODES_MAX) + 1;
    // SAFETY: it reads a mask of the given length.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy as c_long, mask.as_ptr(), bits) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Confines this thread to CPUs.
pub(crate) fn confine(cpus: &[u32]) -> io::Result<()> {
    let words = cpus.iter().max().map_or(1, |&last| last as usize / 64 + 1);
    let mut mask = vec![0u64; words];
    cpus.iter().for_each(|&cpu| mask[cpu as usize / 64] |= 1 << (cpu % 64));
    // SAFETY: it reads so many bytes.
    let answer = unsafe {
        libc::sched_setaffinity(0, size_of_val(mask.as_slice()), mask.as_ptr().cast::<libc::cpu_set_t>())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own: the policy is that of the thread.
    #[test]
    fn a_policy_is_set_and_named() {
        let named = std::thread::spawn(|| {
            let before = own_policy();
            let set = set_policy(ProcessPolicy::Interleave, [0]);
            (before, set.map_err(|error| error.kind()), own_policy())
        });
        let (before, set, after) = named.join().unwrap();
        if set == Err(io::ErrorKind::Unsupported) {
            return memferry_testing::skip(
                memferry_testing::Needs::Kernel("set_mempolicy"),
                "it has no NUMA",
            );
        }
        assert_eq!((before, set, after.as_deref()), (None, Ok(()), Some("interleave")));
        assert!(set_policy(ProcessPolicy::Interleave, [NODES_MAX]).is_err());
        assert_eq!(
            [policy_name(0), policy_name(6), policy_name(99)].map(|name| name.unwrap_or_default()),
            ["", "weighted interleave", "with the number 99"]
        );
    }

    #[test]
    fn a_thread_is_confined() {
        let confined = std::thread::spawn(|| {
            // SAFETY: no preconditions.
            let cpu = unsafe { libc::sched_getcpu() } as u32;
            confine(&[cpu]).unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            (cpu, status)
        });
        let (cpu, status) = confined.join().unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
        assert!(confine(&[100_000]).is_err());
    }
}
