//! Noticing a fork, for the price of one load.
//!
//! A child of `fork` has none of its parent's portals: the mapping is not inherited, and the device knows the child's
//! memory under another number (PASID). Writing to the old address would hit nothing, or whatever the child has put
//! there since. So each submission first asks which process this is.
//!
//! `getpid` is a system call, which costs more than the submission itself. Here it is one load, from a page that the
//! kernel gives to children filled with zeros (`MADV_WIPEONFORK`, Linux 4.14): it follows the memory rather than
//! the process, as the device does. So it also sees children that no C library made, and is not fooled by
//! `vfork`, whose child runs in the parent's memory and may use its portals. Where the kernel refuses it, the
//! library's `pthread_atfork` zeroes the page.
//!
//! A child has none of its parent's threads either, and locks that they held stay locked. What needs a thread is
//! therefore kept in a [`PerProcess`], of which a child makes its own.
//!
//! Source: madvise(2), pthread_atfork(3); `vm_flags` and `idxd_cdev_mmap` in Linux' `drivers/dma/idxd/cdev.c`.

#![allow(unsafe_code)]

mod per_process;

pub use per_process::PerProcess;

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The page. Its word is the generation, or zero in a process that has not asked yet; the rest is there because the kernel
/// wipes whole pages. A static, so that its address is part of the code: pages of statics that begin with zeros are
/// anonymous memory, as the kernel wants it.
static PAGE: Page = Page { word: AtomicU32::new(0), _rest: [0; PAGE_BYTES - 4] };

const PAGE_BYTES: usize = crate::PAGE_BYTES as usize;

#[repr(C, align(4096))]
struct Page {
    word: AtomicU32,
    _rest: [u8; PAGE_BYTES - 4],
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES && align_of::<Page>() == PAGE_BYTES);

/// Whether the page is wiped on forks.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// The generation given out last. Children inherit it and go on from there, so that no process has the number of
/// one that it descends from; others may, and never meet.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Makes [`generation`] work.
///
/// # Errors
/// The error of the system call; then forks go unnoticed, and no portal should be opened. The next call tries again.
pub fn watch() -> io::Result<()> {
    // ORDERING: Acquire pairs with the Release below: the page is wiped on forks before it has a number.
    if IS_WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    let page = (&raw const PAGE).cast_mut().cast();
    // Of two threads that come together both do it.
    // SAFETY: the page is this module's own, and a child may find zeros there.
    if !unsafe { wipe_on_fork(page) } {
        // SAFETY: the handler stores to an atomic that lives for ever, which is allowed in a forked child.
        let error = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
    }
    IS_WATCHED.store(true, Ordering::Release);
    Ok(())
}

/// The number of this process among those that it descends from. 0 before [`watch`]; never `u32::MAX`.
#[inline]
pub fn generation() -> u32 {
    // ORDERING: Relaxed: the number says only in whose memory this runs; what a generation has set up is published
    // with its own orderings.
    match PAGE.word.load(Ordering::Relaxed) {
        0 => first_generation(),
        generation => generation,
    }
}

#[cold]
fn first_generation() -> u32 {
    // ORDERING: Acquire as in `watch`.
    if IS_WATCHED.load(Ordering::Acquire) { begin(&PAGE.word) } else { 0 }
}

/// The first one to ask in a process gives it its number.
fn begin(word: &AtomicU32) -> u32 {
    let fresh = LAST.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1;
    match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(others) => others,
    }
}

/// Memory for as long as the process lives, filled with as many values as a page has room for. A forked child finds zeros
/// there. `None` where the kernel refuses that, or memory.
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
    // SAFETY: nobody has the page yet.
    if !unsafe { wipe_on_fork(page) } {
        // SAFETY: nobody has had it.
        unsafe { libc::munmap(page, PAGE_BYTES) };
        return None;
    }
    let (values, count) = (page.cast::<T>(), PAGE_BYTES / size_of::<T>());
    // SAFETY: the page is aligned, has room for as many, and nobody else's; they are there when the slice is made of them.
    unsafe {
        (0..count).for_each(|index| values.add(index).write(make()));
        Some(std::slice::from_raw_parts(values, count))
    }
}

/// Whether forked children find zeros in this page from now on.
///
/// # Safety
/// It is mapped, and its owner expects that.
unsafe fn wipe_on_fork(page: *mut libc::c_void) -> bool {
    // SAFETY: the caller's contract; nothing changes in this process.
    unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 }
}

/// What the kernel does by itself to a page that is wiped on forks.
extern "C" fn wipe() {
    PAGE.word.store(0, Ordering::Relaxed);
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_number() {
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

    /// The way without MADV_WIPEONFORK: the handler leaves a word that gets the next number.
    #[test]
    fn a_wiped_word_gets_a_new_number() {
        let word = AtomicU32::new(0);
        let before = begin(&word);
        assert_eq!(begin(&word), before, "the number stays");
        word.store(0, Ordering::Relaxed);
        assert!(begin(&word) > before);
    }
}
