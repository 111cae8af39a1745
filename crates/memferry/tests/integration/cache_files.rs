//! Files in a cache, and the storage engine behind it: by io_uring and by threads.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use memferry::cache::{Access, Cache, Reading, StoredRegion};
use memferry::internals::{DiskFaults, Faults, Faulty};
use memferry::mover::{
    CopyError, CopyReport, Engine, EngineKind, EngineStats, Mover, RawRequest, ReadError, Refusal, Rejected,
    StorageEngine, StorageOptions,
};
use memferry::storage::{StorageError, StoredFile};
use memferry::topology::NodeId;

use crate::cache_support::{NEAR, PAGE, assert_adds_up, machine, pattern, soon, within};
use crate::fork_support::{alone, in_child};

/// A file in a directory that is removed with this.
struct TestFile {
    _directory: tempfile::TempDir,
    path: PathBuf,
    content: Vec<u8>,
}

impl TestFile {
    fn new(size_bytes: usize) -> TestFile {
        let directory = tempfile::tempdir().unwrap();
        let (path, content) = (directory.path().join("table"), pattern(7, size_bytes));
        std::fs::write(&path, &content).unwrap();
        TestFile { _directory: directory, path, content }
    }

    fn open(&self) -> Arc<StoredFile> {
        Arc::new(StoredFile::open(&self.path).unwrap())
    }
}

/// Both ways to the kernel, from the page cache and from the disk.
fn all_options() -> Vec<StorageOptions> {
    let with = |io_uring, page_cache| StorageOptions {
        io_uring,
        page_cache,
        piece_bytes: 2 * PAGE,
        threads_count: 2,
        ..StorageOptions::default()
    };
    BOTH_WAYS.into_iter().flat_map(|io_uring| [with(io_uring, true), with(io_uring, false)]).collect()
}

fn mover_with(engine: Arc<dyn Engine>) -> Mover {
    Mover::builder(machine()).engine(engine).build().unwrap()
}

fn cache_with(mover: Mover, pages: usize) -> Cache {
    Cache::builder(mover).budget(NEAR, pages * PAGE).build().unwrap()
}

/// A cache whose only storage engine has these faults, and a file in it.
fn faulty(
    options: StorageOptions,
    faults: impl DiskFaults + 'static,
    pages: usize,
) -> (Cache, TestFile, StoredRegion, Arc<StorageEngine>) {
    let engine = Arc::new(StorageEngine::with_faults(options, Arc::new(faults)).unwrap());
    let cache = cache_with(mover_with(engine.clone()), pages);
    let file = TestFile::new(pages * PAGE);
    let region = cache.register_file(file.open());
    (cache, file, region, engine)
}

fn near() -> Access {
    Access::near(NEAR)
}

/// A disk whose results are those of a function.
struct ByFunction<F>(F);

impl<F> fmt::Debug for ByFunction<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByFunction")
    }
}

impl<F: Fn(u64, usize, i32) -> i32 + Send + Sync> DiskFaults for ByFunction<F> {
    fn result(&self, offset: u64, size_bytes: usize, result: i32) -> i32 {
        self.0(offset, size_bytes, result)
    }
}

/// A disk whose reads complete when it is opened.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    /// Waits until a read is at the gate.
    fn wait_for_one(&self) {
        let mut state = self.0.0.lock().unwrap();
        while state.1 == 0 {
            state = self.0.1.wait(state).unwrap();
        }
    }
}

impl DiskFaults for Gate {
    fn result(&self, _: u64, _: usize, result: i32) -> i32 {
        let mut state = self.0.0.lock().unwrap();
        state.1 += 1;
        self.0.1.notify_all();
        while !state.0 {
            state = self.0.1.wait(state).unwrap();
        }
        result
    }
}

/// From the disk, one piece at a time, each on the thread that the gate stops.
fn one_at_a_time(io_uring: bool) -> StorageOptions {
    StorageOptions {
        io_uring,
        page_cache: false,
        pieces_in_flight_max: 1,
        threads_count: 1,
        queue_reads_max: 1,
        ..StorageOptions::default()
    }
}

/// A disk of which one read is held by the gate, and another one waits behind it.
struct HeldDisk {
    gate: Gate,
    cache: Cache,
    file: TestFile,
    region: StoredRegion,
    engine: Arc<StorageEngine>,
    /// Of the first page.
    held: Reading,
    /// Of the second page.
    waiting: Reading,
}

