//! State of one process that its children do not inherit: pages that the kernel fills with zeros in a child.
//!
//! A child of `fork`, whichever system call makes it, has none of its parent's portals, engines or locks. It has a copy
//! of the parent's memory, except for these pages. (A child of `vfork` shares the memory of its parent, with these
//! pages.)
//!
//! Source: madvise(2), `MADV_WIPEONFORK`, since Linux 4.14.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::portals::Portals;
use crate::process::Process;
use crate::sys;

/// The state of this process. All zero in a new child.
///
/// All threads read it, signal handlers included. The fields say who writes them.
pub(crate) struct ForkLocal {
    /// Null until the first portal is mapped. Written under `is_joining`.
    pub(crate) process: AtomicPtr<Process>,
    /// The lock of a thread that makes `process`.
    pub(crate) is_joining: AtomicBool,
    /// The lock of a thread that patches: it alone writes the sites and allocates slots.
    pub(crate) is_patching: AtomicBool,
    /// The process id. 0 in a child of `fork`, until a thread has asked. Written by [`claim`](ForkLocal::claim) and
    /// [`is_vfork_child`](ForkLocal::is_vfork_child).
    id: AtomicU32,
    pub(crate) portals: Portals,
}

static PAGES: AtomicPtr<ForkLocal> = AtomicPtr::new(std::ptr::null_mut());

const BYTES: usize = size_of::<ForkLocal>().next_multiple_of(4096);

/// Maps the pages, once, before any other use of this module. False: the kernel lacks `MADV_WIPEONFORK`.
pub(crate) fn prepare() -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe { sys::mmap(0, BYTES, protection, flags, -1, 0) };
    let Ok(address) = usize::try_from(address) else { return false };
    if !sys::madvise(address, BYTES, libc::MADV_WIPEONFORK) {
        return false;
    }
    // ORDERING: Release pairs with the Acquire in `get`: the pages are mapped and set up.
    PAGES.store(address as *mut ForkLocal, Ordering::Release);
    get().is_some_and(|local| !local.is_vfork_child())
}

/// Returns the state of this process; `None` without an emulation.
#[inline]
pub(crate) fn get() -> Option<&'static ForkLocal> {
    // SAFETY: null, or the pages that `prepare` mapped. They are never unmapped, and zeros are valid values of these
    // atomics.
    // ORDERING: Acquire pairs with the Release in `prepare`: the pages are mapped and set up.
    unsafe { PAGES.load(Ordering::Acquire).as_ref() }
}

impl ForkLocal {
    /// Records that the pages belong to this process. A child of `vfork` that asked first may have recorded itself.
    pub(crate) fn claim(&self) {
        self.id.store(sys::process(), Ordering::Relaxed);
    }

    /// Whether the caller is a child of `vfork`: its system calls act on itself, its stores on the memory of its
    /// parent.
    pub(crate) fn is_vfork_child(&self) -> bool {
        let running = sys::process();
        match self.id.compare_exchange(0, running, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(id) => id != running,
        }
    }
}
