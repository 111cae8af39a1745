//! Folders of the host that a guest's program may use.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::plan::OWN_DIRECTORIES;

/// A folder that has the same path in the guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Its path.
    pub directory: PathBuf,
    /// Whether the program may only read it.
    pub is_read_only: bool,
}

/// The folders with their real paths, outer ones first.
pub(crate) fn check(shares: &[Share]) -> Result<Vec<Share>, Error> {
    let mut checked = Vec::new();
    for share in shares {
        let refused = |why: &str| Error::Share(format!("cannot share {}: {why}", share.directory.display()));
        let directory = share.directory.canonicalize().map_err(|error| refused(&error.to_string()))?;
        if !fs::metadata(&directory).is_ok_and(|found| found.is_dir()) {
            return Err(refused("it is not a directory"));
        }
        let is_of_kernel = ["/proc", "/sys", "/dev"].iter().any(|own| directory.starts_with(own));
        if directory == Path::new("/") || is_of_kernel {
            return Err(refused("the guest has its own; share a directory of files"));
        }
        checked.push(Share { directory, is_read_only: share.is_read_only });
    }
    checked.sort();
    if let Some(pair) = checked.windows(2).find(|pair| pair[0].directory == pair[1].directory) {
        let directory = pair[0].directory.display();
        return Err(Error::Share(format!("cannot share {directory} twice; name it once")));
    }
    Ok(checked)
}

/// Whether a path is in a directory that the guest replaces with its own.
pub(crate) fn is_replaced(path: &Path) -> bool {
    OWN_DIRECTORIES.iter().any(|own| path.starts_with(own))
}

/// The same for a directory that is not itself replaced, and has files of users.
pub(crate) fn is_below_replaced(path: &Path) -> bool {
    ["/tmp", "/run"].iter().any(|own| path.starts_with(own) && path != Path::new(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(directory: &Path, is_read_only: bool) -> Share {
        Share { directory: directory.to_owned(), is_read_only }
    }

    #[test]
    fn outer_folders_come_first_with_real_paths() {
        let outer = tempfile::tempdir().unwrap();
        let (inner, link) = (outer.path().join("inner"), outer.path().join("link"));
        fs::create_dir(&inner).unwrap();
        std::os::unix::fs::symlink(&inner, &link).unwrap();
        let real = outer.path().canonicalize().unwrap();
        let checked = check(&[share(&link, true), share(outer.path(), false)]).unwrap();
        assert_eq!(checked, [share(&real, false), share(&real.join("inner"), true)]);
        let error = check(&[share(&inner, true), share(&link, false)]).unwrap_err().to_string();
        assert!(error.contains("inner twice"), "{error}");
    }

    #[test]
    fn impossible_folders_are_explained() {
        for (directory, words) in [
            ("/nowhere/at/all", "cannot share /nowhere/at/all: No such file"),
            ("/etc/passwd", "it is not a directory"),
            ("/", "the guest has its own"),
            ("/proc/self", "the guest has its own"),
        ] {
            let error = check(&[share(Path::new(directory), true)]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_guests_own_directories() {
        assert!(is_replaced(Path::new("/tmp")) && is_replaced(Path::new("/dev/shm/x")));
        assert!(!is_replaced(Path::new("/tmpfiles")) && !is_replaced(Path::new("/var/tmp")));
        assert!(is_below_replaced(Path::new("/run/user/1")) && !is_below_replaced(Path::new("/tmp")));
    }
}
