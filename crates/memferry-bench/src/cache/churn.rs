//! A budget that is always short: evicted blocks are needed and copied again.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::Instant;

use memferry::cache::{Access, Cache};
use memferry::memory::Pool;
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

use super::zipf::Zipf;
use super::{Size, ThesisCache};
use crate::harness::{Comparison, Pairs, Random, alternate};

/// Blocks per block of budget.
const BLOCKS_PER_ROOM: usize = 4;
/// The exponent of YCSB's Zipfian keys. Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC
/// 2010.
const EXPONENT: f64 = 0.99;

/// `NAME_vs_thesis`, the time of an access that polls until its block is near, and `NAME_copies_vs_thesis`, the copies
/// of an access.
///
/// Keys, budget, pool, copies and polling are the same for both caches. The designs differ in eviction (one block at a
/// time, or every unused block), hence in the number of copies, and in the cost of an entry.
///
/// # Errors
/// The mover, the pool or the cache cannot be built.
pub fn churn(name: &str, size: Size, seed: u64) -> Result<Vec<Comparison>, Box<dyn std::error::Error>> {
    let Size { keys_count, block_bytes, rounds_count, .. } = size;
    let machine = Arc::new(Machine::two_tiers()?);
    let budget_bytes = (keys_count / BLOCKS_PER_ROOM).max(1) * block_bytes;
    let source = Arc::new(vec![1; keys_count * block_bytes]);
    let mover = || Mover::builder(machine.clone()).build();
    let (our_mover, their_mover) = (mover()?, mover()?);

    let cache = Cache::builder(our_mover.clone()).budget(NodeId(1), budget_bytes).build()?;
    let region = cache.register_chunked(source.clone(), Some(NodeId(0)), block_bytes);
    let pool = Pool::new(machine.clone(), NodeId(1), budget_bytes)?;
    let thesis = ThesisCache::new(their_mover.clone(), pool, source, block_bytes);

    let zipf = Zipf::new(keys_count, EXPONENT);
    let mut random = Random(seed);
    // Frequent blocks are spread over the region.
    let mut places: Vec<u32> = (0..keys_count as u32).collect();
    for end in (1..keys_count).rev() {
        places.swap(end, random.below(end + 1));
    }
    let keys: Vec<u32> = (0..size.hits_count.div_ceil(16)).map(|_| places[zipf.draw(&mut random)]).collect();

    let ours = |key: u32| {
        let start = key as usize * block_bytes;
        let view = cache.view(&region, start..start + block_bytes, Access::default());
        let view = view.expect("the block is a range of the region");
        while !view.is_ready() && view.try_wait().is_none() {
            spin_loop();
        }
        black_box(view.as_slice().as_ptr());
    };
    let theirs = |key: u32| {
        if let Some(entry) = thesis.access(key) {
            entry.wait();
            black_box(entry.location());
        }
    };
    let (ours, theirs) = alternate(
        rounds_count,
        || per_access(&keys, &our_mover, ours),
        || per_access(&keys, &their_mover, theirs),
    );
    let row = |suffix: &str, unit, of: fn(&(f64, f64)) -> f64| {
        let pairs = Pairs { ours: ours.iter().map(of).collect(), peer: theirs.iter().map(of).collect() };
        Comparison::new(format!("{name}{suffix}_vs_thesis"), unit, "thesis", pairs)
    };
    Ok(vec![row("", "ns", |each| each.0), row("_copies", "1", |each| each.1)])
}

/// Nanoseconds and copies per access.
fn per_access(keys: &[u32], mover: &Mover, access: impl Fn(u32)) -> (f64, f64) {
    let copies = || mover.stats().engines.iter().map(|engine| engine.operations).sum::<u64>();
    let (before, start) = (copies(), Instant::now());
    keys.iter().for_each(|&key| access(key));
    let ns = start.elapsed().as_nanos() as f64;
    (ns / keys.len() as f64, (copies() - before) as f64 / keys.len() as f64)
}
