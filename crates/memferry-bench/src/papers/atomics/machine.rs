//! Points on the CPUs of this machine.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use memferry::cache::{Access, AccessError, Cache, Region};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity::confine;

use super::{AtomicsRuns, Measurement, Metric, Point, SharedWork, Skipped};
use crate::memory::threads::together;

/// Size of a block: the accessing thread copies it itself.
const BLOCK_BYTES: usize = 4096;
/// Numbers of blocks that are hit, and of blocks that are evicted beside them.
const HOT_COUNT: usize = 64;
const COLD_COUNT: usize = 256;
/// Budget under churn: all hit blocks, and one in four of the others.
const ROOM_COUNT: usize = HOT_COUNT + COLD_COUNT / 4;
const _: () = assert!(ROOM_COUNT < HOT_COUNT + COLD_COUNT, "what fits leaves never");

/// A counter alone on its cache line and on the line that is fetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// A cache with blocks; the first ones are near.
struct Blocks {
    cache: Cache,
    region: Region,
}

impl Blocks {
    /// A cache on made-up nodes. All memory is this machine's; hits do not depend on the node.
    fn new() -> Result<Blocks, Box<dyn std::error::Error + Send + Sync>> {
        let mover = Mover::builder(Arc::new(Machine::two_tiers()?)).build()?;
        let cache = Cache::builder(mover).budget(NodeId(1), ROOM_COUNT * BLOCK_BYTES).build()?;
        let bytes = vec![1_u8; (HOT_COUNT + COLD_COUNT) * BLOCK_BYTES];
        let region = cache.register_chunked(bytes, Some(NodeId(0)), BLOCK_BYTES);
        let blocks = Blocks { cache, region };
        for block in 0..HOT_COUNT {
            blocks.cache.access(&blocks.region, Blocks::range(block), Access::default())?.wait();
            // The second access publishes the block to views, which take no lock.
            blocks.hit(block)?;
        }
        Ok(blocks)
    }

    fn range(block: usize) -> Range<usize> {
        block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
    }

    /// Makes one access; true if the block was near.
    fn hit(&self, block: usize) -> Result<bool, AccessError> {
        let view = self.cache.view(&self.region, Blocks::range(block), Access::default())?;
        black_box(view.as_slice().as_ptr());
        Ok(view.is_ready())
    }

    fn entry(&self, block: usize) -> Result<bool, AccessError> {
        let entry = self.cache.access(&self.region, Blocks::range(block), Access::default())?;
        black_box(entry.as_slice().as_ptr());
        Ok(entry.is_ready())
    }

    /// Accesses blocks that evict others, on some of these CPUs, until `is_over`.
    fn churn(&self, cpus: &[u32], is_over: &AtomicBool) -> Result<(), AccessError> {
        // Best effort: without a free CPU it shares one, and a note says so.
        let _ = confine(cpus);
        for block in (HOT_COUNT..HOT_COUNT + COLD_COUNT).cycle() {
            // ORDERING: Relaxed, no partner: the flag publishes no data.
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            self.entry(block)?;
        }
        Ok(())
    }
}

/// The work of a thread, which returns its number of hits.
struct Worker<'a> {
    own: &'a Counter,
    hits_count: usize,
    refused: Option<AccessError>,
}

pub(super) fn run(
    machine: &Machine,
    cpus: Vec<u32>,
    point: &Point,
    effort: AtomicsRuns,
) -> Result<Vec<Measurement>, Skipped> {
    let blocks = Blocks::new().map_err(Skipped::Failed)?;
    let shared = Counter::default();
    let own: Vec<Counter> = cpus.iter().map(|_| Counter::default()).collect();
    let mut workers: Vec<Worker> =
        own.iter().map(|own| Worker { own, hits_count: 0, refused: None }).collect();
    let allowed = || machine.nodes().iter().flat_map(|node| node.allowed_cpus.iter().copied());
    let free: Vec<u32> = allowed().filter(|cpu| !cpus.contains(cpu)).collect();
    let is_over = AtomicBool::new(false);
    let before = blocks.cache.stats();
    let (seconds, churned) = thread::scope(|scope| {
        let churner = point.is_churned.then(|| scope.spawn(|| blocks.churn(&free, &is_over)));
        // The budget is full before times are taken.
        while let Some(churner) = &churner
            && !churner.is_finished()
            && blocks.cache.stats().evictions == before.evictions
        {
            thread::yield_now();
        }
        let work = |worker: &mut Worker| worker.go(point.work, &blocks, &shared, effort.accesses_count);
        let seconds = together(&cpus, &mut workers, effort.iterations, work);
        // ORDERING: Relaxed, no partner: see `churn`.
        is_over.store(true, Ordering::Relaxed);
        (seconds, churner.map(|churner| churner.join().expect("it does not panic")))
    });
    let seconds = seconds.map_err(|error| Skipped::Failed(error.into()))?;
    let mut refused = workers.iter_mut().filter_map(|worker| worker.refused.take());
    if let Some(error) = refused.next().or_else(|| churned.and_then(Result::err)) {
        return Err(Skipped::Failed(error.into()));
    }
    let accesses = effort.accesses_count as f64;
    let latency = |seconds: &f64| seconds * 1e9 / accesses;
    let evicted = blocks.cache.stats().evictions - before.evictions;
    let note = point.is_churned.then(|| match free.is_empty() {
        false => format!("{evicted} blocks left meanwhile"),
        true => format!("{evicted} blocks left meanwhile; who has them leave shares a CPU with the others"),
    });
    let mut taken = vec![Measurement::new(Metric::LATENCY, seconds.iter().map(latency).collect())];
    if point.is_churned {
        let all = (effort.accesses_count * effort.iterations * workers.len()) as f64;
        let hits: usize = workers.iter().map(|worker| worker.hits_count).sum();
        taken.push(Measurement::new(Metric::HIT_RATE, vec![hits as f64 / all]));
    }
    taken.iter_mut().for_each(|taken| taken.note = note.clone());
    Ok(taken)
}

impl Worker<'_> {
    fn go(&mut self, work: SharedWork, blocks: &Blocks, shared: &Counter, accesses_count: usize) {
        let up_and_down = |Counter(counter): &Counter| {
            for _ in 0..accesses_count {
                // ORDERING: the orderings of a reference count, whose cost is measured; no partner, nothing is freed.
                counter.fetch_add(1, Ordering::Relaxed);
                counter.fetch_sub(1, Ordering::AcqRel);
            }
        };
        let result = match work {
            SharedWork::Shared => return up_and_down(shared),
            SharedWork::Own => return up_and_down(self.own),
            SharedWork::Hit => hits(accesses_count, |block| blocks.hit(block)),
            SharedWork::Entry => hits(accesses_count, |block| blocks.entry(block)),
        };
        match result {
            Ok(count) => self.hits_count += count,
            Err(error) => self.refused = Some(error),
        }
    }
}

/// Number of hits among accesses to the hot blocks in turn.
fn hits(
    accesses_count: usize,
    access: impl Fn(usize) -> Result<bool, AccessError>,
) -> Result<usize, AccessError> {
    (0..accesses_count).try_fold(0, |hits, turn| Ok(hits + usize::from(access(turn % HOT_COUNT)?)))
}
