//! What a submission costs under emulation: `submit_cost SUBMISSIONS THREADS`, in a directory with the file of a shared
//! queue. It prints `NAME NANOSECONDS` for each figure, the median over several runs.
//!
//! | figure | what |
//! |---|---|
//! | `bare_trap_ns` | an unknown instruction, and a handler that skips it: what no emulation by signals can be faster than |
//! | `submit_ns` | an ENQCMD of a no-op without a completion record |
//!
//! The two take turns, so that a disturbance of the machine hits both.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Barrier;

use memferry_dsa::{Descriptor, instructions};

const RUNS: usize = 15;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<usize>().expect("a number"));
    let (count, threads) = (numbers.next().unwrap_or(20_000), numbers.next().unwrap_or(1));
    let portal = map("wq0.0");
    let mut figures = [("bare_trap_ns", Vec::new()), ("submit_ns", Vec::new())];
    for _ in 0..RUNS {
        figures[0].1.push(bare_traps(count));
        figures[1].1.push(submissions(portal, count, threads));
    }
    for (name, mut runs) in figures {
        runs.sort_by(f64::total_cmp);
        println!("{name} {:.1}", runs[RUNS / 2]);
    }
}

fn map(queue: &str) -> *mut u8 {
    let file = OpenOptions::new().read(true).write(true).open(queue).expect("the queue's file");
    let page =
        unsafe { libc::mmap(null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "the queue cannot be mapped");
    page.cast()
}

/// The processor time of this thread: with more threads than processors, what others use does not count.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Each thread's time for a submission.
fn submissions(portal: *mut u8, count: usize, threads: usize) -> f64 {
    let (portal, start) = (portal as usize, Barrier::new(threads));
    let times: Vec<f64> = std::thread::scope(|scope| {
        let one = || {
            start.wait();
            let start = thread_ns();
            // Whether the queue takes it or is full: the instruction is the same.
            (0..count)
                .for_each(|_| _ = unsafe { instructions::enqcmd(portal as *mut u8, &Descriptor::noop()) });
            (thread_ns() - start) as f64 / count as f64
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("it submits")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

global_asm!(
    ".hidden submit_cost_restorer",
    ".globl submit_cost_restorer",
    "submit_cost_restorer:",
    "mov eax, 15",
    "syscall",
);

unsafe extern "C" {
    fn submit_cost_restorer();
}

/// The kernel's `struct sigaction`.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Past libc and all that is preloaded.
fn set_action(new: &KernelAction) -> KernelAction {
    let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGILL, new, &mut old, 8) };
    assert_eq!(answer, 0);
    old
}

extern "C" fn skip(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
}

/// The time of an unknown instruction that a handler skips.
fn bare_traps(count: usize) -> f64 {
    const SA_RESTORER: u64 = 0x0400_0000;
    let bare = KernelAction {
        handler: skip as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: submit_cost_restorer as *const () as usize,
        mask: 0,
    };
    let before = set_action(&bare);
    let start = thread_ns();
    (0..count).for_each(|_| unsafe { asm!("ud2") });
    let time = (thread_ns() - start) as f64 / count as f64;
    set_action(&before);
    time
}
