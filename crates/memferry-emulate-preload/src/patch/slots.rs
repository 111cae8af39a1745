//! Memory for trampolines: pages in reach of a jump from the sites, divided into slots.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys;

/// Bytes of a trampoline.
pub(super) const SLOT_BYTES: u64 = 64;
const PAGE: u64 = 4096;
/// Most pages for trampolines. A program with code all over its address space needs one for each 2 GiB.
const PAGES_MAX: usize = 64;
/// Reach of a jump, less a margin for the positions of slot and site.
const REACH: u64 = (1 << 31) - (1 << 20);
/// Distance of two tries to find room: most code is in mappings of some MiB.
const STRIDE: u64 = 1 << 20;

/// Addresses of the pages; 0 from the first unused entry on. Written by [`allocate`], read by handlers in [`slot_of`].
static PAGES: [AtomicU64; PAGES_MAX] = [const { AtomicU64::new(0) }; PAGES_MAX];
/// Used slots of each page. Read and written by [`allocate`] alone.
static USED: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];

/// Allocates a slot in reach of a site. The caller holds `is_patching`.
pub(super) fn allocate(site: u64) -> Option<u64> {
    for (page, used) in PAGES.iter().zip(&USED) {
        let mut address = page.load(Ordering::Relaxed);
        if address == 0 {
            address = map_near(site)?;
            // ORDERING: Release pairs with the Acquire in `slot_of`: the page is mapped.
            page.store(address, Ordering::Release);
        }
        let number = used.load(Ordering::Relaxed) as u64;
        if address.abs_diff(site) < REACH && number < PAGE / SLOT_BYTES {
            used.store(number as usize + 1, Ordering::Relaxed);
            return Some(address + number * SLOT_BYTES);
        }
    }
    None
}

/// Returns the slot of an address, if it is in one of the pages.
pub(super) fn slot_of(address: u64) -> Option<u64> {
    let page = address & !(PAGE - 1);
    // ORDERING: Acquire pairs with the Release in `allocate`: the page is mapped.
    let mut pages = PAGES.iter().map(|page| page.load(Ordering::Acquire)).take_while(|page| *page != 0);
    pages.any(|known| known == page).then_some(address & !(SLOT_BYTES - 1))
}

/// Maps an executable page that is not writable, as near to the site as possible.
fn map_near(site: u64) -> Option<u64> {
    let start = site & !(STRIDE - 1);
    let steps = (1..REACH / STRIDE).flat_map(|step| {
        // Below first: a heap grows behind the program, and libraries are mapped downwards.
        [start.checked_sub(step * STRIDE), start.checked_add(step * STRIDE)]
    });
    steps.flatten().filter(|address| *address >= STRIDE).find(|address| map_at(*address))
}

fn map_at(address: u64) -> bool {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces none.
    let mapped = unsafe { sys::mmap(address as usize, PAGE as usize, protection, flags, -1, 0) };
    if mapped > 0 && mapped as u64 != address {
        // A kernel that does not know MAP_FIXED_NOREPLACE takes the address for a hint.
        // SAFETY: the mapping was just made.
        unsafe { sys::munmap(mapped as usize, PAGE as usize) };
    }
    mapped as u64 == address
}
