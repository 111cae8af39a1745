//! Errors of opening a queue and of submitting a descriptor, each with a remedy.
//!
//! Source: `idxd_cdev_open`, `idxd_cdev_mmap` and `idxd_cdev_write` in Linux' `drivers/dma/idxd/cdev.c`.

use std::io;
use std::path::{Path, PathBuf};

use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;

/// The error of opening a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// ENOENT.
    #[error(
        "cannot open {0}: there is no such file; load the driver (modprobe idxd) and enable the work queue with type \
         user (accel-config enable-wq)"
    )]
    NotFound(PathBuf),
    /// EACCES, or EPERM.
    #[error(
        "cannot open {0}: permission denied; let this user read and write it (a udev rule, or chgrp and chmod 660), or \
         run as root"
    )]
    Denied(PathBuf),
    /// EBUSY.
    #[error(
        "cannot open {0}: the queue is dedicated and already open, in this process or another; use that portal, \
         configure the queue as shared, or open another one"
    )]
    Busy(PathBuf),
    /// ENXIO or ENODEV.
    #[error(
        "cannot open {0}: its device is disabled or halted; see its state and cmd_status in sysfs, then enable it again"
    )]
    Disabled(PathBuf),
    /// EOPNOTSUPP.
    #[error(
        "cannot open {0}: the device cannot use the addresses of this process; switch on the IOMMU's scalable mode \
         (intel_iommu=on,sm_on) and check that pasid_enabled of the device is 1"
    )]
    NoAddressSpace(PathBuf),
    /// The page cannot be mapped, and the kernel has no `write(2)` for the file.
    #[error(
        "cannot open {0}: it cannot be mapped (since INTEL-SA-01084 this needs CAP_SYS_RAWIO), and this kernel has no \
         write(2) for it; use Linux 6.9.1 or newer, or run as root"
    )]
    NoWrite(PathBuf),
    /// The options allow only the mapped page.
    #[error("cannot map {path}: {why}; allow other methods of submission, or remove the reason")]
    NotMapped {
        /// The queue's file.
        path: PathBuf,
        /// The reason.
        why: super::WriteReason,
    },
    /// Forks cannot be detected.
    #[error(
        "cannot open {1}: the kernel offers no way to detect a fork ({0}), and without it the queue is unsafe to use"
    )]
    ForkUnnoticed(io::ErrorKind, PathBuf),
    /// An error that the driver does not document.
    #[error("cannot open {path}: {}", io::Error::from_raw_os_error(*.errno))]
    Other {
        /// The queue's file.
        path: PathBuf,
        /// The error number, 0 if there is none.
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

/// The error of a submission. Nothing was submitted, and a retry would fail as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The device was disabled or died.
    #[error("the device is gone: use another queue, or the CPU")]
    Gone,
    /// The portal cannot submit this descriptor. The queue accepts others.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// This process is a fork and could not reopen the queue; it does not try again.
    #[error("cannot reopen the queue after a fork: {0}")]
    NotReopened(#[source] Box<OpenError>),
}

/// The reason for the kernel to refuse a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// EINVAL for a batch.
    #[error("the kernel does not submit batches to devices of version 1.0: submit the members one by one")]
    Batch,
    /// EINVAL for a descriptor whose completion record is not aligned.
    #[error("the completion record is not 32-byte aligned: align it")]
    RecordAlignment,
    /// Any other error of `write(2)`.
    #[error("the kernel refused the descriptor: {}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
}

impl Refused {
    /// The reason for EINVAL, derived from the descriptor.
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
