//! The seam to the files of the operating system: sysfs, the character devices, and what `/proc` says about us.
//!
//! [`Directory`] is the real thing, below any root; [`FakeDriver`](super::FakeDriver) is a driver in memory.
//! Paths are relative to the root and have no slash in front: `sys/bus/dsa/devices/dsa0/state`.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// Longest attribute that is read; the kernel's end at one page.
const ATTRIBUTE_BYTES_MAX: u64 = 64 << 10;

/// What discovery reads and applying writes.
pub trait Files {
    /// The content of a file.
    ///
    /// # Errors
    /// What the operating system answers; some attributes answer `EOPNOTSUPP` to say that they do not apply.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// What the operating system answers.
    fn entries(&self, directory: &str) -> io::Result<Vec<String>>;

    /// The last component of what a symbolic link points to.
    ///
    /// # Errors
    /// What the operating system answers, also when it is no link.
    fn link(&self, path: &str) -> io::Result<String>;

    /// Who may use a file.
    ///
    /// # Errors
    /// What the operating system answers.
    fn owner(&self, path: &str) -> io::Result<Owner>;

    /// Replaces the content of an existing file; sysfs takes it as one value.
    ///
    /// # Errors
    /// What the operating system answers; the driver refuses values this way.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// What errors call the file.
    fn display(&self, path: &str) -> PathBuf;
}

/// Whom a file belongs to and what its mode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The permission bits, `0o600`.
    pub mode: u32,
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// Whether it is a character device, as opposed to a file that a recorded tree has in its place.
    pub is_device: bool,
}

/// Files below a directory: `/`, or a recorded tree with `sys`, `dev` and `proc` in it.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// This machine.
    pub fn system() -> Directory {
        Directory::below("/")
    }

    /// The tree below this directory.
    pub fn below(root: impl Into<PathBuf>) -> Directory {
        Directory { root: root.into() }
    }
}

impl Files for Directory {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(self.display(path))?.take(ATTRIBUTE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.display(directory))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let target = fs::read_link(self.display(path))?;
        let name = target.file_name().ok_or(io::ErrorKind::InvalidData)?;
        Ok(name.to_string_lossy().into_owned())
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        let found = fs::metadata(self.display(path))?;
        Ok(Owner {
            mode: found.mode() & 0o7777,
            user: found.uid(),
            group: found.gid(),
            is_device: found.file_type().is_char_device(),
        })
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        // Never `create`: an attribute that this kernel lacks must be an error. One call of write(2), because each is a
        // store of its own to sysfs. Truncating means nothing there and makes a recorded tree behave alike.
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.display(path))?;
        match file.write(value.as_bytes())? {
            taken if taken == value.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn display(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}
