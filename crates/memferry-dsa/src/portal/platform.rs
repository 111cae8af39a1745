//! The seam to the operating system and the CPU, and its implementation for Linux.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use super::StateFiles;
use crate::address::PAGE_BYTES;
use crate::descriptor::Descriptor;
use crate::fork;
use crate::instructions::{self, CpuFeatures};

/// The calls of [`DevicePortal`](super::DevicePortal) to the operating system and the CPU.
///
/// # Safety
/// - A page that [`map`](Platform::map) returns is [`PAGE_BYTES`] of one allocation, and stays until `unmap`.
/// - The CPU has the [`features`](Platform::features).
/// - Two processes that are alive, of which one descends from the other, have different generations.
/// - The files of [`states`](Platform::states) are true of the device behind the open queue: see [`StateFiles`].
/// - The submitting methods answer truthfully, and the device behind them keeps the promises of
///   [`Portal`](super::Portal).
pub unsafe trait Platform: Send + Sync {
    /// The instructions of the CPU.
    fn features(&self) -> CpuFeatures;

    /// Makes [`generation`](Platform::generation) work.
    ///
    /// # Errors
    /// Forks cannot be detected.
    fn watch_forks(&self) -> io::Result<()>;

    /// A number that differs between a process and those that it was forked from. Called at each submission.
    fn generation(&self) -> u32;

    /// Opens a queue's file for reading and writing, with `O_CLOEXEC`.
    ///
    /// # Errors
    /// Those of `open(2)`.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// Maps the queue's page.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    fn map(&self, file: &File) -> io::Result<NonNull<u8>>;

    /// Opens the `state` attributes of an open queue and of its device; by default none, which is always correct.
    fn states(&self, queue: &File) -> StateFiles {
        let _ = queue;
        StateFiles::default()
    }

    /// Unmaps a page.
    ///
    /// # Safety
    /// The page came from [`map`](Platform::map) in this generation, and is no longer used.
    unsafe fn unmap(&self, page: NonNull<u8>);

    /// ENQCMD; returns whether the queue accepted the descriptor.
    ///
    /// # Safety
    /// The CPU has the instruction, `slot` is a multiple of 64 bytes into a mapped page, and the contract of
    /// [`Portal::submit`](super::Portal::submit) holds.
    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool;

    /// MOVDIR64B.
    ///
    /// # Safety
    /// As [`enqcmd`](Platform::enqcmd).
    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor);

    /// `write(2)` of descriptors to the queue's file; returns the bytes that were submitted.
    ///
    /// # Errors
    /// Those of `write(2)`.
    ///
    /// # Safety
    /// As [`Portal::submit`](super::Portal::submit) for each descriptor.
    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize>;
}

/// The platform of this process: Linux and its CPU.
#[derive(Clone, Copy, Default, Debug)]
pub struct Linux;

// SAFETY: the kernel maps a page, CPUID lists the instructions, `fork` numbers the processes, and the instructions return
// the answer of the queue.
unsafe impl Platform for Linux {
    fn features(&self) -> CpuFeatures {
        CpuFeatures::detect()
    }

    fn watch_forks(&self) -> io::Result<()> {
        fork::watch()
    }

    fn generation(&self) -> u32 {
        fork::generation()
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        // std adds O_CLOEXEC. No O_NOFOLLOW: symbolic links to queues are legitimate names.
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)
    }

    fn map(&self, file: &File) -> io::Result<NonNull<u8>> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists. Populated, so
        // that the first submission takes no page fault.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE_BYTES as usize,
                libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(page.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn states(&self, queue: &File) -> StateFiles {
        StateFiles::of(queue)
    }

    unsafe fn unmap(&self, page: NonNull<u8>) {
        // SAFETY: the caller has the page from `map`, in this address space. The call can fail only for invalid addresses,
        // so its result is ignored.
        unsafe { libc::munmap(page.as_ptr().cast(), PAGE_BYTES as usize) };
    }

    #[inline]
    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { instructions::enqcmd(slot.as_ptr(), descriptor) }
    }

    #[inline]
    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        // SAFETY: passed on to the caller.
        unsafe { instructions::movdir64b(slot.as_ptr(), descriptor) }
    }

    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        // SAFETY: the bytes are those of the slice, all of them initialised: a descriptor has no padding.
        let written =
            unsafe { libc::write(file.as_raw_fd(), descriptors.as_ptr().cast(), size_of_val(descriptors)) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }
}
