//! Writing code that is mapped to be executed, and making other threads see it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Writes through `/proc/self/mem`, which does not ask for the protection of a private mapping: nothing becomes
/// writable, and pages of files are copied first. `None`: the system has none, or refuses; nothing was written.
pub(super) fn write(address: u64, bytes: &[u8]) -> Option<()> {
    let path = c"/proc/self/mem".as_ptr() as usize;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: the path ends with a zero; the file is closed below. What is written is code of trampolines that are
    // not used yet, or replaces an instruction as the head of this module says.
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

/// Whether the process is registered: it must be, before the first [`synchronize`]. A child of fork is if its parent
/// is.
static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Whether [`synchronize`] works here.
pub(super) fn can_synchronize() -> bool {
    const YES: u32 = 1;
    const NO: u32 = 2;
    match REGISTERED.load(Ordering::Relaxed) {
        0 => {
            let is_registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
            REGISTERED.store(if is_registered { YES } else { NO }, Ordering::Relaxed);
            is_registered
        }
        answer => answer == YES,
    }
}

/// Returns when all threads of the process have executed an instruction that makes them fetch code anew.
pub(super) fn synchronize() {
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
}

fn membarrier(command: usize) -> bool {
    // SAFETY: it changes nothing but what processors have fetched.
    unsafe { sys::call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) == 0 }
}
