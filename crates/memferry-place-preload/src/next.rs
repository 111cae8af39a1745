//! The functions that hooks replace.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A function of a library that was loaded after this one.
///
/// The first thread that needs the address writes it. All threads read it. `is_looking` excludes a second search.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicUsize, // 0 before the search; NONE if there is no such function
    is_looking: AtomicBool,
}

const NONE: usize = 1;

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0), is_looking: AtomicBool::new(false) }
    }

    /// Returns its address. `None`: there is no such function, or a search is in progress. The search may allocate, and
    /// so call the hook again; the hook then does without.
    #[inline]
    pub(crate) fn address(&self) -> Option<usize> {
        // Relaxed: the address is one word and publishes nothing else.
        match self.address.load(Ordering::Relaxed) {
            0 => self.look_up(),
            NONE => None,
            address => Some(address),
        }
    }

    #[cold]
    fn look_up(&self) -> Option<usize> {
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let address = (found as usize).max(NONE);
        self.address.store(address, Ordering::Relaxed);
        self.is_looking.store(false, Ordering::Relaxed);
        (address != NONE).then_some(address)
    }
}
