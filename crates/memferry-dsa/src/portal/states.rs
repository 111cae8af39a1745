//! The attributes `state` of a queue and of its device in sysfs, which prove that a device has stopped.
//!
//! Callers give memory back because of this proof, so it does not depend on anything that safe code can choose: neither
//! the name of the queue nor a path that is looked up later. The attributes are opened together with the queue, found by
//! the number of its device file, and read through their file descriptors. A process that loses `/sys` afterwards
//! (`chroot`, a mount namespace) still reads the same attributes.
//!
//! ```text
//! open queue ── st_rdev ──▶ /sys/dev/char/MAJ:MIN ── on sysfs, and its `dev` says MAJ:MIN
//!                             └ ..  wq0.1/state    ../..  dsa0/state
//! ```
//!
//! The open queue keeps its number: the driver does not reuse it before the file is closed.
//!
//! Source: `idxd_wq_add_cdev` in Linux' `drivers/dma/idxd/cdev.c` (the parent of the device file's directory is the
//! queue's), `wq_state_show` and `state_show` in `sysfs.c`; `idxd_remove` in `init.c`, `device_del` in
//! `drivers/base/core.c` (the order of removal); `fs/kernfs/file.c` (ENODEV).

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};

/// The open attributes `state` of a queue and of its device; `None` if an attribute cannot be identified reliably.
#[derive(Debug, Default)]
pub struct StateFiles {
    /// The queue's attribute: `disabled` or `enabled`.
    pub queue: Option<File>,
    /// The device's attribute: `disabled`, `enabled` or `halted`.
    pub device: Option<File>,
}

impl StateFiles {
    /// Opens the attributes of an open queue.
    pub(super) fn of(queue: &File) -> StateFiles {
        let Some(directory) = directory_of(queue) else { return StateFiles::default() };
        StateFiles { queue: open_in(&directory, c"../state"), device: open_in(&directory, c"../../state") }
    }

    /// Whether an attribute proves that the device no longer accesses memory for descriptors of the queue.
    ///
    /// - The queue is `disabled`: the driver writes that after the device has executed the command that disables or
    ///   resets the queue, and so has drained or dropped its descriptors.
    /// - The device is `disabled`: the same for all of its queues.
    /// - The device is `halted`: it has told the driver that it processes nothing until it is reset.
    /// - The device's attribute answers ENODEV: the driver removes it after it has disabled and removed all queues.
    ///
    /// Anything else proves nothing, including ENODEV of the queue's attribute: the driver removes that attribute before
    /// it disables the queue.
    pub(super) fn prove_stopped(&self) -> bool {
        let proves = |state: &Option<File>, proves: fn(io::Result<&[u8]>) -> bool| {
            let Some(state) = state else { return false };
            let mut text = [0; 32];
            proves(state.read_at(&mut text, 0).map(|count| text[..count].trim_ascii()))
        };
        proves(&self.queue, queue_has_stopped) || proves(&self.device, device_has_stopped)
    }
}

fn queue_has_stopped(state: io::Result<&[u8]>) -> bool {
    state.is_ok_and(|state| state == b"disabled")
}

fn device_has_stopped(state: io::Result<&[u8]>) -> bool {
    match state {
        Ok(state) => matches!(state, b"disabled" | b"halted"),
        Err(error) => error.raw_os_error() == Some(libc::ENODEV),
    }
}

/// The directory of an open character device in sysfs.
fn directory_of(queue: &File) -> Option<File> {
    let metadata = queue.metadata().ok()?;
    if !metadata.file_type().is_char_device() {
        return None;
    }
    let number = format!("{}:{}", libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(format!("/sys/dev/char/{number}"))
        .ok()?;
    let mut text = [0; 32];
    let count = open_in(&directory, c"dev")?.read_at(&mut text, 0).ok()?;
    (text[..count].trim_ascii() == number.as_bytes()).then_some(directory)
}

/// Opens a file for reading, if it is on sysfs.
fn open_in(directory: &File, path: &CStr) -> Option<File> {
    // SAFETY: both arguments are valid during the call, which touches no other memory.
    let descriptor =
        unsafe { libc::openat(directory.as_raw_fd(), path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: the file descriptor was just opened, and has no other owner.
    let file = (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })?;
    let mut system = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the file descriptor is open; the structure is zero, which is valid, also if the call fails.
    let system = unsafe {
        libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr());
        system.assume_init()
    };
    (system.f_type == libc::SYSFS_MAGIC).then_some(file)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn states_that_prove_a_stop() {
        assert!(queue_has_stopped(Ok(b"disabled")));
        assert!(device_has_stopped(Ok(b"disabled")) && device_has_stopped(Ok(b"halted")));
        for unproven in [&b"enabled"[..], b"", b"unknown", b"disabled soon"] {
            assert!(!queue_has_stopped(Ok(unproven)) && !device_has_stopped(Ok(unproven)), "{unproven:?}");
        }
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        assert!(device_has_stopped(error(libc::ENODEV)));
        assert!(!queue_has_stopped(error(libc::ENODEV)), "its attribute is removed before it is disabled");
        for errno in [libc::ENOENT, libc::EACCES, libc::EIO, libc::EBADF, libc::ENXIO, libc::EINTR] {
            assert!(!queue_has_stopped(error(errno)) && !device_has_stopped(error(errno)), "errno {errno}");
        }
    }

    /// The directory is found by the number of the open file, not by its name. A regular file has none.
    #[test]
    fn a_device_file_has_a_directory() {
        let null = File::open("/dev/null").expect("every Linux has it");
        if let Some(directory) = directory_of(&null) {
            assert!(open_in(&directory, c"dev").is_some());
            let states = StateFiles::of(&null);
            assert!(states.queue.is_none() && states.device.is_none(), "it is no queue");
        } else {
            assert!(File::open("/sys/dev/char/1:3/dev").is_err(), "sysfs is there and was not read");
        }
        let program = File::open(std::env::current_exe().expect("this program")).expect("it can be read");
        assert!(directory_of(&program).is_none());
    }

    /// A file on another file system proves nothing, whatever its content.
    #[test]
    fn files_outside_sysfs_are_ignored() {
        let directory = std::env::temp_dir().join(format!("memferry-states-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("state"), "disabled\n").expect("a file");
        let opened = File::open(&directory).expect("it is there");
        assert!(open_in(&opened, c"state").is_none());
        std::fs::remove_dir_all(&directory).expect("it is there");
    }
}
