//! What the cache's tests share: an engine under the test's thumb, owners that tell when they end, a small generator.
#![allow(dead_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use memferry::cache::{Cache, CacheStats, RegionOwner};
use memferry::mover::{
    CopyError, CopyReport, Engine, EngineKind, EngineStats, Guidelines, Mover, RawRequest, Rejected, Route,
};
use memferry::topology::{Machine, NodeId};

pub(crate) const HOME: NodeId = NodeId(0);
pub(crate) const NEAR: NodeId = NodeId(1);
pub(crate) const PAGE: usize = 4096;

/// The made-up machine: node 0 with CPUs, node 1 faster.
pub(crate) fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("a built-in profile"))
}

/// A cache with `pages` on [`NEAR`] whose copies wait until the test finishes them.
pub(crate) fn held(pages: usize) -> (Cache, Arc<Held>) {
    let engine = Arc::new(Held::default());
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 1 << 20 };
    let builder = Mover::builder(machine()).engine(engine.clone()).route(Route::Single);
    let mover = builder.guidelines(guidelines).build().unwrap();
    (Cache::builder(mover).budget(NEAR, pages * PAGE).build().unwrap(), engine)
}

/// Takes every copy and keeps it until told what to do with it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    copies: Mutex<Vec<RawRequest>>,
    accepted: AtomicU64,
    /// Whether `submit` panics.
    pub(crate) panics: AtomicBool,
}

impl Held {
    /// Copies it has taken so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(SeqCst)
    }

    /// Copies it holds.
    pub(crate) fn waiting(&self) -> usize {
        self.copies.lock().unwrap().len()
    }

    /// Whether this copy asks a device to block on faults.
    pub(crate) fn blocks_on_fault(&self, index: usize) -> bool {
        self.copies.lock().unwrap()[index].block_on_fault()
    }

    /// Where the copies that it holds are going to write.
    pub(crate) fn targets(&self) -> Vec<Range<usize>> {
        let target = |copy: &RawRequest| copy.target().addr()..copy.target().addr() + copy.size_bytes();
        self.copies.lock().unwrap().iter().map(target).collect()
    }

    /// Whether a device shall write the target of this copy to the last-level cache.
    pub(crate) fn goes_into_cache(&self, index: usize) -> bool {
        self.copies.lock().unwrap()[index].into_cache()
    }

    /// Who shall do this copy.
    pub(crate) fn route(&self, index: usize) -> Option<Route> {
        self.copies.lock().unwrap()[index].route()
    }

    fn take(&self, index: usize) -> RawRequest {
        self.copies.lock().unwrap().remove(index)
    }

    /// Copies and reports success, `index` counted from the oldest.
    pub(crate) fn finish(&self, index: usize) {
        let copy = self.take(index);
        // SAFETY: an accepted copy's buffers are the engine's until it is finished.
        unsafe { std::ptr::copy_nonoverlapping(copy.source(), copy.target(), copy.size_bytes()) };
        let report = CopyReport { cpu_bytes: copy.size_bytes() as u64, dsa_bytes: 0, file_bytes: 0 };
        copy.finish(Ok(report));
    }

    /// Finishes all it holds.
    pub(crate) fn finish_all(&self) {
        while self.waiting() > 0 {
            self.finish(0);
        }
    }

    /// Writes rubbish over the target and reports an error.
    pub(crate) fn fail(&self, index: usize, error: CopyError) {
        let copy = self.take(index);
        // SAFETY: as in `finish`.
        unsafe { std::ptr::write_bytes(copy.target(), 0xEE, copy.size_bytes()) };
        copy.finish(Err(error));
    }

    /// Writes rubbish over the target and goes on holding the copy.
    pub(crate) fn scribble(&self, index: usize) {
        let copies = self.copies.lock().unwrap();
        // SAFETY: as in `finish`.
        unsafe { std::ptr::write_bytes(copies[index].target(), 0xEE, copies[index].size_bytes()) };
    }
}

impl Engine for Held {
    fn name(&self) -> &str {
        "held"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Cpu
    }

