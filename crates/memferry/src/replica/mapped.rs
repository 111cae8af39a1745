//! A mapping of persistent memory: engines copy to it, cache lines are flushed, and no system call is made.
//!
//! The mapping is synchronous (MAP_SYNC): the kernel makes the blocks of a page durable before the page can be written. So
//! bytes are durable once their cache lines are written back. That is done by the CPU after the copy has completed,
//! whatever engine made it: bytes that a device wrote are then in a cache, from where they are written back, or have
//! reached the memory controller, which belongs to the domain that a loss of power does not lose (ADR).
//!
//! Source: mmap(2) about MAP_SYNC; Linux `Documentation/filesystems/dax.rst`; Intel SDM volume 2, CLWB.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;

use libc::c_int;
use memferry_dsa::internals::software::{self, Flush};

use super::{Replica, ReplicaError};
use crate::mover::{Consumer, CopyOptions, Mover};

/// Linux `include/uapi/linux/mman.h` and `asm-generic/mman.h`. Kernels that do not know a flag refuse it only with the
/// first of them.
const MAP_SHARED_VALIDATE: c_int = 0x03;
const MAP_SYNC: c_int = 0x08_0000;

impl Replica {
    /// Maps the file, so that the engines of `mover` copy later versions to it: a DSA, or several cores. The calling thread
    /// computes the checksum meanwhile, and flushes the cache lines.
    ///
    /// The file system must be mounted with DAX. That bytes of a DSA are durable after the flush follows from the
    /// specifications; it has not been tried on silicon. If a device is lost while it copies, the process ends, as in
    /// [`Mover::scope`].
    ///
    /// # Safety
    /// Until the replica is dropped, no other process writes to the file, shortens it, or removes blocks from it. An access
    /// to a missing block is a signal (SIGBUS), and foreign writes race with the copies.
    ///
    /// # Errors
    /// [`ReplicaError::System`]: the file system has no DAX, the CPU is no x86-64, or blocks of the file cannot be
    /// allocated. The replica works as before. [`Forked`](ReplicaError::Forked).
    pub unsafe fn map(&mut self, mover: Mover) -> Result<(), ReplicaError> {
        self.check_process()?;
        let size_bytes = self.slots.total_bytes();
        let medium = self.slots.medium();
        // SAFETY: passed on to the caller.
        let mapped =
            unsafe { DaxMapping::new(medium.file(), size_bytes, MAP_SHARED_VALIDATE | MAP_SYNC, mover) };
        // The flushes of the mapping do not cover what was written through the file.
        let durable = mapped.and_then(|mapping| medium.file().sync_data().map(|()| mapping));
        match durable {
            Ok(mapping) => medium.write_through(mapping),
            Err(error) => return Err(ReplicaError::system(self.path(), "map")(error)),
        }
        Ok(())
    }
}

/// The whole file, mapped and populated; unmapped on drop.
pub(super) struct DaxMapping {
    start: NonNull<u8>,
    size_bytes: usize,
    mover: Mover,
    /// What was written since the last flush.
    dirty: Vec<Range<usize>>,
}

// SAFETY: the mapping belongs to this value alone, and its address means the same on all threads.
unsafe impl Send for DaxMapping {}
// SAFETY: only `&mut self` gives access to the mapping.
unsafe impl Sync for DaxMapping {}

