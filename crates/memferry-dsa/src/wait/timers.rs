//! Sleeps and CPU time of threads, and their requests to the scheduler.

use std::time::Duration;

/// A sleep is a quarter of the age.
const SLEEP_SHARE: u32 = 4;
/// The shortest sleep; shorter ones cost more to start and end than they save.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest sleep, and so the most added latency.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The sleep before the next poll of a record that was submitted `age` ago: a completion is noticed at most a quarter of
/// its time late, or 50 us, and never more than 1 ms. The slack of the thread's timers comes on top, see
/// [`reduce_timer_slack`].
pub fn poll_interval(age: Duration) -> Duration {
    (age / SLEEP_SHARE).clamp(SLEEP_MIN, SLEEP_MAX)
}

/// The CPU time of the calling thread, to compare kinds of waiting; `None` if the system does not report it.
pub fn thread_cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is this function's.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    (!failed).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Reduces the timer slack of the calling thread to 1 us, so that its sleeps end on time.
///
/// The default of Linux is 50 us, to group timers. That is as long as the shortest sleep between two polls of a record.
///
/// Source: prctl(2), PR_SET_TIMERSLACK.
pub fn reduce_timer_slack() {
    // SAFETY: the call changes a number of this thread. If it fails, the slack stays.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000_u64) };
}

/// Requests the shortest time slices for the calling thread, so that it runs soon after it is woken, also beside threads
/// that compute all the time. It gets no larger share of a CPU, and gives way more often.
///
/// Linux 6.12 and later honour it for threads of the normal policy; elsewhere nothing changes.
///
/// Source: sched_setattr(2); `sched_slice` and `PREEMPT_SHORT` in kernel/sched/fair.c.
pub fn request_short_slices() {
    const SLICE_NS: u64 = 100_000;
    const SIZE: u32 = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure consists of integers, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: it writes at most SIZE bytes to the structure, which has that size.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) } != 0;
    if failed || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: it reads the structure, and changes an attribute of this thread. If it fails, the slices stay.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread keeps policy and nice value; on older kernels the slice stays 0.
    #[test]
    fn a_thread_gets_short_slices_and_keeps_its_priority() {
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<String> =
                stat.rsplit(") ").next().unwrap().split(' ').map(str::to_owned).collect();
            // Fields 19 and 41 of proc_pid_stat(5), counted from 3 here: nice value and policy.
            (fields[16].clone(), fields[38].clone())
        };
        let before = policy();
        request_short_slices();
        assert_eq!(policy(), before);
        // SAFETY: as above.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: it writes at most `size` bytes to the structure.
        let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(failed, 0);
        assert!([0, 100_000].contains(&attributes.sched_runtime), "{}", attributes.sched_runtime);
    }
}
