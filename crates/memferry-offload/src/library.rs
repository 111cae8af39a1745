//! The files of the preload libraries. The command contains them; the program and its children load one by a path.
//!
//! The file stays after the program, because children may outlive it. Its name has the checksum of its content, so that all
//! versions of the command can run at the same time, and each writes it once.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::{mounts, privileges};

/// A preload library, which this program contains.
pub(crate) struct Library {
    /// The name of the command that preloads it: `offload`.
    pub(crate) command: &'static str,
    /// Empty only in builds that are checked and not linked.
    pub(crate) content: &'static [u8],
}

/// The library of `memferry offload`.
pub(crate) static OFFLOAD: Library = Library {
    command: "offload",
    content: memferry_emulate_embed::preload_library!(memferry_offload_preload),
};

/// The library of `memferry place`.
pub(crate) static PLACE: Library =
    Library { command: "place", content: memferry_emulate_embed::preload_library!(memferry_place_preload) };

/// Writes the library of `memferry offload`, unless it is there, and returns its path for `LD_PRELOAD`.
///
/// # Errors
/// [`Error::Library`]: no directory can be written.
pub fn install() -> Result<PathBuf, Error> {
    install_library(&OFFLOAD)
}

/// Writes a library, unless it is there, and returns its path.
pub(crate) fn install_library(library: &Library) -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    hasher.write(library.content);
    let name = format!("libmemferry_{}-{:016x}.so", library.command, hasher.finish());
    let mut last = None;
    for directory in directories() {
        match install_in(&directory, &name, library.content) {
            Ok(path) => return Ok(path),
            Err(source) => last = Some((directory, source)),
        }
    }
    let (directory, source) = last.expect("there is a directory to try");
    Err(Error::Library { directory, source })
}

/// The directories to try. That of root can be read by all users, since a server of root may change its user.
fn directories() -> Vec<PathBuf> {
    let user = privileges::user();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = (user == 0).then(|| PathBuf::from("/run"));
    let run = variable("XDG_RUNTIME_DIR");
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let below = [root, run, cache].into_iter().flatten().map(|directory| directory.join("memferry"));
    below.chain([PathBuf::from(format!("/tmp/memferry-{user}"))]).collect()
}

fn install_in(directory: &Path, name: &str, library: &[u8]) -> io::Result<PathBuf> {
    let path = directory.join(name);
    // The dynamic linker takes both for separators.
    if path.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    if let Some(parent) = directory.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o755).create(directory) {
        // The umask may have hidden it from the users that a server of root changes to.
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(directory)?;
    // Another user could replace the library: /tmp belongs to all.
    if !found.is_dir() || found.uid() != privileges::user() || found.mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if mounts::is_noexec(directory) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "its file system is mounted with noexec",
        ));
    }
    if fs::read(&path).is_ok_and(|content| content == library) {
        return Ok(path);
    }
    // By a rename: the file may be in use, and is never incomplete.
    // A new file of a random name: no thread or process writes to the same one, and no link is followed.
    let random = RandomState::new().build_hasher().finish();
    let fresh = directory.join(format!(".{name}.{random:016x}"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let written = (file.write_all(library))
        .and_then(|()| fs::set_permissions(&fresh, Permissions::from_mode(0o555)))
        .and_then(|()| fs::rename(&fresh, &path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install_in(directory: &Path, name: &str) -> io::Result<PathBuf> {
        super::install_in(directory, name, OFFLOAD.content)
    }

    #[test]
    fn a_library_is_written_once_and_repaired() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a/b");
        let path = install_in(&place, "x.so").unwrap();
        let number = fs::metadata(&path).unwrap().ino();
        assert_eq!(install_in(&place, "x.so").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), number, "it is not written again");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "half of it").unwrap();
        install_in(&place, "x.so").unwrap();
        assert_eq!(fs::read(&path).unwrap(), OFFLOAD.content);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    }

    #[test]
    #[allow(unsafe_code)]
    fn other_users_can_read_the_library() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a");
        // SAFETY: it takes a number. Files of other tests get no more rights by it.
        let former = unsafe { libc::umask(0o077) };
        let path = install_in(&place, "x.so");
        // SAFETY: as above.
        unsafe { libc::umask(former) };
        let path = path.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&path)), (0o755, 0o555));
        // A directory that was there keeps its mode.
        fs::set_permissions(&place, Permissions::from_mode(0o700)).unwrap();
        install_in(&place, "y.so").unwrap();
        assert_eq!(mode(&place), 0o700);
    }

    #[test]
    fn directories_of_others_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(install_in(&open, "x.so").is_err());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(install_in(&link, "x.so").is_err());
        assert!(install_in(&directory.path().join("a b"), "x.so").is_err());
    }
}