fn held_disk(io_uring: bool) -> HeldDisk {
    let gate = Gate::default();
    let (cache, file, region, engine) = faulty(one_at_a_time(io_uring), gate.clone(), 8);
    let held = cache.read(&region, 0..4096, near()).unwrap();
    gate.wait_for_one();
    let waiting = cache.read(&region, 4096..8192, near()).unwrap();
    HeldDisk { gate, cache, file, region, engine, held, waiting }
}

/// Values of [`StorageOptions::io_uring`].
const BOTH_WAYS: [bool; 2] = [true, false];

#[test]
fn reads_every_range_of_files_with_any_tail() {
    for options in all_options() {
        let mover = mover_with(Arc::new(StorageEngine::new(options).unwrap()));
        for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 1] {
            let file = TestFile::new(size);
            let cache = cache_with(mover.clone(), 8);
            let stored = file.open();
            let region = cache.register_file(stored.clone());
            let ends = [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 5 * PAGE, size.saturating_sub(1), size];
            for (start, end) in ends.iter().flat_map(|&start| ends.map(|end| (start, end))) {
                let range = start as u64..end as u64;
                if start > end || end > size {
                    assert!(cache.read(&region, range.clone(), near()).is_err());
                    let error = mover.read(&stored, range).wait().unwrap_err();
                    assert!(matches!(error, ReadError::Storage(StorageError::OutOfRange { .. })), "{error}");
                    continue;
                }
                let entry = cache.read(&region, range.clone(), near()).unwrap().wait().unwrap();
                assert!(
                    *entry.as_slice() == file.content[start..end],
                    "{options:?}, {start}..{end} of {size}"
                );
                assert_eq!(entry.range(), start..end);
                let bytes = mover.read(&stored, range).wait().unwrap();
                assert!(*bytes == file.content[start..end], "{options:?}, {start}..{end} of {size}");
            }
            assert_adds_up(&cache.stats());
        }
    }
}

#[test]
fn a_copy_with_all_of_the_range_serves_it() {
    let file = TestFile::new(20 * PAGE);
    let cache = cache_with(Mover::builder(machine()).build().unwrap(), 32);
    let region = cache.register_file(file.open());
    let read = |range| cache.read(&region, range, near()).unwrap();
    let first = read(0..10 * PAGE as u64);
    assert!(first.started_read());
    for (start, end) in [(0, 1), (5, 6), (PAGE as u64, 3 * PAGE as u64), (40_900, 40_960)] {
        let reading = read(start..end);
        assert!(!reading.started_read());
        assert!(*reading.wait().unwrap().as_slice() == file.content[start as usize..end as usize]);
    }
    assert!(read(9 * PAGE as u64..11 * PAGE as u64).started_read(), "a part is not all");
    assert_eq!(cache.stats().submissions, 2);
    drop(region);
    assert_eq!(cache.stats().nodes[0].entries_count, 0, "the end of the region removes its entries");
}

#[test]
fn concurrent_first_reads_submit_once() {
    for options in all_options() {
        let cache = cache_with(mover_with(Arc::new(StorageEngine::new(options).unwrap())), 64);
        let file = TestFile::new(64 * PAGE);
        let region = cache.register_file(file.open());
        let begin = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begin.wait();
                    for page in 0..64 {
                        let range = page * PAGE..(page + 1) * PAGE;
                        let reading =
                            cache.read(&region, range.start as u64..range.end as u64, near()).unwrap();
                        assert!(*reading.wait().unwrap().as_slice() == file.content[range]);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!((stats.submissions, stats.accesses), (64, 8 * 64), "{stats:?}");
        assert_adds_up(&stats);
    }
}

#[test]
fn the_budget_holds_and_without_room_the_mover_reads() {
    let cache = cache_with(Mover::builder(machine()).build().unwrap(), 4);
    let file = TestFile::new(16 * PAGE);
    let region = cache.register_file(file.open());
    let page = |page: u64| cache.read(&region, page * 4096..(page + 1) * 4096, near()).unwrap().wait();
    let held: Vec<_> = (0..4).map(|number| page(number).unwrap()).collect();
    let error = page(4).unwrap_err();
    assert_eq!(error, ReadError::NoRoom { path: file.path.clone(), node: NEAR, size_bytes: PAGE });
    let bytes = cache.mover().read(region.file(), 4 * 4096..5 * 4096).wait().unwrap();
    assert!(*bytes == file.content[4 * PAGE..5 * PAGE]);
    drop(held);
    // Evicts.
    for number in 0..16 {
        assert!(page(number).is_ok());
    }
    assert!(matches!(
        cache.read(&region, 0..5 * 4096, near()).unwrap().wait(),
        Err(ReadError::NoRoom { .. })
    ));
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.nodes[0].peak_bytes == 4 * PAGE, "{stats:?}");
    assert_adds_up(&stats);
}

