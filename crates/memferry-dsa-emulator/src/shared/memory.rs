//! Memory that processes share: memfds, sealed so that no process can truncate them.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// Types that can be in shared memory.
///
/// # Safety
/// The type consists of atomics and arrays of them, for which all bytes are valid, zeros included.
pub(super) unsafe trait Plain: Send + Sync + 'static {}

/// The processes that can write a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writers {
    /// All processes with the file.
    All,
    /// Only the process that created it; a seal prevents writable mappings by others.
    Creator,
}

/// A `T` in memory, mapped shared until it is dropped.
pub(super) struct Mapping<T: Plain> {
    at: NonNull<T>,
    owns: PhantomData<T>,
}

impl<T: Plain> Mapping<T> {
    /// Creates a zeroed mapping; the file is for other processes.
    ///
    /// # Errors
    /// Errors of `memfd_create(2)`, `ftruncate(2)`, `mmap(2)` and `fcntl(2)`, F_ADD_SEALS.
    pub(super) fn create(name: &CStr, writers: Writers) -> io::Result<(Mapping<T>, File)> {
        // SAFETY: the string ends in zero; the file descriptor is new and has no other owner.
        let file = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            let descriptor = libc::memfd_create(name.as_ptr(), flags);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(OwnedFd::from_raw_fd(descriptor))
        };
        file.set_len(size_of::<T>() as u64)?;
        let mapping = Mapping::map(&file, libc::PROT_READ | libc::PROT_WRITE)?;
        let writes = if writers == Writers::Creator { libc::F_SEAL_FUTURE_WRITE } else { 0 };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | writes;
        // SAFETY: fcntl takes numbers here.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok((mapping, file)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps a file that another process has created.
    ///
    /// # Errors
    /// Errors of `fstat(2)` and `mmap(2)`; `InvalidData` if the file is not such a memfd, or has the length of another
    /// version.
    pub(super) fn open(file: &File, writers: Writers) -> io::Result<Mapping<T>> {
        // SAFETY: fcntl takes numbers here.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || file.metadata()?.len() != size_of::<T>() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let writes = if writers == Writers::All { libc::PROT_WRITE } else { 0 };
        Mapping::map(file, libc::PROT_READ | writes)
    }

    fn map(file: &File, protection: i32) -> io::Result<Mapping<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let (null, size, file) = (ptr::null_mut(), size_of::<T>(), file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let address = unsafe { libc::mmap(null, size, protection, libc::MAP_SHARED, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(address.cast()) {
            Some(at) => Ok(Mapping { at, owns: PhantomData }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        // SAFETY: the mapping is page-aligned, as long as the type, and lives as long as this. The type consists of
        // atomics, for which all bytes are valid, so that writes of other processes are no data race. The file is
        // sealed against truncation. Memory that only its creator can write is only loaded by others.
        unsafe { self.at.as_ref() }
    }

    /// The mapping as words, for tests that forge its content.
    pub(super) fn words(&self) -> &[AtomicU64] {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        // SAFETY: as above; the type consists of atomics, whose bytes are valid as other atomics.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), size_of::<T>() / 8) }
    }

    /// Excludes the mapping from children of `fork`.
    ///
    /// # Safety
    /// A child neither uses nor drops this.
    pub(super) unsafe fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: this owns the mapping; the caller promises that children do not use it.
        let answer = unsafe { libc::madvise(self.at.as_ptr().cast(), size_of::<T>(), libc::MADV_DONTFORK) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl<T: Plain> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping, and no borrow of it is left. munmap fails only for an invalid address.
        unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

// SAFETY: it owns a `T`, which is `Send` and `Sync`, and can be unmapped from any thread.
unsafe impl<T: Plain> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapping<T> {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[repr(C)]
    struct Words([AtomicU64; 1024]);
    // SAFETY: atomics.
    unsafe impl Plain for Words {}

    /// A file that another process truncates would cause SIGBUS here.
    #[test]
    fn no_process_can_truncate_it() {
        for writers in [Writers::All, Writers::Creator] {
            let (mine, file) = Mapping::<Words>::create(c"test", writers).unwrap();
            assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
            let theirs = Mapping::<Words>::open(&file, writers).unwrap();
            mine.get().0[7].store(7, Ordering::Relaxed);
            assert_eq!(theirs.get().0[7].load(Ordering::Relaxed), 7);
            let writable = Mapping::<Words>::open(&file, Writers::All).is_ok();
            assert_eq!(writable, writers == Writers::All, "{writers:?}");
        }
        let other = tempfile::tempfile().unwrap();
        other.set_len(size_of::<Words>() as u64).unwrap();
        assert!(Mapping::<Words>::open(&other, Writers::All).is_err(), "a file that can be truncated");
    }
}
