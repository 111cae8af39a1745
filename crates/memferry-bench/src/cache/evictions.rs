//! The cost of an eviction, before and after thousands of threads have used the cache.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::cache::{Access, Cache, Region};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

use super::Size;
use crate::harness::{Comparison, Pairs};

/// Threads that exist at the same time.
const THREADS_COUNT: usize = 4000;
/// Small: each thread makes one access.
const STACK_BYTES: usize = 128 << 10;
/// Time in which the kernel frees that many threads.
const TEARDOWN: Duration = Duration::from_secs(1);

/// `evict_after_4000_threads_us`: the time of an access that evicts a block, a second after 4000 threads have exited,
/// beside the same access before these threads.
///
/// Measure it last: later measurements would run in a process that has had these threads.
///
/// # Errors
/// The mover or the cache cannot be built, or a thread cannot be started.
pub fn evictions(size: Size) -> Result<Comparison, Box<dyn Error>> {
    let Size { keys_count, block_bytes, rounds_count, .. } = size;
    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover).budget(NodeId(1), keys_count * block_bytes).build()?;
    // Twice as many blocks as fit, in a cycle: each requested block was evicted before.
    let region = cache.register_chunked(vec![1; 2 * keys_count * block_bytes], Some(NodeId(0)), block_bytes);
    let blocks = (0..2 * keys_count).cycle();
    let mut blocks = blocks.map(|block| block * block_bytes..(block + 1) * block_bytes);
    let mut round = || {
        let (before, start) = (cache.stats().evictions, Instant::now());
        for range in blocks.by_ref().take(keys_count) {
            cache.access(&region, range, Access::default()).expect("a range of the region").wait();
        }
        start.elapsed().as_secs_f64() * 1e6 / (cache.stats().evictions - before) as f64
    };
    // Two rounds warm up: the first one only fills the budget and faults in its pages.
    round();
    round();
    let mut rounds = || (0..rounds_count).map(|_| round()).collect();
    let peer = rounds();
    read_on_many_threads(&cache, &region)?;
    thread::sleep(TEARDOWN);
    let pairs = Pairs { ours: rounds(), peer };
    Ok(Comparison::new(format!("evict_after_{THREADS_COUNT}_threads_us"), "us", "before the threads", pairs))
}

/// Starts the threads. Each makes one access and exits after all have made theirs.
fn read_on_many_threads(cache: &Cache, region: &Region) -> Result<(), Box<dyn Error>> {
    let (gate, read_count) = (Mutex::new(()), AtomicUsize::new(0));
    let reads = || {
        drop(cache.view(region, 0..1, Access::default()));
        // ORDERING: Relaxed, no partner: the counter synchronises time only and publishes no data.
        read_count.fetch_add(1, Ordering::Relaxed);
        drop(gate.lock());
    };
    thread::scope(|scope| {
        let _closed = gate.lock();
        for _ in 0..THREADS_COUNT {
            thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, reads)?;
        }
        while read_count.load(Ordering::Relaxed) < THREADS_COUNT {
            thread::yield_now();
        }
        Ok(())
    })
}
