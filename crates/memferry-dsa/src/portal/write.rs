//! Submission by `write(2)`, for processes that may not map the queue: the kernel checks each descriptor and submits it
//! for the process.
//!
//! Source: `idxd_cdev_write` in Linux' `drivers/dma/idxd/cdev.c`, since 6.9.1.

use std::os::fd::{BorrowedFd, RawFd};
use std::{io, slice};

use super::{Platform, Refused, Submission, SubmitError};
use crate::descriptor::Descriptor;

/// The result of `write(2)`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    Answer(Submission),
    Error(SubmitError),
    /// EPERM: the file was opened for another address space.
    WrongProcess,
}

/// Submits one descriptor.
///
/// # Safety
/// As [`Portal::submit`](super::Portal::submit); the file is open.
pub(super) unsafe fn write(platform: &impl Platform, file: RawFd, descriptor: &Descriptor) -> Written {
    // SAFETY: the caller keeps the file open.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: passed on to the caller.
    let error = match unsafe { platform.write(file, slice::from_ref(descriptor)) } {
        // A short write submits nothing.
        Ok(bytes) if bytes < size_of::<Descriptor>() => return Written::Answer(Submission::Retry),
        Ok(_) => return Written::Answer(Submission::Accepted),
        Err(error) => error,
    };
    Written::Error(match error.raw_os_error().unwrap_or(0) {
        // A signal interrupted the call: treated as a full queue.
        libc::EAGAIN | libc::EINTR => return Written::Answer(Submission::Retry),
        libc::EPERM => return Written::WrongProcess,
        libc::EINVAL => Refused::invalid(descriptor).into(),
        libc::ENODEV | libc::ENXIO | libc::EIO => SubmitError::Gone,
        errno => Refused::Errno(errno).into(),
    })
}

/// Whether the kernel has `write(2)` for this file. A kernel without it answers EINVAL before it looks at the size; a
/// kernel with it submits nothing for an empty write.
///
/// Source: `vfs_write` in Linux' `fs/read_write.c`.
pub(super) fn is_known(platform: &impl Platform, file: BorrowedFd<'_>) -> bool {
    // SAFETY: no descriptor is submitted.
    let answer = unsafe { platform.write(file, &[]) };
    !answer.is_err_and(|error: io::Error| error.raw_os_error() == Some(libc::EINVAL))
}
