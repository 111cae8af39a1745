//! The DSA devices of a machine that a [`Tree`] describes, for [`SystemState::read`](memferry_dsa::system::SystemState::read).

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use memferry_dsa::internals::system::{Files, Owner};

use super::tree::{FILE_BYTES_MAX, Tree};

/// The files of a tree as a read-only source for [`memferry_dsa::system`].
///
/// ```
/// use memferry::internals::{DsaFiles, Recording};
/// use memferry_dsa::system::SystemState;
///
/// let mut recording = Recording::new();
/// recording.insert("sys/bus/dsa/devices/dsa2/numa_node", "1\n");
/// assert_eq!(SystemState::read(&DsaFiles(&recording))?.devices[0].node, Some(1));
/// # Ok::<(), memferry_dsa::system::SystemError>(())
/// ```
pub struct DsaFiles<'a>(
    /// The tree.
    pub &'a dyn Tree,
);

impl Files for DsaFiles<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.read(path, FILE_BYTES_MAX)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        self.0.entries(directory)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let target = self.0.link(path)?;
        let name = Path::new(&target).file_name().ok_or(ErrorKind::InvalidData)?;
        Ok(name.to_string_lossy().into_owned())
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        self.0.owner(path)
    }

    fn write(&self, _: &str, _: &str) -> io::Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn display(&self, path: &str) -> PathBuf {
        Path::new(&self.0.name()).join(path)
    }
}
