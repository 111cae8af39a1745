//! Threads that do everything at once on engines that fail, refuse and dawdle, with a budget that is always short.
//! Every byte that is read is checked, every source tells when it ends, and in the end every counter and every byte of
//! memory must be accounted for. Invariants: a source is never written and a target never read early; one submission
//! for one absent range; nobody hangs; memory in flight is neither freed nor reused; no budget is exceeded.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memferry::cache::{Access, Cache, Entry, Location, Region, RegionOwner, Why};
use memferry::internals::{Faults, Faulty};
use memferry::mover::{CpuEngine, CpuOptions, Mover};

use crate::cache_support::{
    HOME, Mortal, NEAR, PAGE, Random, assert_adds_up, held, machine, pattern, seed, within,
};

const THREADS: u64 = 4;
const STEPS: usize = 10_000;
const REGION_BYTES: usize = 8 * PAGE;
const BUDGET_BYTES: usize = 16 * PAGE;

/// A region whose content is known.
#[derive(Clone)]
struct Known {
    region: Region,
    bytes: Arc<[u8]>,
}

/// What all threads share.
struct World {
    cache: Cache,
    regions: [Mutex<Known>; 3],
    registered: AtomicU64,
    ended: Arc<AtomicU64>,
    accesses: AtomicU64,
    invalidated: AtomicU64,
    dropped: AtomicU64,
}

impl World {
    fn new(cache: Cache) -> World {
        let (registered, ended) = (AtomicU64::new(0), Arc::default());
        let regions = std::array::from_fn(|_| Mutex::new(register(&cache, &registered, &ended)));
        let [accesses, invalidated, dropped] = [const { AtomicU64::new(0) }; 3];
        World { cache, regions, registered, ended, accesses, invalidated, dropped }
    }

    fn known(&self, random: &mut Random) -> Known {
        self.regions[random.below(self.regions.len())].lock().unwrap().clone()
    }

    fn replace_region(&self, random: &mut Random) {
        let new = register(&self.cache, &self.registered, &self.ended);
        let old =
            std::mem::replace(&mut *self.regions[random.below(self.regions.len())].lock().unwrap(), new);
        drop(old);
    }

    /// One thread's life.
    fn run(&self, seed: u64) {
        let mut random = Random(seed);
        let mut held: Vec<(Entry, Arc<[u8]>)> = Vec::new();
        for _ in 0..STEPS {
            match random.below(100) {
                0..60 => {
                    let known = self.known(&mut random);
                    let (start, len) = (random.below(6) * PAGE, [1, 63, PAGE, 2 * PAGE][random.below(4)]);
                    let access = Access { requester: Some(HOME), ..Access::default() };
                    let entry = self.cache.access(&known.region, start..start + len, access).unwrap();
                    self.accesses.fetch_add(1, SeqCst);
                    check(&entry, &known.bytes);
                    if random.below(3) == 0 {
                        entry.wait();
                    }
                    check(&entry, &known.bytes);
                    if random.below(2) == 0 {
                        held.push((entry, known.bytes));
                    }
                }
                60..65 => {
                    let known = self.known(&mut random);
                    let entry = self.cache.access_weak(&known.region, 0..PAGE, Access::default()).unwrap();
                    self.accesses.fetch_add(1, SeqCst);
                    if let Some(entry) = entry {
                        futures::executor::block_on(entry.ready());
                        check(&entry, &known.bytes);
                    }
                }
                65..85 => {
                    if !held.is_empty() {
                        let (entry, bytes) = held.swap_remove(random.below(held.len()));
                        check(&entry, &bytes);
                    }
                }
                85..92 => {
                    let known = self.known(&mut random);
                    let start = random.below(REGION_BYTES - PAGE);
                    let dropped =
                        self.cache.invalidate(&known.region, start..start + random.below(PAGE)).unwrap();
                    self.invalidated.fetch_add(dropped as u64, SeqCst);
                }
                92..95 => self.replace_region(&mut random),
                95..98 => self.count_dropped(self.cache.flush()),
                98 => self.count_dropped(self.cache.clear()),
                _ => self.known(&mut random).region.drain(),
            }
            while held.len() > 3 {
                held.swap_remove(random.below(held.len()));
            }
            let [usage] = self.cache.stats().nodes[..] else { panic!("one node has a budget") };
            assert!(usage.used_bytes <= BUDGET_BYTES && usage.peak_bytes <= BUDGET_BYTES, "{usage:?}");
        }
    }

    fn count_dropped(&self, dropped: usize) {
        self.dropped.fetch_add(dropped as u64, SeqCst);
    }
}

fn register(cache: &Cache, registered: &AtomicU64, ended: &Arc<AtomicU64>) -> Known {
    let seed = registered.fetch_add(1, SeqCst) + 1;
    let owner = Mortal::new(REGION_BYTES, seed, ended);
    let bytes = owner.bytes().into();
    Known { region: cache.register_on(owner, Some(HOME)), bytes }
}

fn check(entry: &Entry, bytes: &[u8]) {
    assert!(entry.as_slice() == &bytes[entry.range()], "wrong bytes: {entry:?}");
}

