//! A futex in memory that processes share. It also says on which CPU the thread ran that ended the sleep.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | awake |
//! | [`ASLEEP`] | asleep, or about to sleep |
//! | [`WOKEN_BY`] + n | woken by a thread on CPU n |

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// The word of a sleeper.
pub(super) const ASLEEP: u32 = 1;
/// The word of a sleeper that was woken, less the number of the CPU of the thread that woke it.
const WOKEN_BY: u32 = 2;

/// Sleeps while `word` is [`ASLEEP`], at most for `time`. The caller has stored that by [`announce`], and has checked its
/// condition again since.
pub(super) fn sleep(word: &AtomicU32, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: FUTEX_WAIT reads the word and the time, which live as long as the call. Without FUTEX_PRIVATE_FLAG the
    // kernel identifies the word by its page, so that other processes can wake the sleeper.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, ASLEEP, &time, ptr::null::<u32>(), 0)
    };
}

/// Announces that the caller is about to sleep.
pub(super) fn announce(word: &AtomicU32) {
    word.store(ASLEEP, Ordering::Relaxed);
    // ORDERING: SeqCst pairs with the fence in `wake`, and with the SeqCst push and load in `wake_for_entry`: either
    // the sleeper sees the waker's earlier writes, or the waker sees that it sleeps.
    fence(Ordering::SeqCst);
}

/// Ends a sleep, or its announcement.
pub(super) fn awake(word: &AtomicU32) -> Wakeup {
    match word.swap(0, Ordering::Relaxed) {
        ASLEEP => Wakeup::Unasked,
        0 => Wakeup::By(None),
        value => Wakeup::By(Some(value - WOKEN_BY)),
    }
}

/// The reason why a sleep has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wakeup {
    /// Its time is over, or there was work before the sleep.
    Unasked,
    /// A thread that ran on this CPU has ended it.
    By(Option<u32>),
}

/// Wakes the sleeper on a word. Async-signal-safe.
pub(super) fn wake(word: &AtomicU32) {
    // ORDERING: SeqCst pairs with the fence in `announce`: the sleeper sees this thread's earlier writes, or the load
    // below sees that it sleeps.
    fence(Ordering::SeqCst);
    wake_for_entry(word);
}

/// [`wake`] after the push of an entry, which replaces the fence.
#[inline]
pub(super) fn wake_for_entry(word: &AtomicU32) {
    // ORDERING: SeqCst, like the push before it (`Ring::publish`), pairs with the fence in `announce`. The swap is
    // Relaxed, since the kernel orders FUTEX_WAKE and the return of FUTEX_WAIT.
    if word.load(Ordering::SeqCst) == ASLEEP
        && word.swap(WOKEN_BY + current_cpu(), Ordering::Relaxed) == ASLEEP
    {
        // SAFETY: FUTEX_WAKE only looks up the address.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

/// The CPU on which the calling thread runs; it may run on another one at any time. Async-signal-safe.
pub(super) fn current_cpu() -> u32 {
    // SAFETY: it has no preconditions. The C library reads a word that the kernel keeps up to date, mostly without a
    // system call, which takes 1.5 us after a pause.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}
