//! The storage engine: reads ranges of files to memory.
//!
//! ```text
//!   submit ── small and in the page cache? ──▶ the submitting thread copies it
//!      │
//!      ▼
//!   Backlog ── pieces ──▶ ring: one thread that owns an io_uring and sleeps in it      many calls in flight
//!                    └──▶ threads with pread, where io_uring is refused                one call each
//! ```
//!
//! Both paths share the backlog, the pieces and what a result means (`job`), and pass the same conformance suite.
//!
//! **Direct reads.** Reads bypass the page cache where the file system allows it. A piece that the page cache already has
//! is copied from there ([`StorageOptions::page_cache`]).
//!
//! **Ends.** A file that ends early fails the read. When the last piece is complete, the descriptor is checked once more: a
//! read of a file that was changed meanwhile fails, because its bytes may be of two versions.
//!
//! **Forks.** A forked child starts a ring and threads of its own with its first read.

mod backlog;
#[allow(unsafe_code)]
mod job;
#[allow(unsafe_code)]
mod ring;

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use memferry_dsa::Opcode;
use memferry_dsa::internals::fork::{self, PerProcess};

use self::backlog::{Backlog, Next};
use self::job::{Job, Step};
use self::ring::{Bell, Ring};
use super::{Engine, Refusal, Rejected};
use crate::moment::Moment;
use crate::mover::error::{CopyError, MoverError};
use crate::mover::request::{CopyReport, RawRequest};
use crate::mover::stats::{Counters, EngineStats};
use crate::route::EngineKind;
use crate::storage::{BLOCK_BYTES, PIECE_BYTES};
use crate::topology::NodeId;

/// Options of a [`StorageEngine`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct StorageOptions {
    /// Reads by io_uring; threads where the kernel refuses it (`kernel.io_uring_disabled`, a seccomp filter, before Linux 5.6).
    /// Without, threads that call pread(2).
    pub io_uring: bool,
    /// Limit of reads that wait; each may have any size.
    pub queue_reads_max: usize,
    /// Large reads are made in pieces of this size, a multiple of 4096.
    pub piece_bytes: usize,
    /// Limit of pieces in flight in the ring.
    pub pieces_in_flight_max: usize,
    /// Number of threads where io_uring is not used.
    pub threads_count: usize,
    /// Copies what the page cache has, in place of reading it from the disk. Without, all reads go to the disk, unless the
    /// file system refuses that: for benchmarks.
    pub page_cache: bool,
    /// Largest read from the page cache that the submitting thread makes; 0: none.
    pub inline_bytes_max: usize,
}

impl Default for StorageOptions {
    /// Pieces of 512 KiB, of which 64 are in flight; 8 threads where io_uring is refused; reads of up to 64 KiB from the page
    /// cache inline, which take up to 10 us. `docs/decisions/storage-engine.md` has the measurements.
    fn default() -> StorageOptions {
        StorageOptions {
            io_uring: true,
            queue_reads_max: 1024,
            piece_bytes: PIECE_BYTES,
            pieces_in_flight_max: 64,
            threads_count: 8,
            page_cache: true,
            inline_bytes_max: 64 << 10,
        }
    }
}

/// Changes what reads return, for tests: errors and short reads.
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub trait DiskFaults: fmt::Debug + Send + Sync {
    /// The result of a call in place of `result`: a number of bytes, not above `result`, or a negated error number. The call
    /// began at `offset` in its file and wanted `size_bytes`.
    fn result(&self, offset: u64, size_bytes: usize, result: i32) -> i32;
}

/// An engine that reads files, by io_uring or with threads.
///
/// It gets the reads of a mover ([`Mover::read`](crate::Mover::read), [`Cache::read`](crate::Cache::read)). A mover without
/// one makes its own with the first read.
///
/// Dropping it finishes the accepted reads, then ends its threads.
pub struct StorageEngine {
    options: StorageOptions,
    faults: Option<Arc<dyn DiskFaults>>,
    instance: PerProcess<Instance>,
}

/// The threads and the state of the engine in one process.
struct Instance {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Wakes the ring's thread; `None` with threads.
    bell: Option<Bell>,
    name: String,
}

/// Shared by submitting threads and those of the engine; `backlog` has its own lock.
struct Shared {
    backlog: Backlog,
    counters: Counters,
    options: StorageOptions,
    faults: Option<Arc<dyn DiskFaults>>,
}

