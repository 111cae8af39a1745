//! System calls on pages, each as one function with checked arguments.
//!
//! NUMA calls go through `syscall(2)`, which avoids the C library libnuma for three numbers.

use std::io;
use std::ops::ControlFlow;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use libc::{c_int, c_long, c_ulong, c_void};

use crate::topology::{NodeId, NodeSet};

/// x86-64: a page middle directory entry. Advice for smaller mappings would have no effect.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bits in the kernel's node mask; `MAX_NUMNODES` is at most 1 << 10 (CONFIG_NODES_SHIFT).
const NODES_MAX: usize = 1 << 10;

/// The kernel reads one bit fewer than the given length.
const MASK_BITS: usize = NODES_MAX + 1;
const WORD_BITS: usize = c_ulong::BITS as usize;
type Mask = [c_ulong; NODES_MAX / WORD_BITS];

/// Linux `include/uapi/linux/mempolicy.h`.
const MPOL_MF_MOVE: c_int = 1 << 1;
const MPOL_F_MEMS_ALLOWED: c_int = 1 << 2;
/// MPOL_F_STATIC_NODES, MPOL_F_RELATIVE_NODES, MPOL_F_NUMA_BALANCING: flags in a mode.
const MPOL_MODE_FLAGS: c_int = 7 << 13;

/// Size of a page.
pub(crate) fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(answer).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
    })
}

/// Maps private anonymous memory without pages, inaccessible before [`allow_access`].
///
/// From [`HUGE_PAGE_BYTES`] on it is aligned to that. `advice` about huge pages is MADV_HUGEPAGE or MADV_NOHUGEPAGE.
/// `size_bytes` is a positive multiple of the page size.
pub(super) fn map(size_bytes: usize, advice: Option<c_int>) -> io::Result<NonNull<u8>> {
    let huge = size_bytes >= HUGE_PAGE_BYTES;
    // One huge page more than needed leaves room to align; the rest is unmapped again.
    let slack_bytes = if huge { HUGE_PAGE_BYTES } else { 0 };
    let mapped_bytes = size_bytes.checked_add(slack_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    if !huge {
        if advice == Some(libc::MADV_NOHUGEPAGE) {
            // The kernel may join neighbouring mappings into one that is large enough. Advice only, as below.
            // SAFETY: advice about huge pages changes no content.
            unsafe { libc::madvise(mapped.as_ptr().cast(), size_bytes, libc::MADV_NOHUGEPAGE) };
        }
        return Ok(mapped);
    }
    let before_bytes = mapped.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: the slack is one huge page, so the aligned start and its `size_bytes` lie inside the mapping;
    // the two ends are this function's own and nobody has seen them.
    unsafe {
        let start = mapped.add(before_bytes);
        unmap(mapped, before_bytes);
        unmap(start.add(size_bytes), slack_bytes - before_bytes);
        if let Some(advice) = advice {
            // Advice only: a kernel without transparent huge pages answers EINVAL.
            libc::madvise(start.as_ptr().cast(), size_bytes, advice);
        }
        Ok(start)
    }
}

/// Whether the mapping is locked, by mlockall(MCL_FUTURE).
///
/// # Safety
/// The range came from [`map`], and has no pages yet.
pub(super) unsafe fn is_locked(start: NonNull<u8>, size_bytes: usize) -> bool {
    // The kernel refuses to drop locked pages with this error; otherwise there is nothing to drop. SAFETY: the caller's.
    let answer = unsafe { libc::madvise(start.as_ptr().cast(), size_bytes, libc::MADV_DONTNEED) };
    answer != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Locks pages when they are populated, without populating them.
///
/// # Safety
/// The range came from [`map`].
pub(super) unsafe fn lock_as_pages_come(start: NonNull<u8>, size_bytes: usize) -> io::Result<()> {
    // SAFETY: locking changes no content, and the caller says that the range is mapped.
    done(unsafe { libc::mlock2(start.as_ptr().cast(), size_bytes, libc::MLOCK_ONFAULT as _) })
}

/// Makes the range readable and writable.
///
/// # Safety
/// The range came from [`map`].
pub(super) unsafe fn allow_access(start: NonNull<u8>, size_bytes: usize) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's.
    done(unsafe { libc::mprotect(start.as_ptr().cast(), size_bytes, protection) })
}

fn done(answer: c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Unmaps the range.
///
/// # Safety
/// The range came from [`map`] and nobody uses it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, size_bytes: usize) {
    if size_bytes == 0 {
        return;
    }
    // It can fail if splitting a mapping that the kernel had merged exceeds vm.max_map_count. Then the memory stays
    // mapped: a drop cannot report it. SAFETY: the caller's.
    let _ = unsafe { libc::munmap(start.as_ptr().cast(), size_bytes) };
}

/// Populates every page of the range, as if it were written, without changing its content.
///
/// # Safety
/// The range lies in a mapping of [`map`], and nobody writes to it meanwhile.
pub(super) unsafe fn populate(start: NonNull<u8>, size_bytes: usize) -> io::Result<()> {
    // SAFETY: populating keeps content, and the caller says that the range is mapped.
    let answer = unsafe { libc::madvise(start.as_ptr().cast(), size_bytes, libc::MADV_POPULATE_WRITE) };
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Err(error);
    }
    // Before Linux 5.14.
    for offset in (0..size_bytes).step_by(page_bytes()) {
        // SAFETY: inside the range, which is mapped and not written by others.
        unsafe {
            let byte = start.add(offset).as_ptr();
            byte.write_volatile(byte.read_volatile());
        }
    }
    Ok(())
}

