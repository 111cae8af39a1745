//! What a submission costs under `memferry emulate`, beside the cheapest signal that could have caught it.
//!
//! To be called in a process that runs there: with call sites that are patched, or that trap each time, as it was started.
//! Bare traps and submissions take turns, so that a disturbance of the machine hits both.

use std::arch::{asm, global_asm};
use std::path::Path;
use std::sync::Barrier;

use serde::{Deserialize, Serialize};

use super::Effort;
use super::page::{NoPage, Page};
use crate::Descriptor;
use crate::wait::thread_cpu_time;

/// Samples in nanoseconds of CPU time, each the mean of many; those with the same index were taken one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// An unknown instruction, and a handler that skips it and does nothing else.
    pub bare_trap_ns: Vec<f64>,
    /// An ENQCMD of a no-op, as each thread's mean, whether the queue takes it or is full.
    pub submit_ns: Vec<f64>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] NoPage),
    /// The operating system does not say.
    #[error("this system does not tell how much CPU time threads take")]
    NoCpuTimes,
}

impl Costs {
    /// What each submission cost more than the bare trap of its turn.
    pub fn overhead_ns(&self) -> Vec<f64> {
        self.submit_ns.iter().zip(&self.bare_trap_ns).map(|(submit, bare)| submit - bare).collect()
    }
}

/// Submits to the shared queue with the file `queue`, in `threads` threads at a time.
///
/// CPU time of the submitting threads, so that neither the device's thread nor a lack of processors counts.
///
/// # Errors
/// [`Failed`]
pub fn costs(queue: &Path, threads: usize, effort: Effort) -> Result<Costs, Failed> {
    let (runs, count) = effort.of((15, 20_000), (3, 50));
    let page = Page::map(queue)?;
    let mut costs = Costs { bare_trap_ns: Vec::new(), submit_ns: Vec::new() };
    // The first pass of a call site is another matter.
    submissions(&page, 2, threads)?;
    for _ in 0..runs {
        costs.bare_trap_ns.push(bare_traps(count)?);
        costs.submit_ns.push(submissions(&page, count, threads)?);
    }
    Ok(costs)
}

/// Nanoseconds of this thread's CPU time for each of `count` calls.
fn each_ns(count: usize, mut call: impl FnMut()) -> Result<f64, Failed> {
    let start = thread_cpu_time().ok_or(Failed::NoCpuTimes)?;
    (0..count).for_each(|_| call());
    let time = thread_cpu_time().ok_or(Failed::NoCpuTimes)? - start;
    Ok(time.as_nanos() as f64 / count as f64)
}

/// The mean of all threads.
fn submissions(page: &Page, count: usize, threads: usize) -> Result<f64, Failed> {
    let start = Barrier::new(threads);
    let one = || {
        let descriptor = Descriptor::noop();
        start.wait();
        // SAFETY: a no-op without a record names no memory.
        each_ns(count, || _ = unsafe { page.enqcmd(&descriptor) })
    };
    let times: Result<Vec<f64>, Failed> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(Err(Failed::NoCpuTimes))).collect()
    });
    Ok(times?.iter().sum::<f64>() / threads as f64)
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

/// Sets the action of SIGILL, past libc and all that is preloaded; what it was.
fn set_action(new: &KernelAction) -> KernelAction {
    let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: it reads one action and writes one. The handler is `skip`, or what was there before.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGILL, new, &mut old, 8) };
    debug_assert_eq!(answer, 0);
    old
}

/// Goes on behind the two bytes of UD2.
extern "C" fn skip(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls it with the context of what it has interrupted, which nobody else has.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
}

/// The time of an unknown instruction that a handler skips.
fn bare_traps(count: usize) -> Result<f64, Failed> {
    const SA_RESTORER: u64 = 0x0400_0000;
    let bare = KernelAction {
        handler: skip as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: memferry_measure_restorer as *const () as usize,
        mask: 0,
    };
    let before = set_action(&bare);
    // SAFETY: the handler skips it and changes nothing else.
    let time = each_ns(count, || unsafe { asm!("ud2") });
    set_action(&before);
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_traps_are_measured() {
        assert!(bare_traps(100).unwrap() > 50.0, "a signal takes longer than that");
    }

    #[test]
    fn overheads_are_those_of_each_turn() {
        let costs = Costs { bare_trap_ns: vec![10.0, 20.0], submit_ns: vec![15.0, 22.0] };
        assert_eq!(costs.overhead_ns(), [5.0, 2.0]);
    }

    #[test]
    fn a_queue_that_is_none() {
        let error = costs(Path::new("/nonexistent"), 1, Effort::Quick).unwrap_err();
        assert!(matches!(error, Failed::Queue(_)), "{error}");
    }
}