#[test]
fn a_read_that_nobody_waits_for_is_cancelled() {
    for io_uring in BOTH_WAYS {
        let HeldDisk { gate, cache, file, region, engine, held: first, waiting: second } =
            held_disk(io_uring);
        let clone = second.clone();
        drop(second);
        assert!(!cache.read(&region, 4096..8192, near()).unwrap().started_read(), "joined, and left at once");
        drop(clone);
        let unwanted = cache.mover().read(region.file(), 0..4096);
        drop(unwanted);
        gate.open();
        assert_eq!(*soon(move || first.wait().unwrap()).as_slice(), file.content[..PAGE]);
        let cancelled = engine.clone();
        soon(move || {
            while cancelled.stats().cancelled == 0 {
                thread::yield_now();
            }
        });
        let again = cache.read(&region, 4096..8192, near()).unwrap();
        assert_eq!(*soon(move || again.wait().unwrap()).as_slice(), file.content[PAGE..2 * PAGE]);
        cache.mover().drain().wait().unwrap();
        let stats = cache.mover().stats();
        let cancelled: u64 = stats.engines.iter().map(|engine| engine.cancelled).sum();
        assert!((1..=2).contains(&cancelled), "io_uring {io_uring}: {stats:?}");
        assert_eq!(engine.stats().reads, 2, "io_uring {io_uring}: what was cancelled was not read");
        assert_adds_up(&cache.stats());
    }
}

#[test]
fn a_dropped_reading_is_not_cancelled_if_it_was_joined() {
    for io_uring in BOTH_WAYS {
        let HeldDisk { gate, cache, file, region, held: first, waiting: second, .. } = held_disk(io_uring);
        let joined = cache.read(&region, 5000..6000, near()).unwrap();
        drop((first, second));
        gate.open();
        assert_eq!(*soon(move || joined.wait().unwrap()).as_slice(), file.content[5000..6000]);
        assert_eq!(cache.stats().submissions, 2);
    }
}

#[track_caller]
fn assert_changed<T: fmt::Debug>(result: Result<T, ReadError>, path: &Path, change: &str) {
    let expected = StorageError::Changed { path: path.to_owned(), change: change.to_owned() };
    assert_eq!(result.unwrap_err(), ReadError::Storage(expected));
}

#[test]
fn a_changed_file_fails_and_leaves_no_entry() {
    for options in all_options() {
        let cache = cache_with(mover_with(Arc::new(StorageEngine::new(options).unwrap())), 8);
        let file = TestFile::new(4 * PAGE);
        let region = cache.register_file(file.open());
        let read = |region: &StoredRegion, page: u64| {
            cache.read(region, page * 4096..(page + 1) * 4096, near()).unwrap()
        };
        let held = read(&region, 0).wait().unwrap();
        let writer = OpenOptions::new().append(true).open(&file.path).unwrap();
        (&writer).write_all(b"more").unwrap();
        let change = "its size changed from 16384 to 16388 bytes";
        assert_changed(read(&region, 1).wait(), &file.path, change);
        assert_eq!(cache.stats().nodes[0].entries_count, 0, "{options:?}");
        assert_changed(read(&region, 0).wait(), &file.path, change);
        assert_eq!(*held.as_slice(), file.content[..PAGE], "a held entry keeps its version");
        let again = cache.register_file(file.open());
        assert_eq!(*read(&again, 1).wait().unwrap().as_slice(), file.content[PAGE..2 * PAGE]);

        // Truncated under a read.
        writer.set_len(PAGE as u64).unwrap();
        assert_changed(read(&again, 2).wait(), &file.path, "its size changed from 16388 to 4096 bytes");

        // Replaced: only a check sees it, and then the entries are gone.
        let third = cache.register_file(file.open());
        read(&third, 0).wait().unwrap();
        std::fs::remove_file(&file.path).unwrap();
        read(&third, 0).wait().unwrap();
        let vanished = "it was removed or renamed";
        assert_changed(third.check_unchanged().map_err(ReadError::Storage), &file.path, vanished);
        assert_eq!(cache.stats().nodes[0].entries_count, 0);
        assert_changed(read(&third, 0).wait(), &file.path, vanished);
        assert_adds_up(&cache.stats());
    }
}

