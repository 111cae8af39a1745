//! The kernel's calls on pages, each as one function with checked arguments.
//!
//! NUMA calls go through `syscall(2)`: libnuma would be a C library to install for three numbers.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use libc::{c_int, c_long, c_ulong, c_void};

/// x86-64: a page middle directory entry. Advice for smaller mappings would have no effect.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bits in the kernel's node mask; `MAX_NUMNODES` is at most 1 << 10 (CONFIG_NODES_SHIFT).
const NODES_MAX: usize = 1 << 10;

/// Linux `include/uapi/linux/mempolicy.h`.
const MPOL_MF_MOVE: c_int = 1 << 1;

/// Size of a page.
pub(super) fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(answer).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
    })
}

/// Private anonymous memory, readable and writable, without pages yet. From [`HUGE_PAGE_BYTES`] on it is
/// aligned to that and advised to use huge pages. `size_bytes` is a positive multiple of the page size.
pub(super) fn map(size_bytes: usize) -> io::Result<NonNull<u8>> {
    let huge = size_bytes >= HUGE_PAGE_BYTES;
    // One huge page more than needed leaves room to align; the rest is unmapped again.
    let slack_bytes = if huge { HUGE_PAGE_BYTES } else { 0 };
    let mapped_bytes = size_bytes.checked_add(slack_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    if !huge {
        return Ok(mapped);
    }
    let before_bytes = mapped.align_offset(HUGE_PAGE_BYTES);
    // SAFETY: the slack is one huge page, so the aligned start and its `size_bytes` lie inside the mapping;
    // the two ends are this function's own and nobody has seen them.
    unsafe {
        let start = mapped.add(before_bytes);
        unmap(mapped, before_bytes);
        unmap(start.add(size_bytes), slack_bytes - before_bytes);
        // Advice only: a kernel without transparent huge pages answers EINVAL.
        libc::madvise(start.as_ptr().cast(), size_bytes, libc::MADV_HUGEPAGE);
        Ok(start)
    }
}

/// Unmaps.
///
/// # Safety
/// The range came from [`map`] and nobody uses it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, size_bytes: usize) {
    if size_bytes == 0 {
        return;
    }
    // It can fail where splitting a mapping that the kernel had merged exceeds vm.max_map_count. Then the
    // memory stays mapped: there is nobody to tell, and nothing to do better. SAFETY: the caller's.
    let _ = unsafe { libc::munmap(start.as_ptr().cast(), size_bytes) };
}

/// Gives every page of the range memory, as if it were written, without changing its content.
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

/// Takes the pages of the range away; it reads as zero afterwards.
///
/// # Safety
/// The range lies in a mapping of [`map`] and nobody uses its content.
pub(super) unsafe fn discard(start: NonNull<u8>, size_bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's.
    match unsafe { libc::madvise(start.as_ptr().cast(), size_bytes, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets pages that come into the range from now on prefer `node`.
///
/// # Safety
/// The range lies in a mapping of [`map`].
pub(super) unsafe fn prefer(start: NonNull<u8>, size_bytes: usize, node: u32) -> io::Result<()> {
    const WORD_BITS: usize = c_ulong::BITS as usize;
    let node = node as usize;
    if node >= NODES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut mask = [0 as c_ulong; NODES_MAX / WORD_BITS];
    mask[node / WORD_BITS] = 1 << (node % WORD_BITS);
    // The kernel reads one bit fewer than it is told.
    let mask_bits = NODES_MAX + 1;
    // SAFETY: the policy of a mapping is not content, and the mask has the length given with it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start.as_ptr().cast::<c_void>(),
            size_bytes as c_ulong,
            c_long::from(libc::MPOL_PREFERRED),
            mask.as_ptr(),
            mask_bits as c_ulong,
            0 as c_ulong,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node of each page, or the negative error number the kernel has for it. Any address may be asked for.
pub(super) fn nodes_of(pages: &[*const u8]) -> io::Result<Vec<c_int>> {
    // SAFETY: without target nodes the kernel only looks, at any address.
    unsafe { move_pages(pages, ptr::null()) }
}

/// Moves pages to `node`, as far as it has room; how far, [`nodes_of`] tells.
///
/// Where a page lies does not show in the program, so any page of this process may be moved.
pub(super) fn move_to(pages: &[*const u8], node: u32) -> io::Result<()> {
    let node = c_int::try_from(node).map_err(|_| io::ErrorKind::InvalidInput)?;
    let targets = vec![node; pages.len()];
    // SAFETY: there are as many targets as pages, and moving keeps content and addresses.
    unsafe { move_pages(pages, targets.as_ptr()) }.map(drop)
}

/// # Safety
/// `targets` is null or points to one node per page.
unsafe fn move_pages(pages: &[*const u8], targets: *const c_int) -> io::Result<Vec<c_int>> {
    let this_process: c_long = 0;
    let flags = if targets.is_null() { 0 } else { MPOL_MF_MOVE };
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: `pages` and `status` are as long as told; `targets` is the caller's.
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