impl DaxMapping {
    /// # Safety
    /// Until it is dropped, the file has all of its `size_bytes`, and nobody else writes there.
    unsafe fn new(file: &File, size_bytes: u64, flags: c_int, mover: Mover) -> io::Result<DaxMapping> {
        if !cfg!(target_arch = "x86_64") {
            // `software::flush` does nothing there.
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let size_bytes = usize::try_from(size_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let mapped =
            unsafe { libc::mmap(ptr::null_mut(), size_bytes, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = DaxMapping { start, size_bytes, mover, dirty: Vec::new() };
        // A device stops at each page without an entry in the page table. A block that cannot be written is an error here.
        // SAFETY: populating keeps content, and the range is mapped.
        let answer = unsafe { libc::madvise(mapped, size_bytes, libc::MADV_POPULATE_WRITE) };
        let error = io::Error::last_os_error();
        // Before Linux 5.14 EINVAL: pages come when they are written.
        if answer != 0 && error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        Ok(mapping)
    }

    /// Copies bytes with the mover and calls `meanwhile`.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<()> {
        let range = offset as usize..offset as usize + bytes.len();
        self.dirty.push(range.clone());
        let options = CopyOptions { consumer: Consumer::Later, ..CopyOptions::default() };
        let mover = self.mover.clone();
        let target = self.slice(range);
        let copied = mover.scope(move |scope| {
            scope.copy_with(bytes, target, options);
            meanwhile();
        });
        copied.map_err(io::Error::other)
    }

    /// Writes the cache lines of what was written to memory.
    pub(super) fn flush(&mut self) {
        for range in std::mem::take(&mut self.dirty) {
            software::flush(self.slice(range), Flush::WriteBack);
        }
    }

    fn slice(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.size_bytes, "{range:?} is not in the mapping");
        // SAFETY: the range is in the mapping, whose bytes are there and are written by nobody else (`new`). The exclusive
        // borrow of `self` keeps the mapping, and makes this the only reference to it.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for DaxMapping {
    fn drop(&mut self) {
        // SAFETY: this value mapped the range, and no borrow of it is left. A failure leaves it mapped.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.size_bytes) };
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::mover::engine::faulty::{Faults, Faulty};
    use crate::mover::{CpuEngine, CpuOptions};
    use crate::topology::Machine;

    /// A replica that is mapped through the page cache: all but MAP_SYNC, which needs DAX.
    fn mapped(path: &Path, capacity_bytes: u64, mover: Mover) -> Replica {
        let mut replica = Replica::create(path, capacity_bytes).unwrap();
        let size_bytes = replica.slots.total_bytes();
        let medium = replica.slots.medium();
        // SAFETY: nobody else uses the file.
        let mapping = unsafe { DaxMapping::new(medium.file(), size_bytes, libc::MAP_SHARED, mover) };
        medium.write_through(mapping.unwrap());
        replica
    }

    #[test]
    fn versions_written_through_a_mapping_are_restored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replica");
        let mover = Mover::builder(Arc::new(Machine::two_tiers().unwrap())).build().unwrap();
        let mut replica = mapped(&path, 5 << 20, mover.clone());
        for fill in 1..=3_u8 {
            let parts = [vec![fill; 3 << 20], vec![fill + 100; 4097], vec![]];
            let copied_bytes = mover.stats().engines.iter().map(|engine| engine.bytes).sum::<u64>();
            assert_eq!(replica.write(&parts).unwrap(), u64::from(fill));
            let by_mover =
                mover.stats().engines.iter().map(|engine| engine.bytes).sum::<u64>() - copied_bytes;
            assert!(by_mover >= (3 << 20) + 4097, "{by_mover} bytes were copied by the mover");
            assert!(replica.restore().unwrap().unwrap() == parts.concat());
        }
        drop(replica);
        let restored = Replica::open(&path).unwrap().restore().unwrap().unwrap();
        assert!(restored == [vec![3; 3 << 20], vec![103; 4097]].concat());
    }

    /// That the cache lines reach the memory cannot be seen, but which ones are flushed can.
    #[test]
    fn a_flush_covers_all_bytes_since_the_last_one() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(20_000).unwrap();
        let mover = Mover::builder(Arc::new(Machine::two_tiers().unwrap())).build().unwrap();
        // SAFETY: nobody else uses the file.
        let mut mapping = unsafe { DaxMapping::new(&file, 20_000, libc::MAP_SHARED, mover) }.unwrap();
        for (offset, len) in [(8192, 11_808), (0, 64)] {
            mapping.write(offset, &vec![7; len], &mut || ()).unwrap();
        }
        assert_eq!(mapping.dirty, [8192..20_000, 0..64]);
        mapping.flush();
        assert_eq!(mapping.dirty, []);
    }

    #[test]
    fn a_copy_that_fails_leaves_the_version_before() {
        let directory = tempfile::tempdir().unwrap();
        let machine = Arc::new(Machine::two_tiers().unwrap());
        let cores = Arc::new(CpuEngine::new(&machine, CpuOptions::default()).unwrap());
        let faults = Faults { fail_per_mille: 300, ..Faults::default() };
        let faulty = Arc::new(Faulty::new(cores, faults, 1).unwrap());
        let mover = Mover::builder(machine).engine(faulty).build().unwrap();
        let path = directory.path().join("replica");
        let mut replica = mapped(&path, 100_000, mover);
        let (mut newest, mut failures_count) = (None, 0);
        for fill in 0..100_u8 {
            let content = vec![fill; 100_000 - usize::from(fill)];
            match replica.write(&[&content]) {
                Ok(_) => newest = Some(content),
                Err(error) => {
                    assert!(matches!(error, ReplicaError::System { action: "write", .. }), "{error}");
                    failures_count += 1;
                }
            }
            assert!(replica.restore().unwrap() == newest, "{fill}");
        }
        // An attempt whose last copy failed after its bytes were copied may be found by the next process: so the last write
        // succeeds.
        let content = vec![200; 100_000];
        while replica.write(&[&content]).is_err() {}
        drop(replica);
        assert!(Replica::open(&path).unwrap().restore().unwrap() == Some(content));
        assert!((10..90).contains(&failures_count), "{failures_count}");
    }
}
