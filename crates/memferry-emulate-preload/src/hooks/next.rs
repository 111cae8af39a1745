//! The functions that would have been called without this library.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A function of a library that was loaded after this one.
pub(super) struct Next {
    name: &'static CStr,
    address: AtomicUsize, // 0 until it is looked up; NONE if there is none
    is_looking: AtomicBool,
}

const NONE: usize = 1;

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0), is_looking: AtomicBool::new(false) }
    }

    /// Its address. `None`: do it without, because there is none, or because this very call comes from the search for
    /// it, which may allocate.
    pub(super) fn address(&self) -> Option<usize> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == 0 {
            if self.is_looking.swap(true, Ordering::Acquire) {
                return None;
            }
            // SAFETY: the name ends with a zero.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            address = (found as usize).max(NONE);
            self.address.store(address, Ordering::Relaxed);
            self.is_looking.store(false, Ordering::Release);
        }
        (address != NONE).then_some(address)
    }
}
