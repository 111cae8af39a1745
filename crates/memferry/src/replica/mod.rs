//! Replicas: bytes in a file that survive a reset of the machine, as the old version or the new one.
//!
//! The file has two slots. A version is written to the older slot, so the newer one stays intact until the write is
//! acknowledged.
//!
//! ```text
//!      0   header of slot 0: one cache line in a block of its own
//!   4096   header of slot 1
//!   8192   data of slot 0: the capacity, rounded up to blocks
//!    ...   data of slot 1
//!
//! write:   data to the older slot; flush; its header; flush; now it is the newer slot
//! open:    the slot with the higher version whose header and data match their checksums
//! ```
//!
//! Safe code never maps the file: an access to a mapped file that another process has shortened is a signal (SIGBUS). On a
//! file system with DAX, `pwrite` stores past the CPU caches to the persistent memory, without a page cache (Linux
//! `dax_iomap_rw`, `copy_from_iter_flushcache`), and `fdatasync` orders it. So a mapping is needed only for engines that
//! copy by themselves, and is the caller's decision ([`Replica::map`]).
//!
//! ```text
//! mod      Replica: the file, its lock, forks
//! slots    the order of writes and flushes, over any medium
//! format   the bytes of a header
//! file     the medium of files             mapped       a mapping of persistent memory, written by a mover
//!                                          simulation   a medium that tears writes, for tests
//! ```
//!
//! Source: A. C. Fürst, *Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator*, 2024, sections
//! 6.4 and 7: replication to NVRAM against loss of data, and restoring from NVRAM for faster processing. Linux
//! `Documentation/filesystems/dax.rst`; fdatasync(2).

mod error;
mod file;
mod format;
#[allow(unsafe_code)]
mod mapped;
#[cfg(all(test, not(memferry_loom)))]
mod simulation;
mod slots;
#[cfg(all(test, not(memferry_loom)))]
mod tests;

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memferry_dsa::internals::fork;

pub use error::ReplicaError;
use file::FileMedium;
use format::Layout;
use slots::Slots;

/// A file that keeps the newest complete version of some bytes, also if the machine is reset during a write.
///
/// For persistent memory the file lies on a file system that is mounted with DAX; any other local file system works too.
/// [`write`](Replica::write) returns when the version is durable. After a reset in mid-write,
/// [`open`](Replica::open) finds the version before or the new one, never a mixture. Each version has a checksum, CRC-64/NVME.
///
/// The file is locked as long as the replica is open (`flock`), and has room for two versions. Unless it is
/// [mapped](Replica::map), the methods answer with errors whatever other processes do to it.
///
/// ```
/// use memferry::Replica;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let path = directory.path().join("prices"); // on persistent memory: a path below the mount point
/// let mut replica = Replica::create(&path, 1 << 20)?; // room for versions of up to 1 MiB
/// let version = replica.write(&[[7_u8; 1000].as_slice(), &[8; 24]])?; // durable now
/// drop(replica);
///
/// let replica = Replica::open(&path)?;
/// assert_eq!(replica.version(), Some(version));
/// assert_eq!(replica.restore()?.expect("a version was written").len(), 1024);
/// # Ok(())
/// # }
/// ```
///
/// A medium that loses bytes of a block that is overwritten with the same bytes, or bytes of other blocks, can lose the
/// newest version to a loss of power. The checksums notice that.
///
/// Fork: a forked child cannot use its parent's replica; see [`ReplicaError::Forked`].
pub struct Replica {
    slots: Slots<FileMedium>,
    /// The process that opened it, as `fork` counts.
    process: u32,
}

