//! Hooks of mmap, mremap and munmap: a mapping of a queue becomes a portal.
//!
//! ```text
//! the program   mmap(MAP_SHARED, PROT_WRITE)      the kernel alone refuses it: ENODEV
//! the hook      mmap(MAP_PRIVATE, PROT_NONE)      what it requests in its place, of a page beyond the end
//! ```
//!
//! The hook really maps the file: the kernel makes its checks, and the queue has a user as long as it is mapped.
//! The page has no access rights, so a submission traps also on processors that have the instructions. Children do not
//! inherit the page. A mapping that is private or not writable is not a portal, as on silicon.
//!
//! A queue that cannot be mapped answers EPERM, after which programs with a path by `write(2)` use that path.

use std::ffi::c_void;
use std::mem::transmute;

use libc::{c_int, off_t, size_t};
use memferry_dsa_emulator::shared::{IS_OPENERS, QueueAt};

use super::next::Next;
use crate::fork_local::{self, ForkLocal};
use crate::{process, sys, trap};

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, ...) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;

static MMAP: Next = Next::new(c"mmap");
static MREMAP: Next = Next::new(c"mremap");
static MUNMAP: Next = Next::new(c"munmap");

/// See [`super::prepare`].
pub(super) fn prepare() {
    [&MMAP, &MREMAP, &MUNMAP].iter().for_each(|next| _ = next.address());
}

/// Size of a portal. The driver refuses larger mappings.
const PAGE: size_t = 4096;
/// Offset of the page that stands for a portal. The file ends before it, so an access ends in SIGBUS and not in a page of
/// the program if the program gives itself rights by mprotect(2).
const BEYOND_END: off_t = PAGE as off_t;

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
    // SAFETY: the caller's contract is that of mmap(2). Calls below change it to fewer rights, to a private mapping of
    // another page and to no MAP_POPULATE, which the contract allows for the same address and length.
    let next_at =
        |protection, flags, offset| unsafe { next_mmap(address, length, protection, flags, file, offset) };
    let next = |protection, flags| next_at(protection, flags, offset);
    let pass_on = || {
        let mapped = next(protection, flags);
        if mapped == libc::MAP_FAILED && errno() == libc::ENODEV && is_queue(file) {
            fail(libc::EPERM)
        } else {
            mapped
        }
    };
    let is_replacing = flags & libc::MAP_FIXED != 0;
    if (file < 0 || flags & libc::MAP_ANONYMOUS != 0) && !is_replacing {
        return next(protection, flags);
    }
    if !process::is_active() {
        return pass_on();
    }
    let Some(local) = fork_local::get() else { return pass_on() };
    let Some(at) = queue_of(flags, file) else {
        let mapped = pass_on();
        if is_replacing && mapped != libc::MAP_FAILED {
            local.portals.remove(mapped as u64, length as u64);
        }
        return mapped;
    };
    if length > PAGE {
        return fail(libc::EINVAL);
    }
    if !may_map() || !is_openers(file) {
        return fail(libc::EPERM);
    }
    let kind = flags & libc::MAP_TYPE;
    if kind == libc::MAP_PRIVATE {
        let mapped = next(protection, flags & !libc::MAP_POPULATE);
        if mapped == libc::MAP_FAILED {
            return mapped;
        }
        process::warn(
            "a queue is mapped with MAP_PRIVATE: submissions go to a copy of the page and never to the device; use \
            MAP_SHARED",
        );
        local.portals.remove(mapped as u64, PAGE as u64);
        return make_private(mapped, protection);
    }
    if kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE || offset % PAGE as off_t != 0 {
        return fail(libc::EINVAL);
    }
    let is_portal = protection & libc::PROT_WRITE != 0;
    if is_portal && !is_writable(file) {
        return fail(libc::EACCES);
    }
    let flags = flags & !(libc::MAP_TYPE | libc::MAP_POPULATE) | libc::MAP_PRIVATE;
    let mapped = next_at(libc::PROT_NONE, flags, BEYOND_END);
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    if !open_portal(local, mapped as usize, at, is_portal) {
        // SAFETY: the mapping was made above, and its address was not returned yet.
        unsafe { sys::munmap(mapped as usize, PAGE) };
        return fail(libc::EPERM);
    }
    // The program may have set handlers without calling the hooks: by a system call, or inside libc.
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
    // SAFETY: the two functions are the same on x86-64.
    unsafe { mmap(address, length, protection, flags, file, offset) }
}

