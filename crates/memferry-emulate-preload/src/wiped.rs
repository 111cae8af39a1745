//! What belongs to this process and not to a child of it: a page that the kernel gives to children filled with zeros.
//!
//! A child of `fork`, made by whichever system call, has none of its parent's portals, engines or locks. It has a copy
//! of the parent's memory, though, except for this page. (`vfork`'s child runs in the parent's memory and uses it.)
//!
//! Source: madvise(2), `MADV_WIPEONFORK`, since Linux 4.14.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::portals::Portals;
use crate::process::Process;
use crate::sys;

/// All zero in a new process.
pub(crate) struct Wiped {
    /// Null until the first portal is mapped.
    pub(crate) process: AtomicPtr<Process>,
    /// Whether somebody is making it.
    pub(crate) is_joining: AtomicBool,
    /// Whether somebody is patching.
    pub(crate) is_patching: AtomicBool,
    /// The process id; 0 in a child that `fork` made, until somebody has asked.
    id: AtomicU32,
    pub(crate) portals: Portals,
}

static PAGES: AtomicPtr<Wiped> = AtomicPtr::new(std::ptr::null_mut());

const BYTES: usize = size_of::<Wiped>().next_multiple_of(4096);

/// Makes the page, once, before anything else. False if the kernel does not.
pub(crate) fn prepare() -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel wants it.
    let address = unsafe { sys::mmap(0, BYTES, protection, flags, -1, 0) };
    let Ok(address) = usize::try_from(address) else { return false };
    if !sys::madvise(address, BYTES, libc::MADV_WIPEONFORK) {
        return false;
    }
    // ORDERING: Release pairs with the Acquire in `get`: the page is there.
    PAGES.store(address as *mut Wiped, Ordering::Release);
    get().is_some_and(|wiped| !wiped.is_borrowed())
}

/// The page; `None` where nothing is emulated.
#[inline]
pub(crate) fn get() -> Option<&'static Wiped> {
    // SAFETY: null, or the page that `prepare` made: zeros, which is a valid value of these atomics, and never
    // unmapped.
    unsafe { PAGES.load(Ordering::Acquire).as_ref() }
}

impl Wiped {
    /// From here on it is known whose page this is: a child of `vfork` that asked first may have taken it for its own.
    pub(crate) fn belongs_here(&self) {
        self.id.store(sys::process(), Ordering::Relaxed);
    }

    /// Whether the caller is a child of `vfork`, whose system calls concern itself and whose memory is its parent's.
    pub(crate) fn is_borrowed(&self) -> bool {
        let running = sys::process();
        match self.id.compare_exchange(0, running, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(id) => id != running,
        }
    }
}
