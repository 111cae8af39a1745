//! The seam to the files of the operating system: sysfs, the character devices, and `/proc/self`.
//!
//! [`Directory`] reads real files below any root; `FakeDriver` of the crate `memferry-dsa-emulator` is a driver in memory.
//! So tests and fuzzers can show files that vanish between two reads, that are huge, or that are not text.
//! Paths are relative to the root, without a leading slash: `sys/bus/dsa/devices/dsa0/state`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Limit of a file. A file of sysfs has at most a page; those of procfs that are read here have a few KiB.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The files of one machine, below a root with `sys`, `dev` and `proc` in it. Links on the way are followed.
///
/// Two calls may see two states: machines change while they are read. [`NotFound`](ErrorKind::NotFound) means that there is
/// no such file; attributes that do not apply answer `EOPNOTSUPP`.
pub trait Files {
    /// The name of the root in errors.
    fn name(&self) -> String;

    /// The first `size_bytes_max` bytes of a file.
    ///
    /// # Errors
    /// Those of the operating system.
    fn head(&self, path: &str, size_bytes_max: usize) -> io::Result<Vec<u8>>;

    /// The content of a file, up to [`FILE_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`head`](Files::head).
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.head(path, FILE_BYTES_MAX)
    }

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// Those of the operating system.
    fn entries(&self, directory: &str) -> io::Result<Vec<String>>;

    /// The target of a symbolic link, as it is written there.
    ///
    /// # Errors
    /// Those of the operating system, also if the path is not a link.
    fn link(&self, path: &str) -> io::Result<String>;

    /// The owner and mode of a file. A recording may lack it.
    ///
    /// # Errors
    /// Those of the operating system.
    fn owner(&self, path: &str) -> io::Result<Owner> {
        let _ = path;
        Err(ErrorKind::NotFound.into())
    }

    /// Replaces the content of an existing file, in one write: sysfs treats each write as a value.
    ///
    /// # Errors
    /// Those of the operating system, including values that the driver refuses.
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let _ = (path, value);
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    /// The path of a file in error messages.
    fn display(&self, path: &str) -> PathBuf {
        Path::new(&self.name()).join(path)
    }
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
    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn head(&self, path: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        let path = self.root.join(path);
        // Opening a pipe would wait for a writer.
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(size_bytes_max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.root.join(directory))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn link(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(self.root.join(path))?.to_string_lossy().into_owned())
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        let found = fs::metadata(self.root.join(path))?;
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
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        match file.write(value.as_bytes())? {
            taken if taken == value.len() => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }
}
