//! What one access after the other does: locations, weak forms, flags, lifetimes, room, errors.

mod cache_support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cache_support::{Changing, HOME, Mortal, NEAR, PAGE, assert_adds_up, held, machine, pattern, soon};
use futures::FutureExt;
use memferry::cache::{
    Access, AccessError, BuildError, Cache, FixedNode, Flags, Location, NearestFaster, Request, Why,
};
use memferry::memory::Pool;
use memferry::mover::{CopyError, Mover};
use memferry::topology::{Machine, NodeId};

const IN_FLIGHT: Location = Location::Source(Why::InFlight);

#[test]
fn reads_the_source_until_the_copy_is_there() {
    let (cache, engine) = held(4);
    let bytes: Arc<[u8]> = pattern(1, 3 * PAGE).into();
    let region = cache.register_on(bytes.clone(), Some(HOME));
    let entry = cache.access(&region, 10..5000, Access::default()).unwrap();

    assert_eq!((entry.location(), entry.try_wait(), entry.is_ready()), (IN_FLIGHT, None, false));
    assert_eq!(entry.as_slice().as_ptr(), bytes[10..].as_ptr());
    engine.scribble(0);
    assert_eq!(entry.as_slice(), &bytes[10..5000], "a target is not readable before its copy is complete");

    engine.finish(0);
    assert_eq!((entry.wait(), entry.try_wait()), (Location::Near(NEAR), Some(Location::Near(NEAR))));
    assert!(entry.is_ready());
    assert_ne!(entry.as_slice().as_ptr(), bytes[10..].as_ptr());
    assert_eq!(entry.as_slice(), &bytes[10..5000]);
    assert_eq!((entry.range(), entry.len(), entry.region_id()), (10..5000, 4990, region.id()));
}

#[test]
fn one_range_is_copied_once_and_shared() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, PAGE));
    let first = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    let second = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    assert_eq!(engine.accepted(), 1);
    engine.finish(0);
    assert_eq!(first.as_slice().as_ptr(), second.as_slice().as_ptr());
    drop((first, second));
    assert!(cache.access(&region, 0..PAGE, Access::default()).unwrap().is_ready(), "unused entries stay");

    let stats = cache.stats();
    assert_eq!((stats.accesses, stats.hits_ready, stats.hits_in_flight, stats.misses), (3, 1, 1, 1));
    assert_adds_up(&stats);
}

/// The thesis' cache looked up addresses and ignored sizes.
#[test]
fn a_part_of_a_chunk_is_answered_by_the_chunk_and_nothing_larger_is() {
    let (cache, engine) = held(8);
    let bytes = pattern(1, 4 * PAGE + 100);
    let region = cache.register_chunked(bytes.clone(), Some(HOME), PAGE);
    let access = |range: Range<usize>| cache.access(&region, range, Access::default()).unwrap();
    let chunk = access(PAGE..2 * PAGE);
    let early = access(PAGE + 7..PAGE + 9);
    assert_eq!((early.location(), engine.accepted()), (IN_FLIGHT, 1), "it is on its way with its chunk");
    engine.finish(0);
    assert_eq!(early.as_slice().as_ptr(), chunk.as_slice()[7..].as_ptr());
    for range in [PAGE..2 * PAGE, PAGE..PAGE + 1, 2 * PAGE - 1..2 * PAGE, PAGE + 5..2 * PAGE - 5] {
        let part = access(range.clone());
        assert_eq!((part.location(), part.range()), (Location::Near(NEAR), range.clone()));
        assert_eq!(part.as_slice(), &bytes[range]);
    }
    assert_eq!(engine.accepted(), 1);
    // None of these is inside that chunk; each is copied as it was asked for.
    for (number, range) in
        [PAGE - 1..PAGE + 1, PAGE..2 * PAGE + 1, 3..5, 0..4 * PAGE + 100].into_iter().enumerate()
    {
        let odd = access(range.clone());
        assert_eq!((odd.location(), engine.accepted()), (IN_FLIGHT, number as u64 + 2));
        engine.finish(0);
        assert_eq!(odd.as_slice(), &bytes[range.clone()]);
        assert_eq!(access(range).as_slice().as_ptr(), odd.as_slice().as_ptr());
    }
    let tail = access(4 * PAGE..4 * PAGE + 100);
    engine.finish(0);
    assert_eq!(access(4 * PAGE + 99..4 * PAGE + 100).as_slice().as_ptr(), tail.as_slice()[99..].as_ptr());
    assert_adds_up(&cache.stats());
}