/// Frees the pages of the range; it reads as zero afterwards.
///
/// # Safety
/// The range lies in a mapping of [`map`] and nobody uses its content.
pub(super) unsafe fn discard(start: NonNull<u8>, size_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's.
    let advise = |advice| done(unsafe { libc::madvise(start.as_ptr().cast(), size_bytes, advice) });
    match advise(libc::MADV_DONTNEED) {
        // Locked pages; before Linux 5.18 they stay.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => advise(libc::MADV_DONTNEED_LOCKED),
        answer => answer,
    }
}

/// Policies by which the kernel chooses nodes for new pages. None is strict; MPOL_BIND is left out on purpose.
///
/// Linux `include/uapi/linux/mempolicy.h`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// The policy of the thread.
    Default = 0,
    Preferred = 1,
    Interleave = 3,
    /// Linux 5.15.
    PreferredMany = 5,
    /// Linux 6.9.
    WeightedInterleave = 6,
}

/// Sets the policy for later pages of the range; existing pages stay.
///
/// # Safety
/// The range lies in a mapping of [`map`].
pub(super) unsafe fn set_policy(
    start: NonNull<u8>,
    size_bytes: usize,
    policy: Policy,
    nodes: &NodeSet,
) -> io::Result<()> {
    let mut mask: Mask = [0; NODES_MAX / WORD_BITS];
    for node in nodes.iter().map(|node| node.0 as usize) {
        if node >= NODES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
    }
    // SAFETY: the policy of a mapping is not content, and the mask has the length given with it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.as_ptr().cast::<c_void>(),
            size_bytes as c_ulong,
            policy as c_long,
            mask.as_ptr(),
            MASK_BITS as c_ulong,
            0 as c_ulong,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The nodes that this thread may take memory from (its cpuset).
pub(super) fn allowed_nodes() -> io::Result<NodeSet> {
    get_policy(MPOL_F_MEMS_ALLOWED).map(|(_, nodes)| nodes)
}

/// The nodes of this thread's own policy, if it is strict (`numactl --membind`).
pub(super) fn strictly_bound_nodes() -> io::Result<Option<NodeSet>> {
    let (mode, nodes) = get_policy(0)?;
    Ok((mode & !MPOL_MODE_FLAGS == libc::MPOL_BIND).then_some(nodes))
}

fn get_policy(flags: c_int) -> io::Result<(c_int, NodeSet)> {
    let mut mode: c_int = 0;
    let mut mask: Mask = [0; NODES_MAX / WORD_BITS];
    // The kernel does not return the mode along with the allowed nodes.
    let mode_or_null = if flags == 0 { &raw mut mode } else { ptr::null_mut() };
    // SAFETY: the kernel writes one number and a mask of the length given with it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            mode_or_null,
            mask.as_mut_ptr(),
            MASK_BITS as c_ulong,
            ptr::null::<c_void>(),
            c_long::from(flags),
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_set = |node: &usize| mask[node / WORD_BITS] >> (node % WORD_BITS) & 1 == 1;
    Ok((mode, (0..NODES_MAX).filter(is_set).map(|node| NodeId(node as u32)).collect()))
}

/// The CPU that this thread runs on.
pub(super) fn current_cpu() -> Option<u32> {
    // SAFETY: no preconditions.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The node of each page, or the kernel's negative error number. Any address is valid.
pub(super) fn nodes_of(pages: impl IntoIterator<Item = *const u8>) -> io::Result<Vec<i16>> {
    let mut nodes = Vec::new();
    in_batches(pages, |batch: &[*const u8]| {
        // SAFETY: without target nodes the kernel only queries, at any address.
        let status = unsafe { move_pages(batch, ptr::null()) }?;
        // Nodes are below NODES_MAX and error numbers below 4096.
        nodes.extend(status.into_iter().map(|status| i16::try_from(status).unwrap_or(i16::MIN)));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(nodes)
}

/// Moves pages, each to its node. [`nodes_of`] shows the result: the kernel stops at the first pages that it cannot move,
/// and at a full node.
///
/// The node of a page is invisible to the program, so any page of this process may be moved.
pub(super) fn move_to(targets: impl IntoIterator<Item = (*const u8, NodeId)>) -> io::Result<()> {
    in_batches(targets, |batch: &[(*const u8, NodeId)]| {
        let pages: Vec<_> = batch.iter().map(|&(page, _)| page).collect();
        let nodes: Result<Vec<_>, _> = batch.iter().map(|&(_, node)| c_int::try_from(node.0)).collect();
        let nodes = nodes.map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: there are as many targets as pages, and moving keeps content and addresses.
        match unsafe { move_pages(&pages, nodes.as_ptr()) } {
            // Migration allocates on the target node only, and without the OOM killer: this error means full.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(ControlFlow::Break(())),
            answer => answer.map(|_| ControlFlow::Continue(())),
        }
    })
}

/// Calls with batches of items, so that arrays for the kernel stay small.
fn in_batches<T>(
    items: impl IntoIterator<Item = T>,
    mut call: impl FnMut(&[T]) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    /// 256 MiB of pages: half a MiB of addresses.
    const BATCH: usize = 1 << 16;
    let mut items = items.into_iter();
    loop {
        let batch: Vec<T> = items.by_ref().take(BATCH).collect();
        if batch.is_empty() || call(&batch)?.is_break() {
            return Ok(());
        }
    }
}

/// The kernel's answer for each page.
///
/// # Safety
/// `targets` is null or points to one node per page.
unsafe fn move_pages(pages: &[*const u8], targets: *const c_int) -> io::Result<Vec<c_int>> {
    let this_process: c_long = 0;
    let flags = if targets.is_null() { 0 } else { MPOL_MF_MOVE };
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: `pages` and `status` have the given length; `targets` is the caller's.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            this_process,
            pages.len() as c_ulong,
            pages.as_ptr(),
            targets,
            status.as_mut_ptr(),
            c_long::from(flags),
        )
    };
    // A positive answer counts the pages that could not be moved.
    if answer >= 0 { Ok(status) } else { Err(io::Error::last_os_error()) }
}
