//! A cache in forked children: nothing there waits for what only the parent's threads could end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use memferry::cache::{Access, Cache, CacheMut, Entry, Location, Region, Why};
use memferry::internals::{Faults, Faulty};
use memferry::memory::Pool;
use memferry::mover::{CpuEngine, CpuOptions, Mover};
use memferry::topology::{Machine, NodeId};

use crate::fork_support::{alone, in_child};

const NEAR: NodeId = NodeId(1);
const PAGE: usize = 4096;

fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

fn page(cache: &Cache, region: &Region, page: usize) -> Entry {
    cache.access(region, page * PAGE..(page + 1) * PAGE, Access::default()).expect("readable")
}

/// A near copy that was in flight is not waited for in a child, which reads the source, and makes others.
fn entries() {
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let held = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"));
    let mover = Mover::builder(machine()).engine(held.clone()).build().expect("threads");
    let cache = Cache::builder(mover).budget(NEAR, 1 << 20).build().expect("a cache");
    let region = cache.register(vec![5; PAGE]);
    held.hold();
    let entry = page(&cache, &region, 0);
    in_child(|| {
        assert_eq!(entry.wait(), Location::Source(Why::InFlight));
        assert_eq!(futures::executor::block_on(entry.ready()), Location::Source(Why::InFlight));
        assert!(entry.as_slice() == [5; PAGE]);
        // The copy is the parent's, who has not got it yet.
        region.drain();
        assert_eq!(cache.invalidate(&region, 0..PAGE), Ok(0), "the child's cache is empty");
    });
    held.release();
    assert_eq!(entry.wait(), Location::Near(NEAR));
}

/// A child waited for ever for copies of the old version that were in flight at the fork, and for a thread of its parent
/// that was about to publish a version.
fn mutations() {
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let held = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"));
    let mover = Mover::builder(machine()).engine(held.clone()).build().expect("threads");
    let cache = Cache::builder(mover).budget(NEAR, 1 << 20).build().expect("a cache");
    let data = CacheMut::new(&cache, vec![1; PAGE], None, 0);
    held.hold();
    let entry = data.access(0..PAGE, Access::default()).expect("readable");
    let (began, has_begun) = channel();
    let (go, may_go) = channel();
    thread::scope(|scope| {
        let data = &data;
        let other = scope.spawn(move || {
            data.mutate(|bytes| {
                began.send(()).expect("somebody waits");
                may_go.recv().expect("somebody sends");
                bytes.fill(3);
            })
        });
        has_begun.recv().expect("the mutation begins");
        in_child(|| {
            assert_eq!(data.mutate(|bytes| bytes.fill(2)), (1, ()));
            assert_eq!(data.mutate(|bytes| bytes[0] = 4), (2, ()));
            let snapshot = data.read();
            assert_eq!((snapshot.version(), snapshot[0], snapshot[1], entry.as_slice()[0]), (2, 4, 2, 1));
        });
        held.release();
        go.send(()).expect("the mutation waits");
        assert_eq!(other.join().expect("no panic"), (1, ()));
    });
    assert_eq!((data.read()[0], entry.wait(), entry.as_slice()[0]), (3, Location::Near(NEAR), 1));
}

