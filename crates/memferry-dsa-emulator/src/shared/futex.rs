//! A futex in memory that processes share.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Sleeps while `word` is 1, at most for `time`. The caller has stored the 1 by [`announce`], and has checked its
/// condition again since.
pub(super) fn sleep(word: &AtomicU32, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: FUTEX_WAIT reads the word and the time, which live as long as the call. Without FUTEX_PRIVATE_FLAG the
    // kernel identifies the word by its page, so that other processes can wake the sleeper.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 1, &time, ptr::null::<u32>(), 0)
    };
}

/// Announces that the caller is about to sleep.
pub(super) fn announce(word: &AtomicU32) {
    word.store(1, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the fence in `wake`, and with the SeqCst push and load in `wake_for_entry`: either
    // the sleeper sees the waker's earlier writes, or the waker sees the 1.
    fence(Ordering::SeqCst);
}

/// Wakes the sleeper on a word. Async-signal-safe.
pub(super) fn wake(word: &AtomicU32) {
    // ORDERING: SeqCst pairs with the fence in `announce`: the sleeper sees this thread's earlier writes, or the load
    // below sees the 1.
    fence(Ordering::SeqCst);
    wake_for_entry(word);
}

/// [`wake`] after the push of an entry, which replaces the fence.
#[inline]
pub(super) fn wake_for_entry(word: &AtomicU32) {
    // ORDERING: SeqCst, like the push before it (`Ring::publish`), pairs with the fence in `announce`. The swap is
    // Relaxed, since the kernel orders FUTEX_WAKE and the return of FUTEX_WAIT.
    if word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::Relaxed) != 0 {
        // SAFETY: FUTEX_WAKE only looks up the address.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}