#[test]
fn views_are_hits_that_keep_what_they_borrow() {
    let (cache, engine) = held(2);
    let bytes = pattern(1, 3 * PAGE);
    let region = cache.register_chunked(bytes.clone(), Some(HOME), PAGE);
    let view = |page: usize| cache.view(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
    let first = view(0);
    assert!(first.started_copy() && !first.is_ready());
    assert_eq!((first.location(), first.as_slice()), (IN_FLIGHT, &bytes[..PAGE]));
    engine.finish_all();
    assert_eq!(first.location(), Location::Near(NEAR));
    drop(first);
    drop(view(1));
    engine.finish_all();
    // The first hit after the copy arrived publishes it, the second borrows.
    drop((view(0), view(1)));
    let part = cache.view(&region, 10..20, Access::default()).unwrap();
    assert_eq!(
        (part.as_slice(), part.range(), part.len(), part.generation()),
        (&bytes[10..20], 10..20, 10, 0)
    );
    assert_eq!((part.location(), part.started_copy()), (Location::Near(NEAR), false));

    // Under pressure it stays, and what nobody reads leaves.
    let third = view(2);
    engine.finish_all();
    assert_eq!((third.location(), cache.stats().evictions), (Location::Near(NEAR), 1));
    assert_eq!(view(1).location(), Location::Source(Why::NoRoom), "both pages are borrowed or held");
    assert_eq!(cache.flush(), 0);
    drop(third);

    // Taken from under it, it stays until it is dropped, and then it is gone at once.
    let owned = part.to_owned();
    assert_eq!(cache.invalidate(&region, 0..PAGE), Ok(1));
    assert_eq!(part.as_slice(), &bytes[10..20]);
    drop(part);
    assert_eq!((owned.as_slice(), cache.stats().nodes[0].used_bytes), (&bytes[10..20], 2 * PAGE));
    drop(owned);
    assert_eq!(cache.stats().nodes[0].used_bytes, PAGE);
    drop(view(2));
    let last = view(2);
    assert_eq!(cache.clear(), 1);
    assert_eq!((last.as_slice(), cache.stats().nodes[0].used_bytes), (&bytes[2 * PAGE..], PAGE));
    drop(last);
    assert_eq!(cache.stats().nodes[0].used_bytes, 0);
    assert_adds_up(&cache.stats());
}

/// More than a thread has hazards for: the others are counted, and nobody notices.
#[test]
fn a_thread_may_have_many_views() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, PAGE));
    let view = || cache.view(&region, 0..PAGE, Access::default()).unwrap();
    drop(view());
    engine.finish_all();
    let mut views: Vec<_> = (0..20).map(|_| view()).collect();
    assert!(views.iter().all(|view| view.is_ready() && view.as_slice() == region.as_slice()));
    assert_eq!(cache.clear(), 1);
    while let Some(view) = views.pop() {
        assert_eq!(cache.stats().nodes[0].used_bytes, PAGE);
        assert_eq!(view.as_slice(), region.as_slice());
    }
    assert_eq!(cache.stats().nodes[0].used_bytes, 0);
}

