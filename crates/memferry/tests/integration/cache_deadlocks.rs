//! The deadlocks that a cache of this kind has had, as ordinary tests: none of them may hang, in any order of threads, and
//! if one fails, panics or ends. Loom models of the same names are in the crate itself.
//!
//! Source: "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", A. C. Fürst, TU Dresden
//! 2024, sections 5.1.3 and 5.1.4.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use memferry::cache::{Access, Cache, Entry, Location, Region, RegionOwner, Why};
use memferry::mover::{CopyError, Mover};

use crate::cache_support::{Mortal, NEAR, PAGE, assert_adds_up, held, machine, pattern, soon};

fn access(cache: &Cache, region: &Region) -> Entry {
    cache.access(region, 0..region.len(), Access::default()).unwrap()
}

/// T1 accesses first and T2 waits first. In the thesis' first draft only T1 could wait for the operation, so T2 hung if
/// T1 never did. Here T1 does nothing at all after its access until T2 is done.
///
/// The budget is one page: what was waited for and let go of must be free for the next round at once, although the
/// engine's thread may not even have returned from reporting the copy.
#[test]
fn blocked_first_waiter() {
    let mover = Mover::builder(machine()).build().unwrap();
    let cache = Cache::builder(mover).budget(NEAR, PAGE).build().unwrap();
    let region = cache.register(pattern(1, PAGE));
    for _ in 0..200 {
        cache.clear();
        let (accessed, first_accessed) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let idler = thread::spawn({
            let (cache, region) = (cache.clone(), region.clone());
            move || {
                let entry = access(&cache, &region);
                accessed.send(()).unwrap();
                ended.recv().unwrap();
                drop(entry);
            }
        });
        first_accessed.recv().unwrap();
        let (cache, region) = (cache.clone(), region.clone());
        assert_eq!(soon(move || access(&cache, &region).wait()), Location::Near(NEAR));
        end.send(()).unwrap();
        idler.join().unwrap();
    }
    assert_adds_up(&cache.stats());
}

/// The thesis' destructor waited for handlers that never came when an entry lost the race to be the first and was
/// destroyed at once. Here entries, region and cache are all dropped while the engine sits on the copy.
#[test]
fn immediate_destruction() {
    let (cache, engine) = held(1);
    let ended = Arc::new(AtomicU64::new(0));
    let owner = Mortal::new(PAGE, 5, &ended);
    soon(move || {
        let region = cache.register(owner);
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    drop(access(&cache, &region));
                });
            }
        });
        assert_eq!(cache.stats().submissions, 1);
        drop((region, cache));
    });
    assert_eq!(ended.load(SeqCst), 0, "the source was freed under the copy");
    engine.finish(0);
    assert_eq!(ended.load(SeqCst), 1, "the source was not freed after the copy");
}

/// In the thesis a failed operation left neither a cache pointer nor handlers to wait on. Here sleepers are let through
/// to the source, and the range is as good as new.
#[test]
fn failed_operation() {
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, PAGE));
    let entry = access(&cache, &region);
    let sleepers: Vec<_> = (0..3)
        .map(|_| {
            let entry = entry.clone();
            thread::spawn(move || soon(move || entry.wait()))
        })
        .collect();
    let awaiting = thread::spawn({
        let entry = entry.clone();
        move || soon(move || futures::executor::block_on(entry.ready()))
    });
    thread::sleep(Duration::from_millis(20));
    engine.fail(0, CopyError::Injected);
    for sleeper in sleepers.into_iter().chain([awaiting]) {
        assert_eq!(sleeper.join().unwrap(), Location::Source(Why::Failed));
    }
    assert_eq!(entry.wait(), Location::Source(Why::Failed), "and whoever comes later");
    let again = access(&cache, &region);
    engine.finish(0);
    assert_eq!(again.wait(), Location::Near(NEAR));
}

/// In the thesis a thread that began to wait between two steps of another slept for ever. Here threads and futures
/// begin to wait at every moment around the end of the copy, many times over.
#[test]
fn lost_wake_up() {
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, PAGE));
    soon(move || {
        for round in 0..500_u64 {
            cache.clear();
            let entry = access(&cache, &region);
            let barrier = Barrier::new(3);
            thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(entry.wait(), Location::Near(NEAR));
                });
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(futures::executor::block_on(entry.ready()), Location::Near(NEAR));
                });
                barrier.wait();
                for _ in 0..round % 50 * 20 {
                    std::hint::spin_loop();
                }
                engine.finish(0);
            });
        }
    });
}

/// An engine that panics: the caller gets the panic, everybody else gets the source, and nothing stays locked.
#[test]
fn panicking_engine() {
    let (cache, engine) = held(1);
    let region = cache.register(pattern(1, PAGE));
    engine.panics.store(true, SeqCst);
    let panicked = catch_unwind(AssertUnwindSafe(|| access(&cache, &region)));
    assert!(panicked.is_err(), "the mover passes panics on");
    engine.panics.store(false, SeqCst);
    assert_eq!(cache.stats().nodes[0].entries_count, 0);
    let entry = access(&cache, &region);
    engine.finish(0);
    assert_eq!(soon(move || entry.wait()), Location::Near(NEAR));
}

/// A policy that panics has changed nothing.
#[test]
fn panicking_policy() {
    let mover = Mover::builder(machine()).build().unwrap();
    let policy = |_: &_, request: &memferry::cache::Request<'_>| {
        assert_ne!(request.size_bytes, 13, "as the test wants");
        Some(NEAR)
    };
    let cache = Cache::builder(mover).budget(NEAR, PAGE).placement(policy).build().unwrap();
    let region = cache.register(pattern(1, 14));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.access(&region, 0..13, Access::default()))).is_err());
    assert_eq!(cache.stats().accesses, 0);
    assert_eq!(access(&cache, &region).wait(), Location::Near(NEAR));
}

/// The source's end runs foreign code on the thread that completes the copy. It may use the cache: no lock is held.
#[test]
fn owner_that_uses_the_cache_as_it_ends() {
    struct Caller {
        cache: Cache,
        bytes: Vec<u8>,
        flushed: mpsc::Sender<usize>,
    }
    // SAFETY: nobody touches the vector until the owner is dropped.
    unsafe impl RegionOwner for Caller {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }
    }
    impl Drop for Caller {
        fn drop(&mut self) {
            let other = self.cache.register(vec![0; 10]);
            drop(access(&self.cache, &other));
            self.flushed.send(self.cache.clear()).unwrap();
        }
    }

    let (cache, engine) = held(2);
    let (flushed, was_flushed) = mpsc::channel();
    let region = cache.register(Caller { cache: cache.clone(), bytes: vec![0; PAGE], flushed });
    drop(access(&cache, &region));
    drop(region);
    soon(move || engine.finish(0));
    assert_eq!(was_flushed.recv(), Ok(1));
}
