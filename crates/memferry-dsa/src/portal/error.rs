//! Why a queue could not be opened, or a descriptor not submitted, each with what to do about it.
//!
//! Source: `idxd_cdev_open`, `idxd_cdev_mmap` and `idxd_cdev_write` in Linux' `drivers/dma/idxd/cdev.c`.

use std::io;
use std::path::{Path, PathBuf};

use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;

/// The queue could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// ENOENT.
    #[error(
        "there is no {0}: enable the work queue with type user (accel-config enable-wq), and see that the driver idxd \
         is loaded"
    )]
    NotFound(PathBuf),
    /// EACCES, or EPERM.
    #[error(
        "{0} may not be opened: give this user the right to read and write it (a udev rule, or chgrp and chmod 660), or \
         run as root"
    )]
    Denied(PathBuf),
    /// EBUSY.
    #[error(
        "{0} is a dedicated queue that is open already, in this process or another: use its portal, configure the queue \
         as shared, or open another one"
    )]
    Busy(PathBuf),
    /// ENXIO or ENODEV.
    #[error(
        "the device of {0} is disabled or halted: see its state and cmd_status in sysfs, then enable it again"
    )]
    Disabled(PathBuf),
    /// EOPNOTSUPP.
    #[error(
        "{0} cannot use this process' addresses: switch on the IOMMU's scalable mode (intel_iommu=on,sm_on) and see \
         that the device's pasid_enabled is 1"
    )]
    NoAddressSpace(PathBuf),
    /// The page may not be mapped, and the kernel does not submit either.
    #[error(
        "{0} may not be mapped (CAP_SYS_RAWIO is needed since INTEL-SA-01084), and this kernel has no write(2) for it: \
         use Linux 6.9.1 or newer, or run as root"
    )]
    NoWrite(PathBuf),
    /// The page was wanted and nothing else.
    #[error("{path} was to be mapped, which is not possible: {why}")]
    NotMapped {
        /// The queue's file.
        path: PathBuf,
        /// Why not.
        why: super::WriteReason,
    },
    /// Forks could not be noticed.
    #[error("the kernel gives no way to notice a fork ({0}), without which {1} cannot be used safely")]
    ForkUnnoticed(io::ErrorKind, PathBuf),
    /// Something that the driver does not document.
    #[error("{path}: {}", io::Error::from_raw_os_error(*.errno))]
    Other {
        /// The queue's file.
        path: PathBuf,
        /// The error's number, 0 if it has none.
        errno: i32,
    },
}

impl OpenError {
    pub(super) fn from_io(path: &Path, error: &io::Error) -> OpenError {
        let path = path.to_owned();
        match error.raw_os_error().unwrap_or(0) {
            libc::ENOENT | libc::ENOTDIR => OpenError::NotFound(path),
            libc::EACCES | libc::EPERM => OpenError::Denied(path),
            libc::EBUSY => OpenError::Busy(path),
            libc::ENXIO | libc::ENODEV => OpenError::Disabled(path),
            libc::EOPNOTSUPP => OpenError::NoAddressSpace(path),
            errno => OpenError::Other { path, errno },
        }
    }
}

/// A descriptor was not submitted, and will not be by trying again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The device was disabled or died. Nothing was submitted; do not retry here.
    #[error("the device is gone: use another queue, or the CPU")]
    Gone,
    /// This descriptor cannot be submitted this way. The queue goes on with others.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// This process is a fork, and opening the queue again failed; it is not tried another time.
    #[error("the queue could not be opened again after a fork: {0}")]
    NotReopened(#[source] Box<OpenError>),
}

/// What the kernel refused to submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// EINVAL for a batch.
    #[error("the kernel submits no batches to devices of version 1.0: submit the members one by one")]
    Batch,
    /// EINVAL for a descriptor whose completion record is not aligned.
    #[error("the completion record is not 32-byte aligned")]
    RecordAlignment,
    /// Any other error of `write(2)`.
    #[error("the kernel refused the descriptor: {}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
}

impl Refused {
    /// Why the kernel answered EINVAL to this descriptor.
    pub(super) fn invalid(descriptor: &Descriptor) -> Refused {
        let has_record = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID);
        if has_record && !descriptor.completion_address().is_aligned_to(32) {
            Refused::RecordAlignment
        } else if descriptor.operation_code() == Opcode::Batch as u8 {
            Refused::Batch
        } else {
            Refused::Errno(libc::EINVAL)
        }
    }
}
