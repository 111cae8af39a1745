//! mmap, mremap and munmap: a queue that is mapped becomes a portal.
//!
//! The mapping is a real one of the queue's file, so that the kernel refuses what it would refuse, but nothing in it
//! can be accessed: a submission traps on processors that have the instructions, too. Children do not inherit it. One
//! that cannot be written, or is private, is no portal, as on silicon.

use std::ffi::c_void;
use std::mem::transmute;

use libc::{c_int, off_t, size_t};
use memferry_dsa_emulator::shared::{IS_OPENERS, QueueAt};

use super::next::Next;
use crate::wiped::{self, Wiped};
use crate::{process, sys, trap};

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, ...) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;

static MMAP: Next = Next::new(c"mmap");
static MREMAP: Next = Next::new(c"mremap");
static MUNMAP: Next = Next::new(c"munmap");

/// Looks up what comes next, before threads could ask at the same time.
pub(super) fn prepare() {
    [&MMAP, &MREMAP, &MUNMAP].iter().for_each(|next| _ = next.address());
}

/// A portal's size; the driver maps no more.
const PAGE: size_t = 4096;

/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: passed on, without touching pages of a portal that is going to be none of memory.
    let next = |flags| unsafe { next_mmap(address, length, protection, flags, file, offset) };
    let is_replacing = flags & libc::MAP_FIXED != 0;
    if (file < 0 || flags & libc::MAP_ANONYMOUS != 0) && !is_replacing {
        return next(flags);
    }
    if !process::is_active() {
        return next(flags);
    }
    let Some(wiped) = wiped::get() else { return next(flags) };
    let Some(at) = queue_of(flags, file) else {
        let mapped = next(flags);
        if is_replacing && mapped != libc::MAP_FAILED {
            wiped.portals.remove(mapped as u64, length as u64);
        }
        return mapped;
    };
    if length > PAGE {
        return fail(libc::EINVAL);
    }
    if !may_map() || !is_openers(file) {
        return fail(libc::EPERM);
    }
    let mapped = next(flags & !libc::MAP_POPULATE);
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    if flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
        process::complain(
            "a queue is mapped with MAP_PRIVATE: what is submitted there goes to a copy of the page and never to the \
            device; use MAP_SHARED",
        );
        wiped.portals.remove(mapped as u64, PAGE as u64);
        return make_private(mapped, protection);
    }
    if !open_portal(wiped, mapped as usize, at, protection) {
        // SAFETY: the mapping was made above, and nobody knows it.
        unsafe { sys::munmap(mapped as usize, PAGE) };
        return fail(libc::ENOMEM);
    }
    // The program may have set handlers past the hooks: by system calls of its own, or from inside libc.
    trap::install();
    mapped
}

/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: they are the same on x86-64.
    unsafe { mmap(address, length, protection, flags, file, offset) }
}

/// # Safety
/// As munmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    // Before: the address may be another mapping's as soon as it is free. What is not aligned is refused.
    if (address as usize).is_multiple_of(PAGE)
        && let Some(wiped) = wiped::get()
    {
        wiped.portals.remove(address as u64, length as u64);
    }
    match MUNMAP.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Munmap>(next)(address, length) },
        // SAFETY: passed on.
        None => answer(unsafe { sys::munmap(address as usize, length) }) as c_int,
    }
}

/// # Safety
/// As mremap(2). The last argument is there only if the flags say so, and not looked at otherwise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    length: size_t,
    new_length: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let moved = match MREMAP.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Mremap>(next)(address, length, new_length, flags, target) },
        None => {
            let arguments = [address as usize, length, new_length, flags as usize, target as usize, 0];
            // SAFETY: passed on.
            answer(unsafe { sys::call(libc::SYS_mremap, arguments) }) as *mut c_void
        }
    };
    if moved != libc::MAP_FAILED
        && moved != address
        && let Some(wiped) = wiped::get()
    {
        let at = wiped.portals.find(address as u64);
        wiped.portals.remove(moved as u64, new_length as u64);
        wiped.portals.remove(address as u64, length as u64);
        // The place that has just become free is there for it.
        let _ = at.is_none_or(|at| wiped.portals.add(moved as u64, at));
    }
    moved
}

/// # Safety
/// As mmap(2).
unsafe fn next_mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    match MMAP.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe {
            transmute::<usize, Mmap>(next)(address, length, protection, flags, file, offset)
        },
        None => {
            // SAFETY: passed on.
            let mapped =
                unsafe { sys::mmap(address as usize, length, protection, flags, file, offset as usize) };
            answer(mapped) as *mut c_void
        }
    }
}

/// Whose file it is, if it is a queue's.
fn queue_of(flags: c_int, file: c_int) -> Option<QueueAt> {
    if file < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let (device, inode) = sys::identity(file)?;
    process::connected()?.devices().queue_of(device, inode)
}

/// The driver maps queues only for those who may access hardware as they like.
///
/// Source: `idxd_cdev_mmap` in Linux' `drivers/dma/idxd/cdev.c`.
fn may_map() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_RAWIO: u32 = 17;
    let header = [VERSION_3, 0]; // of this thread
    let mut sets = [[0u32; 3]; 2]; // effective, permitted, inheritable; low and high
    // SAFETY: capget reads the header and writes the two sets.
    let answer = unsafe {
        sys::call(libc::SYS_capget, [&raw const header as usize, &raw mut sets as usize, 0, 0, 0, 0])
    };
    answer == 0 && sets[0][0] >> SYS_RAWIO & 1 == 1
}

/// Whether this process has opened the file itself: the driver knows the address space of who did, and no other's.
///
/// Source: `idxd_cdev_mmap`, since 2025. Before, a submission by another process ended it.
fn is_openers(file: c_int) -> bool {
    // SAFETY: the request has no argument. Only the emulated driver's files answer so.
    let answer = unsafe { sys::call(libc::SYS_ioctl, [file as usize, IS_OPENERS as usize, 0, 0, 0, 0]) };
    answer != -(libc::EPERM as isize)
}

fn open_portal(wiped: &Wiped, page: usize, at: QueueAt, protection: c_int) -> bool {
    // What was a portal here and was unmapped past the hook is none any more.
    wiped.portals.remove(page as u64, PAGE as u64);
    let is_portal = protection & libc::PROT_WRITE != 0;
    // SAFETY: a mapping that was just made, and that nobody knows.
    (unsafe { sys::mprotect(page, PAGE, libc::PROT_NONE) })
        && sys::madvise(page, PAGE, libc::MADV_DONTFORK)
        && (!is_portal || wiped.start(at.device) && wiped.portals.add(page as u64, at))
}

/// The first store to a private mapping of a device gives it a page of memory in the device's place.
///
/// Source: `remap_pfn_range` and `do_wp_page` in Linux' `mm/memory.c`.
fn make_private(page: *mut c_void, protection: c_int) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: it replaces a mapping that was just made, and that nobody knows.
    answer(unsafe { sys::mmap(page as usize, PAGE, protection, flags, -1, 0) }) as *mut c_void
}

fn fail(error: c_int) -> *mut c_void {
    answer(-(error as isize)) as *mut c_void
}

/// What libc makes of a system call's answer.
fn answer(answer: isize) -> isize {
    if (-4095..0).contains(&answer) {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = -answer as c_int };
        return -1;
    }
    answer
}