#[test]
fn a_failed_read_names_its_error_and_can_be_repeated() {
    for io_uring in BOTH_WAYS {
        let options =
            StorageOptions { io_uring, page_cache: false, piece_bytes: PAGE, ..StorageOptions::default() };
        let errno = Arc::new(AtomicI32::new(libc::EIO));
        let faults = ByFunction({
            let errno = errno.clone();
            move |offset, _, result| {
                if offset == 2 * PAGE as u64 && errno.load(SeqCst) != 0 {
                    -errno.load(SeqCst)
                } else {
                    result
                }
            }
        });
        let (cache, file, region, engine) = faulty(options, faults, 8);
        let read = || cache.read(&region, 0..6 * 4096, near()).unwrap();
        let error = StorageError::Read { path: file.path.clone(), range: 0..6 * 4096, errno: libc::EIO };
        assert_eq!(read().wait().unwrap_err(), ReadError::Storage(error));
        let text = cache.mover().read(region.file(), 9000..9001).wait().unwrap_err().to_string();
        let start = format!("cannot read bytes 9000..9001 of {}: Input/output error", file.path.display());
        assert!(text.starts_with(&start), "{text}");
        let usage = cache.stats().nodes[0];
        assert_eq!((usage.entries_count, usage.used_bytes), (0, 0), "io_uring {io_uring}");
        errno.store(0, SeqCst);
        assert_eq!(*read().wait().unwrap().as_slice(), file.content[..6 * PAGE]);
        assert_adds_up(&cache.stats());
        let stats = engine.stats();
        assert_eq!((stats.accepted, stats.errors), (3, 2), "{stats:?}");
    }
}

#[test]
fn short_reads_are_continued_and_direct_reads_replaced() {
    for io_uring in BOTH_WAYS {
        let options = StorageOptions { io_uring, page_cache: false, ..StorageOptions::default() };
        // Ends inside of blocks and at their ends.
        let short = ByFunction(|offset, _, result: i32| result.min(if offset == 0 { 4096 } else { 5000 }));
        let (cache, file, region, engine) = faulty(options, short, 16);
        let entry = cache.read(&region, 0..16 * 4096, near()).unwrap().wait().unwrap();
        assert!(*entry.as_slice() == file.content);
        let stats = engine.stats();
        assert!(stats.short_reads > 10 && stats.bytes == 16 * 4096, "{stats:?}");

        let refused = ByFunction(|_, _, result| result);
        let (_, file, region, _) = faulty(options, refused, 16);
        if !region.file().is_direct() {
            return memferry_testing::skip(
                memferry_testing::Needs::Kernel("O_DIRECT on the file system of TMPDIR"),
                "refused",
            );
        }
        let first = Arc::new(AtomicI32::new(1));
        let refusing =
            ByFunction(move |_, _, result| if first.swap(0, SeqCst) == 1 { -libc::EINVAL } else { result });
        let engine = Arc::new(StorageEngine::with_faults(options, Arc::new(refusing)).unwrap());
        let mover = mover_with(engine.clone());
        let bytes = mover.read(region.file(), 0..16 * 4096).wait().unwrap();
        assert!(*bytes == file.content && !region.file().is_direct());
        assert_eq!(engine.stats().buffered_bytes, 16 * 4096, "and the statistics say so");
    }
}

