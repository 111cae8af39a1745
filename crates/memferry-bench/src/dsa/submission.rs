//! The cost of a submission under `memferry emulate`, beside the cheapest signal that could catch it.
//!
//! Runs in an emulated process. Its options decide whether call sites are patched or trap each time. Bare traps and
//! submissions alternate, so that a disturbance of the machine affects both.

use std::arch::{asm, global_asm};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use memferry_dsa::internals::wait::thread_cpu_time;
use memferry_dsa::{CompletionRecord, Descriptor};
use serde::{Deserialize, Serialize};

use super::page::{Page, PageError};
use crate::harness::{Effort, median};

/// Samples in nanoseconds, each the median of many bursts. Samples with the same index were taken one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// An unknown instruction with a handler that only skips it.
    pub bare_trap_ns: Vec<f64>,
    /// An ENQCMD of a no-op to a device that is not idle, the mean of all threads.
    pub submit_ns: Vec<f64>,
}

/// Submissions that cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmissionError {
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] PageError),
    /// The device accepts no descriptors, or has lost one.
    #[error("the device does not complete descriptors")]
    Silent,
    /// The operating system does not report CPU times of threads.
    #[error("this system does not report the CPU time of threads")]
    NoCpuTimes,
}

/// Instructions between two readings of the clock.
const BURST: usize = 12;

impl Costs {
    /// The cost of each submission beyond the bare trap beside it.
    pub fn overhead_ns(&self) -> Vec<f64> {
        self.submit_ns.iter().zip(&self.bare_trap_ns).map(|(submit, bare)| submit - bare).collect()
    }
}

/// Costs of submissions to the shared queue with the file `queue` from `threads` threads at a time. The bursts of up to
/// four threads fit into a queue of 64 entries.
///
/// # Errors
/// [`SubmissionError`]
pub fn costs(queue: &Path, threads: usize, effort: Effort) -> Result<Costs, SubmissionError> {
    let (runs, bursts) = effort.of((15, 2000), (3, 5));
    let page = Page::map(queue)?;
    // The first submission of a call site is not representative: it traps even where it will be patched.
    submissions(&page, 1, threads)?;
    let mut costs = Costs { bare_trap_ns: Vec::new(), submit_ns: Vec::new() };
    for _ in 0..runs {
        costs.bare_trap_ns.push(bare_traps(bursts)?);
        costs.submit_ns.push(submissions(&page, bursts, threads)?);
    }
    Ok(costs)
}

/// The median CPU time of a call over many bursts, in nanoseconds. Neither the device's thread nor a lack of CPUs counts.
/// The cost of reading the clock is measured and subtracted.
fn bursts_ns(
    bursts: usize,
    mut call: impl FnMut(),
    mut between: impl FnMut() -> Result<(), SubmissionError>,
) -> Result<f64, SubmissionError> {
    let sample = |call: &mut dyn FnMut()| {
        let start = thread_cpu_time().ok_or(SubmissionError::NoCpuTimes)?;
        call();
        Ok::<_, SubmissionError>(
            (thread_cpu_time().ok_or(SubmissionError::NoCpuTimes)? - start).as_nanos() as f64
        )
    };
    let (mut empty, mut full) = (Vec::with_capacity(bursts), Vec::with_capacity(bursts));
    for _ in 0..bursts {
        empty.push(sample(&mut || ())?);
        full.push(sample(&mut || (0..BURST).for_each(|_| call()))?);
        between()?;
    }
    Ok((median(&full) - median(&empty)) / BURST as f64)
}

/// The mean of all threads' medians.
fn submissions(page: &Page, bursts: usize, threads: usize) -> Result<f64, SubmissionError> {
    let start = Barrier::new(threads);
    let one = || {
        start.wait();
        // SAFETY: a no-op without a record names no memory.
        let submit = || _ = unsafe { page.enqcmd(&Descriptor::noop()) };
        bursts_ns(bursts, submit, || drain(page))
    };
    let medians: Vec<f64> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let medians = running.into_iter().map(|thread| thread.join().unwrap_or(Err(SubmissionError::Silent)));
        medians.collect::<Result<_, _>>()
    })?;
    Ok(medians.iter().sum::<f64>() / threads as f64)
}

/// Waits until the device has completed all earlier descriptors.
fn drain(page: &Page) -> Result<(), SubmissionError> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let record = Box::new(CompletionRecord::new());
    let last = Descriptor::noop().with_completion(&record);
    let start = Instant::now();
    // SAFETY: the record lives until it is written, or is leaked.
    while !unsafe { page.enqcmd(&last) } {
        if start.elapsed() > PATIENCE {
            return Err(SubmissionError::Silent);
        }
        std::thread::yield_now();
    }
    while record.poll().is_none() {
        if start.elapsed() > PATIENCE {
            Box::leak(record);
            return Err(SubmissionError::Silent);
        }
        std::thread::yield_now();
    }
    Ok(())
}

global_asm!(
    ".hidden memferry_measure_restorer",
    ".globl memferry_measure_restorer",
    "memferry_measure_restorer:",
    "mov eax, 15", // rt_sigreturn
    "syscall",
);

unsafe extern "C" {
    fn memferry_measure_restorer();
}

/// The kernel's `struct sigaction`.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Sets the action of SIGILL by a system call, past libc and preloaded libraries; returns the old one.
fn set_action(new: &KernelAction) -> KernelAction {
    let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: it reads one action and writes one. The handler is `skip`, or the previous one.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGILL, new, &mut old, 8) };
    debug_assert_eq!(answer, 0);
    old
}

/// The signal handler: continues behind the two bytes of UD2.
extern "C" fn skip(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the interrupted code, which no other code references.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
}

/// Nanoseconds of an unknown instruction that a handler skips.
fn bare_traps(bursts: usize) -> Result<f64, SubmissionError> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let bare = KernelAction {
        handler: skip as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: memferry_measure_restorer as *const () as usize,
        mask: 0,
    };
    let before = set_action(&bare);
    // SAFETY: the handler skips the instruction and changes nothing else.
    let time = bursts_ns(bursts, || unsafe { asm!("ud2") }, || Ok(()));
    set_action(&before);
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_traps_are_measured() {
        assert!(bare_traps(10).unwrap() > 50.0, "a signal takes longer than that");
    }

    #[test]
    fn overheads_are_differences_of_neighbours() {
        let costs = Costs { bare_trap_ns: vec![10.0, 20.0], submit_ns: vec![15.0, 22.0] };
        assert_eq!(costs.overhead_ns(), [5.0, 2.0]);
    }

    #[test]
    fn a_missing_queue_is_an_error() {
        let error = costs(Path::new("/nonexistent"), 1, Effort::Quick).unwrap_err();
        assert!(matches!(error, SubmissionError::Queue(_)), "{error}");
    }
}