fn stress(faults: Faults) {
    let seed = seed();
    within(Duration::from_secs(60), move || {
        let machine = machine();
        let options = CpuOptions { node: Some(HOME), workers_count: 2, ..CpuOptions::default() };
        let cpu = Arc::new(CpuEngine::new(&machine, options).unwrap());
        let faulty = Arc::new(Faulty::new(cpu, faults, seed).unwrap());
        let mover = Mover::builder(machine).engine(faulty).build().unwrap();
        let world = World::new(Cache::builder(mover).budget(NEAR, BUDGET_BYTES).build().unwrap());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let world = &world;
                scope.spawn(move || world.run(seed.wrapping_mul(2 * thread + 3) | 1));
            }
        });

        let World { cache, regions, registered, ended, accesses, invalidated, dropped } = world;
        for known in &regions {
            known.lock().unwrap().region.drain();
        }
        drop(regions);
        // Copies of regions that ended meanwhile may still be on their way.
        let patience = Instant::now() + Duration::from_secs(10);
        while ended.load(SeqCst) < registered.load(SeqCst) || cache.stats().nodes[0].used_bytes > 0 {
            assert!(Instant::now() < patience, "memory was not freed: {:?}", cache.stats());
            thread::yield_now();
        }
        let stats = cache.stats();
        println!("{stats:?}");
        assert_adds_up(&stats);
        assert_eq!(stats.accesses, accesses.into_inner());
        assert_eq!(stats.invalidated, invalidated.into_inner());
        assert!(stats.dropped >= dropped.into_inner(), "ends of regions drop entries too");
        assert_eq!(stats.nodes[0].entries_count, 0);
        assert_eq!(ended.load(SeqCst), registered.load(SeqCst));
        assert_eq!(stats.failed > 0, faults.fail_per_mille > 0);
        for (count, what) in [
            (stats.hits_ready, "hits"),
            (stats.hits_in_flight, "hits in flight"),
            (stats.evictions, "evictions"),
            (stats.no_room, "refusals for want of room"),
        ] {
            assert!(count > 0, "the test is too tame: no {what}");
        }
    });
}

#[test]
fn everything_at_once_on_good_engines() {
    stress(Faults::default());
}

#[test]
fn everything_at_once_on_faulty_engines() {
    stress(Faults { refuse_per_mille: 200, fail_per_mille: 200, delay_max: Duration::from_micros(300) });
}

/// Many threads, one absent range, many times: one submission each time.
#[test]
fn concurrent_first_accesses_submit_once() {
    const ROUNDS: u64 = 300;
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, PAGE));
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    barrier.wait();
                    let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
                    if barrier.wait().is_leader() {
                        assert_eq!(engine.accepted(), round, "submissions after as many rounds");
                        engine.finish(0);
                    }
                    entry.wait();
                    assert!(entry.is_ready());
                    drop(entry);
                    if barrier.wait().is_leader() {
                        assert_eq!(cache.clear(), 1);
                    }
                }
            });
        }
    });
    assert_adds_up(&cache.stats());
}

/// More threads than there are counters from the start: none of their hits is lost, or counted twice.
#[test]
fn every_thread_of_many_counts_its_hits() {
    const THREADS: u64 = 150;
    const HITS: u64 = 500;
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, PAGE));
    drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
    engine.finish_all();
    // All of them live at once, or some would count for others that have ended.
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let view = || cache.view(&region, 0..PAGE, Access::default()).unwrap();
                assert!(view().is_ready());
                barrier.wait();
                assert!((1..HITS).all(|_| view().is_ready()));
            });
        }
    });
    assert_eq!(cache.stats().hits_ready, THREADS * HITS);
    assert_adds_up(&cache.stats());
}

/// Forgotten entries are pinned for ever: that costs room, and nothing else.
#[test]
fn forgotten_entries_only_cost_room() {
    let (cache, engine) = held(2);
    let ended = Arc::new(AtomicU64::new(0));
    let region = cache.register(Mortal::new(2 * PAGE, 3, &ended));
    std::mem::forget(cache.access(&region, 0..PAGE, Access::default()).unwrap());
    engine.finish_all();
    let other = cache.access(&region, PAGE..2 * PAGE, Access::default()).unwrap();
    engine.finish_all();
    assert!(other.is_ready());
    drop((region, other));
    assert_eq!(cache.flush() + cache.clear(), 0);
    assert_eq!((cache.stats().nodes[0].used_bytes, ended.load(SeqCst)), (PAGE, 0));
}

/// The budget is short and everything is pinned: readers read the source, and never wait for a pin to go.
#[test]
fn pinned_budget_stops_nobody() {
    let (cache, engine) = held(2);
    let region = cache.register(pattern(1, 64 * PAGE));
    let page =
        |page: usize| cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
    let pins = [page(0), page(1)];
    thread::scope(|scope| {
        for thread in 0..2 {
            let (page, region) = (&page, &region);
            scope.spawn(move || {
                for number in (2 + thread..64).step_by(2) {
                    let entry = page(number);
                    assert_eq!(entry.wait(), Location::Source(Why::NoRoom));
                    assert_eq!(entry.as_slice(), &region.as_slice()[number * PAGE..(number + 1) * PAGE]);
                }
            });
        }
    });
    assert_eq!(cache.stats().no_room, 62);
    engine.finish_all();
    assert!(pins.iter().all(Entry::is_ready));
}
