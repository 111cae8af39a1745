//! The cost of a hit: from the key to a readable address, and its release.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use memferry::cache::{Access, AccessError, Cache, Region};
use memferry::memory::Pool;
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity;

use super::ThesisCache;
use crate::harness::{Comparison, Pairs, Random, median};

/// A cache that holds blocks under the keys `0..keys_count`.
pub trait HitPeer: Sync {
    /// Its name in rows.
    fn name(&self) -> &str;

    /// For each key: looks it up, holds the block as a user would, passes its address to [`black_box`], releases it.
    fn hits(&self, keys: &[u32]);
}

/// The amount of work of a benchmark of the cache.
#[derive(Copy, Clone, Debug)]
pub struct Size {
    /// Number of blocks.
    pub keys_count: usize,
    /// Size of each block, at least a page.
    pub block_bytes: usize,
    /// Hits of each thread in a round; a few milliseconds outweigh the start of the threads.
    pub hits_count: usize,
    /// Rounds over all cases and peers.
    pub rounds_count: usize,
}

impl Size {
    /// For records.
    pub const FULL: Size =
        Size { keys_count: 1024, block_bytes: 4096, hits_count: 1 << 19, rounds_count: 31 };
    /// For tests: every line runs.
    pub const QUICK: Size = Size { keys_count: 16, block_bytes: 4096, hits_count: 1 << 8, rounds_count: 3 };
}

/// The cache of memferry, with all blocks near.
#[derive(Debug)]
pub struct Ours {
    cache: Cache,
    region: Region,
    block_bytes: usize,
}

impl Ours {
    /// Copies `keys_count` blocks near.
    ///
    /// # Errors
    /// The mover or the cache cannot be built.
    pub fn new(keys_count: usize, block_bytes: usize) -> Result<Ours, Box<dyn std::error::Error>> {
        let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
        let cache = Cache::builder(mover).budget(NodeId(1), keys_count * block_bytes).build()?;
        let region = cache.register_chunked(vec![1; keys_count * block_bytes], Some(NodeId(0)), block_bytes);
        let ours = Ours { cache, region, block_bytes };
        for key in 0..keys_count as u32 {
            // The first access copies the block, the second one publishes it to views.
            ours.cache.view(&ours.region, ours.range(key), Access::default())?.to_owned().wait();
            assert!(ours.cache.view(&ours.region, ours.range(key), Access::default())?.is_ready());
        }
        Ok(ours)
    }

    fn range(&self, key: u32) -> std::ops::Range<usize> {
        let start = key as usize * self.block_bytes;
        start..start + self.block_bytes
    }

    fn hit(&self, key: u32) -> Result<(), AccessError> {
        let view = self.cache.view(&self.region, self.range(key), Access::default())?;
        black_box(view.as_slice().as_ptr());
        Ok(())
    }
}

impl HitPeer for Ours {
    fn name(&self) -> &str {
        "memferry"
    }

    fn hits(&self, keys: &[u32]) {
        for &key in keys {
            self.hit(key).expect("the block is a range of the region");
        }
    }
}