/// Like a forgotten entry: it costs room, until the cache ends.
#[test]
fn a_forgotten_view_only_costs_room() {
    let (cache, engine) = held(4);
    let ended = Arc::new(AtomicU64::new(0));
    let region = cache.register(Mortal::new(PAGE, 1, &ended));
    drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
    engine.finish_all();
    drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
    for _ in 0..2 {
        let view = cache.view(&region, 0..PAGE, Access::default()).unwrap();
        assert!(view.is_ready());
        std::mem::forget(view);
    }
    assert_eq!(cache.flush(), 0);
    drop(region);
    assert_eq!((cache.stats().nodes[0].used_bytes, ended.load(SeqCst)), (PAGE, 0));
    drop(cache);
    assert_eq!(ended.load(SeqCst), 1);

    // Once the address of a slot that was forgotten kept what came to lie there.
    for round in 0..100 {
        let (cache, engine) = held(1);
        let region = cache.register(pattern(1, PAGE));
        drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
        engine.finish_all();
        for _ in 0..2 {
            drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
        }
        if round % 2 == 0 {
            std::mem::forget(cache.view(&region, 0..PAGE, Access::default()).unwrap());
        } else {
            assert_eq!((cache.flush(), cache.stats().nodes[0].used_bytes), (1, 0));
        }
    }
}

#[test]
fn a_refresh_copies_anew_what_was_near() {
    let (cache, engine) = held(8);
    let owner = Changing::new(&[1; 4 * PAGE]);
    let region = cache.register_chunked(owner.clone(), None, PAGE);
    let access = |page: usize| {
        let entry = cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
        engine.finish_all();
        entry
    };
    let old = [0, 1, 2].map(access);
    region.drain();
    // SAFETY: no copy is in flight, and no slice is borrowed.
    unsafe { owner.set(PAGE, 2) };
    assert_eq!(cache.refresh(&region, PAGE - 1..PAGE + 1), Ok(2));
    assert_eq!(engine.accepted(), 5, "without another access");
    engine.finish_all();
    assert_eq!((access(1).as_slice()[0], access(1).generation()), (2, 1));
    assert_eq!((old[1].as_slice()[0], old[1].generation()), (1, 0), "holders keep the version they hold");
    assert_eq!(cache.refresh(&region, 3 * PAGE..4 * PAGE), Ok(0), "nothing was near");
    assert_eq!(
        cache.refresh(&region, 0..4 * PAGE + 1).unwrap_err().to_string().split(' ').next(),
        Some("bytes")
    );
    assert_adds_up(&cache.stats());
}

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

/// A pool may be the program's own: its blocks count against the budget, and are nobody's to evict.
#[test]
fn a_pool_may_be_shared_and_may_refuse() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let pool = Pool::new(machine(), NEAR, 2 * PAGE).unwrap();
    let own = pool.allocate(PAGE + 1).unwrap();
    let cache = Cache::builder(mover).pool(pool.clone()).build().unwrap();
    let region = cache.register(pattern(1, PAGE));
    let access = || cache.access(&region, 0..PAGE, Access::default()).unwrap();
    assert_eq!(access().wait(), Location::Source(Why::NoRoom));
    drop(own);
    let entry = access();
    engine.finish_all();
    assert_eq!((entry.wait(), pool.used_bytes()), (Location::Near(NEAR), PAGE));
    assert_adds_up(&cache.stats());
}

#[test]
fn weak_access_finds_and_starts_nothing() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, PAGE));
    let weak = || cache.access_weak(&region, 0..PAGE, Access::default()).unwrap();
    assert!(weak().is_none());
    let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    assert_eq!(weak().unwrap().location(), IN_FLIGHT);
    engine.finish(0);
    assert_eq!(weak().unwrap().as_slice().as_ptr(), entry.as_slice().as_ptr());
    let stats = cache.stats();
    assert_eq!((stats.absent, stats.hits_in_flight, stats.hits_ready, stats.submissions), (1, 1, 1, 1));
    assert_adds_up(&stats);
}

