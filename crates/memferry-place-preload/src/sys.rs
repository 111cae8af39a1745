//! System calls without libc: they change no errno, are no cancellation points, and cannot be replaced by another library.

use std::arch::asm;
use std::ffi::CStr;
use std::mem::MaybeUninit;

use libc::{c_int, c_long, c_ulong};

/// Size of a page on x86-64.
pub(crate) const PAGE: usize = 4096;
/// Nodes of a kernel: `CONFIG_NODES_SHIFT` is at most 10.
pub(crate) const NODES_MAX: usize = 1024;
/// The kernel reads one bit fewer than the given length.
const MASK_BITS: usize = NODES_MAX + 1;

/// A set of nodes, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes([c_ulong; NODES_MAX / 64]);

impl Nodes {
    pub(crate) const NONE: Nodes = Nodes([0; NODES_MAX / 64]);

    pub(crate) fn of(nodes: impl IntoIterator<Item = u32>) -> Nodes {
        let mut set = Nodes::NONE;
        for node in nodes.into_iter().map(|node| node as usize).filter(|&node| node < NODES_MAX) {
            set.0[node / 64] |= 1 << (node % 64);
        }
        set
    }
}

/// The modes of Linux `include/uapi/linux/mempolicy.h` that this library uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Default = 0,
    Preferred = 1,
    Interleave = 3,
    /// The node of the touching thread, whatever its policy is.
    Local = 4,
    /// Linux 6.9.
    WeightedInterleave = 6,
}

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

/// The errno of a negative answer.
fn done(answer: isize) -> Result<(), c_int> {
    if answer >= 0 { Ok(()) } else { Err(-answer as c_int) }
}

/// An answer as libc gives it: -1 and errno.
pub(crate) fn to_libc(answer: isize) -> isize {
    if (-4095..0).contains(&answer) {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = -answer as c_int };
        return -1;
    }
    answer
}

/// Sets the policy of later pages of a range.
pub(crate) fn bind(start: usize, bytes: usize, mode: Mode, nodes: &Nodes, moves: bool) -> Result<(), c_int> {
    let is_without = matches!(mode, Mode::Default | Mode::Local);
    let mask = if is_without { 0 } else { nodes.0.as_ptr() as usize };
    let bits = if is_without { 0 } else { MASK_BITS };
    /// `MPOL_MF_MOVE`.
    const MOVE: usize = 1 << 1;
    let flags = if moves { MOVE } else { 0 };
    // SAFETY: the policy of a mapping is not content, and the mask has the given length.
    done(unsafe { call(libc::SYS_mbind, [start, bytes, mode as usize, mask, bits, flags]) })
}

/// Sets the policy of this thread.
pub(crate) fn set_policy(mode: Mode, nodes: &Nodes) -> Result<(), c_int> {
    let is_without = matches!(mode, Mode::Default | Mode::Local);
    let mask = if is_without { 0 } else { nodes.0.as_ptr() as usize };
    let bits = if is_without { 0 } else { MASK_BITS };
    // SAFETY: it reads a mask of the given length.
    done(unsafe { call(libc::SYS_set_mempolicy, [mode as usize, mask, bits, 0, 0, 0]) })
}

/// The policy of this thread, with its flags; 0 is the default. `None`: the kernel does not tell.
pub(crate) fn policy() -> Option<c_int> {
    let mut mode: c_int = 0;
    // SAFETY: it writes one number.
    let answer = unsafe { call(libc::SYS_get_mempolicy, [&raw mut mode as usize, 0, 0, 0, 0, 0]) };
    (answer == 0).then_some(mode)
}

/// The node of each page, or the kernel's negative error number. False: the kernel does not tell.
pub(crate) fn nodes_of(pages: &[usize], nodes: &mut [c_int]) -> bool {
    assert_eq!(pages.len(), nodes.len());
    let arguments = [0, pages.len(), pages.as_ptr() as usize, 0, nodes.as_mut_ptr() as usize, 0];
    // SAFETY: without target nodes the kernel only looks, at any address. It writes as many numbers as there are pages.
    unsafe { call(libc::SYS_move_pages, arguments) >= 0 }
}

