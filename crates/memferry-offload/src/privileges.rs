//! Programs that get other rights when they start. The dynamic linker ignores `LD_PRELOAD` for them.
//!
//! Source: ld.so(8), "secure-execution mode"; capabilities(7), "File capabilities".

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether the kernel changes the user, the group or the capabilities when it executes this file.
pub(crate) fn are_changed(file: &Path) -> bool {
    let Ok(found) = fs::metadata(file) else { return false };
    // SAFETY: it takes nothing and cannot fail.
    let group = unsafe { libc::getegid() };
    let takes_user = found.mode() & 0o4000 != 0 && found.uid() != user();
    // Without the permission to execute, the bit means mandatory locking.
    let takes_group = found.mode() & 0o2010 == 0o2010 && found.gid() != group;
    takes_user || takes_group || user() != 0 && has_capabilities(file)
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names end with a zero; with size 0 the call writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use memferry_testing::{Needs, skip};

    use super::*;

    #[test]
    fn setuid_programs_are_recognised() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let set = |mode| fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        set(0o4755);
        assert!(!are_changed(file.path()), "it belongs to the caller");
        if user() != 0 {
            return skip(Needs::Root, "only root can give a file to another user");
        }
        chown(file.path(), Some(54_321), Some(54_321)).unwrap();
        for (mode, expected) in [(0o755, false), (0o4755, true), (0o2755, true), (0o2745, false)] {
            set(mode);
            assert_eq!(are_changed(file.path()), expected, "{mode:o}");
        }
    }
}