    fn node(&self) -> Option<NodeId> {
        Some(HOME)
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        assert!(!self.panics.load(SeqCst), "this engine panics, as the test wants");
        self.accepted.fetch_add(1, SeqCst);
        self.copies.lock().unwrap().push(copy);
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        panic!("no test asks a held engine for statistics")
    }
}

/// Bytes that are checked, overwritten and reported when they end.
pub(crate) struct Mortal {
    bytes: Box<[u8]>,
    seed: u64,
    ended: Arc<AtomicU64>,
}

impl Mortal {
    /// `size_bytes` of [`pattern`]; adds one to `ended` in the end.
    pub(crate) fn new(size_bytes: usize, seed: u64, ended: &Arc<AtomicU64>) -> Mortal {
        Mortal { bytes: pattern(seed, size_bytes).into(), seed, ended: ended.clone() }
    }
}

// SAFETY: the box is neither lent mutably nor replaced until the owner is dropped.
unsafe impl RegionOwner for Mortal {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        assert!(*self.bytes == *pattern(self.seed, self.bytes.len()), "a source was written");
        self.bytes.fill(0xDD);
        self.ended.fetch_add(1, SeqCst);
    }
}

/// Bytes that a test may change when the contract of [`RegionOwner`] allows it.
#[derive(Clone)]
pub(crate) struct Changing(Arc<Cells>);
struct Cells(Box<[UnsafeCell<u8>]>);

// SAFETY: `set` is called under the rules of `RegionOwner` only, by tests with one thread.
unsafe impl Sync for Cells {}
// SAFETY: bytes belong to no thread.
unsafe impl Send for Cells {}

impl Changing {
    pub(crate) fn new(bytes: &[u8]) -> Changing {
        Changing(Arc::new(Cells(bytes.iter().map(|&byte| UnsafeCell::new(byte)).collect())))
    }

    /// # Safety
    /// No slice of it is borrowed, no copy of it in flight.
    pub(crate) unsafe fn set(&self, index: usize, value: u8) {
        // SAFETY: the caller's promise.
        unsafe { *self.0.0[index].get() = value };
    }
}

// SAFETY: the cells stay where they are while the owner lives, and `set`'s callers keep the rules.
unsafe impl RegionOwner for Changing {
    fn bytes(&self) -> &[u8] {
        let cells = &self.0.0;
        // SAFETY: a cell has the layout of its content; nobody writes while the slice is borrowed (contract of `set`).
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) }
    }
}

/// Bytes that differ from place to place and seed to seed.
pub(crate) fn pattern(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut random = Random(seed | 1);
    (0..size_bytes).map(|_| random.next() as u8).collect()
}

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A seed from the environment or the clock, printed.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("MEMFERRY_SEED") {
        Ok(text) => text.parse().expect("MEMFERRY_SEED is a number"),
        Err(_) => SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64),
    };
    println!("seed {seed}; repeat with MEMFERRY_SEED={seed}");
    seed | 1
}

/// Runs `body` on a thread of its own and fails, rather than hangs, if it does not end.
pub(crate) fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(limit) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock: not done within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// Ten seconds: no test here needs one.
pub(crate) fn soon<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    within(Duration::from_secs(10), body)
}

/// The sums that [`CacheStats`] promises for a cache at rest.
pub(crate) fn assert_adds_up(stats: &CacheStats) {
    assert_eq!(
        stats.accesses,
        stats.hits_ready + stats.hits_in_flight + stats.misses + stats.unplaced,
        "accesses: {stats:?}"
    );
    assert_eq!(stats.misses, stats.submissions + stats.no_room + stats.absent, "misses: {stats:?}");
    assert_eq!(stats.submissions, stats.arrived + stats.failed, "submissions: {stats:?}");
    let listed: usize = stats.nodes.iter().map(|node| node.entries_count).sum();
    let left = stats.evictions + stats.invalidated + stats.dropped;
    assert!(stats.arrived <= left + listed as u64, "what arrived is listed or left: {stats:?}");
    assert!(left + listed as u64 <= stats.submissions + stats.no_room, "what left was there: {stats:?}");
    for node in &stats.nodes {
        assert!(
            node.used_bytes <= node.peak_bytes && node.peak_bytes <= node.budget_bytes,
            "bytes: {stats:?}"
        );
    }
}
