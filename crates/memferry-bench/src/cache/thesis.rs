//! The peer of all benchmarks of the cache: the cache of the thesis, rebuilt from its text in Rust.
//!
//! Each node has a reader/writer lock over a map from addresses to entries. An entry is a block with an atomic reference
//! count, copied for each access. A policy function selects the node. Waiting polls, as the original library did. When
//! memory runs out, every unused entry is flushed. Kinder than the original: accesses allocate nothing, and the map
//! hashes addresses with one multiplication.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, 4.1, 5.1.1, 5.1.2 and figure 4.1.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use memferry::memory::{Block, Pool};
use memferry::mover::{CopyOptions, Mover, Transfer};

use super::hits::HitPeer;

/// The cache of the thesis, for the blocks of one source.
#[derive(Debug)]
pub struct ThesisCache {
    mover: Mover,
    /// Memory of the copies: the original's `malloc`.
    pool: Pool,
    policy: fn(usize) -> usize,
    nodes: [RwLock<Map>; 1],
    source: Arc<Vec<u8>>,
    block_bytes: usize,
}

/// Entries by address.
type Map = HashMap<usize, Arc<Data>, BuildHasherDefault<Mix>>;

/// The shared part of the original's `CacheData`. Any thread reads `cache`; the waiter that takes `handler` writes
/// `block` and then `cache`.
#[derive(Default)]
struct Data {
    /// Null until a waiter has seen the copy complete.
    cache: AtomicPtr<u8>,
    /// Taken by the first waiter, the "master".
    handler: Mutex<Option<Transfer<Part, Block>>>,
    /// The memory at `cache`.
    block: OnceLock<Block>,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data").field("cache", &self.cache).finish_non_exhaustive()
    }
}

/// A block of the source.
struct Part {
    source: Arc<Vec<u8>>,
    start: usize,
    len: usize,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.source[self.start..self.start + self.len]
    }
}

/// The original's `CacheData`: a reference to an entry.
#[derive(Debug)]
pub struct ThesisEntry(Arc<Data>);

impl ThesisEntry {
    /// Null until a waiter has seen the copy complete, and if it failed.
    pub fn location(&self) -> *const u8 {
        // ORDERING: Acquire pairs with the Release store in `wait`: the copied bytes are visible.
        self.0.cache.load(Ordering::Acquire)
    }

    /// Polls until the copy is complete. For one waiter at a time: another one returns at once.
    pub fn wait(&self) {
        if !self.location().is_null() {
            return;
        }
        let Some(handler) = self.0.handler.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        while !handler.is_done() {
            spin_loop();
        }
        if let Ok((_, block, _)) = handler.wait() {
            let block = self.0.block.get_or_init(|| block);
            // ORDERING: Release pairs with the Acquire load in `location` and publishes the copied bytes.
            self.0.cache.store(block.as_ptr().cast_mut(), Ordering::Release);
        }
    }
}

impl ThesisCache {
    /// A cache for blocks of `block_bytes` of `source`, copied by `mover` into blocks of `pool`.
    pub fn new(mover: Mover, pool: Pool, source: Arc<Vec<u8>>, block_bytes: usize) -> ThesisCache {
        ThesisCache { mover, pool, policy: |_| 0, nodes: Default::default(), source, block_bytes }
    }

    /// The entry of a block; `None` if the pool is full even after a flush.
    pub fn access(&self, key: u32) -> Option<ThesisEntry> {
        let node = &self.nodes[(self.policy)(self.block_bytes)];
        let start = key as usize * self.block_bytes;
        let address = self.source.as_ptr() as usize + start;
        if let Some(data) = node.read().unwrap_or_else(PoisonError::into_inner).get(&address) {
            return Some(ThesisEntry(data.clone()));
        }
        let block = self.pool.allocate(self.block_bytes).ok().or_else(|| {
            self.flush();
            self.pool.allocate(self.block_bytes).ok()
        })?;
        let mut map = node.write().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = false;
        let new = || {
            is_new = true;
            Arc::default()
        };
        let data = map.entry(address).or_insert_with(new).clone();
        drop(map);
        if is_new {
            let part = Part { source: self.source.clone(), start, len: self.block_bytes };
            let handler = self.mover.copy(part, block, CopyOptions::default());
            *data.handler.lock().unwrap_or_else(PoisonError::into_inner) = Some(handler);
        }
        Some(ThesisEntry(data))
    }

    /// Drops every entry that no caller holds.
    fn flush(&self) {
        for node in &self.nodes {
            node.write()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|_, data| Arc::strong_count(data) > 1);
        }
    }
}

impl HitPeer for ThesisCache {
    fn name(&self) -> &str {
        "thesis"
    }

    fn hits(&self, keys: &[u32]) {
        for &key in keys {
            black_box(self.access(key).map(|entry| entry.location()));
        }
    }
}

/// One multiplication. Source: D. Knuth, The Art of Computer Programming 3, 6.4.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(byte.into());
        }
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