thread_local! {
    /// Set in the callback of a read that this thread does inline: see `IS_INLINE` of the CPU engine.
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };
}

impl StorageEngine {
    /// Starts the ring's thread, or the threads that take its place.
    ///
    /// # Errors
    /// [`MoverError::NoWorkers`], [`NoQueue`](MoverError::NoQueue), [`PieceBytes`](MoverError::PieceBytes),
    /// [`Thread`](MoverError::Thread).
    pub fn new(options: StorageOptions) -> Result<StorageEngine, MoverError> {
        StorageEngine::start(options, None)
    }

    /// As [`new`](StorageEngine::new), on a disk with faults.
    ///
    /// # Errors
    /// Those of `new`.
    #[cfg(feature = "internals")]
    pub fn with_faults(
        options: StorageOptions,
        faults: Arc<dyn DiskFaults>,
    ) -> Result<StorageEngine, MoverError> {
        StorageEngine::start(options, Some(faults))
    }

    /// Starts with the first read.
    pub(in crate::mover) fn lazy(options: StorageOptions) -> StorageEngine {
        StorageEngine { options, faults: None, instance: PerProcess::new() }
    }

    fn start(
        options: StorageOptions,
        faults: Option<Arc<dyn DiskFaults>>,
    ) -> Result<StorageEngine, MoverError> {
        let StorageOptions { piece_bytes, queue_reads_max, pieces_in_flight_max, threads_count, .. } =
            options;
        if threads_count == 0 {
            return Err(MoverError::NoWorkers);
        }
        if queue_reads_max == 0 || pieces_in_flight_max == 0 {
            return Err(MoverError::NoQueue);
        }
        if piece_bytes == 0 || !piece_bytes.is_multiple_of(BLOCK_BYTES) || piece_bytes > 1 << 30 {
            return Err(MoverError::PieceBytes { piece_bytes });
        }
        fork::watch().map_err(MoverError::Forks)?;
        Moment::now();
        let engine = StorageEngine { faults, ..StorageEngine::lazy(options) };
        engine
            .instance
            .get_or_try_init(|| engine.make())
            .map_err(|source| MoverError::Thread { engine: "storage".to_owned(), source })?;
        Ok(engine)
    }

    /// The instance of this process; the first call in a forked child starts it.
    fn instance(&self) -> &Instance {
        self.instance.get_or_init(|| {
            self.make().unwrap_or_else(|_| {
                // Without threads it refuses everything.
                let instance = Instance::new(self.shared(), "storage".to_owned());
                instance.shared.backlog.close();
                instance
            })
        })
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::new(Shared {
            backlog: Backlog::new(self.options.piece_bytes),
            counters: Counters::default(),
            options: self.options,
            faults: self.faults.clone(),
        })
    }

    fn make(&self) -> io::Result<Instance> {
        let shared = self.shared();
        let mut why = String::new();
        if self.options.io_uring {
            match Ring::new(self.options.pieces_in_flight_max) {
                Ok((ring, bell)) => {
                    let mut instance = Instance::new(shared, "io_uring".to_owned());
                    instance.bell = Some(bell);
                    instance.spawn("io_uring".to_owned(), move |shared| ring.run(shared))?;
                    return Ok(instance);
                }
                Err(error) => why = format!(" (io_uring: {error})"),
            }
        }
        // If a thread cannot be started, dropping this ends the others.
        let mut instance = Instance::new(shared, format!("pread{why}"));
        for index in 0..self.options.threads_count {
            instance.spawn(format!("pread.{index}"), |shared| shared.work())?;
        }
        Ok(instance)
    }

    /// Whether it reads by io_uring in this process.
    pub fn uses_io_uring(&self) -> bool {
        self.instance().bell.is_some()
    }

    /// Whether it has started in this process.
    pub(in crate::mover) fn has_started(&self) -> bool {
        self.instance.get().is_some()
    }

    /// Accepts a read beyond the limit of the queue.
    pub(in crate::mover) fn submit_beyond_limit(&self, read: RawRequest) -> Result<(), Rejected> {
        self.push(read, usize::MAX)
    }

    /// Reads on the calling thread: every engine is gone.
    pub(in crate::mover) fn read_here(&self, read: RawRequest) {
        let shared = &self.instance().shared;
        shared.counters.accepted.add(1);
        if !read.starts() {
            return shared.cancel(read);
        }
        let (size_bytes, piece_bytes) = (read.size_bytes(), self.options.piece_bytes);
        let job = Arc::new(Job::new(read, piece_bytes));
        for start in (0..size_bytes).step_by(piece_bytes) {
            shared.read(job.piece(start, piece_bytes));
        }
    }

