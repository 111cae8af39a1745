//! The time from the first access to a block until it is near, less the copy itself.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use memferry::cache::{Access, Cache, Entry};
use memferry::memory::Pool;
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

/// Times of first accesses to blocks in microseconds, one value per access.
#[derive(Clone, Debug, Default)]
pub struct FirstAccess {
    /// Beyond the copy, with an accessing thread that polls.
    pub poll_us: Vec<f64>,
    /// Beyond the copy, with an accessing thread that sleeps.
    pub block_us: Vec<f64>,
    /// The copy itself: the same bytes on the accessing thread, next to each access.
    pub copy_us: Vec<f64>,
}

impl FirstAccess {
    /// The 99th percentile.
    ///
    /// # Panics
    /// Without values.
    pub fn p99(values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * 99).div_ceil(100) - 1]
    }
}

/// `first_access_poll_us` and `first_access_block_us`, over a block of `block_bytes` that is invalidated each time.
///
/// A first access that is not counted faults in the pages of the pool. The thread sleeps for `pause` before each access:
/// without a pause the mover's worker still polls for requests, after milliseconds it sleeps.
///
/// # Errors
/// The mover, the pool or the cache cannot be built, or a copy fails.
pub fn first_access(
    block_bytes: usize,
    count: usize,
    pause: Duration,
) -> Result<FirstAccess, Box<dyn std::error::Error>> {
    let (home, near) = (NodeId(0), NodeId(1));
    let machine = Arc::new(Machine::two_tiers()?);
    let cache = Cache::builder(Mover::builder(machine.clone()).build()?).budget(near, block_bytes).build()?;
    let source: Arc<Vec<u8>> = Arc::new((0..block_bytes).map(|index| index as u8).collect());
    let region = cache.register_on(source.clone(), Some(home));
    let mut target = Pool::new(machine, near, block_bytes)?.allocate(block_bytes)?;

    let mut time = |wait: &dyn Fn(&Entry)| -> Result<(f64, f64), Box<dyn std::error::Error>> {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let start = Instant::now();
        target.as_mut_slice().copy_from_slice(&source);
        let copy_us = start.elapsed().as_secs_f64() * 1e6;
        black_box(&target);
        let start = Instant::now();
        let entry = cache.access(&region, 0..block_bytes, Access::default())?;
        wait(&entry);
        let total_us = start.elapsed().as_secs_f64() * 1e6;
        if !entry.is_ready() {
            return Err(format!("the block did not come near: {entry:?}").into());
        }
        drop(entry);
        cache.invalidate(&region, 0..block_bytes)?;
        Ok((total_us - copy_us, copy_us))
    };
    let poll = |entry: &Entry| {
        while entry.try_wait().is_none() {
            spin_loop();
        }
    };
    let block = |entry: &Entry| {
        entry.wait();
    };
    time(&block)?;
    let mut times = FirstAccess::default();
    for _ in 0..count {
        let (poll_us, copy_us) = time(&poll)?;
        times.poll_us.push(poll_us);
        times.copy_us.push(copy_us);
        let (block_us, copy_us) = time(&block)?;
        times.block_us.push(block_us);
        times.copy_us.push(copy_us);
    }
    Ok(times)
}
