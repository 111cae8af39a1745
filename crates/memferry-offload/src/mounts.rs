//! Properties of mounted file systems.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether the file system of this path is mounted with `noexec`: the dynamic linker loads no library from it.
pub(crate) fn is_noexec(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut found = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path ends with a zero; the call writes one struct, for which zeros are valid.
    let (answer, found) = unsafe { (libc::statvfs(path.as_ptr(), found.as_mut_ptr()), found.assume_init()) };
    answer == 0 && found.f_flag & libc::ST_NOEXEC != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_apart() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut kinds = [0; 2];
        for place in ["/", "/proc", "/sys", "/dev", "/dev/shm"] {
            // The last one hides the others.
            let mount = mounts.lines().rev().find(|line| line.split(' ').nth(1) == Some(place));
            let Some(options) = mount.and_then(|line| line.split(' ').nth(3)) else { continue };
            let expected = options.split(',').any(|option| option == "noexec");
            assert_eq!(is_noexec(Path::new(place)), expected, "{place}: {options}");
            kinds[usize::from(expected)] += 1;
        }
        assert!(kinds[0] + kinds[1] > 0, "{mounts}");
        assert!(!is_noexec(Path::new("/nowhere")));
    }
}
