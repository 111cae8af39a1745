//! How soon an emulated device answers: after it was idle, and beside threads that poll all the time.
//!
//! All but [`cpu_time_of_children`] runs in an emulated process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{hint, mem};

use memferry_dsa::{CompletionRecord, Descriptor, Wait};
use serde::{Deserialize, Serialize};

use super::page::Page;
use super::submission::SubmissionError;
use crate::harness::try_alternate;

/// The longest time in which a device completes a no-op.
const PATIENCE: Duration = Duration::from_secs(60);

/// Microseconds of round trips, each after a pause. Those with the same index were taken one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IdleRoundTrips {
    /// A no-op by the device; the submitter spins.
    pub device_us: Vec<f64>,
    /// A word by a thread that sleeps on a futex; the other one spins.
    pub futex_us: Vec<f64>,
}

/// Round trips of a no-op through the shared queue with the file `queue`, and of a thread on a futex.
///
/// # Errors
/// [`SubmissionError`]
pub fn idle_round_trips(
    queue: &Path,
    pause: Duration,
    count: usize,
) -> Result<IdleRoundTrips, SubmissionError> {
    let page = Page::map(queue)?;
    let worker = FutexWorker::start();
    // The first submission patches its call site.
    noop(&page, Wait::Spin)?;
    let after_pause = |work: &dyn Fn() -> Result<(), SubmissionError>| {
        thread::sleep(pause);
        let start = Instant::now();
        work()?;
        Ok::<_, SubmissionError>(start.elapsed().as_secs_f64() * 1e6)
    };
    let (device_us, futex_us) = try_alternate(
        count,
        || after_pause(&|| noop(&page, Wait::Spin)),
        || {
            after_pause(&|| {
                worker.round_trip();
                Ok(())
            })
        },
    )?;
    Ok(IdleRoundTrips { device_us, futex_us })
}

/// The time in which `threads` threads complete `count` no-ops each, one at a time, and wait for each as `wait` says.
///
/// # Errors
/// [`SubmissionError`]
pub fn pollers(queue: &Path, threads: usize, count: usize, wait: Wait) -> Result<Duration, SubmissionError> {
    let page = Page::map(queue)?;
    noop(&page, wait)?;
    let start = Instant::now();
    thread::scope(|scope| {
        let work = || (0..count).try_for_each(|_| noop(&page, wait));
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(SubmissionError::Silent)))
    })?;
    Ok(start.elapsed())
}

/// Uses the shared queue with the file `queue` once, and then sleeps.
///
/// # Errors
/// [`SubmissionError`]
pub fn use_and_sleep(queue: &Path, time: Duration) -> Result<(), SubmissionError> {
    let page = Page::map(queue)?;
    noop(&page, Wait::Spin)?;
    thread::sleep(time);
    Ok(())
}

/// Submits a no-op and waits for its completion.
fn noop(page: &Page, wait: Wait) -> Result<(), SubmissionError> {
    let record = Box::new(CompletionRecord::new());
    let descriptor = Descriptor::noop().with_completion(&record);
    let start = Instant::now();
    // SAFETY: the record lives until it is written, or is leaked.
    while !unsafe { page.enqcmd(&descriptor) } {
        if start.elapsed() > PATIENCE {
            return Err(SubmissionError::Silent);
        }
        hint::spin_loop();
    }
    if wait.wait(&record, PATIENCE).is_err() {
        mem::forget(record);
        return Err(SubmissionError::Silent);
    }
    Ok(())
}

/// A thread that sleeps on a futex until there is work, and answers at once.
struct FutexWorker {
    word: Arc<AtomicU32>,
    thread: Thread,
}

impl FutexWorker {
    const IDLE: u32 = 0;
    const ASKED: u32 = 1;
    const ENDING: u32 = 2;

    fn start() -> FutexWorker {
        let word = Arc::new(AtomicU32::new(Self::IDLE));
        let run = {
            let word = Arc::clone(&word);
            move || loop {
                match word.load(Ordering::Acquire) {
                    Self::ASKED => word.store(Self::IDLE, Ordering::Release),
                    Self::ENDING => return,
                    _ => thread::park(),
                }
            }
        };
        FutexWorker { word, thread: thread::spawn(run).thread().clone() }
    }

    fn round_trip(&self) {
        self.word.store(Self::ASKED, Ordering::Release);
        self.thread.unpark();
        while self.word.load(Ordering::Acquire) != Self::IDLE {
            hint::spin_loop();
        }
    }
}

impl Drop for FutexWorker {
    fn drop(&mut self) {
        self.word.store(Self::ENDING, Ordering::Release);
        self.thread.unpark();
    }
}

/// The CPU time of this process' children that have ended, and of theirs.
///
/// Source: getrusage(2), RUSAGE_CHILDREN.
pub fn cpu_time_of_children() -> Duration {
    // SAFETY: the structure consists of integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: it writes the structure, which is this function's. It cannot fail for valid arguments.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_answers_each_time() {
        let worker = FutexWorker::start();
        (0..100).for_each(|_| worker.round_trip());
        assert_eq!(worker.word.load(Ordering::Acquire), FutexWorker::IDLE);
    }

    #[test]
    fn a_missing_queue_is_an_error() {
        let queue = Path::new("/nonexistent");
        assert!(idle_round_trips(queue, Duration::ZERO, 1).is_err());
        assert!(pollers(queue, 1, 1, Wait::Spin).is_err());
        assert!(use_and_sleep(queue, Duration::ZERO).is_err());
    }
}