/// A child begins with an empty cache and the whole budget, and makes room for what it accesses. The parent keeps what it
/// has; so does what the child inherits in hand.
fn evictions() {
    const PAGES: usize = 4;
    let mover = Mover::builder(machine()).build().expect("threads");
    let cache = Cache::builder(mover).budget(NEAR, PAGES * PAGE).build().expect("a cache");
    let bytes: Vec<u8> = (0..3 * PAGES * PAGE).map(|index| (index / PAGE) as u8).collect();
    let region = cache.register_chunked(bytes, None, PAGE);
    let is_near = |number: usize| {
        let entry = page(&cache, &region, number);
        let location = entry.wait();
        assert!(entry.as_slice() == [number as u8; PAGE]);
        location == Location::Near(NEAR)
    };
    let use_all = || {
        let before = cache.stats();
        // Once to have them copied, once to have them published.
        (0..2 * PAGES).for_each(|number| assert!(is_near(number % PAGES), "page {number} found no room"));
        assert!(cache.view(&region, 0..PAGE, Access::default()).expect("readable").is_ready());
        (PAGES..3 * PAGES).for_each(|number| assert!(is_near(number), "page {number} found no room"));
        let after = cache.stats();
        assert_eq!((after.arrived - before.arrived, after.evictions - before.evictions), (12, 8));
        assert_eq!((after.nodes[0].used_bytes, after.nodes[0].entries_count), (PAGES * PAGE, PAGES));
    };
    (0..2 * PAGES).for_each(|number| assert!(is_near(number % PAGES)));
    let (began, has_begun) = channel();
    let (go, may_go) = channel::<()>();
    thread::scope(|scope| {
        let (cache, region) = (&cache, &region);
        scope.spawn(move || {
            let view = cache.view(region, 0..PAGE, Access::default()).expect("readable");
            began.send(view.is_ready()).expect("somebody waits");
            let _ = may_go.recv();
        });
        assert!(has_begun.recv().expect("the view is there"));
        let view = cache.view(region, PAGE..2 * PAGE, Access::default()).expect("readable");
        let entry = view.to_owned();
        in_child(|| {
            assert_eq!((cache.stats().nodes[0].used_bytes, cache.stats().nodes[0].entries_count), (0, 0));
            use_all();
            assert!(view.as_slice() == [1; PAGE] && entry.as_slice() == [1; PAGE]);
            assert_eq!(entry.location(), Location::Near(NEAR), "it stays readable where it was");
            drop((view, entry));
            assert_eq!(cache.flush(), PAGES);
            assert_eq!(cache.stats().nodes[0].used_bytes, 0);
            assert!(is_near(0) && is_near(1));
            assert_eq!((cache.invalidate(region, 0..PAGE), cache.clear()), (Ok(1), 1));
            // A child of the child again.
            in_child(use_all);
        });
        drop(go);
    });
    assert_eq!((cache.stats().evictions, cache.stats().nodes[0].entries_count), (0, PAGES));
    assert_eq!(cache.flush(), PAGES);
}

/// The state that threads of a parent keep busy while it forks. Clones share it.
#[derive(Clone)]
struct Shared {
    cache: Cache,
    pool: Pool,
    region: Region,
    data: CacheMut<Vec<u8>>,
}

/// Of `Shared::pool`, which is smaller than the region.
const BUSY_PAGES: usize = 8;
/// Above the size up to which the submitting thread copies.
const LARGE_BYTES: usize = 4 * PAGE;

impl Shared {
    fn new() -> Shared {
        let pool = Pool::new(machine(), NEAR, BUSY_PAGES * PAGE).expect("memory");
        let mover = Mover::builder(machine()).build().expect("threads");
        let cache = Cache::builder(mover).pool(pool.clone()).build().expect("a cache");
        let region = cache.register_chunked(vec![3; 4 * BUSY_PAGES * PAGE], None, PAGE);
        let data = CacheMut::new(&cache, vec![7; PAGE], None, 0);
        Shared { cache, pool, region, data }
    }

