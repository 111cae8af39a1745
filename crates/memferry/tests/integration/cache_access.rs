//! What one access after the other reads: near copies and parts of them, views, weak forms, options, failures, bad requests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use futures::FutureExt;
use memferry::cache::{Access, AccessError, Location, Why};
use memferry::mover::{Consumer, CopyError, Route};
use memferry::topology::NodeId;

use crate::cache_support::{HOME, Mortal, NEAR, PAGE, assert_adds_up, held, pattern};

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

#[test]
fn what_is_near_or_on_its_way_can_be_asked_for() {
    let (cache, engine) = held(16);
    let region = cache.register_chunked(pattern(1, 6 * PAGE), Some(HOME), PAGE);
    let other = cache.register(pattern(2, PAGE));
    let near = || cache.near_bytes(&region, NEAR).unwrap();
    let access = |range: Range<usize>| cache.access(&region, range, Access::default()).unwrap();
    assert_eq!(near(), 0);
    let _held = [access(PAGE..2 * PAGE), cache.access(&other, 0..PAGE, Access::default()).unwrap()];
    assert_eq!(near(), PAGE, "on its way");
    engine.finish_all();
    assert_eq!(near(), PAGE, "there");
    let _overlapping =
        [access(PAGE / 2..3 * PAGE), access(2 * PAGE..2 * PAGE + 7), access(5 * PAGE..6 * PAGE)];
    engine.finish_all();
    assert_eq!(near(), 5 * PAGE / 2 + PAGE, "no byte counts twice");
    let before = cache.stats();
    near();
    assert_eq!(cache.stats(), before, "it is no access");
    cache.clear();
    assert_eq!(near(), 0);
    assert!(matches!(cache.near_bytes(&region, NodeId(7)), Err(AccessError::NoBudget { .. })));
    let foreign = held(1).0.register(pattern(1, PAGE));
    assert!(matches!(cache.near_bytes(&foreign, NEAR), Err(AccessError::ForeignRegion { .. })));
}

#[test]
fn a_copy_takes_the_wishes_of_the_access_that_starts_it() {
    let (cache, engine) = held(2);
    let region = cache.register_chunked(pattern(1, 2 * PAGE), Some(HOME), PAGE);
    for (chunk, route, consumer) in
        [(0, None, Consumer::Later), (1, Some(Route::PushPull), Consumer::CoresSoon)]
    {
        let access = Access { route, consumer, ..Access::near(NEAR) };
        let _entry = cache.access(&region, chunk * PAGE..(chunk + 1) * PAGE, access).unwrap();
        assert_eq!(engine.route(chunk), route);
        assert_eq!(engine.goes_into_cache(chunk), consumer == Consumer::CoresSoon);
    }
    engine.finish_all();
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
fn block_on_fault_reaches_the_engine() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, 2 * PAGE));
    cache.access(&region, 0..PAGE, Access::default()).unwrap();
    let access = Access { block_on_fault: true, ..Access::default() };
    cache.access(&region, PAGE..2 * PAGE, access).unwrap();
    assert!(!engine.blocks_on_fault(0) && engine.blocks_on_fault(1));
}

#[test]
fn futures_resolve_when_the_copy_ends() {
    let (cache, engine) = held(4);
    let region = cache.register(pattern(1, PAGE));
    let entry = cache.access(&region, 0..PAGE, Access::default()).unwrap();
    let clone = entry.clone();
    let mut ready = Box::pin(clone.ready());
    assert!(entry.ready().now_or_never().is_none());
    assert!((&mut ready).now_or_never().is_none());
    engine.finish(0);
    assert_eq!(entry.ready().now_or_never(), Some(Location::Near(NEAR)));
    assert_eq!(ready.now_or_never(), Some(Location::Near(NEAR)));
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
        "the cache has no budget on node 7, only on 1; pass one of these nodes, or add a budget to the builder"
    );

    let (other, _) = held(1);
    let error = other.access(&region, 0..1, Access::default()).unwrap_err();
    assert_eq!(error, AccessError::ForeignRegion { id: region.id() });

    let empty = cache.access(&region, 40..40, Access::default()).unwrap();
    assert_eq!((empty.wait(), empty.as_slice()), (Location::Source(Why::Empty), &[][..]));
    let stats = cache.stats();
    assert_eq!((stats.accesses, stats.unplaced, engine.accepted()), (1, 1, 0));
}