/// Moves pages that no other process maps, each to its node; `status` gets the node or a negative error number.
pub(crate) fn move_pages(pages: &[usize], targets: &[c_int], status: &mut [c_int]) -> bool {
    assert!(pages.len() == targets.len() && pages.len() == status.len());
    /// `MPOL_MF_MOVE`.
    const MOVE: usize = 1 << 1;
    let (from, to, answers) =
        (pages.as_ptr() as usize, targets.as_ptr() as usize, status.as_mut_ptr() as usize);
    // SAFETY: moving keeps content and addresses; the three arrays have the given length.
    unsafe { call(libc::SYS_move_pages, [0, pages.len(), from, to, answers, MOVE]) >= 0 }
}

/// # Safety
/// As mmap(2).
pub(crate) unsafe fn mmap(
    address: usize,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: usize,
) -> isize {
    let arguments = [address, bytes, protection as usize, flags as usize, file as isize as usize, offset];
    // SAFETY: the caller's.
    unsafe { call(libc::SYS_mmap, arguments) }
}

/// # Safety
/// As madvise(2): advice that drops content needs memory that nobody uses.
pub(crate) unsafe fn advise(start: usize, bytes: usize, advice: c_int) -> Result<(), c_int> {
    // SAFETY: the caller's.
    done(unsafe { call(libc::SYS_madvise, [start, bytes, advice as usize, 0, 0, 0]) })
}

/// The status of an open file.
pub(crate) fn status(file: c_int) -> Option<libc::stat> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it writes one struct, for which zeros are valid.
    let (answer, found) = unsafe {
        let answer = call(libc::SYS_fstat, [file as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0]);
        (answer, found.assume_init())
    };
    (answer == 0).then_some(found)
}

/// write(2): the number of written bytes, or a negated errno.
pub(crate) fn write(file: c_int, bytes: &[u8]) -> isize {
    // SAFETY: it reads the bytes of the slice.
    unsafe { call(libc::SYS_write, [file as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// The target of a symbolic link.
pub(crate) fn read_link<'a>(path: &CStr, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
    let arguments =
        [libc::AT_FDCWD as usize, path.as_ptr() as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0];
    // SAFETY: the path ends with a zero; the call writes only to the slice.
    let count = unsafe { call(libc::SYS_readlinkat, arguments) };
    usize::try_from(count).ok().map(|count| &bytes[..count])
}

/// Opens a file for reading or, with `appends`, for appending, and creates it then. Returns its number, or a negated errno.
pub(crate) fn open(path: &CStr, appends: bool) -> isize {
    let flags = match appends {
        true => libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC,
        false => libc::O_RDONLY | libc::O_CLOEXEC,
    };
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0o644, 0, 0];
    // SAFETY: the path ends with a zero.
    unsafe { call(libc::SYS_openat, arguments) }
}

/// read(2).
pub(crate) fn read(file: c_int, bytes: &mut [u8]) -> isize {
    // SAFETY: it writes only to the slice.
    unsafe { call(libc::SYS_read, [file as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// pread(2) to memory of this library.
///
/// # Safety
/// The range is writable memory that nobody else uses.
pub(crate) unsafe fn read_at(file: c_int, address: usize, bytes: usize, offset: usize) -> isize {
    // SAFETY: the caller's.
    unsafe { call(libc::SYS_pread64, [file as usize, address, bytes, offset, 0, 0]) }
}

/// The flags of an open file (`F_GETFL`).
pub(crate) fn file_flags(file: c_int) -> Option<c_int> {
    // SAFETY: the request has no argument.
    let flags = unsafe { call(libc::SYS_fcntl, [file as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    (flags >= 0).then_some(flags as c_int)
}

/// Whether some process has the file open for writing; `None` if this user may not ask.
///
/// Source: fcntl(2), "Leases": a read lease is refused with EAGAIN then.
pub(crate) fn has_writers(file: c_int) -> Option<bool> {
    let set = |lease: c_int| {
        // SAFETY: the request takes a number.
        unsafe { call(libc::SYS_fcntl, [file as usize, libc::F_SETLEASE as usize, lease as usize, 0, 0, 0]) }
    };
    match set(libc::F_RDLCK) {
        0 => {
            set(libc::F_UNLCK);
            Some(false)
        }
        answer if answer == -(libc::EAGAIN as isize) => Some(true),
        _ => None,
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

/// The CPUs that a thread may run on (0: this one), as a mask of 64-bit words.
pub(crate) fn cpus(thread: u32) -> Option<[u64; 128]> {
    let mut mask = [0u64; 128];
    let arguments = [thread as usize, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: it writes at most the given number of bytes.
    let answer = unsafe { call(libc::SYS_sched_getaffinity, arguments) };
    (answer > 0).then_some(mask)
}
