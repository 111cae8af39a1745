//! The page of a queue, for benchmarks of the instruction without the portal around it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use memferry_dsa::Descriptor;
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::instructions::{self, CpuFeatures};

/// The page of a shared queue.
pub(super) struct Page(NonNull<u8>);

/// A queue whose page cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The queue cannot be opened or mapped.
    #[error("cannot map the queue {}: {source}", path.display())]
    Map {
        /// File of the queue.
        path: PathBuf,
        /// Answer of the operating system.
        source: io::Error,
    },
    /// Neither the CPU nor an emulation executes the instruction.
    #[error("this CPU has no ENQCMD and it is not emulated; run the program with `memferry emulate`")]
    NoInstruction,
}

// SAFETY: any thread may submit: ENQCMD is atomic, and the mapping lives as long as the page.
unsafe impl Sync for Page {}

impl Page {
    /// # Errors
    /// [`PageError`]
    pub(super) fn map(queue: &Path) -> Result<Page, PageError> {
        if !CpuFeatures::detect().enqcmd {
            return Err(PageError::NoInstruction);
        }
        Page::of(queue).map_err(|source| PageError::Map { path: queue.to_owned(), source })
    }

    fn of(queue: &Path) -> io::Result<Page> {
        let file = OpenOptions::new().read(true).write(true).open(queue)?;
        let (protection, flags) = (libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(ptr::null_mut(), PAGE_BYTES as usize, protection, flags, file.as_raw_fd(), 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(Page).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Submits a descriptor; false if the queue did not accept it.
    ///
    /// # Safety
    /// As [`Portal::submit`](memferry_dsa::Portal::submit).
    #[inline]
    pub(super) unsafe fn enqcmd(&self, descriptor: &Descriptor) -> bool {
        // SAFETY: the instruction is executed, as `map` has checked; the rest is the caller's.
        unsafe { instructions::enqcmd(self.0.as_ptr(), descriptor) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this page, and no submission can follow its drop.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_BYTES as usize) };
    }
}
