//! System calls on files, each as one function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_long, c_uint};

/// Number of the system call, the same on all architectures. Source: Linux `include/uapi/asm-generic/unistd.h`.
const SYS_CACHESTAT: c_long = 451;

/// Linux `include/uapi/linux/mman.h`, `struct cachestat_range`.
#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

/// `struct cachestat`.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

/// Reads up to `len` bytes at `offset` to `target`. Returns their number, or the negated error number as io_uring does.
///
/// # Safety
/// `target` is writable for `len` bytes, and nobody else accesses them during the call.
pub(crate) unsafe fn pread(file: BorrowedFd<'_>, target: *mut u8, len: usize, offset: u64) -> i32 {
    // SAFETY: passed on to the caller. `pread` of Linux reads at most 2 GiB - 4 KiB, so the result fits.
    let read = unsafe { libc::pread(file.as_raw_fd(), target.cast(), len, offset as libc::off_t) };
    count_or_errno(read)
}

/// Like [`pread`], but only from the page cache: `-EAGAIN` if a page is not there.
///
/// # Safety
/// That of `pread`.
pub(crate) unsafe fn pread_cached(file: BorrowedFd<'_>, target: *mut u8, len: usize, offset: u64) -> i32 {
    let part = libc::iovec { iov_base: target.cast(), iov_len: len };
    // SAFETY: passed on to the caller.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &part, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    count_or_errno(read)
}

fn count_or_errno(read: isize) -> i32 {
    if read < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    i32::try_from(read).unwrap_or(i32::MAX)
}

/// Number of pages of the range that are in the page cache; `None` before Linux 6.5, or if the call is refused.
///
/// A read with RWF_NOWAIT is no substitute: it starts readahead of what is missing (`filemap_get_pages` in Linux
/// mm/filemap.c), so a direct read of the same range would read it twice.
pub(crate) fn cached_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed, no partner: a hint that saves a system call.
    if IS_MISSING.load(Ordering::Relaxed) {
        return None;
    }
    let (range, mut stat) = (CachestatRange { off: offset, len }, Cachestat::default());
    // SAFETY: the kernel reads `range` and writes `stat`, both of its layout and alive during the call.
    let answer = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut stat, 0 as c_uint) };
    if answer == 0 {
        return Some(stat.nr_cache);
    }
    if matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
        IS_MISSING.store(true, Ordering::Relaxed);
    }
    None
}

/// Tells the kernel not to read ahead of reads through this descriptor: the caller does that.
pub(crate) fn disable_readahead(file: BorrowedFd<'_>) {
    // Advice only: a file system may ignore it.
    // SAFETY: the call takes numbers and touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
}

/// Extends the file to `size_bytes` with blocks that read as zeros; `EOPNOTSUPP` if its file system cannot do that.
pub(crate) fn allocate(file: BorrowedFd<'_>, size_bytes: u64) -> io::Result<()> {
    let size_bytes =
        libc::off_t::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    if size_bytes == 0 {
        return Ok(());
    }
    loop {
        // SAFETY: the call takes numbers and touches no memory of this process.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size_bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