#[test]
fn weak_wait_looks_once_per_cache_call_or_handle() {
    soon(|| {
        let (cache, engine) = held(4);
        let region = cache.register(pattern(1, 2 * PAGE));
        let call = cache.access(&region, 0..PAGE, Access::flags(Flags::WEAK_WAIT)).unwrap();
        assert_eq!(call.wait(), IN_FLIGHT);
        let mut handle = cache.access(&region, 0..PAGE, Access::default()).unwrap();
        assert_eq!(handle.flags(), Flags::NONE, "flags are the handle's, not the copy's");
        handle.set_flags(Flags::WEAK_WAIT);
        assert_eq!(handle.wait(), IN_FLIGHT);
        engine.finish(0);
        assert_eq!((call.wait(), handle.wait()), (Location::Near(NEAR), Location::Near(NEAR)));

        let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
        let flags = Flags::WEAK_WAIT | Flags::BLOCK_ON_FAULT;
        let cache = Cache::builder(mover).budget(NEAR, PAGE).flags(flags).build().unwrap();
        let region = cache.register(pattern(1, PAGE));
        let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
        assert_eq!((entry.flags(), entry.wait()), (flags, IN_FLIGHT));
        assert!(engine.blocks_on_fault(0), "the flag reaches the engine");
    });
}

#[test]
fn futures_resolve_when_the_copy_ends() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, PAGE));
    let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    let mut settled = Box::pin(entry.clone().into_future());
    assert!(entry.ready().now_or_never().is_none());
    assert!((&mut settled).now_or_never().is_none());
    engine.finish(0);
    assert_eq!(entry.ready().now_or_never(), Some(Location::Near(NEAR)));
    assert_eq!(settled.now_or_never().unwrap().location(), Location::Near(NEAR));
}

#[test]
fn a_failed_copy_answers_with_the_source_and_is_tried_again() {
    for error in [CopyError::Injected, CopyError::Device { status: 0x1f }, CopyError::Abandoned] {
        let (cache, engine) = held(1);
        let bytes = pattern(1, PAGE);
        let region = cache.register(bytes.clone());
        let first = cache.access(&region, 0..PAGE, Access::default()).unwrap();
        engine.fail(0, error);
        assert_eq!(first.wait(), Location::Source(Why::Failed));
        assert_eq!(first.as_slice(), bytes);
        assert_eq!(cache.stats().nodes[0].used_bytes, 0, "the block is back although the entry is held");

        let second = cache.access(&region, 0..PAGE, Access::default()).unwrap();
        engine.finish(0);
        assert_eq!((second.wait(), first.wait()), (Location::Near(NEAR), Location::Source(Why::Failed)));
        assert_eq!(second.as_slice(), bytes);
        let stats = cache.stats();
        assert_eq!((stats.submissions, stats.failed, stats.arrived), (2, 1, 1));
        assert_adds_up(&stats);
    }
}

/// A device that died may still write the target and read the source: neither is ever used for anything else.
#[test]
fn buffers_of_a_lost_device_are_leaked() {
    let (cache, engine) = held(2);
    let ended = Arc::new(AtomicU64::new(0));
    let region = cache.register(Mortal::new(PAGE, 7, &ended));
    let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    engine.fail(0, CopyError::DeviceLost);
    assert_eq!(entry.wait(), Location::Source(Why::Failed));
    drop((entry, region));
    assert_eq!(ended.load(SeqCst), 0);
    assert_eq!(cache.stats().nodes[0].used_bytes, PAGE, "the block stays used for ever");
}

#[test]
fn unused_entries_make_room_and_held_ones_do_not() {
    let (cache, engine) = held(2);
    let region = cache.register(pattern(1, 4 * PAGE));
    let access = |page: usize| {
        let entry = cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
        engine.finish_all();
        entry
    };
    let pinned = access(0);
    drop(access(1));
    let newcomer = access(2);
    assert_eq!((newcomer.location(), cache.stats().evictions), (Location::Near(NEAR), 1));
    let bytes = region.as_slice();
    assert_eq!(pinned.as_slice(), &bytes[..PAGE]);

    let refused = access(3);
    assert_eq!(refused.location(), Location::Source(Why::NoRoom));
    assert!(!refused.started_copy(), "there was no room for a copy");
    assert_eq!(refused.as_slice(), &bytes[3 * PAGE..]);
    drop((pinned, refused));
    assert_eq!(access(3).location(), Location::Near(NEAR), "the answer was for that moment");

    let too_large = cache.access(&region, 0..4 * PAGE, Access::default()).unwrap();
    assert_eq!(too_large.wait(), Location::Source(Why::NoRoom));
    let stats = cache.stats();
    assert_eq!((stats.no_room, stats.evictions, stats.nodes[0].peak_bytes), (2, 2, 2 * PAGE));
    assert_adds_up(&stats);
}

