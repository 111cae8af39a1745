//! A queue's page, for what measures the instruction and not the portal around it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use memferry_dsa::instructions::{self, CpuFeatures};
use memferry_dsa::{Descriptor, PAGE_BYTES};

/// The page of a shared queue.
pub(super) struct Page(NonNull<u8>);

/// Why a queue's page cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPage {
    /// The queue cannot be opened or mapped.
    #[error("cannot map the queue {}: {source}", path.display())]
    Map {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody executes the instruction.
    #[error("no ENQCMD, neither of this CPU nor emulated: run it by `memferry emulate`")]
    NoInstruction,
}

// SAFETY: submissions from any thread are what it is for.
unsafe impl Sync for Page {}

impl Page {
    /// # Errors
    /// [`NoPage`]
    pub(super) fn map(queue: &Path) -> Result<Page, NoPage> {
        if !CpuFeatures::detect().enqcmd {
            return Err(NoPage::NoInstruction);
        }
        Page::of(queue).map_err(|source| NoPage::Map { path: queue.to_owned(), source })
    }

    fn of(queue: &Path) -> io::Result<Page> {
        let file = OpenOptions::new().read(true).write(true).open(queue)?;
        let (protection, flags) = (libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping where the kernel wants it.
        let page = unsafe {
            libc::mmap(ptr::null_mut(), PAGE_BYTES as usize, protection, flags, file.as_raw_fd(), 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).map(Page).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Whether the queue took the descriptor.
    ///
    /// # Safety
    /// As [`Portal::submit`](memferry_dsa::Portal::submit).
    #[inline]
    pub(super) unsafe fn enqcmd(&self, descriptor: &Descriptor) -> bool {
        // SAFETY: somebody executes the instruction, or there would be no page; the rest is the caller's.
        unsafe { instructions::enqcmd(self.0.as_ptr(), descriptor) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nobody submits any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_BYTES as usize) };
    }
}
