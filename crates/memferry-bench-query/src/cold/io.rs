//! The kernel's view of files: what it keeps of them, and what it fetched from the disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::QueryError;

/// The state of the files before each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temperature {
    /// No page of them is in the kernel's page cache.
    Cold,
    /// All pages are.
    Warm,
}

/// The files of a benchmark, made cold or warm before each run.
pub(crate) struct FileCache {
    files: Vec<(PathBuf, File)>,
    pub(super) temperature: Temperature,
}

impl FileCache {
    /// The files in `directory`.
    pub(crate) fn open(directory: &Path, temperature: Temperature) -> Result<FileCache, QueryError> {
        let list = || -> io::Result<Vec<(PathBuf, File)>> {
            let mut files = Vec::new();
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                files.push((path.clone(), File::open(path)?));
            }
            Ok(files)
        };
        let files = list().map_err(|error| failed(directory, error))?;
        Ok(FileCache { files, temperature })
    }

    /// Drops all pages, or reads them all.
    pub(crate) fn prepare(&self) -> Result<(), QueryError> {
        self.files.iter().try_for_each(|(path, file)| {
            match self.temperature {
                Temperature::Cold => drop_pages(file),
                Temperature::Warm => {
                    io::copy(&mut &*file, &mut io::sink()).and_then(|_| io::Seek::rewind(&mut &*file))
                }
            }
            .map_err(|error| failed(path, error))
        })
    }

    /// Bytes per second of direct reads of 1 MiB, one after the other on each of two threads, over the largest file.
    ///
    /// # Errors
    /// [`QueryError::Invalid`]: the file system has no direct reads, or serves them from memory, as tmpfs does. No run
    /// there is cold.
    pub(super) fn disk_rate(&self) -> Result<f64, QueryError> {
        let size = |file: &File| file.metadata().map_or(0, |metadata| metadata.len());
        let Some((path, _)) = self.files.iter().max_by_key(|(_, file)| size(file)) else {
            return Err(QueryError::Invalid("there are no files to measure the disk with".to_owned()));
        };
        let nothing_is_cold = |why: &str| {
            QueryError::Invalid(format!(
                "{} cannot be read without the page cache ({why}): nothing there is cold; choose a directory on a disk \
                 with --files",
                path.display()
            ))
        };
        let process = std::process::id();
        let before = bytes_read(process)?;
        let rate = rate(path).map_err(|error| nothing_is_cold(&error.to_string()))?;
        if bytes_read(process)? == before {
            return Err(nothing_is_cold("the kernel counts no reads from a disk"));
        }
        Ok(rate)
    }
}

#[allow(unsafe_code, reason = "std has no posix_fadvise")]
fn drop_pages(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open while the call lasts; the call touches no memory of this process.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// At most this much is read: enough that the first requests do not matter.
const RATE_BYTES_MAX: u64 = 1 << 30;
const PIECE_BYTES: usize = 1 << 20;

fn rate(path: &Path) -> io::Result<f64> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let pieces = (file.metadata()?.len().min(RATE_BYTES_MAX) / PIECE_BYTES as u64).max(1);
    let started = Instant::now();
    let read = |thread: u64| -> io::Result<usize> {
        let mut buffer = vec![0_u8; PIECE_BYTES + 4096];
        let skew = buffer.as_ptr().align_offset(4096);
        let buffer = &mut buffer[skew..skew + PIECE_BYTES];
        (thread..pieces).step_by(2).map(|piece| file.read_at(buffer, piece * PIECE_BYTES as u64)).sum()
    };
    let bytes = std::thread::scope(|scope| {
        let other = scope.spawn(|| read(1));
        let bytes = read(0)?;
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, io::Error>(bytes + other?)
    })?;
    Ok(bytes as f64 / started.elapsed().as_secs_f64())
}

/// Bytes that the kernel fetched from disks for a process so far. Source: `read_bytes` of proc_pid_io(5).
pub(super) fn bytes_read(process: u32) -> Result<u64, QueryError> {
    let path = format!("/proc/{process}/io");
    let text = fs::read_to_string(&path).map_err(|error| failed(Path::new(&path), error))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    bytes.ok_or_else(|| QueryError::Invalid(format!("{path} does not say how much was read; is this Linux?")))
}

fn failed(path: &Path, error: io::Error) -> QueryError {
    QueryError::Invalid(format!("cannot read {}: {error}", path.display()))
}
