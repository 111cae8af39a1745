//! Everything at once, for as long as one likes: threads that access, view, wait, await, mutate, invalidate, refresh,
//! evict, drop, forget and panic, over an emulated device that is late, out of order, full and faulting, and engines
//! that fail.
//!
//! Every byte that is read is compared with what it must be: a region's bytes follow from its seed, those of a version of
//! changing data from its number, those of an owner that writes from its last change. Sources overwrite themselves when
//! they end, so that who reads one too late sees it. In the end the sums must be right that the statistics of the cache
//! and of the engines promise, what calls returned must be what was counted, every source must have ended that was not
//! forgotten, and no byte of near memory be in use but theirs.

mod books;
#[allow(unsafe_code)]
mod source;
mod steps;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use books::{Done, count};
use memferry::cache::{Cache, CacheMut, CacheStats, Entry, NodeUsage, Region, Request};
use memferry::mover::{CpuEngine, CpuOptions, DsaEngine, DsaOptions, Faults, Faulty, Mover, Route};
use memferry::topology::{Machine, NodeId};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use source::{Rewritten, Truth, register, write_version};

use crate::harness::Random;

const PAGE_BYTES: usize = 4096;
/// A few pages, so that ranges meet.
const REGION_BYTES: usize = 6 * PAGE_BYTES + 100;
const CHUNK_BYTES: usize = 2 * PAGE_BYTES;
const REGIONS_COUNT: usize = 3;
/// Of the two nodes; less than is asked for.
const BUDGETS_BYTES: [usize; 2] = [14 * PAGE_BYTES, 24 * PAGE_BYTES];
const CHANGING_BYTES: usize = 3 * PAGE_BYTES;
/// Forgotten entries pin near memory for ever; when so many bytes might be, nothing more is forgotten.
const FORGOTTEN_MAX: u64 = 4;
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How to soak.
#[derive(Copy, Clone, Debug)]
pub struct Soak {
    /// Stops after this.
    pub duration: Duration,
    /// Of what threads and faults do; threads meet as they like, so a run is not repeated exactly.
    pub seed: u64,
    /// At least 1.
    pub threads_count: usize,
}

/// What was done, all of it right.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoakReport {
    /// Things that threads did.
    pub steps_count: u64,
    /// Bytes that were read and compared.
    pub checked_bytes: u64,
    /// Panics that were thrown while entries and views were held.
    pub panics_count: u64,
    /// Entries and views that were forgotten.
    pub forgotten_count: u64,
    /// Versions that were published.
    pub versions_count: u64,
    /// Changes of bytes where they were.
    pub rewrites_count: u64,
    /// The cache's counters in the end.
    pub stats: CacheStats,
}

/// Runs on these two nodes of a machine until the time is over; some of the data is said to lie on the first. An `Err`
/// is a bug, in words.
///
/// # Errors
/// What was wrong first, or why it could not begin.
pub fn soak(
    machine: Arc<Machine>,
    nodes: [NodeId; 2],
    options: Soak,
) -> Result<SoakReport, Box<dyn std::error::Error>> {
    let world = World::new(machine, nodes, options.seed)?;
    let end = Instant::now() + options.duration;
    let failed = thread::scope(|scope| {
        let run = |thread: usize| {
            let world = &world;
            let random = Random(options.seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            scope.spawn(move || world.run(random, end))
        };
        let threads: Vec<_> = (0..options.threads_count.max(1)).map(run).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.filter_map(|end| end.unwrap_or_else(|_| Err("a thread panicked; see above".to_owned())).err())
            .next()
    });
    match failed {
        Some(what) => Err(format!("{what} (seed {})", options.seed).into()),
        None => world.finish().map_err(|what| format!("{what} (seed {})", options.seed).into()),
    }
}

/// What is wrong.
type Wrong = String;

struct World {
    cache: Cache,
    nodes: [NodeId; 2],
    regions: [Mutex<(Region, u64)>; REGIONS_COUNT],
    changing: CacheMut<Vec<u8>>,
    rewritten: Rewritten,
    ended: Arc<AtomicU64>,
    registered: AtomicU64,
    done: Done,
}

/// What a thread holds on to.
struct Held {
    entry: Entry,
    truth: Truth,
}

impl World {
    fn new(
        machine: Arc<Machine>,
        nodes: [NodeId; 2],
        seed: u64,
    ) -> Result<World, Box<dyn std::error::Error>> {
        let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::from_seed(seed))?;
        let dsa = DsaEngine::new(vec![emulator.portal(0)], DsaOptions::default())?;
        let cpu = CpuEngine::new(&machine, CpuOptions { node: Some(nodes[0]), ..CpuOptions::default() })?;
        let faults =
            Faults { refuse_per_mille: 50, fail_per_mille: 50, delay_max: Duration::from_micros(300) };
        let mover = Mover::builder(machine)
            .engine(Arc::new(Faulty::new(Arc::new(dsa), faults, seed)?))
            .engine(Arc::new(Faulty::new(Arc::new(cpu), faults, seed + 1)?))
            .route(Route::RoundRobin)
            .build()?;
        let builder = (nodes.into_iter().zip(BUDGETS_BYTES))
            .fold(Cache::builder(mover), |builder, (node, bytes)| builder.budget(node, bytes));
        // Even pages to one node, odd ones to the other, and very little nowhere.
        let place = |_: &Machine, request: &Request<'_>| {
            (request.size_bytes > 2)
                .then(|| request.nodes[request.size_bytes / PAGE_BYTES % request.nodes.len()])
        };
        let cache = builder.placement(place).build()?;
        let (ended, registered) = (Arc::default(), AtomicU64::new(0));
        let regions = std::array::from_fn(|_| Mutex::new(register(&cache, nodes[0], &registered, &ended)));
        let mut first = vec![0; CHANGING_BYTES];
        write_version(&mut first, 0);
        let changing = CacheMut::new(&cache, first, None, CHUNK_BYTES);
        let rewritten = Rewritten::new(&cache, nodes[0]);
        Ok(World { cache, nodes, regions, changing, rewritten, ended, registered, done: Done::default() })
    }

    /// One thread's life.
    fn run(&self, mut random: Random, end: Instant) -> Result<(), Wrong> {
        let mut held: Vec<Held> = Vec::new();
        while Instant::now() < end {
            for _ in 0..64 {
                self.step(&mut random, &mut held)?;
                while held.len() > 3 {
                    held.swap_remove(random.below(held.len()));
                }
            }
            count(&self.done.steps, 64);
            self.check_budgets()?;
        }
        Ok(())
    }

    fn check(&self, bytes: &[u8], range: Range<usize>, truth: &Truth) -> Result<(), Wrong> {
        count(&self.done.checked_bytes, bytes.len());
        if bytes.len() != range.len() {
            return Err(format!("{} bytes of {range:?}", bytes.len()));
        }
        match range.zip(bytes).find(|&(at, &byte)| byte != truth.byte(at)) {
            Some((at, _)) => Err(format!("byte {at} is wrong, of {truth:?}")),
            None => Ok(()),
        }
    }

    fn check_budgets(&self) -> Result<(), Wrong> {
        let is_over = |node: &&NodeUsage| node.peak_bytes > node.budget_bytes;
        match self.cache.stats().nodes.iter().find(is_over) {
            Some(node) => Err(format!("the budget was exceeded: {node:?}")),
            None => Ok(()),
        }
    }
}

/// Looks until it is so. Whatever flies ends within milliseconds; on a machine that is busy otherwise, within a second.
fn within_patience(is_so: impl Fn() -> bool) -> Result<(), ()> {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > end {
            return Err(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
