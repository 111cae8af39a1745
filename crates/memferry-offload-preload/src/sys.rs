//! System calls without libc: they change no errno, are no cancellation points, and cannot be replaced by another library.

use std::arch::asm;
use std::ffi::CStr;

use libc::{c_int, c_long};

/// A system call; a negative answer is a negated errno.
///
/// # Safety
/// As the system call demands.
#[inline]
unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
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

/// New zeroed memory of this process, or `None`.
pub(crate) fn map(bytes: usize) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let address =
        unsafe { call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0]) };
    usize::try_from(address).ok()
}

/// The signals of a thread, as the kernel represents them: bit n - 1 is signal n.
pub(crate) type Signals = u64;

/// Signals that an instruction of this thread causes. The kernel kills a process that causes one while it is blocked.
const CAUSED: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Blocks all signals of this thread that others cause, and returns the former mask.
pub(crate) fn block_signals() -> Signals {
    let caused: Signals = CAUSED.iter().fold(0, |set, signal| set | 1 << (signal - 1));
    let (blocked, mut former): (Signals, Signals) = (!caused, 0);
    let arguments =
        [libc::SIG_BLOCK as usize, &raw const blocked as usize, &raw mut former as usize, 8, 0, 0];
    // SAFETY: it reads one set and writes the other.
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    former
}

/// Sets the mask that [`block_signals`] returned. Signals that came meanwhile are delivered here.
pub(crate) fn restore_signals(former: Signals) {
    let arguments = [libc::SIG_SETMASK as usize, &raw const former as usize, 0, 8, 0, 0];
    // SAFETY: it reads one set.
    unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
}

/// Lets another thread run, such as that of an emulated device.
pub(crate) fn yield_now() {
    // SAFETY: the call has no arguments.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// The file system and the number of an open file.
pub(crate) fn identity(file: c_int) -> Option<(u64, u64)> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it writes one struct, for which zeros are valid.
    let (answer, found) = unsafe {
        let answer = call(libc::SYS_fstat, [file as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0]);
        (answer, found.assume_init())
    };
    (answer == 0).then_some((found.st_dev, found.st_ino))
}

/// write(2): the number of written bytes, or a negated errno.
pub(crate) fn write(file: c_int, bytes: &[u8]) -> isize {
    // SAFETY: it reads the bytes of the slice.
    unsafe { call(libc::SYS_write, [file as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Reads the beginning of a file. Returns the number of bytes, or a negated errno.
pub(crate) fn read_file(path: &CStr, bytes: &mut [u8]) -> isize {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero; the call writes only to the slice; the file is closed by its opener.
    unsafe {
        let file = call(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0],
        );
        if file < 0 {
            return file;
        }
        let count = call(libc::SYS_read, [file as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]);
        call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]);
        count
    }
}

/// A copy of a descriptor with a number of at least `least`, closed by exec; or a negated errno.
pub(crate) fn duplicate(file: c_int, least: c_int) -> isize {
    let arguments = [file as usize, libc::F_DUPFD_CLOEXEC as usize, least as usize, 0, 0, 0];
    // SAFETY: the request takes a number.
    unsafe { call(libc::SYS_fcntl, arguments) }
}

/// Opens a file for appending, or creates it. Returns its number, or a negated errno.
pub(crate) fn open_for_appending(path: &CStr) -> isize {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero.
    unsafe {
        call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0o644, 0, 0])
    }
}

/// Closes a file of this library.
pub(crate) fn close(file: c_int) {
    // SAFETY: the caller has opened it.
    unsafe { call(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]) };
}

/// The process id.
pub(crate) fn process() -> u32 {
    // SAFETY: the call has no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The NUMA node of the page with this address; `None` if the page is absent. Touches nothing.
///
/// Source: move_pages(2), with `nodes` null.
pub(crate) fn node_of(address: usize) -> Option<u32> {
    let (page, mut status): (usize, c_int) = (address & !4095, -1);
    let arguments = [0, 1, &raw const page as usize, 0, &raw mut status as usize, 0];
    // SAFETY: it reads one address and writes one number.
    let answer = unsafe { call(libc::SYS_move_pages, arguments) };
    (answer == 0).then_some(status).and_then(|status| u32::try_from(status).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_others_wait() {
        let before = block_signals();
        let nested = block_signals();
        restore_signals(before);
        let after = block_signals();
        restore_signals(after);
        assert_eq!(before, after);
        let is_blocked = |set: Signals, signal: c_int| set >> (signal - 1) & 1 == 1;
        assert!(is_blocked(nested, libc::SIGALRM) && is_blocked(nested, libc::SIGINT));
        assert!(!is_blocked(nested, libc::SIGSEGV) && !is_blocked(nested, libc::SIGILL));
    }

    #[test]
    fn files_are_told_apart() {
        let open = |path: &CStr| open_for_appending(path) as c_int;
        let (null, again) = (open(c"/dev/null"), open(c"/dev/null"));
        let other = open(c"/dev/zero");
        assert!(identity(null).is_some());
        assert_eq!(identity(null), identity(again));
        assert_ne!(identity(null), identity(other));
        [null, again, other].into_iter().for_each(close);
        assert_eq!(identity(-1), None);
        let mut start = [0; 4];
        assert_eq!(read_file(c"/proc/self/exe", &mut start), 4);
        assert_eq!(&start, b"\x7fELF");
        assert_eq!(read_file(c"/nowhere", &mut start), -(libc::ENOENT as isize));
    }

    #[test]
    fn a_page_has_a_node() {
        let present = 7u64;
        let node = node_of(&raw const present as usize);
        assert!(node.is_none_or(|node| node < 1024), "{node:?}");
        assert_eq!(node_of(0), None);
    }
}
