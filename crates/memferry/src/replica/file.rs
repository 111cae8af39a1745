//! The medium of files: `pwrite` and `fdatasync`, or a mapping of persistent memory.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::mapped::DaxMapping;
use super::slots::{Medium, PIECE_BYTES};
use crate::storage::syscall;

/// An open file.
pub(super) struct FileMedium {
    file: File,
    /// Replaces writes and flushes through the file.
    mapping: Option<DaxMapping>,
}

impl FileMedium {
    pub(super) fn new(file: File) -> FileMedium {
        FileMedium { file, mapping: None }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn write_through(&mut self, mapping: DaxMapping) {
        self.mapping = Some(mapping);
    }

    /// Releases the lock of this open file, which forked children have open as well.
    pub(super) fn unlock(&self) {
        // A drop cannot report it. The lock ends at the latest with the last process that has the file open.
        let _ = self.file.unlock();
    }
}

impl Medium for FileMedium {
    fn size_bytes(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(target, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<()> {
        if let Some(mapping) = &mut self.mapping {
            return mapping.write(offset, bytes, meanwhile);
        }
        // First, so that the bytes are in the cache when they are written.
        meanwhile();
        self.file.write_all_at(bytes, offset)
    }

    /// Also fails if the file has no name any more: nobody could open what was flushed.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.mapping {
            Some(mapping) => mapping.flush(),
            None => self.file.sync_data()?,
        }
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(ErrorKind::NotFound, "it was removed while it was open"));
        }
        Ok(())
    }

    fn piece_bytes(&self) -> usize {
        // The mover splits copies from 2 MiB on.
        if self.mapping.is_some() { 64 << 20 } else { PIECE_BYTES }
    }
}

/// Gives a new file its size and all of its blocks, which read as zeros.
pub(super) fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    match syscall::allocate(file.as_fd(), size_bytes) {
        // File systems without the call, for example NFS before 4.2: blocks come with bytes.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(file, size_bytes),
        answer => answer,
    }
}

fn write_zeros(file: &File, size_bytes: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size_bytes {
        let len = (size_bytes - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], offset)?;
        offset += len;
    }
    Ok(())
}

/// Makes the name of a new file durable.
pub(super) fn flush_directory_of(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    OpenOptions::new().read(true).open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    /// What file systems without `fallocate` get.
    #[test]
    fn zeros_fill_a_file() {
        for size_bytes in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 4096] {
            let file = tempfile::tempfile().unwrap();
            write_zeros(&file, size_bytes).unwrap();
            assert_eq!(file.metadata().unwrap().len(), size_bytes);
        }
    }
}
