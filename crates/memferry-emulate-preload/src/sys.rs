//! System calls without libc: another library may have replaced its functions, and errno must not change. `to_libc`
//! sets it, for hooks.

use std::arch::asm;

use libc::{c_int, c_long};

/// A system call; a negative answer is a negated errno.
///
/// # Safety
/// As the system call demands.
#[inline]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the kernel preserves all other registers; the caller is responsible for the effect on memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Converts the answer of a system call as libc does: sets `errno` and returns -1.
pub(crate) fn to_libc(answer: isize) -> isize {
    if (-4095..0).contains(&answer) {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = -answer as c_int };
        return -1;
    }
    answer
}

/// mmap(2): the address, or a negated errno.
///
/// # Safety
/// As mmap(2).
pub(crate) unsafe fn mmap(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: usize,
) -> isize {
    let arguments = [address, length, protection as usize, flags as usize, file as usize, offset];
    // SAFETY: passed on.
    unsafe { call(libc::SYS_mmap, arguments) }
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
pub(crate) unsafe fn munmap(address: usize, length: usize) -> isize {
    // SAFETY: passed on.
    unsafe { call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]) }
}

/// madvise(2), for a range that belongs to the caller.
pub(crate) fn madvise(address: usize, length: usize, advice: c_int) -> bool {
    // SAFETY: the two advices that are used here (DONTFORK, WIPEONFORK) concern forks only.
    unsafe { call(libc::SYS_madvise, [address, length, advice as usize, 0, 0, 0]) == 0 }
}

/// The identity of an open file: `st_dev` and `st_ino`.
pub(crate) fn identity(file: c_int) -> Option<(u64, u64)> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes one `stat`, which on x86-64 is the kernel's own.
    let answer = unsafe { call(libc::SYS_fstat, [file as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    // SAFETY: it was written.
    (answer == 0).then(|| unsafe { status.assume_init() }).map(|status| (status.st_dev, status.st_ino))
}

/// getpid(2): the process id from the kernel, without a cache in memory that vfork shares.
pub(crate) fn process() -> u32 {
    // SAFETY: it has no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// sched_yield(2).
pub(crate) fn yield_now() {
    // SAFETY: it has no arguments.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// A set of signals in the kernel's format: bit `n - 1` is signal `n`.
pub(crate) type Signals = u64;

/// rt_sigprocmask(2) with SIG_SETMASK.
pub(crate) fn set_mask(signals: Signals) {
    let how = libc::SIG_SETMASK as usize;
    let set = &raw const signals as usize;
    // SAFETY: it reads 8 bytes.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, set, 0, size_of::<Signals>(), 0, 0]) };
}

/// rt_sigprocmask(2) with SIG_UNBLOCK.
pub(crate) fn unblock(signals: Signals) {
    let how = libc::SIG_UNBLOCK as usize;
    let set = &raw const signals as usize;
    // SAFETY: it reads 8 bytes.
    unsafe { call(libc::SYS_rt_sigprocmask, [how, set, 0, size_of::<Signals>(), 0, 0]) };
}

/// Sends a signal with its information to the calling thread.
pub(crate) fn queue_to_self(signal: c_int, information: &libc::siginfo_t) {
    let information = &raw const *information as usize;
    // SAFETY: it reads one `siginfo_t`. A process may send any of them to itself.
    unsafe {
        let thread = call(libc::SYS_gettid, [0; 6]) as usize;
        let arguments = [process() as usize, thread, signal as usize, information, 0, 0];
        call(libc::SYS_rt_tgsigqueueinfo, arguments);
    }
}

/// The base of segment FS or GS.
pub(crate) fn segment_base(is_gs: bool) -> u64 {
    const ARCH_GET_FS: usize = 0x1003;
    const ARCH_GET_GS: usize = 0x1004;
    let mut base = 0u64;
    let which = if is_gs { ARCH_GET_GS } else { ARCH_GET_FS };
    // SAFETY: it writes 8 bytes.
    unsafe { call(libc::SYS_arch_prctl, [which, &raw mut base as usize, 0, 0, 0, 0]) };
    base
}