#[test]
fn copies_in_flight_take_room_even_when_nobody_wants_them_any_more() {
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, 2 * PAGE));
    drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
    assert_eq!(cache.clear(), 1);
    assert_eq!(cache.stats().nodes[0].used_bytes, PAGE);
    let second = cache.access(&region, PAGE..2 * PAGE, Access::default()).unwrap();
    assert_eq!(second.location(), Location::Source(Why::NoRoom));
    engine.finish(0);
    assert_eq!(cache.stats().nodes[0].used_bytes, 0);
}

#[test]
fn budgets_of_nodes_are_apart_and_a_range_may_be_near_on_several() {
    let (_, engine) = held(1);
    let mover = Mover::builder(machine()).engine(engine.clone()).build().unwrap();
    let cache = Cache::builder(mover).budget(HOME, PAGE).budget(NEAR, PAGE).build().unwrap();
    let region = cache.register_on(pattern(1, 2 * PAGE), Some(HOME));
    let at_home = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    let near = cache.access(&region, 0..PAGE, Access::near(NEAR)).unwrap();
    engine.finish_all();
    assert_eq!((at_home.location(), near.location()), (Location::Near(HOME), Location::Near(NEAR)));
    let refused = cache.access(&region, PAGE..2 * PAGE, Access::near(HOME)).unwrap();
    assert_eq!(refused.location(), Location::Source(Why::NoRoom));
    drop(near);
    let evicts = cache.access(&region, PAGE..2 * PAGE, Access::near(NEAR)).unwrap();
    engine.finish_all();
    assert!(evicts.is_ready() && at_home.is_ready());
    assert_eq!(cache.stats().nodes.iter().map(|node| node.used_bytes).collect::<Vec<_>>(), [PAGE, PAGE]);
}

#[test]
fn flush_drops_the_unused_and_clear_everything() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, 4 * PAGE));
    let access =
        |page: usize| cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
    let held_entry = access(0);
    drop(access(1));
    engine.finish_all();
    drop(access(2));
    assert_eq!(cache.flush(), 1, "page 0 is held and page 2 in flight");
    assert_eq!(cache.stats().nodes[0].entries_count, 2);
    assert_eq!(cache.clear(), 2);
    assert_eq!(held_entry.as_slice(), &region.as_slice()[..PAGE]);
    assert!(held_entry.is_ready());
    assert!(!access(0).is_ready(), "cleared: the next access copies anew");
    engine.finish_all();
    assert_eq!(cache.stats().dropped, 3);
    assert_adds_up(&cache.stats());
}

#[test]
fn invalidation_finds_what_overlaps_and_holders_keep_their_version() {
    let (cache, engine) = held(8);
    let owner = Changing::new(&[1; 300]);
    let region = cache.register(owner.clone());
    let access = |range: std::ops::Range<usize>| {
        let entry = cache.access(&region, range, Access::default()).unwrap();
        engine.finish_all();
        entry
    };
    let [before, around, after] = [0..100, 50..250, 200..300].map(access);
    region.drain();
    // SAFETY: no copy is in flight, and no slice is borrowed.
    unsafe { owner.set(150, 2) };
    assert_eq!(cache.invalidate(&region, 150..151), Ok(1));
    assert_eq!((region.generation(), around.generation()), (1, 0));
    assert_eq!(around.as_slice()[100], 1, "holders keep the version they hold");
    let renewed = access(50..250);
    assert_eq!((renewed.as_slice()[100], renewed.generation()), (2, 1));
    assert_eq!(access(0..100).as_slice().as_ptr(), before.as_slice().as_ptr(), "the others stay");
    assert_eq!(access(200..300).as_slice().as_ptr(), after.as_slice().as_ptr());

    assert_eq!(cache.invalidate(&region, 100..100), Ok(0), "no byte, no entry");
    assert_eq!(region.generation(), 1);
    assert_eq!(cache.invalidate(&region, 0..300), Ok(3));
    assert_eq!(cache.stats().invalidated, 4);
    assert_adds_up(&cache.stats());
}

