//! A budget that is always short: what leaves is needed again, and copied again.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::Instant;

use memferry::cache::{Access, Cache};
use memferry::memory::Pool;
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

use super::{Comparison, Random, Size, ThesisCache, Zipf};

/// Of the blocks, so many fit: one in this many.
const BLOCKS_PER_ROOM: usize = 4;
/// The exponent of YCSB's Zipfian keys. Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC
/// 2010.
const EXPONENT: f64 = 0.99;

/// `NAME_vs_thesis`, the time of an access that waits, polling, until its block is near; and `NAME_copies_vs_thesis`, how
/// many copies it makes.
///
/// Keys, budget, pool, copies of a block and way of waiting are the same for both. What differs is the design under test:
/// what leaves for a block that has no room (one by one, or everything unused), so how often a block is copied again, and
/// what finding, making and ending an entry costs.
///
/// # Errors
/// What building mover, pool and cache says.
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
    // Frequent blocks lie anywhere.
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
    let (mut ours_all, mut theirs_all) = (Vec::new(), Vec::new());
    for round in 0..rounds_count {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                ours_all.push(each(&keys, &our_mover, ours));
            } else {
                theirs_all.push(each(&keys, &their_mover, theirs));
            }
        }
    }
    let row = |what: &str, unit, of: fn(&(f64, f64)) -> f64| Comparison {
        name: format!("{name}{what}_vs_thesis"),
        unit,
        ours: ours_all.iter().map(of).collect(),
        peer_name: "thesis".to_owned(),
        peer: theirs_all.iter().map(of).collect(),
    };
    Ok(vec![row("", "ns", |each| each.0), row("_copies", "1", |each| each.1)])
}

/// Nanoseconds and copies for each access.
fn each(keys: &[u32], mover: &Mover, access: impl Fn(u32)) -> (f64, f64) {
    let copies = || mover.stats().engines.iter().map(|engine| engine.operations).sum::<u64>();
    let (before, start) = (copies(), Instant::now());
    keys.iter().for_each(|&key| access(key));
    let ns = start.elapsed().as_nanos() as f64;
    (ns / keys.len() as f64, (copies() - before) as f64 / keys.len() as f64)
}