    /// Makes a small read from the page cache on the calling thread, or hands it back.
    fn read_inline(&self, read: RawRequest) -> Result<(), RawRequest> {
        let StorageOptions { page_cache, inline_bytes_max, piece_bytes, .. } = self.options;
        let size_bytes = read.size_bytes();
        let is_small = size_bytes <= inline_bytes_max.min(piece_bytes);
        if size_bytes > 0 && (!page_cache || !is_small || IS_INLINE.get()) {
            return Err(read);
        }
        let (file, offset) = read.file().expect("a storage engine takes reads only");
        if size_bytes > 0 && !file.is_cached(offset, size_bytes) {
            return Err(read);
        }
        let Shared { counters, .. } = &*self.instance().shared;
        counters.accepted.add(1);
        let made = read.made();
        IS_INLINE.set(true);
        if size_bytes == 0 {
            job::finish(read, Ok(CopyReport::default()), made, counters);
        } else if read.starts() {
            let mut piece = Arc::new(Job::new(read, piece_bytes)).piece(0, piece_bytes);
            match piece.read_cached(counters) {
                true => piece.complete(Step::Done, counters),
                // A page left the cache in between; rare, and small.
                false => self.instance().shared.read(piece),
            }
        } else {
            self.instance().shared.cancel(read);
        }
        IS_INLINE.set(false);
        Ok(())
    }

    fn push(&self, read: RawRequest, len_max: usize) -> Result<(), Rejected> {
        let Instance { shared, bell, .. } = self.instance();
        shared.counters.submission(|| {
            let wakes_ring =
                shared.backlog.push(read, len_max).map_err(|(copy, why)| Rejected { copy, why })?;
            if wakes_ring && let Some(bell) = bell {
                bell.ring();
            }
            Ok(())
        })
    }
}

impl Engine for StorageEngine {
    fn name(&self) -> &str {
        self.instance.get().map_or("storage", |instance| &instance.name)
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Storage
    }

    fn node(&self) -> Option<NodeId> {
        None
    }

    fn width(&self) -> usize {
        if self.options.io_uring { self.options.pieces_in_flight_max } else { self.options.threads_count }
    }

    /// No operation and no copy: it only reads files.
    fn supports(&self, _: Opcode) -> bool {
        false
    }

    fn load(&self) -> usize {
        self.instance.get().map_or(0, |instance| instance.shared.counters.load(&[]))
    }

    fn submit(&self, read: RawRequest) -> Result<(), Rejected> {
        if !read.is_read() {
            let Shared { counters, .. } = &*self.instance().shared;
            return counters.submission(|| Err(Rejected { copy: read, why: Refusal::Gone }));
        }
        self.read_inline(read).or_else(|read| self.push(read, self.options.queue_reads_max))
    }

    fn stats(&self) -> EngineStats {
        match self.instance.get() {
            Some(instance) => instance.shared.counters.read(self.name(), self.kind(), self.node()),
            None => EngineStats::new(self.name(), self.kind(), self.node()),
        }
    }
}

impl fmt::Debug for StorageEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageEngine")
            .field("name", &self.name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A thread that calls pread.
    fn work(&self) {
        loop {
            match self.backlog.wait_next() {
                Next::Piece(piece) => self.read(piece),
                Next::Skip(job, count) => job.complete(count, &self.counters),
                Next::Cancel(read) => self.cancel(read),
                Next::Empty | Next::Closed => return,
            }
        }
    }

    /// Reads a piece on the calling thread.
    fn read(&self, piece: job::Piece) {
        piece.read(self.options.page_cache, self.faults.as_deref(), &self.counters);
    }

    fn cancel(&self, read: RawRequest) {
        let made = read.made();
        job::finish(read, Err(CopyError::Cancelled), made, &self.counters);
    }
}

impl Instance {
    fn new(shared: Arc<Shared>, name: String) -> Instance {
        Instance { shared, threads: Vec::new(), bell: None, name }
    }

    fn spawn(&mut self, name: String, body: impl FnOnce(Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name(format!("memferry-{name}")).spawn(move || body(shared))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.shared.backlog.close();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        for thread in self.threads.drain(..) {
            // The last owner of an engine may be the callback of a read, on a thread of the engine: that ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
