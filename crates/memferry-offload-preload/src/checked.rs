//! Linux as the platform of the portals, with a check of the file before each write(2).
//!
//! A program may close all file descriptors, also those of this library, and then have a file of its own at the same number.
//! A descriptor must not be written there. A mapped queue needs no file.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::Descriptor;
use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::portal::{Linux, Platform};

use crate::start::DESCRIPTOR_MIN;
use crate::sys;

/// One for each portal. `open` writes the fields before the portal exists; submitters read them.
#[derive(Default)]
pub(crate) struct Checked {
    file_system: AtomicU64,
    number: AtomicU64,
}

impl Checked {
    fn is_ours(&self, file: i32) -> bool {
        let (file_system, number) =
            (self.file_system.load(Ordering::Relaxed), self.number.load(Ordering::Relaxed));
        sys::identity(file) == Some((file_system, number))
    }
}

// SAFETY: as for `Linux`. `write` submits nothing to a file that is not the opened queue. `states` has the default answer,
// so no device is ever known to be gone.
unsafe impl Platform for Checked {
    fn features(&self) -> CpuFeatures {
        Linux.features()
    }

    fn watch_forks(&self) -> io::Result<()> {
        Linux.watch_forks()
    }

    fn generation(&self) -> u32 {
        Linux.generation()
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        let file = out_of_the_way(Linux.open(path)?)?;
        let (file_system, number) = sys::identity(file.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        self.file_system.store(file_system, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        Ok(file)
    }

    fn map(&self, file: &File) -> io::Result<NonNull<u8>> {
        Linux.map(file)
    }

    unsafe fn unmap(&self, page: NonNull<u8>) {
        // SAFETY: passed on to the caller.
        unsafe { Linux.unmap(page) }
    }

    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { Linux.enqcmd(slot, descriptor) }
    }

    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        // SAFETY: passed on to the caller.
        unsafe { Linux.movdir64b(slot, descriptor) }
    }

    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        let file = file.as_raw_fd();
        if !self.is_ours(file) {
            // The portal takes it for a device that is gone, and the queue gets no more work.
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // SAFETY: the bytes are those of the slice: a descriptor has no padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(descriptors.as_ptr().cast::<u8>(), size_of_val(descriptors))
        };
        let written = sys::write(file, bytes);
        usize::try_from(written).map_err(|_| io::Error::from_raw_os_error(-written as i32))
    }
}

/// Moves a file to a high descriptor, and never leaves it at 0 to 2: a program that was started without standard streams would
/// read and write the queue in their place.
fn out_of_the_way(file: File) -> io::Result<File> {
    const BEHIND_STREAMS: i32 = libc::STDERR_FILENO + 1;
    let former = file.as_raw_fd();
    let mut moved = sys::duplicate(former, DESCRIPTOR_MIN);
    if moved < 0 {
        // The process may have a lower limit (RLIMIT_NOFILE).
        moved = sys::duplicate(former, BEHIND_STREAMS);
    }
    match i32::try_from(moved) {
        // SAFETY: a new descriptor, which nobody else owns.
        Ok(number @ 0..) => Ok(unsafe { File::from_raw_fd(number) }),
        _ if former >= BEHIND_STREAMS => Ok(file),
        _ => Err(io::Error::from_raw_os_error(-moved as i32)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A program that was started without standard streams had queues for them, and wrote its output to a queue.
    #[test]
    fn a_queue_is_out_of_the_way() {
        let queue = Checked::default().open(Path::new("/dev/null")).unwrap();
        let (number, mut limit) = (queue.as_raw_fd(), libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        // SAFETY: it writes one limit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        assert!(number >= DESCRIPTOR_MIN || limit.rlim_cur <= DESCRIPTOR_MIN as u64, "{number}");
        // SAFETY: the request has no argument.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
    }

    #[test]
    fn a_file_of_the_program_gets_no_descriptor() {
        let platform = Checked::default();
        let queue = platform.open(Path::new("/dev/null")).unwrap();
        let others = File::options().write(true).open("/dev/full").unwrap();
        let descriptor = [Descriptor::noop()];
        // SAFETY: /dev/null executes nothing.
        let written = unsafe { platform.write(queue.as_fd(), &descriptor) };
        assert_eq!(written.unwrap(), 64);
        // SAFETY: nor does /dev/full, whose error would be ENOSPC.
        let refused = unsafe { platform.write(others.as_fd(), &descriptor) };
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
