//! The seam to the files of the operating system: sysfs, the character devices, and `/proc/self`.
//!
//! [`Directory`] reads real files below any root; `FakeDriver` of the crate `memferry-dsa-emulator` is a driver in memory.
//! Paths are relative to the root, without a leading slash: `sys/bus/dsa/devices/dsa0/state`.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// The size limit of an attribute; the kernel's attributes have at most a page.
const ATTRIBUTE_BYTES_MAX: u64 = 64 << 10;

/// The files that discovery reads and [`Plan::apply`](super::apply::Plan::apply) writes.
pub trait Files {
    /// The content of a file.
    ///
    /// # Errors
    /// Those of the operating system; attributes that do not apply answer `EOPNOTSUPP`.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// Those of the operating system.
    fn entries(&self, directory: &str) -> io::Result<Vec<String>>;

    /// The last component of a symbolic link's target.
    ///
    /// # Errors
    /// Those of the operating system, also if the path is not a link.
    fn link(&self, path: &str) -> io::Result<String>;

    /// The owner and mode of a file.
    ///
    /// # Errors
    /// Those of the operating system.
    fn owner(&self, path: &str) -> io::Result<Owner>;

    /// Replaces the content of an existing file, in one write: sysfs treats each write as a value.
    ///
    /// # Errors
    /// Those of the operating system, including values that the driver refuses.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// The path of a file in error messages.
    fn display(&self, path: &str) -> PathBuf;
}

/// The owner and mode of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The permission bits, `0o600`.
    pub mode: u32,
    /// The user id.
    pub user: u32,
    /// The group id.
    pub group: u32,
    /// Whether it is a character device; a recorded tree has a regular file in its place.
    pub is_device: bool,
}

/// Files below a directory: `/`, or a recorded tree with `sys`, `dev` and `proc`.
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
        // Never `create`: an attribute that this kernel lacks must be an error. One call of write(2), because sysfs treats
        // each as a value. Sysfs ignores truncation; in a recorded tree it gives the same result.
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
