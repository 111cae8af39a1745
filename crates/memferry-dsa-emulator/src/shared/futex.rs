//! Sleeping on a word of memory that processes share.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Sleeps while `word` is 1, at most for `time`. The caller has stored the 1 by [`announce`], and has looked again at
/// what it waits for.
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
pub(super) fn wake(word: &AtomicU32) {
    // ORDERING: SeqCst pairs with the fence in `announce`.
    fence(Ordering::SeqCst);
    wake_for_entry(word);
}

/// The same for an entry that was just pushed: no fence is needed behind that.
#[inline]
pub(super) fn wake_for_entry(word: &AtomicU32) {
    // ORDERING: SeqCst, as is the push before it, pairs with the fence in `announce`.
    if word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::Relaxed) != 0 {
        // SAFETY: FUTEX_WAKE only looks up the address.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}
