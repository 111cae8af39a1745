//! A cache in forked children: nothing there waits for what only the parent's threads could end.

#[path = "../../memferry-dsa/tests/fork_support/mod.rs"]
mod fork_support;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use fork_support::{alone, in_child};
use memferry::cache::{Access, Cache, CacheMut, Entry, Location, Region, Why};
use memferry::mover::{CpuEngine, CpuOptions, Faults, Faulty, Mover};
use memferry::topology::{Machine, NodeId};

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
        assert_eq!(cache.invalidate(&region, 0..PAGE), Ok(1));
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

/// A child has copies of the near copies, and makes room among them; but for one that a thread of the parent reads, which
/// nobody tells the child about. The parent keeps what it has.
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
    // Once to have them copied, once to have them published.
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
        in_child(|| {
            let before = cache.stats();
            (PAGES..3 * PAGES).for_each(|number| assert!(is_near(number), "page {number} found no room"));
            let after = cache.stats();
            assert_eq!(after.evictions - before.evictions, 2 * PAGES as u64);
            assert_eq!((after.nodes[0].used_bytes, after.nodes[0].entries_count), (PAGES * PAGE, PAGES));
            assert_eq!(cache.flush(), PAGES - 1, "one is read in the parent");
            assert_eq!(cache.stats().nodes[0].used_bytes, PAGE);
            assert!(is_near(0) && is_near(1));
            assert_eq!((cache.invalidate(region, 0..PAGE), cache.clear()), (Ok(1), 1));
        });
        drop(go);
    });
    assert_eq!((cache.stats().evictions, cache.stats().nodes[0].entries_count), (0, PAGES));
    assert_eq!(cache.flush(), PAGES);
}

#[test]
fn children_read_the_source_of_what_was_in_flight() {
    alone("children_read_the_source_of_what_was_in_flight", entries);
}

#[test]
fn children_change_data_whatever_the_parent_was_doing() {
    alone("children_change_data_whatever_the_parent_was_doing", mutations);
}

#[test]
fn children_make_room() {
    alone("children_make_room", evictions);
}
