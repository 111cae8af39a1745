//! The timer slack of a thread.

/// Reduces the timer slack of the calling thread to 1 us, so that its sleeps end on time.
///
/// The default of Linux is 50 us, to group timers. That is as long as the shortest sleep between two polls of a record.
///
/// Source: prctl(2), PR_SET_TIMERSLACK.
pub fn reduce_timer_slack() {
    // SAFETY: the call changes a number of this thread. If it fails, the slack stays.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000_u64) };
}
