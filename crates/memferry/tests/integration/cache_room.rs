//! Budgets: who leaves when room is needed, who stays, and what happens if there is none.

use std::ops::Range;
use std::sync::Arc;

use memferry::cache::{Access, Cache, Location, Why};
use memferry::memory::{Binding, Mapping, MappingOptions, Pool};
use memferry::mover::Mover;
use memferry::topology::Machine;
use memferry_testing::{Needs, skip};

use crate::cache_support::{HOME, NEAR, PAGE, assert_adds_up, held, machine, pattern};
use crate::refusing::refusing;

/// A pool may be the program's own: its blocks count against the budget, and are never evicted.
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

/// The kernel gives no pages: the answer is the source, and no entry is evicted in vain.
#[test]
fn memory_that_is_refused_is_no_room_and_evicts_nobody() {
    const CHUNK: usize = 2 << 20;
    let pool = Pool::new(machine(), NEAR, 3 * CHUNK).unwrap();
    let mover = Mover::builder(machine()).build().unwrap();
    let cache = Cache::builder(mover).pool(pool.clone()).build().unwrap();
    let region = cache.register_chunked(pattern(1, 3 * CHUNK), None, CHUNK);
    let access = |chunk: usize| {
        let range = chunk * CHUNK..(chunk + 1) * CHUNK;
        let entry = cache.access(&region, range.clone(), Access::default()).unwrap();
        entry.wait();
        assert!(entry.as_slice() == &region.as_slice()[range]);
        entry.location()
    };
    assert_eq!(access(0), Location::Near(NEAR));
    let populate = (libc::SYS_madvise, 2, libc::MADV_POPULATE_WRITE as u32, libc::ENOMEM);
    let Some(refused) = refusing(&[populate], || access(1)) else { return };
    assert_eq!(refused, Location::Source(Why::NoRoom));
    let stats = cache.stats();
    assert_eq!((stats.no_room, stats.evictions, pool.stats().refused_count), (1, 0, 1));
    assert_eq!(
        (access(0), access(1)),
        (Location::Near(NEAR), Location::Near(NEAR)),
        "it was for that moment"
    );
    assert_adds_up(&cache.stats());
}

/// A budget that this machine cannot keep: as with one that is used up, what could leave would not do, and stays.
#[test]
fn a_machine_with_less_memory_than_the_budget_has_no_room() {
    let machine = Arc::new(Machine::discover().unwrap());
    let with_memory = machine.nodes().iter().find(|node| node.is_allowed && node.memory_bytes > Some(0));
    let node = with_memory.expect("this machine has memory");
    let all_bytes = node.memory_bytes.expect("it was looked at") as usize / PAGE * PAGE;
    let mover = Mover::builder(machine.clone()).build().unwrap();
    let cache = Cache::builder(mover).budget(node.id, all_bytes).build().unwrap();
    // Addresses without pages, which no test reads.
    let options = MappingOptions { populate: false, ..MappingOptions::from(Binding::Any) };
    let huge = match Mapping::with(&machine, all_bytes, options) {
        Ok(huge) => cache.register(huge),
        Err(error) => return skip(Needs::Memory, error),
    };
    let small = cache.register(pattern(1, PAGE));
    let access = |region| cache.access(region, 0..region.len(), Access::default()).unwrap().wait();
    assert_eq!(access(&small), Location::Near(node.id));
    // With a page of it gone, by the budget it would fit.
    let huge_part = cache.access(&huge, 0..all_bytes - PAGE, Access::default()).unwrap();
    assert_eq!(huge_part.wait(), Location::Source(Why::NoRoom));
    assert_eq!(access(&small), Location::Near(node.id));
    let stats = cache.stats();
    assert_eq!((stats.no_room, stats.evictions, stats.hits_ready), (1, 0, 1));
    assert_eq!(stats.nodes[0].used_bytes, PAGE);
}

/// A thread may not call membarrier(2): the entries that it removes stay in memory, because a reader may have found them
/// before, until a thread that may call it needs room.
#[test]
fn without_a_fence_nothing_is_freed() {
    let (cache, engine) = held(1);
    let region = cache.register_chunked(pattern(1, 2 * PAGE), None, PAGE);
    let access = |page: usize| {
        let entry = cache.access(&region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
        engine.finish_all();
        entry.location()
    };
    // Copied, then published.
    assert_eq!([access(0), access(0)], [Location::Near(NEAR); 2]);
    let forbidden = (libc::SYS_membarrier, 0, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32, libc::EPERM);
    let used_bytes = || cache.stats().nodes[0].used_bytes;
    let outcome = refusing(&[forbidden], || {
        let unused = (access(1), cache.flush());
        (unused, cache.clear(), used_bytes(), access(1))
    });
    let Some(outcome) = outcome else { return };
    let no_room = Location::Source(Why::NoRoom);
    if outcome.0.0 == Location::Near(NEAR) {
        return skip(Needs::Kernel("membarrier"), "this kernel has none, and the cache does not call it");
    }
    assert_eq!(outcome, ((no_room, 0), 1, PAGE, no_room));
    assert_eq!(access(1), Location::Near(NEAR), "the page of what was taken out");
    assert_adds_up(&cache.stats());
}