#[test]
fn a_full_queue_refuses_and_a_mover_waits_beyond_it() {
    for io_uring in BOTH_WAYS {
        let HeldDisk { gate, cache, file, region, engine, held: first, waiting: second } =
            held_disk(io_uring);
        let target = Box::leak(vec![0_u128; 1024].into_boxed_slice());
        let target = target.as_mut_ptr().cast::<u8>();
        // SAFETY: the vector is leaked, and has room for a block behind the next multiple of one.
        let raw = unsafe {
            RawRequest::read(region.file().clone(), 0, target.add(target.align_offset(4096)), 4096, |_| {})
        };
        let rejected = cache.mover().try_start(raw, None, None).unwrap_err();
        assert_eq!((rejected.why, rejected.copy.is_read()), (Refusal::Full, true));
        let third = cache.read(&region, 8192..8193, near()).unwrap();
        assert_eq!(
            *soon(move || third.wait().unwrap()).as_slice(),
            [file.content[8192]],
            "by the own engine"
        );
        assert_eq!(cache.mover().stats().overflow_operations, 1);
        gate.open();
        soon(move || (first.wait().unwrap(), second.wait().unwrap()));
        assert_eq!((engine.stats().accepted, engine.stats().rejected), (2, 2));
        drop(rejected);
    }
}

#[test]
fn engines_of_memory_get_no_reads_and_those_of_files_no_copies() {
    let engine = Arc::new(StorageEngine::new(StorageOptions::default()).unwrap());
    let mover = mover_with(engine.clone());
    let file = TestFile::new(3 << 20);
    let copied = mover.copy(file.content.clone(), vec![0; 3 << 20], memferry::mover::CopyOptions::default());
    assert!(copied.wait().unwrap().1 == file.content);
    assert_eq!(engine.stats().accepted, 0);
    assert!(*mover.read(&file.open(), 0..3 << 20).wait().unwrap() == *file.content);
    let stats = mover.stats();
    let of_kind = |kind| stats.engines.iter().filter(move |engine| engine.kind == kind);
    let sum = |kind, of: fn(&EngineStats) -> u64| of_kind(kind).map(of).sum::<u64>();
    assert_eq!(sum(EngineKind::Storage, |engine| engine.bytes), 3 << 20);
    assert_eq!(sum(EngineKind::Storage, |engine| engine.operations), 1);
    assert_eq!(sum(EngineKind::Cpu, |engine| engine.bytes), 3 << 20);
    let text = stats.prometheus().to_string();
    assert!(
        text.contains("memferry_engine_bytes_total{engine=\"io_uring\"") || text.contains("engine=\"pread"),
        "{text}"
    );
}

/// Finishes reads without making them.
#[derive(Debug)]
struct ReadsNothing;

impl Engine for ReadsNothing {
    fn name(&self) -> &str {
        "reads nothing"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Storage
    }

    fn node(&self) -> Option<NodeId> {
        None
    }

    fn submit(&self, read: RawRequest) -> Result<(), Rejected> {
        read.finish(Ok(CopyReport::default()));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::new(self.name(), self.kind(), self.node())
    }
}

/// Regression: what an engine had not written was uninitialised, and was what the last user of the memory had left there.
#[test]
fn a_read_that_an_engine_does_not_make_is_initialised() {
    let file = TestFile::new(4 * PAGE);
    let (reads, reads_nothing) =
        (Mover::builder(machine()).build().unwrap(), mover_with(Arc::new(ReadsNothing)));
    let stored = file.open();
    for _ in 0..16 {
        // The allocator gives its memory to the next read.
        assert!(*reads.read(&stored, 0..4 * 4096).wait().unwrap() == file.content);
        let bytes = reads_nothing.read(&stored, 0..4 * 4096).wait().unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "{:?}", &bytes[..16]);
    }
}

/// The CPU time of a thread of this process, in ticks of 10 ms.
fn ticks_of(thread: &str) -> Option<u64> {
    std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        (name == thread).then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    })
}

/// foyer's engine uses a whole core when idle.
#[test]
fn an_idle_ring_sleeps() {
    let idle = || {
        let options = StorageOptions { page_cache: false, ..StorageOptions::default() };
        let engine = Arc::new(StorageEngine::new(options).unwrap());
        let mover = mover_with(engine.clone());
        let file = TestFile::new(64 * PAGE);
        for _ in 0..10 {
            mover.read(&file.open(), 0..64 * 4096).wait().unwrap();
        }
        if !engine.uses_io_uring() {
            return memferry_testing::skip(memferry_testing::Needs::Kernel("io_uring"), engine.name());
        }
        let before = ticks_of("memferry-io_uri").expect("a thread of this name");
        thread::sleep(Duration::from_millis(300));
        let ticks = ticks_of("memferry-io_uri").unwrap() - before;
        assert!(ticks <= 1, "{ticks} ticks of 30");
    };
    alone("cache_files::an_idle_ring_sleeps", idle);
}

