//! Open files with their identity.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::StorageError;
use super::{BLOCK_BYTES, syscall};
use crate::memory::page_bytes;

/// An open regular file, its path and its identity.
///
/// It has two descriptors: one through the page cache, and one past it if the file system allows that.
/// Any thread that sees a change sets `change`, once; a read that is refused clears `is_direct` (relaxed).
#[derive(Debug)]
pub struct StoredFile {
    path: PathBuf,
    buffered: File,
    direct: Option<File>,
    /// Whether `direct` works: some file systems accept the flag and refuse the read.
    is_direct: AtomicBool,
    identity: Identity,
    change: OnceLock<String>,
}

/// The attributes that tell a file from another version of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// The first difference of `now` to this.
    fn change_to(&self, now: &Identity) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            Some("another file is at its path".to_owned())
        } else if self.size_bytes != now.size_bytes {
            Some(format!("its size changed from {} to {} bytes", self.size_bytes, now.size_bytes))
        } else {
            (self.modified != now.modified).then(|| "it was written".to_owned())
        }
    }
}

impl StoredFile {
    /// Opens a regular file for reading and notes its identity. A symbolic link is followed.
    ///
    /// # Errors
    /// [`StorageError::Open`], [`NotAFile`](StorageError::NotAFile).
    pub fn open(path: &Path) -> Result<StoredFile, StorageError> {
        let refused =
            |error: io::Error| StorageError::Open { path: path.to_owned(), errno: errno_of(&error) };
        // Without O_NONBLOCK, opening a pipe waits for its writer.
        let buffered =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(refused)?;
        let metadata = buffered.metadata().map_err(refused)?;
        if !metadata.is_file() {
            return Err(StorageError::NotAFile { path: path.to_owned() });
        }
        let identity = Identity::of(&metadata);
        syscall::disable_readahead(buffered.as_fd());
        let direct =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_DIRECT).open(path).ok();
        // The path may name another file by now.
        let is_same = |file: &File| {
            file.metadata()
                .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (identity.device, identity.inode))
        };
        let direct = direct.filter(is_same);
        let is_direct = AtomicBool::new(direct.is_some());
        Ok(StoredFile {
            path: path.to_owned(),
            buffered,
            direct,
            is_direct,
            identity,
            change: OnceLock::new(),
        })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.identity.size_bytes
    }

    /// Whether it had no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether reads bypass the page cache. False where the file system refuses that.
    pub fn is_direct(&self) -> bool {
        // ORDERING: Relaxed, no partner: a thread that still sees true repeats the refused read.
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Checks that the file is the one that was opened, by its path and by its descriptor.
    ///
    /// Cost: two system calls, 1 to 2 us. Every read of the mover also checks the descriptor when it completes.
    ///
    /// # Errors
    /// [`StorageError::Changed`] from the first time on that a change was seen; [`LookUp`](StorageError::LookUp) if the
    /// attributes cannot be read.
    pub fn check_unchanged(&self) -> Result<(), StorageError> {
        self.check_descriptor()?;
        match std::fs::metadata(&self.path) {
            Ok(metadata) => self.compare(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(self.note("it was removed or renamed".to_owned()))
            }
            Err(error) => Err(StorageError::LookUp { path: self.path.clone(), errno: errno_of(&error) }),
        }
    }

    /// Checks the descriptor only: a file that was removed or replaced at its path is unchanged.
    pub(crate) fn check_descriptor(&self) -> Result<(), StorageError> {
        if let Some(changed) = self.known_change() {
            return Err(changed);
        }
        match self.buffered.metadata() {
            Ok(metadata) => self.compare(&metadata),
            Err(error) => Err(StorageError::LookUp { path: self.path.clone(), errno: errno_of(&error) }),
        }
    }

    /// The change that was seen, if any.
    pub(crate) fn known_change(&self) -> Option<StorageError> {
        let change = self.change.get()?.clone();
        Some(StorageError::Changed { path: self.path.clone(), change })
    }

    /// Checks that `range` lies in the file.
    pub(crate) fn check_range(&self, range: &Range<u64>) -> Result<(), StorageError> {
        if range.start > range.end || range.end > self.len() {
            let (path, size_bytes) = (self.path.clone(), self.len());
            return Err(StorageError::OutOfRange { path, range: range.clone(), size_bytes });
        }
        Ok(())
    }

    /// The blocks around `range`, up to the end of the file.
    pub(crate) fn aligned(&self, range: &Range<u64>) -> Range<u64> {
        let block_bytes = BLOCK_BYTES as u64;
        let end = range.end.checked_next_multiple_of(block_bytes).unwrap_or(u64::MAX).min(self.len());
        range.start - range.start % block_bytes..end.max(range.start)
    }

    /// The descriptor through the page cache.
    pub(crate) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor past the page cache, unless it is refused.
    pub(crate) fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_ref().filter(|_| self.is_direct()).map(File::as_fd)
    }

    /// Notes that the file system refuses direct reads.
    pub(crate) fn refuse_direct(&self) {
        // ORDERING: Relaxed, see `is_direct`.
        self.is_direct.store(false, Ordering::Relaxed);
    }

    /// Whether the page cache has all pages of the range.
    pub(crate) fn is_cached(&self, offset: u64, len: usize) -> bool {
        let page_bytes = page_bytes() as u64;
        let first = offset / page_bytes;
        let pages = (offset + len as u64).div_ceil(page_bytes) - first;
        syscall::cached_pages(self.buffered(), offset, len as u64).is_some_and(|cached| cached >= pages)
    }

    fn compare(&self, metadata: &Metadata) -> Result<(), StorageError> {
        match self.identity.change_to(&Identity::of(metadata)) {
            Some(change) => Err(self.note(change)),
            None => Ok(()),
        }
    }

    /// Notes a change and returns the first one.
    fn note(&self, change: String) -> StorageError {
        let change = self.change.get_or_init(|| change).clone();
        StorageError::Changed { path: self.path.clone(), change }
    }
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_with(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        std::fs::write(&path, content).unwrap();
        (directory, path)
    }

    #[track_caller]
    fn assert_changes(change: impl FnOnce(&Path), expected: &str) {
        let (_directory, path) = file_with(&[7; 5000]);
        let file = StoredFile::open(&path).unwrap();
        file.check_unchanged().unwrap();
        change(&path);
        let error = StorageError::Changed { path: path.clone(), change: expected.to_owned() };
        assert_eq!(file.check_unchanged(), Err(error.clone()));
        // It stays so, even if the former state is restored.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, [7; 5000]).unwrap();
        assert_eq!((file.check_descriptor(), file.known_change()), (Err(error.clone()), Some(error)));
    }

    #[test]
    fn names_what_changed() {
        assert_changes(|path| std::fs::remove_file(path).unwrap(), "it was removed or renamed");
        let replace = |path: &Path| {
            std::fs::write(path.with_extension("new"), [7; 5000]).unwrap();
            std::fs::rename(path.with_extension("new"), path).unwrap();
        };
        assert_changes(replace, "another file is at its path");
        let truncate =
            |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(4999).unwrap();
        assert_changes(truncate, "its size changed from 5000 to 4999 bytes");
        let append =
            |path: &Path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"7").unwrap();
        assert_changes(append, "its size changed from 5000 to 5001 bytes");
        let touch = |path: &Path| {
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
            OpenOptions::new().write(true).open(path).unwrap().set_modified(later).unwrap();
        };
        assert_changes(touch, "it was written");
    }

    #[test]
    fn refuses_what_is_not_a_file() {
        let (directory, path) = file_with(b"");
        assert!(StoredFile::open(&path).unwrap().is_empty());
        let errno = libc::ENOENT;
        let missing = directory.path().join("missing");
        let error = StoredFile::open(&missing).unwrap_err();
        assert_eq!(error, StorageError::Open { path: missing.clone(), errno });
        assert!(error.to_string().starts_with(&format!("cannot open {}: No such file", missing.display())));
        let not_a_file = |path: &Path| Some(StorageError::NotAFile { path: path.to_owned() });
        assert_eq!(StoredFile::open(directory.path()).err(), not_a_file(directory.path()));
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(StoredFile::open(&pipe).err(), not_a_file(&pipe), "and it does not wait for a writer");
    }

    #[test]
    fn aligns_up_to_the_end_of_the_file() {
        let (_directory, path) = file_with(&[7; 10_000]);
        let file = StoredFile::open(&path).unwrap();
        assert_eq!(file.aligned(&(4095..4097)), 0..8192);
        assert_eq!(file.aligned(&(4096..8192)), 4096..8192);
        assert_eq!(file.aligned(&(9999..10_000)), 8192..10_000);
        assert_eq!(file.aligned(&(10_000..10_000)), 8192..10_000);
        assert!(file.check_range(&(9999..10_000)).is_ok());
        assert!(file.check_range(&(0..10_001)).is_err());
    }
}
