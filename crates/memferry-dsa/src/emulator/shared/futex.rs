//! Sleeping on a word of memory that processes share.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Sleeps while `word` is 1, at most for `time`. The caller has stored the 1, and looks again at what it waits for
/// after
/// [`announce`].
pub(super) fn sleep(word: &AtomicU32, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: FUTEX_WAIT reads the word and the time, which live as long as the call. Without FUTEX_PRIVATE_FLAG it
    // is found by the page that it lies in, so that other processes can wake it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 1, &time, ptr::null::<u32>(), 0)
    };
}

/// Says that the caller is about to sleep.
pub(super) fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the fence in `wake`: either the sleeper sees what the waker did before, or the waker
    // sees the sleeper.
    fence(Ordering::SeqCst);
}

/// Wakes who sleeps on the word. Also for signal handlers.
#[inline]
pub(super) fn wake(word: &AtomicU32) {
    // ORDERING: SeqCst pairs with the fence in `announce`.
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0 {
        // SAFETY: FUTEX_WAKE only looks up the address.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}
