//! Detection of forks, at the cost of one load.
//!
//! A child of `fork` cannot use its parent's portals: the mapping is not inherited, and the child's memory has another
//! PASID. A write to the old address would hit nothing, or another mapping of the child. So each submission first
//! compares the number of its process, the generation, with that of the opening.
//!
//! `getpid` is a system call, which costs more than the submission itself. The generation is one load from a page that
//! the kernel fills with zeros in children (`MADV_WIPEONFORK`, Linux 4.14). It follows the memory rather than the
//! process, as the device does. So it also detects children that were not made by the C library, and is correct for
//! `vfork`, whose child runs in the parent's memory and may use its portals. If the kernel refuses the call, a handler
//! of `pthread_atfork` zeroes the page.
//!
//! A child does not have its parent's threads either, and locks that they held stay locked. Objects that need a thread
//! are therefore in a [`PerProcess`], which a child makes anew.
//!
//! Source: madvise(2), pthread_atfork(3); `vm_flags` and `idxd_cdev_mmap` in Linux' `drivers/dma/idxd/cdev.c`.

#![allow(unsafe_code)]

mod per_process;

pub use per_process::PerProcess;

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The page with the generation, which is zero in a process that has not asked for it yet.
///
/// A whole page, because the kernel wipes pages. A static, so that its address is part of the code; zeroed statics are
/// anonymous memory, as `madvise` requires. The first thread of a process that asks writes `word`, all threads read it.
static PAGE: Page = Page { word: AtomicU32::new(0), _rest: [0; PAGE_BYTES - 4] };

const PAGE_BYTES: usize = crate::address::PAGE_BYTES as usize;

#[repr(C, align(4096))]
struct Page {
    word: AtomicU32,
    _rest: [u8; PAGE_BYTES - 4],
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES && align_of::<Page>() == PAGE_BYTES);

/// Whether the page is wiped on forks. Written by `watch`, read by `watch` and `first_generation`.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// The last generation assigned.
///
/// Children inherit it and count on, so a process never has the generation of an ancestor. Unrelated processes may have
/// equal generations; they share no memory.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Makes [`generation`] work.
///
/// # Errors
/// The error of the system call. Forks are then not detected, and no portal may be opened. The next call tries again.
pub fn watch() -> io::Result<()> {
    // ORDERING: Acquire pairs with the Release below: `madvise` has been called before this thread assigns a generation.
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    let page = (&raw const PAGE).cast_mut().cast();
    // Two threads may both do it, which is harmless.
    // SAFETY: the page belongs to this module, which expects zeros in a child.
    if !unsafe { wipe_on_fork(page) } {
        // SAFETY: the handler stores to an atomic that lives for ever, which is allowed in a forked child.
        let error = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
    }
    // ORDERING: Release pairs with the Acquire above and in `first_generation`: the page is wiped on forks from here on.
    IS_WATCHED.store(true, Ordering::Release);
    Ok(())
}

/// The number of this process, unique among its ancestors and descendants. 0 before [`watch`]; never `u32::MAX`.
#[inline]
pub fn generation() -> u32 {
    // Relaxed: the number only identifies the process; the objects of a generation are published with their own orderings.
    match PAGE.word.load(Ordering::Relaxed) {
        0 => first_generation(),
        generation => generation,
    }
}

#[cold]
fn first_generation() -> u32 {
    // ORDERING: Acquire pairs with the Release in `watch`: the page is wiped on forks before it has a generation.
    if IS_WATCHED.load(Ordering::Acquire) { assign(&PAGE.word) } else { 0 }
}

/// Assigns the process its generation, unless another thread has done so.
fn assign(word: &AtomicU32) -> u32 {
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(others) => others,
    }
}

/// A leaked page of values, as many as fit, which are zeros in a forked child. `None` if the kernel has no memory or
/// refuses to wipe it.
///
/// # Safety
/// A `T` consists of atomics for which zeros are valid: it changes while there are references to it. It needs no drop.
pub unsafe fn leak_fork_local<T: Sync>(mut make: impl FnMut() -> T) -> Option<&'static [T]> {
    const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_BYTES && !std::mem::needs_drop::<T>()) };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: no other code has the page yet.
    if !unsafe { wipe_on_fork(page) } {
        // SAFETY: no other code has had it.
        unsafe { libc::munmap(page, PAGE_BYTES) };
        return None;
    }
    let (values, count) = (page.cast::<T>(), PAGE_BYTES / size_of::<T>());
    // SAFETY: the page is aligned, has room for `count` values and no other owner; all are written before the slice exists.
    unsafe {
        (0..count).for_each(|index| values.add(index).write(make()));
        Some(std::slice::from_raw_parts(values, count))
    }
}

/// Makes the kernel wipe this page in forked children. Returns whether it agreed.
///
/// # Safety
/// The page is mapped, and its owner expects zeros in a child.
unsafe fn wipe_on_fork(page: *mut libc::c_void) -> bool {
    // SAFETY: the caller's contract; nothing changes in this process.
    unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 }
}

/// The fallback for `MADV_WIPEONFORK`, called in each child.
extern "C" fn wipe() {
    PAGE.word.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_generation() {
        watch().expect("this kernel has anonymous memory");
        let generation = generation();
        assert_ne!(generation, 0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(super::generation(), generation));
            }
        });
        watch().expect("it worked before");
        assert_eq!(super::generation(), generation);
    }

    #[test]
    fn a_wiped_word_gets_a_new_generation() {
        let word = AtomicU32::new(0);
        let before = assign(&word);
        assert_eq!(assign(&word), before, "the generation stays");
        word.store(0, Ordering::Relaxed);
        assert!(assign(&word) > before);
    }
}