/// # Safety
/// As munmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    // Before the call: another thread may map something at the address as soon as it is free. The kernel refuses
    // unaligned addresses.
    if (address as usize).is_multiple_of(PAGE)
        && let Some(local) = fork_local::get()
    {
        local.portals.remove(address as u64, length as u64);
    }
    match MUNMAP.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Munmap>(next)(address, length) },
        // SAFETY: passed on.
        None => sys::to_libc(unsafe { sys::munmap(address as usize, length) }) as c_int,
    }
}

/// # Safety
/// As mremap(2). The caller passes the last argument only with MREMAP_FIXED; it is not used otherwise.
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
            sys::to_libc(unsafe { sys::call(libc::SYS_mremap, arguments) }) as *mut c_void
        }
    };
    if moved != libc::MAP_FAILED
        && moved != address
        && let Some(local) = fork_local::get()
    {
        let at = local.portals.find(address as u64);
        local.portals.remove(moved as u64, new_length as u64);
        local.portals.remove(address as u64, length as u64);
        // It fits: a slot has just become free.
        let _ = at.is_none_or(|at| local.portals.add(moved as u64, at));
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
            sys::to_libc(mapped) as *mut c_void
        }
    }
}

/// Returns the queue that a file belongs to.
fn queue_of(flags: c_int, file: c_int) -> Option<QueueAt> {
    if file < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    let (device, inode) = sys::identity(file)?;
    process::connected()?.devices().queue_of(device, inode)
}

/// Whether this thread has CAP_SYS_RAWIO, which the driver requires for mapping a queue.
///
/// Source: `idxd_cdev_mmap` in Linux' `drivers/dma/idxd/cdev.c`.
fn may_map() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_RAWIO: u32 = 17;
    let header = [VERSION_3, 0]; // of this thread
    let mut sets = [[0u32; 3]; 2]; // effective, permitted, inheritable; low and high
    // SAFETY: capget(2) reads the header and writes the two sets.
    let answer = unsafe {
        sys::call(libc::SYS_capget, [&raw const header as usize, &raw mut sets as usize, 0, 0, 0, 0])
    };
    answer == 0 && sets[0][0] >> SYS_RAWIO & 1 == 1
}

/// Whether this process has opened the file itself. The driver refuses to map an inherited file, because the device
/// would use the address space of the opener.
///
/// Source: `idxd_cdev_mmap` since 2025. Before, a submission by another process killed that process.
fn is_openers(file: c_int) -> bool {
    ask_opener(file) != -(libc::EPERM as isize)
}

/// Whether a file is a queue of an emulated driver, also in a process that has no connection to the devices.
fn is_queue(file: c_int) -> bool {
    let answer = ask_opener(file);
    answer == 0 || answer == -(libc::EPERM as isize)
}

/// The answer of the driver whether this process has opened the file: 0, -EPERM, or another error for other files.
fn ask_opener(file: c_int) -> isize {
    // SAFETY: the request has no argument. Only files of the emulated driver know it.
    unsafe { sys::call(libc::SYS_ioctl, [file as usize, IS_OPENERS as usize, 0, 0, 0, 0]) }
}

/// Whether a file is open for writing, which the kernel requires for a shared writable mapping.
fn is_writable(file: c_int) -> bool {
    // SAFETY: the request has no argument.
    let flags = unsafe { sys::call(libc::SYS_fcntl, [file as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags >= 0 && flags as c_int & libc::O_ACCMODE != libc::O_RDONLY
}

fn open_portal(local: &ForkLocal, page: usize, at: QueueAt, is_portal: bool) -> bool {
    // The program may have unmapped an earlier portal here by a system call of its own.
    local.portals.remove(page as u64, PAGE as u64);
    sys::madvise(page, PAGE, libc::MADV_DONTFORK)
        && (!is_portal || local.start(at.device) && local.portals.add(page as u64, at))
}

/// Replaces a private mapping by memory: on silicon, the first store to it replaces the device's page by a copy.
///
/// Source: `remap_pfn_range` and `do_wp_page` in Linux' `mm/memory.c`.
fn make_private(page: *mut c_void, protection: c_int) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: it replaces a mapping that was just made; its address was not returned yet.
    sys::to_libc(unsafe { sys::mmap(page as usize, PAGE, protection, flags, -1, 0) }) as *mut c_void
}

fn errno() -> c_int {
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() }
}

fn fail(error: c_int) -> *mut c_void {
    sys::to_libc(-(error as isize)) as *mut c_void
}
