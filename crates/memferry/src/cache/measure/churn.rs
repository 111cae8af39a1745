//! A budget that is always short: what leaves is needed again, and copied again.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::Instant;

use super::super::{Access, Cache};
use super::{Comparison, Random, Size, ThesisCache, Zipf};
use crate::memory::Pool;
use crate::mover::Mover;
use crate::topology::{Machine, NodeId};

/// Of the blocks, so many fit: one in this many.
const BLOCKS_PER_ROOM: usize = 4;
/// The exponent of YCSB's Zipfian keys. Source: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC
/// 2010.
const EXPONENT: f64 = 0.99;

/// `churn_vs_thesis`: each access waits, polling, until its block is near. Both use the same kind of mover and pool.
///
/// # Errors
/// What building mover, pool and cache says.
pub fn churn(size: Size, seed: u64) -> Result<Comparison, Box<dyn std::error::Error>> {
    let Size { keys_count, block_bytes, rounds_count, .. } = size;
    let machine = Arc::new(Machine::two_tiers()?);
    let budget_bytes = (keys_count / BLOCKS_PER_ROOM).max(1) * block_bytes;
    let source = Arc::new(vec![1; keys_count * block_bytes]);
    let mover = || Mover::builder(machine.clone()).build();

    let cache = Cache::builder(mover()?).budget(NodeId(1), budget_bytes).build()?;
    let region = cache.register_chunked(source.clone(), Some(NodeId(0)), block_bytes);
    let pool = Pool::new(machine.clone(), NodeId(1), budget_bytes)?;
    let thesis = ThesisCache::new(mover()?, pool, source, block_bytes);

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
    let (mut ours_ns, mut theirs_ns) = (Vec::new(), Vec::new());
    for round in 0..rounds_count {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                ours_ns.push(ns_each(&keys, ours));
            } else {
                theirs_ns.push(ns_each(&keys, theirs));
            }
        }
    }
    Ok(Comparison {
        name: "churn_vs_thesis",
        unit: "ns",
        ours: ours_ns,
        peer_name: "thesis".to_owned(),
        peer: theirs_ns,
    })
}

fn ns_each(keys: &[u32], access: impl Fn(u32)) -> f64 {
    let start = Instant::now();
    keys.iter().for_each(|&key| access(key));
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}
