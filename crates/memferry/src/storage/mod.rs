//! Files as the slowest tier: open files with their identity, and ranges of them. Plain data and system calls.
//!
//! [`StoredFile`] is what the mover's storage engine reads from and what a [`Cache`](crate::Cache) registers.
//!
//! Reads bypass the page cache (`O_DIRECT`) where the file system allows it: the cache of this crate keeps what is read
//! again, and a second copy in the kernel costs memory and time. Such reads need aligned offsets, lengths and addresses:
//! multiples of 4096.
//!
//! **Identity.** Device, inode, size and modification time of a file are noted when it is opened. A file that is written,
//! truncated, replaced or removed is another file: its [`StoredFile`] stays [changed](StorageError::Changed) for good.
//! A change that keeps size and modification time is not noticed.
//!
//! Source: open(2) about O_DIRECT; cachestat(2), Linux 6.5; preadv2(2) about RWF_NOWAIT.

mod error;
mod file;
#[allow(unsafe_code)]
pub(crate) mod syscall;

pub(crate) use error::system;

pub use error::StorageError;
pub use file::StoredFile;

/// Alignment of reads that bypass the page cache, and the size of a page. Logical blocks of disks have at most 4096 bytes
/// (NVMe, SCSI and virtio: 512 or 4096); a file system that wants more refuses, and its files are read through the page
/// cache.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes in which the mover makes large reads: 1 MiB was slower (docs/decisions/storage-engine.md).
pub(crate) const PIECE_BYTES: usize = 512 << 10;
