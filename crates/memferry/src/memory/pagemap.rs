//! The populated pages of an address range, with their sizes.
//!
//! A query for each page costs as much for missing pages, and a range may have many more addresses than a machine has
//! memory. This scan skips empty parts.
//!
//! Source: `Documentation/admin-guide/mm/pagemap.rst`, "PAGEMAP_SCAN"; `pagemap_thp_category` in Linux
//! fs/proc/task_mmu.c.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 16, struct pm_scan_arg)`, Linux 6.7.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// Swapped out, or, more often, in migration: the entries are alike.
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// Read, and never written: the zero page.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// A whole entry of the page middle directory is one page.
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg` in Linux include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// End of the scanned part.
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArgument>() == 0x60);

/// `struct page_region`.
#[repr(C)]
#[derive(Copy, Clone, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Contiguous pages, all huge or all small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) addresses: Range<usize>,
    pub(super) is_huge: bool,
}

/// The pages in a page-aligned range of addresses, ascending, including those that are not in memory now. Fails before
/// Linux 6.7.
pub(super) fn scan(addresses: Range<usize>) -> io::Result<Vec<Run>> {
    // Opened for each scan: an inherited file would show the parent's pages after a fork.
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut runs = Vec::new();
    let mut start = addresses.start as u64;
    while start < addresses.end as u64 {
        let mut regions = [Region::default(); 256];
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start,
            end: addresses.end as u64,
            vec: regions.as_mut_ptr().addr() as u64,
            vec_len: regions.len() as u64,
            category_inverted: PAGE_IS_PFNZERO,
            category_mask: PAGE_IS_PFNZERO,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_HUGE,
            ..ScanArgument::default()
        };
        regions.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel reads and writes the argument, which has the size it says, and writes as many regions as
        // there are; of the pages it only looks at their entries.
        let answer = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        let Ok(count) = usize::try_from(answer) else { return Err(io::Error::last_os_error()) };
        runs.extend(regions[..count.min(regions.len())].iter().map(|region| Run {
            addresses: region.start as usize..region.end as usize,
            is_huge: region.categories & PAGE_IS_HUGE != 0,
        }));
        if argument.walk_end <= start {
            return Err(io::ErrorKind::InvalidData.into());
        }
        start = argument.walk_end;
    }
    Ok(runs)
}
