//! The storage below a directory: reads past the page cache, by size and depth.
//!
//! A file of random bytes is written there and removed again. Threads read it at random places with `O_DIRECT`, one read of
//! each at a time, so that their number is the depth. Hosts of virtual machines may cache the file; nothing can be done
//! about it from inside.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use memferry::topology::{ReadRate, Storage};

use super::{SamplingPlan, rounded};
use crate::harness::Random;

/// Sizes of reads: a page, the least read of a table that is not merged with others times a quarter, and the largest piece
/// of the storage engine.
const SIZES_BYTES: [usize; 3] = [4 << 10, 64 << 10, 512 << 10];

/// The storage engine has at most 64 pieces in flight.
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Reads of each thread, from which on the last ones, which end after the slice, count in part.
const ROUNDS_MIN: usize = 5;

/// Alignment of direct reads.
const BLOCK_BYTES: usize = 4096;

/// A failed measurement of storage. The file is removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageRateError {
    /// The directory is none, or cannot be used.
    #[error(
        "cannot use {directory} for a measurement of storage: {source}; give a directory that can be written"
    )]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The disk is full.
    #[error(
        "the file system of {directory} has no room for a file of {} MiB; free some, or give a directory of another one",
        size_bytes >> 20
    )]
    NoRoom {
        /// The directory.
        directory: PathBuf,
        /// Bytes of the file.
        size_bytes: u64,
    },
    /// The file system refuses `O_DIRECT`, or it is memory.
    #[error(
        "the file system of {directory} does not read past the page cache ({why}), so its rate would be that of memory; \
         give a directory on a disk, such as one of ext4 or xfs"
    )]
    NotDirect {
        /// The directory.
        directory: PathBuf,
        /// The kernel's reason.
        why: String,
    },
    /// A read failed.
    #[error("reading the file in {directory} failed: {source}; look for errors of the disk in dmesg")]
    Read {
        /// The directory.
        directory: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The file of a measurement. Its name is gone already, so it does not stay when the process ends.
#[derive(Debug)]
pub struct StorageProbe {
    directory: PathBuf,
    direct: File,
    size_bytes: usize,
    /// Time for each pair of size and depth.
    slice: Duration,
}

impl StorageProbe {
    /// Writes the file: 256 MiB, or 16 MiB with a quick plan.
    ///
    /// # Errors
    /// [`StorageRateError`], except `Read`.
    pub fn new(directory: &Path, plan: SamplingPlan) -> Result<StorageProbe, StorageRateError> {
        let (size_bytes, slice) = match plan.is_quick {
            true => (16 << 20, Duration::from_millis(20)),
            false => (256 << 20, Duration::from_millis(100)),
        };
        let unusable = |source| StorageRateError::Directory { directory: directory.to_owned(), source };
        let directory = fs::canonicalize(directory).map_err(unusable)?;
        let path = directory.join(format!(".memferry-calibrate-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(unusable)?;
        let direct = open_direct(&path, &directory);
        // Before the file grows, so that nothing is left if the process is killed.
        fs::remove_file(&path).map_err(unusable)?;
        let direct = direct?;
        filled(&file, size_bytes, &directory)?;
        direct
            .read_exact_at(Buffer::new(BLOCK_BYTES).aligned(), 0)
            .map_err(|error| not_direct(&directory, error.to_string()))?;
        Ok(StorageProbe { direct, directory, size_bytes, slice })
    }

    /// Number of calls of `progress` in a pass.
    pub const STEPS_COUNT: usize = SIZES_BYTES.len();

    /// Measures all sizes and depths once; takes 2 s. `source` names the measurement.
    ///
    /// # Errors
    /// [`StorageRateError::Read`].
    pub fn pass(&self, source: &str, progress: &mut dyn FnMut()) -> Result<Storage, StorageRateError> {
        let failed = |source| StorageRateError::Read { directory: self.directory.clone(), source };
        let mut rates = Vec::new();
        let mut latency_s = f64::INFINITY;
        for size_bytes in SIZES_BYTES {
            for depth in DEPTHS {
                let Reads { bytes_per_s, median_s } = self.read(size_bytes, depth).map_err(failed)?;
                if size_bytes == SIZES_BYTES[0] && depth == 1 {
                    latency_s = median_s;
                }
                let mb_per_s = rounded(bytes_per_s / 1e6);
                rates.push(ReadRate { size_bytes: size_bytes as u64, depth, mb_per_s });
            }
            progress();
        }
        let source = format!(
            "{source}: random reads past the page cache of a file of {} MiB, by as many threads as the depth",
            self.size_bytes >> 20
        );
        let storage = Storage::new(self.directory.clone(), rounded(latency_s * 1e9), rates, source);
        Ok(storage.expect("there are sizes and depths"))
    }

    fn read(&self, size_bytes: usize, depth: u32) -> io::Result<Reads> {
        let barrier = Barrier::new(depth as usize);
        let first = OnceLock::new();
        // Begin and end of each read, in seconds.
        let reader = |number: u32| -> io::Result<Vec<(f64, f64)>> {
            let mut buffer = Buffer::new(size_bytes);
            let mut random = Random((u64::from(number) << 32) | size_bytes as u64);
            let mut reads = Vec::new();
            barrier.wait();
            // All threads have the same window.
            let begin = *first.get_or_init(Instant::now);
            while begin.elapsed() < self.slice || reads.is_empty() {
                let read_begin_s = begin.elapsed().as_secs_f64();
                let offset = (random.below(self.size_bytes / size_bytes) * size_bytes) as u64;
                self.direct.read_exact_at(buffer.aligned(), offset)?;
                reads.push((read_begin_s, begin.elapsed().as_secs_f64()));
            }
            Ok(reads)
        };
        let all: Vec<io::Result<Vec<(f64, f64)>>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..depth)
                .map(|number| {
                    let reader = &reader;
                    scope.spawn(move || reader(number))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a reader does not panic")).collect()
        });
        let threads = all.into_iter().collect::<io::Result<Vec<_>>>()?;
        let mut times: Vec<f64> = threads.iter().flatten().map(|(begin_s, end_s)| end_s - begin_s).collect();
        times.sort_by(f64::total_cmp);
        let bytes_per_s = reads_per_s(&threads, self.slice.as_secs_f64()) * size_bytes as f64;
        Ok(Reads { bytes_per_s, median_s: times[times.len() / 2] })
    }
}

/// Reads per second of threads, each with the begin and the end of its reads, that stopped after `slice_s`.
///
/// With few reads of each thread they are counted to the end of the last one. The part of a read in the slice is not known: a slow
/// storage serves one read after the other.
fn reads_per_s(threads: &[Vec<(f64, f64)>], slice_s: f64) -> f64 {
    let reads: Vec<(f64, f64)> = threads.iter().flatten().copied().collect();
    if threads.iter().any(|reads| reads.len() < ROUNDS_MIN) {
        let last_s = reads.iter().map(|&(_, end_s)| end_s).fold(0.0, f64::max);
        return reads.len() as f64 / last_s;
    }
    reads.iter().map(|&read| part_within(read, slice_s)).sum::<f64>() / slice_s
}

/// The part of a read, from its begin to its end, in the first `slice_s` seconds: the last read of each thread ends later.
fn part_within((begin_s, end_s): (f64, f64), slice_s: f64) -> f64 {
    match end_s <= slice_s {
        true => 1.0,
        false => ((slice_s - begin_s) / (end_s - begin_s)).max(0.0),
    }
}

struct Reads {
    bytes_per_s: f64,
    median_s: f64,
}

/// Memory for direct reads.
struct Buffer {
    memory: Vec<u8>,
    size_bytes: usize,
}

impl Buffer {
    fn new(size_bytes: usize) -> Buffer {
        Buffer { memory: vec![0; size_bytes + BLOCK_BYTES], size_bytes }
    }

    fn aligned(&mut self) -> &mut [u8] {
        let first = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        &mut self.memory[first..first + self.size_bytes]
    }
}

/// Writes random bytes to the disk: some disks compress.
fn filled(mut file: &File, size_bytes: usize, directory: &Path) -> Result<(), StorageRateError> {
    let mut random = Random(size_bytes as u64);
    let mut block = vec![0; 1 << 20];
    let mut write = || -> io::Result<()> {
        for _ in 0..size_bytes / block.len() {
            block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    write().map_err(|source| match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            StorageRateError::NoRoom { directory: directory.to_owned(), size_bytes: size_bytes as u64 }
        }
        _ => StorageRateError::Directory { directory: directory.to_owned(), source },
    })
}

/// Opens the file for direct reads.
fn open_direct(path: &Path, directory: &Path) -> Result<File, StorageRateError> {
    if let Some(kind) = memory_file_system(path) {
        return Err(not_direct(directory, format!("it is {kind}")));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    file.map_err(|error| not_direct(directory, error.to_string()))
}

fn not_direct(directory: &Path, why: String) -> StorageRateError {
    StorageRateError::NotDirect { directory: directory.to_owned(), why }
}

/// The kind of the file system that a path is on, if its files are in memory. Newer kernels accept `O_DIRECT` there.
///
/// Source: `/proc/self/mountinfo`, proc_pid_mountinfo(5).
fn memory_file_system(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| -> Option<(PathBuf, String)> {
        let (mount, kind) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(point), kind.split(' ').next()?.to_owned()))
    };
    // The last one of a mount point hides those before it.
    let over = mounts.lines().filter_map(mount).filter(|(point, _)| path.starts_with(point));
    let (_, kind) = over.max_by_key(|(point, _)| point.as_os_str().len())?;
    matches!(kind.as_str(), "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs").then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_rates_and_keeps_no_file() {
        // Directories of the build are on a disk; /tmp may be memory.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let probe = match StorageProbe::new(directory.path(), SamplingPlan::QUICK) {
            Ok(probe) => probe,
            Err(error @ StorageRateError::NotDirect { .. }) => {
                return memferry_testing::skip(memferry_testing::Needs::Kernel("O_DIRECT"), error);
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "its name is gone at once");
        let mut steps_count = 0;
        let storage = probe.pass("a test", &mut || steps_count += 1).unwrap();
        assert_eq!(steps_count, StorageProbe::STEPS_COUNT);
        assert_eq!(storage.rates.len(), SIZES_BYTES.len() * DEPTHS.len());
        assert!(storage.rates.iter().all(|rate| rate.mb_per_s > 0.0), "{storage:?}");
        assert!(storage.latency_ns > 100.0 && storage.latency_ns < 1e9, "{storage:?}");
        assert!(DEPTHS.contains(&storage.depth_best));
        assert_eq!(storage.directory, fs::canonicalize(directory.path()).unwrap());
        // What one read at a time takes and what it transfers agree, as far as other programs allow.
        let one_s = 4096.0 / (storage.rates[0].mb_per_s * 1e6);
        assert!(one_s > storage.latency_ns / 1e9 / 10.0, "{storage:?}");
    }

    #[test]
    fn a_read_that_ends_later_counts_in_part() {
        assert_eq!(part_within((0.25, 0.5), 1.0), 1.0);
        assert_eq!(part_within((0.75, 1.75), 1.0), 0.25);
        assert_eq!(part_within((1.5, 1.75), 1.0), 0.0, "it began later");
    }

    #[test]
    fn memory_is_no_storage() {
        let directory = Path::new("/dev/shm");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        if !mounts.lines().any(|line| line.contains(" /dev/shm ") && line.contains(" - tmpfs ")) {
            return memferry_testing::skip(memferry_testing::Needs::Kernel("tmpfs"), "/dev/shm is no tmpfs");
        }
        let error = StorageProbe::new(directory, SamplingPlan::QUICK).unwrap_err();
        assert!(matches!(error, StorageRateError::NotDirect { .. }), "{error}");
        assert!(error.to_string().contains("does not read past the page cache (it is tmpfs)"), "{error}");
        let left = fs::read_dir(directory).unwrap().flatten();
        let own = format!(".memferry-calibrate-{}", std::process::id());
        assert_eq!(left.filter(|entry| entry.file_name() == *own).count(), 0);
    }

    #[test]
    fn a_full_disk_and_a_missing_directory_are_named() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = filled(&full, 16 << 20, Path::new("/full")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the file system of /full has no room for a file of 16 MiB; free some, or give a directory of another one"
        );
        let error = StorageProbe::new(Path::new("/no/such"), SamplingPlan::QUICK).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot use /no/such for a measurement of storage: No such"),
            "{error}"
        );
    }

    /// A storage that serves one read after the other, each in `read_s`, to threads that stop after `slice_s`.
    fn served(depth: usize, read_s: f64, slice_s: f64) -> Vec<Vec<(f64, f64)>> {
        let mut threads = vec![Vec::new(); depth];
        let mut begins = vec![0.0; depth];
        for turn in 0.. {
            let thread = turn % depth;
            if begins[thread] >= slice_s && turn >= depth {
                return threads;
            }
            let end_s = (turn + 1) as f64 * read_s;
            threads[thread].push((begins[thread], end_s));
            begins[thread] = end_s;
        }
        unreachable!("the slice ends")
    }

    #[test]
    fn rates_do_not_depend_on_the_length_of_a_read() {
        // 64 large reads of a disk with 10 MB/s took 3.3 s, and its rate was 46 MB/s.
        for (depth, read_s) in [(1, 0.001), (64, 0.0001), (64, 0.0003), (64, 0.001), (64, 0.05), (1, 3.0)] {
            let rate = reads_per_s(&served(depth, read_s, 0.1), 0.1) * read_s;
            assert!((0.95..1.15).contains(&rate), "{depth} reads of {read_s} s: {rate}");
        }
    }
}