    /// Every way into the cache, its pool and data that changes.
    fn use_everything(&self, round: usize) {
        let Shared { cache, pool, region, data } = self;
        for number in (0..BUSY_PAGES).map(|number| (number * 7 + round) % (4 * BUSY_PAGES)) {
            let entry = page(cache, region, number);
            entry.wait();
            assert!(entry.as_slice() == [3; PAGE]);
            let view = cache.view(region, number * PAGE..(number + 1) * PAGE, Access::default());
            assert!(view.expect("readable").as_slice() == [3; PAGE]);
            assert!(cache.access_weak(region, entry.range(), Access::default()).is_ok());
        }
        let large = cache.access(region, 0..LARGE_BYTES, Access::default()).expect("readable");
        large.wait();
        let own = cache.register(vec![9; PAGE]);
        let of_own = page(cache, &own, 0);
        drop(own);
        assert!(of_own.as_slice() == [9; PAGE]);
        drop((of_own, large));
        drop(pool.allocate(PAGE));
        assert!(pool.stats().used_bytes <= BUSY_PAGES * PAGE);
        pool.trim();
        cache.stats();
        cache.near_bytes(region, NEAR).expect("the region is the cache's");
        cache.invalidate(region, 0..PAGE).expect("a part of the region");
        cache.refresh(region, PAGE..2 * PAGE).expect("a part of the region");
        cache.flush();
        data.mutate(|bytes| bytes[0] = 8);
        assert_eq!(data.read()[0], 8);
        if let Ok(mut draft) = data.draft(NEAR) {
            draft[1] = 1;
            _ = draft.write_back();
        }
        region.drain();
    }
}

/// Children of a process whose threads are inside the cache: three of five hung, in the locks of the pool's ledger, of the
/// index or of the readers' records, which threads held that do not exist in the child.
fn busy() {
    const CHILDREN: usize = 200;
    let shared = Shared::new();
    // A cache that is dropped in children, with copies in the pool of the busy one; and what children inherit of that one.
    let spare =
        Cache::builder(shared.cache.mover().clone()).pool(shared.pool.clone()).build().expect("a cache");
    let of_spare = spare.register(vec![1; PAGE]);
    let mut spare = Some((spare, of_spare));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for thread in 0..4 {
            let (shared, is_over) = (&shared, &is_over);
            scope.spawn(move || {
                for round in (thread..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    shared.use_everything(round);
                }
            });
        }
        for child in 0..CHILDREN {
            let (cache, region) = (&shared.cache, &shared.region);
            let mut entry = Some(page(cache, region, child % BUSY_PAGES));
            let range = child % BUSY_PAGES * PAGE..(child % BUSY_PAGES + 1) * PAGE;
            let mut view = Some(cache.view(region, range, Access::default()).expect("readable"));
            let snapshot = shared.data.read();
            if let Some((spare, of_spare)) = &spare {
                page(spare, of_spare, 0).wait();
            }
            in_child(|| {
                let readable = |bytes: Option<&[u8]>| assert!(bytes.is_some_and(|bytes| bytes == [3; PAGE]));
                readable(entry.as_ref().map(Entry::as_slice));
                readable(view.as_ref().map(|view| view.as_slice()));
                drop((entry.take(), view.take()));
                drop(spare.take());
                assert!(matches!(snapshot[0], 7 | 8));
                (0..3).for_each(|round| shared.use_everything(round));
                let clones: Vec<_> = (0..2).map(|_| shared.clone()).collect();
                let threads = clones.into_iter().map(|own| thread::spawn(move || own.use_everything(0)));
                let threads: Vec<_> = threads.collect();
                threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
                shared.cache.clear();
                assert_eq!(shared.cache.stats().nodes[0].entries_count, 0);
                // The budget of the child comes back, at the latest when the last copy has let go of its block.
                while shared.pool.used_bytes() > 0 {
                    thread::yield_now();
                }
            });
        }
    });
}

/// Ends the threads of a test, also when it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn children_of_busy_parents_do_not_hang() {
    alone("cache_fork::children_of_busy_parents_do_not_hang", busy);
}

#[test]
fn children_read_the_source_of_what_was_in_flight() {
    alone("cache_fork::children_read_the_source_of_what_was_in_flight", entries);
}

#[test]
fn children_change_data_whatever_the_parent_was_doing() {
    alone("cache_fork::children_change_data_whatever_the_parent_was_doing", mutations);
}

#[test]
fn children_make_room() {
    alone("cache_fork::children_make_room", evictions);
}