impl Replica {
    /// Creates the file, with room for two versions of up to `capacity_bytes`, and locks it. It has no version yet.
    ///
    /// The room is allocated, so that a full file system is an error here. File systems that copy on write (Btrfs, ZFS) may
    /// still lack room later; a [`write`](Replica::write) fails then.
    ///
    /// # Errors
    /// [`ReplicaError::System`]: the file exists, cannot be created, or has no room. No file is left. If the process
    /// or the machine ends meanwhile, a file may be left, which [`open`](Replica::open) refuses as
    /// [`Unfinished`](ReplicaError::Unfinished).
    pub fn create(path: &Path, capacity_bytes: u64) -> Result<Replica, ReplicaError> {
        let Some(layout) = Layout::new(capacity_bytes) else {
            let too_large = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(ReplicaError::system(path, "create")(too_large));
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(ReplicaError::system(path, "create"))?;
        let made = Replica::initialise(file, path, layout);
        if made.is_err() {
            // `create_new` made the file, so it is nobody else's. The error that matters is that of `made`.
            let _ = fs::remove_file(path);
        }
        made
    }

    fn initialise(file: File, path: &Path, layout: Layout) -> Result<Replica, ReplicaError> {
        let process = this_process(path)?;
        lock(&file, path)?;
        file::allocate(&file, layout.total_bytes()).map_err(ReplicaError::system(path, "allocate"))?;
        // Another file may have had these blocks: the id tells its headers from those of this one.
        let id = RandomState::new().hash_one(SystemTime::now());
        let slots = Slots::create(FileMedium::new(file), path, id, layout)?;
        file::flush_directory_of(path).map_err(ReplicaError::system(path, "flush the directory of"))?;
        Ok(Replica { slots, process })
    }

    /// Opens and locks an existing replica, and finds its newest complete version.
    ///
    /// It also makes that version durable: a process that was killed may have left it in the page cache.
    /// Cost: reads and checks the version once.
    ///
    /// # Errors
    /// [`ReplicaError::System`]; [`Locked`](ReplicaError::Locked) by another process or another `Replica`;
    /// [`NotAReplica`](ReplicaError::NotAReplica), [`Unfinished`](ReplicaError::Unfinished),
    /// [`OtherFormat`](ReplicaError::OtherFormat), [`Truncated`](ReplicaError::Truncated), or
    /// [`Damaged`](ReplicaError::Damaged) if it has no version that matches its checksum. The file is unchanged.
    pub fn open(path: &Path) -> Result<Replica, ReplicaError> {
        // Without O_NONBLOCK, opening a pipe may wait.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(ReplicaError::system(path, "open"))?;
        let metadata = file.metadata().map_err(ReplicaError::system(path, "look up"))?;
        if !metadata.is_file() {
            return Err(ReplicaError::NotAReplica { path: path.to_owned(), why: "it is not a regular file" });
        }
        let process = this_process(path)?;
        lock(&file, path)?;
        let slots = Slots::open(FileMedium::new(file), path)?;
        Ok(Replica { slots, process })
    }

    /// Writes a version: the bytes of `parts`, one after the other. Returns its number when it is durable.
    ///
    /// The version before stays intact until then. Versions are numbered from 1; an interrupted write may leave its number
    /// to the next one.
    /// Cost: a `pwrite` for each part, or for each MiB of it, and two calls of `fdatasync`; if it is
    /// [mapped](Replica::map), copies and flushes of cache lines. The calling thread computes the checksum and waits:
    /// asynchronous code calls this from a thread that may block.
    ///
    /// # Errors
    /// [`ReplicaError::TooLong`]; [`System`](ReplicaError::System), for example of a full file system;
    /// [`Truncated`](ReplicaError::Truncated) or `System` if another process shortened or removed the file;
    /// [`Forked`](ReplicaError::Forked). The version before stays the newest. After a reset the new one may be there
    /// nevertheless, complete, if the error was that of the last flush.
    pub fn write<B: AsRef<[u8]>>(&mut self, parts: &[B]) -> Result<u64, ReplicaError> {
        self.check_process()?;
        let parts: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
        self.slots.write(&parts)
    }

    /// Reads the newest version and checks it again. `None` before the first write.
    ///
    /// # Errors
    /// Those of [`restore_into`](Replica::restore_into); [`ReplicaError::OutOfMemory`].
    pub fn restore(&self) -> Result<Option<Vec<u8>>, ReplicaError> {
        if self.version().is_none() {
            return self.check_process().map(|()| None);
        }
        let mut bytes = Vec::new();
        let size_bytes = self.len();
        let reserved = usize::try_from(size_bytes).ok().map(|size| (size, bytes.try_reserve_exact(size)));
        let Some((size, Ok(()))) = reserved else {
            return Err(ReplicaError::OutOfMemory { path: self.path().to_owned(), size_bytes });
        };
        bytes.resize(size, 0);
        self.restore_into(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Reads the newest version to `target`, for example a [`Mapping`](crate::memory::Mapping) on a near node, and checks it
    /// again.
    ///
    /// # Panics
    /// If `target` is not [`len`](Replica::len) bytes long.
    ///
    /// # Errors
    /// [`ReplicaError::System`]; [`Damaged`](ReplicaError::Damaged) if the file changed since it was opened: the content of
    /// `target` is undefined then, and [opening](Replica::open) it again may find the version before;
    /// [`Forked`](ReplicaError::Forked).
    pub fn restore_into(&self, target: &mut [u8]) -> Result<(), ReplicaError> {
        assert_eq!(target.len() as u64, self.len(), "the target is as long as the version");
        self.check_process()?;
        self.slots.restore_into(target)
    }

    /// The number of the newest version; `None` before the first write.
    pub fn version(&self) -> Option<u64> {
        let version = self.slots.newest().version;
        (version > 0).then_some(version)
    }

    /// The number of a newer version whose bytes do not match their checksum: the storage lost it, and the version
    /// before is the newest one now. An interrupted write leaves no such trace. The next [`write`](Replica::write)
    /// overwrites it.
    pub fn damaged_version(&self) -> Option<u64> {
        self.slots.damaged()
    }

    /// The size of the newest version in bytes.
    pub fn len(&self) -> u64 {
        self.slots.newest().size_bytes
    }

    /// Whether the newest version has no bytes, or there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the largest version that it has room for.
    pub fn capacity_bytes(&self) -> u64 {
        self.slots.capacity_bytes()
    }

    /// The path that it was created or opened by.
    pub fn path(&self) -> &Path {
        self.slots.path()
    }

    fn check_process(&self) -> Result<(), ReplicaError> {
        if fork::generation() == self.process {
            return Ok(());
        }
        Err(ReplicaError::Forked { path: self.path().to_owned() })
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Closing does not unlock while a forked child has the file open as well. In such a child, unlocking would take the
        // lock from the parent.
        if fork::generation() == self.process {
            self.slots.medium().unlock();
        }
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("path", &self.path())
            .field("version", &self.version())
            .field("len", &self.len())
            .field("capacity_bytes", &self.capacity_bytes())
            .finish_non_exhaustive()
    }
}

fn this_process(path: &Path) -> Result<u32, ReplicaError> {
    fork::watch().map_err(ReplicaError::system(path, "detect forks of the process that opens"))?;
    Ok(fork::generation())
}

fn lock(file: &File, path: &Path) -> Result<(), ReplicaError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => ReplicaError::Locked { path: PathBuf::from(path) },
        TryLockError::Error(error) => ReplicaError::system(path, "lock")(error),
    })
}
