//! Sources: what changes, is invalidated, drained or dropped, and owners that panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use memferry::cache::{Access, Cache, Location, RegionOwner};
use memferry::internals::{Faults, Faulty};
use memferry::mover::{CpuEngine, CpuOptions, Mover};

use crate::cache_support::{Changing, Mortal, NEAR, PAGE, assert_adds_up, held, machine, pattern, soon};

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

/// Bytes that panic when they are asked for, or when they end, while that is switched on.
struct Panicking {
    bytes: Vec<u8>,
    in_bytes: Arc<AtomicBool>,
    in_drop: Arc<AtomicBool>,
}

// SAFETY: the vector is neither lent mutably nor changed. Who panics returns nothing that could move.
unsafe impl RegionOwner for Panicking {
    fn bytes(&self) -> &[u8] {
        assert!(!self.in_bytes.load(SeqCst), "this panic belongs to the test");
        &self.bytes
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        assert!(!self.in_drop.load(SeqCst), "this panic belongs to the test");
    }
}

/// Who asks gets the panic; nothing stays listed or used, and everybody else goes on.
#[test]
fn an_owner_whose_bytes_panic_hurts_its_own_callers_only() {
    soon(|| {
        let (cache, engine) = held(2);
        let [in_bytes, in_drop]: [Arc<AtomicBool>; 2] = Default::default();
        let owner = || {
            let (in_bytes, in_drop) = (in_bytes.clone(), in_drop.clone());
            Panicking { bytes: pattern(1, PAGE), in_bytes, in_drop }
        };
        let region = cache.register(owner());
        in_bytes.store(true, SeqCst);
        let access = || cache.access(&region, 0..PAGE, Access::default()).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| cache.register(owner()))).is_err());
        for _ in 0..3 {
            assert!(catch_unwind(AssertUnwindSafe(access)).is_err());
        }
        let usage = cache.stats().nodes[0];
        assert_eq!((usage.used_bytes, usage.entries_count, engine.accepted()), (0, 0, 0));
        region.drain();
        in_bytes.store(false, SeqCst);

        // In flight and near it is not asked any more.
        let entry = access();
        in_bytes.store(true, SeqCst);
        engine.finish(0);
        assert_eq!((entry.wait(), entry.as_slice()), (Location::Near(NEAR), &pattern(1, PAGE)[..]));
        let view = cache.view(&region, 10..20, Access::default()).unwrap();
        assert_eq!(view.as_slice(), &pattern(1, PAGE)[10..20]);
        assert_eq!(cache.invalidate(&region, 0..1), Ok(1));
        drop((entry, view, region));
        assert_eq!(cache.stats().nodes[0].used_bytes, 0);
    });
}

/// The last to let go of an owner may be a thread of an engine: it survives, and so does the memory of the copy.
#[test]
fn an_owner_that_panics_as_it_ends_takes_no_engine_along() {
    soon(|| {
        let cpu = CpuEngine::new(&machine(), CpuOptions::default()).unwrap();
        let held = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).unwrap());
        let mover = Mover::builder(machine()).engine(held.clone()).build().unwrap();
        let cache = Cache::builder(mover).budget(NEAR, 4 * PAGE).build().unwrap();
        let owner = || {
            let (in_bytes, in_drop) = (Arc::default(), Arc::new(AtomicBool::new(true)));
            Panicking { bytes: pattern(1, PAGE), in_bytes, in_drop }
        };
        for _ in 0..3 {
            held.hold();
            let region = cache.register(owner());
            drop(cache.access(&region, 0..PAGE, Access::default()).unwrap());
            drop(region);
            let other = cache.register(pattern(2, PAGE));
            let after = cache.access(&other, 0..PAGE, Access::default()).unwrap();
            held.release();
            assert_eq!((after.wait(), after.as_slice()), (Location::Near(NEAR), &pattern(2, PAGE)[..]));
        }
        // On a thread of the program, it is the program's.
        let region = cache.register(owner());
        cache.access(&region, 0..PAGE, Access::default()).unwrap().wait();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(region))).is_err());
        cache.mover().drain().wait().unwrap();
        assert_eq!(cache.stats().nodes[0].used_bytes, 0);
        assert_adds_up(&cache.stats());
    });
}
