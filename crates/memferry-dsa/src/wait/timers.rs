//! How sharp the timers of a thread are.

/// Lets the calling thread's sleeps end when they should. Linux lets them run late by 50 us, so that timers may be
/// grouped; that is as long as the shortest sleep between two looks at a record.
///
/// Source: prctl(2), PR_SET_TIMERSLACK.
pub fn reduce_timer_slack() {
    // SAFETY: the call changes a number of this thread. Where it fails, timers are as late as ever.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000_u64) };
}
