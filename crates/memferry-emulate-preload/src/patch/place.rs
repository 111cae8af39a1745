//! Room for trampolines: pages within the reach of a jump from the sites.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys;

/// Bytes of a trampoline.
pub(super) const PLACE: u64 = 64;
const PAGE: u64 = 4096;
/// Pages for trampolines. A program with code all over its address space needs one for each 2 GiB.
const PAGES_MAX: usize = 64;
/// How far a jump reaches, less what lies around both ends.
const REACH: u64 = (1 << 31) - (1 << 20);
/// Between two tries to find room: most code is in mappings of some MiB.
const STRIDE: u64 = 1 << 20;

static PAGES: [AtomicU64; PAGES_MAX] = [const { AtomicU64::new(0) }; PAGES_MAX];
/// Places that are taken of each page.
static TAKEN: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];

/// A new place within reach of a site. The caller has the lock of who patches.
pub(super) fn near(site: u64) -> Option<u64> {
    for (page, taken) in PAGES.iter().zip(&TAKEN) {
        let mut address = page.load(Ordering::Relaxed);
        if address == 0 {
            address = map_near(site)?;
            // ORDERING: Release pairs with the Acquire in `of`.
            page.store(address, Ordering::Release);
        }
        let number = taken.load(Ordering::Relaxed) as u64;
        if address.abs_diff(site) < REACH && number < PAGE / PLACE {
            taken.store(number as usize + 1, Ordering::Relaxed);
            return Some(address + number * PLACE);
        }
    }
    None
}

/// The place that an address lies in, if it is one of these pages.
pub(super) fn of(address: u64) -> Option<u64> {
    let page = address & !(PAGE - 1);
    let mut pages = PAGES.iter().map(|page| page.load(Ordering::Acquire)).take_while(|page| *page != 0);
    pages.any(|known| known == page).then_some(address & !(PLACE - 1))
}

/// Maps a page that can be executed, and not written, as near as there is room.
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
    // SAFETY: a new mapping, which replaces nothing.
    let mapped = unsafe { sys::mmap(address as usize, PAGE as usize, protection, flags, -1, 0) };
    if mapped > 0 && mapped as u64 != address {
        // A kernel that does not know MAP_FIXED_NOREPLACE took it for a hint.
        // SAFETY: the mapping was just made.
        unsafe { sys::munmap(mapped as usize, PAGE as usize) };
    }
    mapped as u64 == address
}
