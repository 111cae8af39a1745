//! Where copies go, and which of several is read.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use memferry::cache::{Access, AccessError, BuildError, Cache, Location, NodeUsage, Request, Why};
use memferry::mover::Mover;
use memferry::topology::{Machine, NodeId};

use crate::cache_support::{HOME, NEAR, PAGE, assert_adds_up, held, machine, pattern};

/// Two nodes have a budget. Without a named node, the best ready copy is read, also while a better one is on its way.
#[test]
fn the_nearest_ready_copy_is_read() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let to_near = |_: &Machine, request: &Request<'_>| (request.size_bytes > 10).then_some(NEAR);
    let cache =
        Cache::builder(mover).budget(HOME, PAGE).budget(NEAR, PAGE).placement(to_near).build().unwrap();
    let region = cache.register(pattern(1, PAGE));
    let by_home = Access { requester: Some(HOME), ..Access::default() };
    let access = || cache.access(&region, 0..PAGE, by_home).unwrap();
    drop(cache.access(&region, 0..PAGE, Access::near(HOME)).unwrap());
    engine.finish_all();

    let first = access();
    assert!(first.started_copy() && !first.is_ready());
    assert_eq!((first.location(), first.try_wait()), (Location::Near(HOME), None), "read there meanwhile");
    assert_eq!(first.as_slice(), region.as_slice());
    assert_eq!(access().location(), Location::Near(HOME));
    engine.finish_all();
    assert_eq!((first.wait(), access().location()), (Location::Near(NEAR), Location::Near(NEAR)));
    assert_eq!(first.as_slice(), region.as_slice());

    // The policy wants no copy of so little, but there is one.
    drop(access());
    assert_eq!(cache.access(&region, 0..5, by_home).unwrap().location(), Location::Near(NEAR));
    // Who names a node gets that one.
    let named = cache.access(&region, 0..PAGE, Access::near(HOME)).unwrap();
    assert_eq!(named.location(), Location::Near(HOME));
    assert_adds_up(&cache.stats());
}

/// Once only chunks were looked for on other nodes, and only those that had been hit there before: a range of another
/// shape was copied again, to a node farther away than where it was.
#[test]
fn the_nearest_ready_copy_is_read_of_any_range() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let to_home = |_: &Machine, request: &Request<'_>| (request.size_bytes > 10).then_some(HOME);
    let cache =
        Cache::builder(mover).budget(HOME, PAGE).budget(NEAR, 2 * PAGE).placement(to_home).build().unwrap();
    let region = cache.register(pattern(1, PAGE));
    let by_home = Access { requester: Some(HOME), ..Access::default() };
    for range in [0..100, 200..205] {
        drop(cache.access(&region, range, Access::near(NEAR)).unwrap());
    }
    engine.finish_all();

    let better = cache.access(&region, 0..100, by_home).unwrap();
    assert_eq!((better.location(), better.started_copy()), (Location::Near(NEAR), false));
    assert_eq!(better.as_slice(), &region.as_slice()[..100]);
    let weak = cache.access_weak(&region, 0..100, by_home).unwrap().unwrap();
    assert_eq!(weak.location(), Location::Near(NEAR));
    // The policy wants no copy of so little, but there is one.
    let unplaced = cache.access(&region, 200..205, by_home).unwrap();
    assert_eq!(unplaced.location(), Location::Near(NEAR));
    // A part of it is another range, and goes where the policy says.
    assert!(cache.access(&region, 0..99, by_home).unwrap().started_copy());
    engine.finish_all();
    assert_adds_up(&cache.stats());
}

#[test]
fn policies_see_the_request_and_may_decline() {
    let seen = Arc::new(AtomicU64::new(0));
    let policy = {
        let seen = seen.clone();
        move |machine: &Machine, request: &Request<'_>| {
            assert_eq!((machine.node_count(), request.source_node), (2, Some(HOME)));
            assert_eq!((request.requester, request.nodes), (Some(HOME), &[NEAR][..]));
            seen.fetch_add(1, SeqCst);
            (request.size_bytes > 100).then_some(NEAR)
        }
    };
    let mover = Mover::builder(machine()).build().unwrap();
    let cache = Cache::builder(mover).budget(NEAR, PAGE).placement(policy).build().unwrap();
    let region = cache.register_on(pattern(1, PAGE), Some(HOME));
    let access = Access { requester: Some(HOME), ..Access::default() };
    assert_eq!(cache.access(&region, 0..100, access).unwrap().wait(), Location::Source(Why::NotPlaced));
    assert_eq!(cache.access(&region, 0..101, access).unwrap().wait(), Location::Near(NEAR));
    assert_eq!(cache.stats().unplaced, 1);
    assert_eq!(seen.load(SeqCst), 2);
    assert_adds_up(&cache.stats());
}

#[test]
fn nearest_faster_moves_only_to_something_faster() {
    let mover = Mover::builder(machine()).build().unwrap();
    let builder =
        || Cache::builder(mover.clone()).placement(|machine, request| request.nearest_faster(machine));
    let placed = |cache: Cache, home: Option<NodeId>| {
        let region = cache.register_on(pattern(1, PAGE), home);
        cache.access(&region, 0..PAGE, Access::default()).unwrap().wait()
    };
    let not_placed = Location::Source(Why::NotPlaced);
    assert_eq!(placed(builder().budget(NEAR, PAGE).build().unwrap(), Some(HOME)), Location::Near(NEAR));
    assert_eq!(placed(builder().budget(NEAR, PAGE).build().unwrap(), Some(NEAR)), not_placed);
    assert_eq!(placed(builder().budget(NEAR, PAGE).build().unwrap(), None), not_placed);
    assert_eq!(placed(builder().budget(HOME, PAGE).build().unwrap(), Some(HOME)), not_placed);
}