/// A child starts its own ring; reads of its parent fail there.
fn child_reads() {
    for io_uring in BOTH_WAYS {
        let inner = StorageEngine::new(StorageOptions { io_uring, ..StorageOptions::default() }).unwrap();
        let held = Arc::new(Faulty::new(Arc::new(inner), Faults::default(), 0).unwrap());
        let cache = cache_with(mover_with(held.clone()), 8);
        let own = cache_with(Mover::builder(machine()).build().unwrap(), 8);
        let file = TestFile::new(8 * PAGE);
        let (region, other) = (cache.register_file(file.open()), own.register_file(file.open()));
        own.read(&other, 0..4096, near()).unwrap().wait().unwrap();
        held.hold();
        let reading = cache.read(&region, 0..4096, near()).unwrap();
        let bytes = cache.mover().read(region.file(), 0..4096);
        in_child(|| {
            let error = reading.clone().wait().unwrap_err();
            assert_eq!(error, ReadError::Engine { path: file.path.clone(), error: CopyError::Forked });
            let entry = own.read(&other, 5..8 * 4096, near()).unwrap().wait().unwrap();
            assert!(*entry.as_slice() == file.content[5..]);
            assert!(*own.mover().read(region.file(), 7..9).wait().unwrap() == file.content[7..9]);
        });
        held.release();
        assert_eq!(*reading.wait().unwrap().as_slice(), file.content[..PAGE]);
        assert_eq!(*bytes.wait().unwrap(), file.content[..PAGE]);
    }
}

#[test]
fn a_forked_child_reads() {
    alone("cache_files::a_forked_child_reads", child_reads);
}

/// Many threads, reads of all kinds, evictions, cancelled readings; every entry has the file's bytes.
#[test]
fn many_readers_see_the_right_bytes() {
    for options in all_options() {
        let options = StorageOptions { queue_reads_max: 4, pieces_in_flight_max: 4, ..options };
        let file = TestFile::new(100 * PAGE + 77);
        let cache = cache_with(mover_with(Arc::new(StorageEngine::new(options).unwrap())), 24);
        let region = cache.register_file(file.open());
        within(Duration::from_secs(60), move || {
            thread::scope(|scope| {
                for seed in 1..5_u64 {
                    let (cache, region, content) = (&cache, &region, &file.content);
                    scope.spawn(move || {
                        let mut random = crate::cache_support::Random(seed);
                        for _ in 0..300 {
                            let start = random.below(content.len());
                            let end = (start + random.below(6 * PAGE)).min(content.len());
                            let reading = cache.read(region, start as u64..end as u64, near()).unwrap();
                            if random.below(4) == 0 {
                                continue;
                            }
                            match reading.wait() {
                                Ok(entry) => assert!(*entry.as_slice() == content[start..end]),
                                Err(error) => assert!(matches!(error, ReadError::NoRoom { .. }), "{error}"),
                            }
                        }
                    });
                }
            });
            cache.mover().drain().wait().unwrap();
            assert_adds_up(&cache.stats());
            assert!(cache.stats().evictions > 0);
        });
    }
}

/// The descriptors of a dropped file are closed.
#[test]
fn a_dropped_file_is_closed() {
    let file = TestFile::new(PAGE);
    let descriptors = || {
        let names = std::fs::read_dir("/proc/self/fd").unwrap();
        names
            .filter(|name| std::fs::read_link(name.as_ref().unwrap().path()).is_ok_and(|to| to == file.path))
            .count()
    };
    let cache = cache_with(Mover::builder(machine()).build().unwrap(), 8);
    let region = cache.register_file(file.open());
    let entry = cache.read(&region, 0..10, near()).unwrap().wait().unwrap();
    assert!((1..=2).contains(&descriptors()));
    drop((region, entry));
    assert_eq!(descriptors(), 0);
    // And nothing was written.
    let mut bytes = [0; PAGE];
    std::fs::File::open(&file.path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..], file.content);
}
