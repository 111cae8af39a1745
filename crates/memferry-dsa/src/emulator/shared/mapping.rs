//! A state file in memory.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use super::layout::StateFile;

/// The whole file, mapped shared, until the last user drops it.
pub(super) struct Mapping(NonNull<StateFile>);

pub(super) const SIZE_BYTES: usize = size_of::<StateFile>();

impl Mapping {
    /// Maps a file that is as long as a state file.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `mmap(2)`; `InvalidData` if the file has another length.
    pub(super) fn new(file: &File) -> io::Result<Mapping> {
        if file.metadata()?.len() != SIZE_BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Mapping).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn get(&self) -> &StateFile {
        // SAFETY: the mapping is page-aligned, as long as the type, and lives as long as this. The type consists of
        // atomics, for which all bytes are valid, so that what other processes write is no race. A file that is cut
        // short would end in SIGBUS; only the server could do that, and does not.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and whoever borrowed from it is gone. It can only fail for an address
        // that is none.
        unsafe { libc::munmap(self.0.as_ptr().cast(), SIZE_BYTES) };
    }
}

// SAFETY: it leads to atomics only, and can be unmapped from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}
