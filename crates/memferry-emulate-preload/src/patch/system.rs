//! The system calls of patching: check that this process may patch, write code, make other threads see it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The system calls of patching. Tests have a fake that fails.
pub(super) trait System {
    /// Whether code can be replaced in this process by jumps to trampolines.
    fn can_patch(&self) -> bool;

    /// Writes code. `None`: the system refuses, and nothing was written.
    fn write(&self, address: u64, bytes: &[u8]) -> Option<()>;

    /// Returns true after all threads of the process have executed a serialising instruction, so that they fetch code
    /// again. False: the system refuses.
    fn synchronize(&self) -> bool;
}

/// Linux.
pub(super) struct Linux;

impl System for Linux {
    fn can_patch(&self) -> bool {
        !has_shadow_stack() && is_registered()
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        write(address, bytes)
    }

    fn synchronize(&self) -> bool {
        let is_done = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
        if !is_done {
            REGISTERED.store(NO, Ordering::Relaxed); // it is not tried again
        }
        is_done
    }
}

/// Whether this thread has a shadow stack. The processor then compares return addresses with those of the calls, and
/// the slow path of a trampoline returns elsewhere. A new thread has a shadow stack if its creator has one.
///
/// Source: Linux' `Documentation/arch/x86/shstk.rst`; `arch/x86/include/uapi/asm/prctl.h`.
fn has_shadow_stack() -> bool {
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    const ARCH_SHSTK_SHSTK: u64 = 1 << 0;
    let mut features = u64::MAX;
    // SAFETY: it writes 8 bytes.
    let answer = unsafe {
        sys::call(libc::SYS_arch_prctl, [ARCH_SHSTK_STATUS, &raw mut features as usize, 0, 0, 0, 0])
    };
    answer == 0 && features & ARCH_SHSTK_SHSTK != 0 // an error means that the kernel has no shadow stacks
}

/// Writes through `/proc/self/mem`, which ignores the protection of a private mapping: no page becomes writable, and
/// pages of files are copied first. `None`: the system has no such file or refuses; nothing was written.
fn write(address: u64, bytes: &[u8]) -> Option<()> {
    let path = c"/proc/self/mem".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: the path ends with a zero; the file is closed below. The bytes are code of trampolines that are not used
    // yet, or replace an instruction in the order that `patch` describes.
    unsafe {
        let file = sys::call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]);
        let file = usize::try_from(file).ok()?;
        let arguments = [file, bytes.as_ptr() as usize, bytes.len(), address as usize, 0, 0];
        let written = sys::call(libc::SYS_pwrite64, arguments);
        sys::call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        (written == bytes.len() as isize).then_some(())
    }
}

const MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 5;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 6;

/// Whether the process is registered, as it must be before the first command: 0 (unknown), `YES` or `NO`. Also `NO`
/// after a failed command. A child of fork inherits the registration.
static REGISTERED: AtomicU32 = AtomicU32::new(0);
const YES: u32 = 1;
const NO: u32 = 2;

fn is_registered() -> bool {
    match REGISTERED.load(Ordering::Relaxed) {
        0 => {
            let is_registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
            REGISTERED.store(if is_registered { YES } else { NO }, Ordering::Relaxed);
            is_registered
        }
        answer => answer == YES,
    }
}

fn membarrier(command: usize) -> bool {
    // SAFETY: it takes a number, and affects only which code processors have fetched.
    unsafe { sys::call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) == 0 }
}