/// The rows about hits, beside the thesis' cache and `peers`.
///
/// # Errors
/// As [`Ours::new`].
pub fn hits(
    size: Size,
    seed: u64,
    peers: &[&dyn HitPeer],
) -> Result<Vec<Comparison>, Box<dyn std::error::Error>> {
    let ours = Ours::new(size.keys_count, size.block_bytes)?;
    let thesis = filled_thesis(size.keys_count, size.block_bytes)?;
    let all: Vec<&dyn HitPeer> =
        [&ours as &dyn HitPeer, &thesis].into_iter().chain(peers.iter().copied()).collect();
    let mut random = Random(seed);
    let uniform: Vec<u32> = (0..size.hits_count).map(|_| random.below(size.keys_count) as u32).collect();
    let hot = vec![0; size.hits_count];
    let cases = [(1, &uniform), (2, &uniform), (2, &hot)];

    let mut times = vec![vec![Vec::new(); all.len()]; cases.len()];
    for round in 0..size.rounds_count {
        for (case, (threads_count, keys)) in cases.iter().enumerate() {
            // Rotated, so that no peer is always first or always follows the same one.
            for turn in 0..all.len() {
                let which = (turn + round) % all.len();
                times[case][which].push(ns_per_hit(all[which], *threads_count, keys));
            }
        }
    }

    let row = |name: &str, case: usize, peer: usize| {
        let pairs = Pairs { ours: times[case][0].clone(), peer: times[case][peer].clone() };
        Comparison::new(name, "ns", all[peer].name(), pairs)
    };
    let by_median = |a: &usize, b: &usize| median(&times[0][*a]).total_cmp(&median(&times[0][*b]));
    let fastest = (1..all.len()).min_by(by_median).expect("the thesis' cache is always a peer");
    let mut rows = vec![row("hit_1_thread", 0, fastest), row("hit_2_threads_vs_thesis", 1, 1)];
    if let Some(moka) = all.iter().position(|peer| peer.name() == "moka") {
        rows.push(row("hit_2_threads_vs_moka", 1, moka));
    }
    rows.push(row("hit_hot_key_vs_thesis", 2, 1));
    Ok(rows)
}

/// Allocations per hit. `allocations` returns the count of a global allocator.
///
/// # Errors
/// As [`Ours::new`].
pub fn hits_allocations(
    size: Size,
    allocations: impl Fn() -> u64,
) -> Result<f64, Box<dyn std::error::Error>> {
    let ours = Ours::new(size.keys_count, size.block_bytes)?;
    let keys: Vec<u32> = (0..size.hits_count).map(|hit| (hit % size.keys_count) as u32).collect();
    let before = allocations();
    ours.hits(&keys);
    Ok((allocations() - before) as f64 / keys.len() as f64)
}

/// The thesis' cache, with all blocks near.
fn filled_thesis(keys_count: usize, block_bytes: usize) -> Result<ThesisCache, Box<dyn std::error::Error>> {
    let machine = Arc::new(Machine::two_tiers()?);
    let pool = Pool::new(machine.clone(), NodeId(1), keys_count * block_bytes)?;
    let source = Arc::new(vec![1; keys_count * block_bytes]);
    let thesis = ThesisCache::new(Mover::builder(machine).build()?, pool, source, block_bytes);
    for key in 0..keys_count as u32 {
        thesis.access(key).ok_or("the pool is large enough for all blocks")?.wait();
    }
    Ok(thesis)
}

/// The mean over threads that start together. Each runs on its own CPU if there are enough: on a busy machine they would
/// otherwise take turns on one CPU and never run at the same time.
fn ns_per_hit(peer: &dyn HitPeer, threads_count: usize, keys: &[u32]) -> f64 {
    let cpus = affinity::allowed().unwrap_or_default();
    let ready_count = AtomicUsize::new(0);
    let time = |thread: usize| {
        if cpus.len() >= threads_count {
            // If the kernel refuses, the thread may migrate and the times vary more.
            let _ = affinity::confine(&[cpus[thread]]);
        }
        // The first hit of a thread may initialise its state.
        peer.hits(&keys[..1]);
        // ORDERING: Relaxed, no partner: the counter synchronises time only and publishes no data.
        ready_count.fetch_add(1, Ordering::Relaxed);
        while ready_count.load(Ordering::Relaxed) < threads_count {
            spin_loop();
        }
        let start = Instant::now();
        peer.hits(keys);
        start.elapsed().as_nanos() as f64 / keys.len() as f64
    };
    thread::scope(|scope| {
        let time = &time;
        let threads: Vec<_> = (0..threads_count).map(|thread| scope.spawn(move || time(thread))).collect();
        let sum: f64 = threads.into_iter().map(|thread| thread.join().expect("a peer panicked")).sum();
        sum / threads_count as f64
    })
}