#[test]
fn bad_configurations_are_refused_in_a_sentence() {
    let mover = Mover::builder(machine()).build().unwrap();
    let builder = || Cache::builder(mover.clone());
    let error = builder().build().unwrap_err();
    assert!(matches!(error, BuildError::NoBudget), "{error}");
    let error = builder().budget(NEAR, 0).build().unwrap_err();
    assert!(matches!(error, BuildError::BudgetTooSmall { node: NEAR, budget_bytes: 0 }), "{error}");
    assert!(error.to_string().contains("at least one page"), "{error}");
    let error = builder().budget(NodeId(9), PAGE).build().unwrap_err();
    assert!(matches!(error, BuildError::UnknownNode(_)), "{error}");

    let cache = builder().budget(NEAR, PAGE).placement(|_, _| Some(NodeId(9))).build().unwrap();
    let error = cache.access(&cache.register(vec![0; 10]), 0..10, Access::default()).unwrap_err();
    assert_eq!(error, AccessError::NoBudget { node: NodeId(9), nodes: vec![NEAR] });
}

/// Once a weak access looked on the wished node only, unless another one was better than that: where an access would have
/// read near memory it found nothing, or the source.
#[test]
fn a_weak_access_reads_the_nearest_ready_copy() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let to_near = |_: &Machine, _: &Request<'_>| Some(NEAR);
    let cache =
        Cache::builder(mover).budget(HOME, 2 * PAGE).budget(NEAR, PAGE).placement(to_near).build().unwrap();
    let by_home = Access { requester: Some(HOME), ..Access::default() };
    // Of a chunk, and of a range that no directory has. Where the source lies is unknown: any copy is better.
    let region = cache.register_chunked(pattern(1, PAGE), None, 256);
    for range in [0..256, 300..1000] {
        let weak = || cache.access_weak(&region, range.clone(), by_home).unwrap();
        assert!(weak().is_none());
        drop(cache.access(&region, range.clone(), Access::near(HOME)).unwrap());
        assert!(weak().is_none(), "not ready");
        engine.finish_all();
        let elsewhere = weak().expect("there is a copy, if not where it is wished");
        assert_eq!((elsewhere.location(), elsewhere.started_copy()), (Location::Near(HOME), false));
        assert_eq!(elsewhere.as_slice(), &region.as_slice()[range.clone()]);
        // With the wished one on its way, this is read meanwhile.
        let wished = cache.access(&region, range.clone(), by_home).unwrap();
        assert!(wished.started_copy());
        let coming = weak().unwrap();
        assert_eq!((coming.location(), coming.try_wait()), (Location::Near(HOME), None));
        engine.finish_all();
        assert_eq!((coming.wait(), weak().unwrap().location()), (Location::Near(NEAR), Location::Near(NEAR)));
        // Who names a node means it.
        cache.invalidate(&region, 0..PAGE).unwrap();
        drop(cache.access(&region, range.clone(), Access::near(HOME)).unwrap());
        engine.finish_all();
        assert!(cache.access_weak(&region, range.clone(), Access::near(NEAR)).unwrap().is_none());
        cache.clear();
    }
    // Who sits at the source wants no copy that is farther.
    let region = cache.register_on(pattern(1, PAGE), Some(HOME));
    drop(cache.access(&region, 0..PAGE, Access::near(HOME)).unwrap());
    engine.finish_all();
    assert!(cache.access_weak(&region, 0..PAGE, by_home).unwrap().is_none());
    assert_adds_up(&cache.stats());
}

/// With no copy wanted nothing of the cache is touched but one counter, whatever is asked for.
#[test]
fn what_is_not_placed_leaves_no_trace() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let nowhere = |_: &Machine, _: &Request<'_>| None;
    let cache =
        Cache::builder(mover).budget(HOME, PAGE).budget(NEAR, PAGE).placement(nowhere).build().unwrap();
    let region = cache.register_chunked(pattern(1, PAGE), None, 100);
    for (number, range) in (1..).zip([0..100, 0..PAGE, 5..7, 99..101]) {
        let entry = cache.access(&region, range.clone(), Access::default()).unwrap();
        let view = cache.view(&region, range.clone(), Access::default()).unwrap();
        assert!(cache.access_weak(&region, range.clone(), Access::default()).unwrap().is_none());
        assert_eq!((entry.wait(), view.wait()), (Location::Source(Why::NotPlaced), entry.location()));
        assert_eq!(entry.as_slice().as_ptr(), region.as_slice()[range].as_ptr());
        let stats = cache.stats();
        assert_eq!((stats.accesses, stats.unplaced, stats.misses), (3 * number, 3 * number, 0));
        let is_untouched = |usage: &NodeUsage| usage.peak_bytes == 0 && usage.entries_count == 0;
        assert!(stats.nodes.iter().all(is_untouched) && engine.accepted() == 0, "{stats:?}");
    }
    assert_eq!((cache.flush(), cache.clear(), cache.refresh(&region, 0..PAGE)), (0, 0, Ok(0)));
}
