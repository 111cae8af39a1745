//! Parallel jobs.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Runs `work` on every job with one thread per CPU; results are in the order of the jobs. After an error no further job
/// starts.
///
/// # Errors
/// The error of the first failed job in order.
pub(super) fn in_parallel<J, R, E>(jobs: &[J], work: impl Fn(&J) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
where
    J: Sync,
    R: Send,
    E: Send,
{
    let workers = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    // ORDERING: Relaxed for both, no partner: jobs are immutable, `failed` may be seen late, and joining the threads
    // publishes the results.
    let worker = || {
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { break };
            let result = work(job);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.push((index, result));
        }
        done
    };
    let mut done: Vec<(usize, Result<R, E>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