#[test]
fn a_drain_ends_with_the_last_copy() {
    let (cache, engine) = held(2);
    let region = cache.register(pattern(1, 2 * PAGE));
    region.drain();
    for page in 0..2 {
        drop(cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap());
    }
    let finished = Arc::new(AtomicU64::new(0));
    let drainer = std::thread::spawn({
        let (region, finished) = (region.clone(), finished.clone());
        move || {
            region.drain();
            finished.load(SeqCst)
        }
    });
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(10));
        finished.fetch_add(1, SeqCst);
        engine.finish(0);
    }
    assert_eq!(drainer.join().unwrap(), 2);
}

#[test]
fn the_last_region_drops_its_entries_and_held_ones_keep_their_bytes() {
    let (cache, engine) = held(4);
    let ended = Arc::new(AtomicU64::new(0));
    let region = cache.register(Mortal::new(3 * PAGE, 7, &ended));
    let expected = pattern(7, 3 * PAGE);
    let access =
        |page: usize| cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
    let near = access(0);
    drop(access(1));
    engine.finish_all();
    let flying = access(2);

    let clone = region.clone();
    drop(region);
    assert_eq!(cache.stats().nodes[0].entries_count, 3, "a clone lives");
    drop(clone);
    assert_eq!(cache.stats().nodes[0].entries_count, 0);
    assert_eq!(cache.stats().nodes[0].used_bytes, 2 * PAGE, "page 1 is gone");
    assert_eq!((near.as_slice(), flying.as_slice()), (&expected[..PAGE], &expected[2 * PAGE..]));
    drop(near);
    drop(flying);
    assert_eq!(ended.load(SeqCst), 0, "a copy still reads the source");
    engine.finish(0);
    assert_eq!(ended.load(SeqCst), 1);
    assert_eq!(cache.stats().nodes[0].used_bytes, 0);
    assert_adds_up(&cache.stats());
}

#[test]
fn entries_outlive_their_cache() {
    let (cache, engine) = held(2);
    let region = cache.register(pattern(3, 2 * PAGE));
    let near = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    engine.finish_all();
    let flying = cache.access(&region, PAGE..2 * PAGE, Access::default()).unwrap();
    drop((cache, region));
    engine.finish_all();
    assert!(near.is_ready() && flying.is_ready());
    assert_eq!([near.as_slice(), flying.as_slice()].concat(), pattern(3, 2 * PAGE));
}

/// Once a copy in flight, which holds its node's index, kept all that was near.
#[test]
fn a_dropped_cache_keeps_nothing_although_a_copy_flies() {
    let (cache, engine) = held(2);
    let ended = Arc::new(AtomicU64::new(0));
    let near = cache.register(Mortal::new(PAGE, 1, &ended));
    drop(cache.access(&near, 0..PAGE, Access::default()).unwrap());
    engine.finish_all();
    let flying = cache.register(Mortal::new(PAGE, 2, &ended));
    drop(cache.access(&flying, 0..PAGE, Access::default()).unwrap());
    drop(cache);
    drop((near, flying));
    assert_eq!(ended.load(SeqCst), 1, "the slot that is near keeps its source");
    engine.finish_all();
    assert_eq!(ended.load(SeqCst), 2);
}

