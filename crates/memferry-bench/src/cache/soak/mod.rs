//! A randomised stress test of any duration: threads that access, view, wait, await, mutate, invalidate, refresh, evict,
//! drop, forget and panic, over an emulated device that is late, out of order, full and faulting, and failing engines.
//!
//! Every read byte is compared with its expected value: that of a region follows from its seed, that of a version from its
//! number, that of a rewritten page from its last change. Sources overwrite themselves on drop, so that late reads are
//! found. At the end the counters of cache and engines must add up and match the results of calls. Every source that was
//! not forgotten must have been dropped, and only forgotten entries may use near memory.

mod ledger;
#[allow(unsafe_code)]
mod source;
mod steps;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ledger::{Ledger, count};
use memferry::cache::{Cache, CacheMut, CacheStats, Entry, NodeUsage, Region, Request};
use memferry::internals::{Faults, Faulty};
use memferry::mover::{CpuEngine, CpuOptions, DsaEngine, DsaOptions, Mover, Route};
use memferry::topology::{Machine, NodeId};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use source::{Expected, Rewritten, register, write_version};

use crate::harness::Random;

const PAGE_BYTES: usize = 4096;
/// A few pages, so that ranges overlap.
const REGION_BYTES: usize = 6 * PAGE_BYTES + 100;
const CHUNK_BYTES: usize = 2 * PAGE_BYTES;
const REGIONS_COUNT: usize = 3;
/// Budgets of the two nodes: less than the requested data.
const BUDGETS_BYTES: [usize; 2] = [14 * PAGE_BYTES, 24 * PAGE_BYTES];
const CHANGING_BYTES: usize = 3 * PAGE_BYTES;
/// Maximum of forgotten entries, which pin near memory for ever.
const FORGOTTEN_MAX: u64 = 4;
/// Longer waits count as hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options of a soak.
#[derive(Copy, Clone, Debug)]
pub struct Soak {
    /// Duration.
    pub duration: Duration,
    /// Seed of the threads' steps and of the faults. Scheduling is not deterministic, so a run cannot be repeated exactly.
    pub seed: u64,
    /// Number of threads, at least 1.
    pub threads_count: usize,
}

/// Counts of a soak without violations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SoakReport {
    /// Steps of all threads.
    pub steps_count: u64,
    /// Bytes that were read and compared.
    pub checked_bytes: u64,
    /// Panics of threads with entries and views.
    pub panics_count: u64,
    /// Entries and views that were forgotten.
    pub forgotten_count: u64,
    /// Versions that were published.
    pub versions_count: u64,
    /// Changes of bytes in place.
    pub rewrites_count: u64,
    /// The cache's counters at the end.
    pub stats: CacheStats,
}

/// Runs a soak on two nodes of a machine; half of the regions have the first one as their home. An `Err` describes a bug.
///
/// # Errors
/// The first violation, or the reason why the soak could not start.
pub fn soak(
    machine: Arc<Machine>,
    nodes: [NodeId; 2],
    options: Soak,
) -> Result<SoakReport, Box<dyn std::error::Error>> {
    let state = SoakState::new(machine, nodes, options.seed)?;
    let end = Instant::now() + options.duration;
    let failed = thread::scope(|scope| {
        let run = |thread: usize| {
            let state = &state;
            let random = Random(options.seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            scope.spawn(move || state.run(random, end))
        };
        let threads: Vec<_> = (0..options.threads_count.max(1)).map(run).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.filter_map(|end| end.unwrap_or_else(|_| Err("a thread panicked; see above".to_owned())).err())
            .next()
    });
    match failed {
        Some(what) => Err(format!("{what} (seed {})", options.seed).into()),
        None => state.finish().map_err(|what| format!("{what} (seed {})", options.seed).into()),
    }
}

/// A description of a violation.
type Violation = String;

/// State that all threads of a soak share. `regions` are replaced under their locks; the counters are atomic.
struct SoakState {
    cache: Cache,
    nodes: [NodeId; 2],
    regions: [Mutex<(Region, u64)>; REGIONS_COUNT],
    changing: CacheMut<Vec<u8>>,
    rewritten: Rewritten,
    dropped_owners: Arc<AtomicU64>,
    registered: AtomicU64,
    ledger: Ledger,
}

/// An entry that a thread holds, and its expected content.
struct HeldEntry {
    entry: Entry,
    expected: Expected,
}

impl SoakState {
    fn new(
        machine: Arc<Machine>,
        nodes: [NodeId; 2],
        seed: u64,
    ) -> Result<SoakState, Box<dyn std::error::Error>> {
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
        // Requests of an even number of pages go to one node, odd ones to the other, and tiny ones nowhere.
        let place = |_: &Machine, request: &Request<'_>| {
            (request.size_bytes > 2)
                .then(|| request.nodes[request.size_bytes / PAGE_BYTES % request.nodes.len()])
        };
        let cache = builder.placement(place).build()?;
        let (dropped_owners, registered) = (Arc::default(), AtomicU64::new(0));
        let regions =
            std::array::from_fn(|_| Mutex::new(register(&cache, nodes[0], &registered, &dropped_owners)));
        let mut first = vec![0; CHANGING_BYTES];
        write_version(&mut first, 0);
        let changing = CacheMut::new(&cache, first, None, CHUNK_BYTES);
        let rewritten = Rewritten::new(&cache, nodes[0]);
        Ok(SoakState {
            cache,
            nodes,
            regions,
            changing,
            rewritten,
            dropped_owners,
            registered,
            ledger: Ledger::default(),
        })
    }

    /// Runs one thread.
    fn run(&self, mut random: Random, end: Instant) -> Result<(), Violation> {
        let mut held: Vec<HeldEntry> = Vec::new();
        while Instant::now() < end {
            for _ in 0..64 {
                self.step(&mut random, &mut held)?;
                while held.len() > 3 {
                    held.swap_remove(random.below(held.len()));
                }
            }
            count(&self.ledger.steps, 64);
            self.check_budgets()?;
        }
        Ok(())
    }

    fn check(&self, bytes: &[u8], range: Range<usize>, expected: &Expected) -> Result<(), Violation> {
        count(&self.ledger.checked_bytes, bytes.len());
        if bytes.len() != range.len() {
            return Err(format!("{} bytes of {range:?}", bytes.len()));
        }
        match range.zip(bytes).find(|&(at, &byte)| byte != expected.byte(at)) {
            Some((at, _)) => Err(format!("byte {at} is wrong, of {expected:?}")),
            None => Ok(()),
        }
    }

    fn check_budgets(&self) -> Result<(), Violation> {
        let is_over = |node: &&NodeUsage| node.peak_bytes > node.budget_bytes;
        match self.cache.stats().nodes.iter().find(is_over) {
            Some(node) => Err(format!("the budget was exceeded: {node:?}")),
            None => Ok(()),
        }
    }
}

/// Polls a condition. Copies in flight complete within milliseconds, on a busy machine within a second.
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
