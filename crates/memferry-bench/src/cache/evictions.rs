//! What an eviction costs, before and after very many threads have used the cache.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::cache::{Access, Cache, Region};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

use super::{Comparison, Size};

/// Threads that are there at a time.
const THREADS_COUNT: usize = 4000;
/// Each of them makes one access.
const STACK_BYTES: usize = 128 << 10;
/// How long the kernel may be busy with freeing that many threads.
const SETTLE: Duration = Duration::from_secs(1);

/// `evict_after_4000_threads_us`: an access that evicts a block, a second after all other threads have ended;
/// beside the same before these threads.
///
/// To be measured last: the process has had these threads then.
///
/// # Errors
/// What building mover and cache says, and the operating system of threads.
pub fn evictions(size: Size) -> Result<Comparison, Box<dyn Error>> {
    let Size { keys_count, block_bytes, rounds_count, .. } = size;
    let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
    let cache = Cache::builder(mover).budget(NodeId(1), keys_count * block_bytes).build()?;
    // Twice as many blocks as there is room for, one after the other: what is asked for has just left.
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
    // The first round only fills the room, and nobody knows the memory yet.
    round();
    round();
    let mut rounds = || (0..rounds_count).map(|_| round()).collect();
    let peer = rounds();
    read_on_many_threads(&cache, &region)?;
    thread::sleep(SETTLE);
    Ok(Comparison {
        name: format!("evict_after_{THREADS_COUNT}_threads_us"),
        unit: "us",
        ours: rounds(),
        peer_name: "before the threads".to_owned(),
        peer,
    })
}

/// Each reads, and stays until all have read.
fn read_on_many_threads(cache: &Cache, region: &Region) -> Result<(), Box<dyn Error>> {
    let (gate, read_count) = (Mutex::new(()), AtomicUsize::new(0));
    let reads = || {
        drop(cache.view(region, 0..1, Access::default()));
        // ORDERING: Relaxed, no partner: threads meet here in time, and pass nothing.
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