/// Once such an access emptied the cache and was refused all the same.
#[test]
fn a_fragmented_node_loses_few_entries_in_vain() {
    let (cache, engine) = held(64);
    let region = cache.register(pattern(1, 70 * PAGE));
    let entry =
        |page: usize| cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
    let entries: Vec<_> = (0..64).map(entry).collect();
    engine.finish_all();
    let _every_other: Vec<_> = entries.into_iter().step_by(2).collect();
    let refused = cache.access(&region, 65 * PAGE..67 * PAGE, Access::default()).unwrap();
    assert_eq!(refused.location(), Location::Source(Why::NoRoom));
    let stats = cache.stats();
    assert_eq!((stats.no_room, stats.evictions), (1, 2 + 8), "{stats:?}");
    assert_adds_up(&stats);
}

#[test]
fn the_same_address_registered_again_is_another_region() {
    let (cache, engine) = held(4);
    let bytes: Arc<[u8]> = pattern(1, PAGE).into();
    let first = cache.register(bytes.clone());
    drop(cache.access(&first, 0..PAGE, Access::default()).unwrap());
    engine.finish_all();
    let second = cache.register(bytes);
    assert_ne!(first.id(), second.id());
    assert!(!cache.access(&second, 0..PAGE, Access::default()).unwrap().is_ready(), "no false hit");
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
    let builder = || Cache::builder(mover.clone()).placement(NearestFaster);
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
fn bad_requests_are_refused_in_a_sentence_and_change_nothing() {
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, 100));
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..101, 101..101, 60..40, usize::MAX - 1..usize::MAX, usize::MAX..0] {
        let expected = AccessError::OutOfRange { start: range.start, end: range.end, len: 100 };
        assert_eq!(cache.access(&region, range.clone(), Access::default()).unwrap_err(), expected);
        assert_eq!(cache.access_weak(&region, range.clone(), Access::default()).unwrap_err(), expected);
        assert_eq!(cache.invalidate(&region, range), Err(expected));
    }
    let error = cache.access(&region, 0..1, Access::near(NodeId(7))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the cache has no budget on node 7, only on 1; name one of these or give it one when building"
    );

    let (other, _) = held(1);
    let error = other.access(&region, 0..1, Access::default()).unwrap_err();
    assert_eq!(error, AccessError::ForeignRegion { id: region.id() });

    let empty = cache.access(&region, 40..40, Access::default()).unwrap();
    assert_eq!((empty.wait(), empty.as_slice()), (Location::Source(Why::Empty), &[][..]));
    let stats = cache.stats();
    assert_eq!((stats.accesses, stats.unplaced, engine.accepted()), (1, 1, 0));
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

    let cache = builder().budget(NEAR, PAGE).placement(FixedNode(NodeId(9))).build().unwrap();
    let error = cache.access(&cache.register(vec![0; 10]), 0..10, Access::default()).unwrap_err();
    assert_eq!(error, AccessError::NoBudget { node: NodeId(9), nodes: vec![NEAR] });
}

/// On a full node one entry leaves for the next, of the same number of pages: they need not go through the pool.
#[test]
fn who_evicts_takes_over_the_pages() {
    let pool = Pool::new(machine(), NEAR, 2 * PAGE).unwrap();
    let mover = Mover::builder(machine()).build().unwrap();
    let cache = Cache::builder(mover).pool(pool.clone()).build().unwrap();
    let bytes = pattern(1, 8 * PAGE);
    let region = cache.register(bytes.clone());
    let read = |range: Range<usize>| {
        let entry = cache.access(&region, range.clone(), Access::default()).unwrap();
        assert_eq!((entry.wait(), entry.as_slice()), (Location::Near(NEAR), &bytes[range]));
    };
    (0..6).for_each(|page| read(page * PAGE..page * PAGE + [PAGE, 100][page % 2]));
    assert_eq!((cache.stats().evictions, pool.stats().allocated_count), (4, 2));
    assert_eq!((pool.stats().blocks_count, pool.used_bytes()), (2, 2 * PAGE));
    // Two pages for one: these do.
    read(6 * PAGE..8 * PAGE);
    assert_eq!((cache.stats().evictions, pool.stats().allocated_count), (6, 3));
    cache.clear();
    assert_eq!((pool.stats().blocks_count, pool.used_bytes()), (0, 0));
}
