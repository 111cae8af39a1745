//! Data that changes: versions, drafts, and readers in between.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use memferry::cache::{
    Access, Cache, CacheMut, Draft, DraftError, Location, NewOnNode, RegionOwner, WriteBackError,
};
use memferry::memory::{Binding, Mapping, MemoryError};
use memferry::mover::{CopyError, Mover};
use memferry::topology::{Machine, NodeId};

use crate::cache_support::{HOME, Held, NEAR, PAGE, assert_adds_up, held, machine, soon};

fn cache(pages: usize) -> Cache {
    Cache::builder(Mover::builder(machine()).build().unwrap()).budget(NEAR, pages * PAGE).build().unwrap()
}

#[test]
fn readers_keep_their_version_and_new_ones_get_the_next() {
    let cache = cache(4);
    let data = CacheMut::new(&cache, vec![1; PAGE], Some(HOME), 0);
    let old = data.read();
    let near = old.access(&cache, 0..PAGE, Access::default()).unwrap();
    assert_eq!((near.wait(), data.version()), (Location::Near(NEAR), 0));

    assert_eq!(data.mutate(|bytes| std::mem::replace(&mut bytes[7], 2)), (1, 1));
    assert_eq!((old.version(), old[7], near.as_slice()[7]), (0, 1, 1));
    let new = data.access(0..PAGE, Access::default()).unwrap();
    new.wait();
    assert_eq!((new.as_slice()[7], new.as_slice()[8], data.version()), (2, 1, 1));
    assert_ne!(
        new.region_id(),
        near.region_id(),
        "a version is a region, so no old copy can pass for a new one"
    );
    assert_eq!(cache.stats().invalidated, 1);
    drop((old, near));
    assert_eq!(cache.stats().nodes[0].used_bytes, PAGE);

    // Versions may differ in length.
    data.mutate(|bytes| bytes.truncate(3));
    assert!(data.access(0..PAGE, Access::default()).is_err());
    let short = data.access(0..3, Access::default()).unwrap();
    short.wait();
    assert_eq!(short.as_slice(), [1; 3]);
    assert_adds_up(&cache.stats());
}

#[test]
fn a_change_that_panics_publishes_nothing() {
    let cache = cache(4);
    let data = CacheMut::new(&cache, vec![1; 10], None, 0);
    let change = |bytes: &mut Vec<u8>| {
        bytes.clear();
        panic!("this panic belongs to the test")
    };
    assert!(catch_unwind(AssertUnwindSafe(|| data.mutate(change))).is_err());
    assert_eq!((data.version(), data.read().len()), (0, 10));
    assert_eq!(data.mutate(|bytes| bytes.push(1)).0, 1);
    assert_eq!(data.read().len(), 11);
}

#[test]
fn a_mutation_waits_for_the_copies_of_the_old_version() {
    soon(|| {
        let (cache, engine) = held(4);
        let data = CacheMut::new(&cache, vec![1; PAGE], None, 0);
        let entry = data.access(0..PAGE, Access::default()).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                data.mutate(|bytes| bytes.fill(2));
                is_over.store(true, SeqCst);
            });
            while data.version() == 0 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            assert!(!is_over.load(SeqCst), "published, but the old copy still flies");
            assert_eq!((data.read()[0], entry.as_slice()[0]), (2, 1));
            engine.finish_all();
        });
        assert_eq!((entry.wait(), entry.as_slice()[0]), (Location::Near(NEAR), 1));
    });
}

/// Who held the old version could keep a mutation waiting for ever, by making copies of it faster than they end.
#[test]
fn a_mutation_waits_for_no_copy_that_is_begun_later() {
    soon(|| {
        let (cache, engine) = held(4);
        let data = CacheMut::new(&cache, vec![1; 2 * PAGE], None, PAGE);
        let old = data.read();
        let first = old.access(&cache, 0..PAGE, Access::default()).unwrap();
        thread::scope(|scope| {
            let mutation = scope.spawn(|| data.mutate(|bytes| bytes.fill(2)));
            while data.version() == 0 {
                thread::yield_now();
            }
            let second = old.access(&cache, PAGE..2 * PAGE, Access::default()).unwrap();
            assert!(second.started_copy());
            engine.finish(0);
            assert_eq!(mutation.join().unwrap(), (1, ()));
            assert_eq!((first.wait(), second.try_wait()), (Location::Near(NEAR), None), "it still flies");
            engine.finish(0);
            assert_eq!((second.wait(), second.as_slice()[0]), (Location::Near(NEAR), 1));
        });
        assert_eq!(cache.stats().nodes[0].entries_count, 0, "copies of the old version leave");
    });
}

#[test]
fn drafts_are_changed_near_and_written_back_unless_outdated() {
    let cache = cache(2);
    let data = CacheMut::new(&cache, vec![1; PAGE + 5], Some(HOME), 0);
    let mut draft = data.draft(NEAR).unwrap();
    draft[3] = 9;
    assert_eq!((data.read()[3], draft.version(), draft.len()), (1, 0, PAGE + 5));
    let second = data.draft(NEAR);
    assert!(
        matches!(second, Err(DraftError::NoRoom { node: NEAR, .. })),
        "a draft counts against the budget"
    );
    assert_eq!(draft.write_back().unwrap(), 1);
    assert_eq!((data.read()[3], data.read()[4], cache.stats().nodes[0].used_bytes), (9, 1, 0));

    let mut draft = data.draft(NEAR).unwrap();
    draft[0] = 7;
    data.mutate(|bytes| bytes[0] = 5);
    let Err(WriteBackError::Outdated { draft }) = draft.write_back() else { panic!("it is outdated") };
    assert_eq!((draft[0], data.read()[0], data.version()), (7, 5, 2));
    drop(draft);
    assert!(matches!(data.draft(HOME), Err(DraftError::Access(_))), "no budget there");
    assert_adds_up(&cache.stats());
}

/// A value that gets the place of its next version, and finds no room at an unknown one.
#[derive(Debug)]
struct Told {
    bytes: Vec<u8>,
    home: NodeId,
}

// SAFETY: the vector is neither lent mutably nor changed while it is shared.
unsafe impl RegionOwner for Told {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Told {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl NewOnNode for Told {
    fn new_on_node(machine: &Machine, node: Option<NodeId>, size_bytes: usize) -> Result<Told, MemoryError> {
        match node {
            Some(home) => Ok(Told { bytes: vec![0; size_bytes], home }),
            None => Err(Mapping::new(machine, usize::MAX, Binding::Any).unwrap_err()),
        }
    }
}

#[test]
fn drafts_are_written_back_to_memory_at_home() {
    let cache = cache(2);
    let told = || Told { bytes: vec![1; PAGE], home: NodeId(9) };
    let data = CacheMut::new(&cache, told(), Some(HOME), 0);
    let mut draft = data.draft(NEAR).unwrap();
    draft[0] = 2;
    assert_eq!(draft.write_back().unwrap(), 1);
    let snapshot = data.read();
    assert_eq!((snapshot.home, &snapshot.as_ref()[..2]), (HOME, &[2, 1][..]));

    let data = CacheMut::new(&cache, told(), None, 0);
    let mut draft = data.draft(NEAR).unwrap();
    draft[0] = 3;
    let error = draft.write_back().unwrap_err();
    let WriteBackError::Memory { source, draft } = error else { panic!("{error:?}") };
    assert!(matches!(*source, MemoryError::Refused { .. }), "{source:?}");
    assert_eq!((draft[0], data.version()), (3, 0));

    // What has a place cannot be cloned, nor changed other than by drafts.
    let mapping = Mapping::new(&machine(), PAGE, Binding::Bind(HOME)).unwrap();
    let data = CacheMut::new(&cache, mapping, Some(HOME), 0);
    let mut draft = data.draft(NEAR).unwrap();
    draft.fill(7);
    assert_eq!(draft.write_back().unwrap(), 1);
    assert_eq!((data.read().binding(), &data.read()[..]), (&Binding::Bind(HOME), &[7; PAGE][..]));
}

/// Once all that had been changed was gone with the first copy that failed.
#[test]
fn a_draft_survives_a_copy_that_fails() {
    soon(|| {
        let (cache, engine) = held(2);
        let data = CacheMut::new(&cache, vec![1; PAGE], None, 0);
        let mut draft = while_copying(&engine, || data.draft(NEAR).unwrap(), Held::finish);
        draft[5] = 6;
        let fail = |error| move |engine: &Held, index| engine.fail(index, error);
        for error in [CopyError::Injected, CopyError::Device { status: 0x1f }] {
            let failed = while_copying(&engine, || draft.write_back().unwrap_err(), fail(error));
            let WriteBackError::Copy { draft: back, source } = failed else { panic!("{failed:?}") };
            assert_eq!((source, back.version(), back[5], back[6], data.version()), (error, 0, 6, 1, 0));
            draft = back;
        }
        assert_eq!(while_copying(&engine, || draft.write_back().unwrap(), Held::finish), 1);
        assert_eq!((data.read()[5], cache.stats().nodes[0].used_bytes), (6, 0));

        // The device may still read it.
        let draft = while_copying(&engine, || data.draft(NEAR).unwrap(), Held::finish);
        let lost = while_copying(&engine, || draft.write_back().unwrap_err(), fail(CopyError::DeviceLost));
        assert!(matches!(lost, WriteBackError::Lost(CopyError::DeviceLost)), "{lost:?}");
        assert!(lost.into_draft().is_none());
        assert_eq!((data.version(), cache.stats().nodes[0].used_bytes), (1, PAGE));
        let refused =
            while_copying(&engine, || data.draft(NEAR).map(|_: Draft| ()), fail(CopyError::Injected));
        assert!(matches!(refused, Err(DraftError::Copy(CopyError::Injected))), "{refused:?}");
    });
}

/// Does what waits for one copy, and ends that.
fn while_copying<R: Send>(
    engine: &Held,
    body: impl FnOnce() -> R + Send,
    end: impl FnOnce(&Held, usize),
) -> R {
    thread::scope(|scope| {
        let body = scope.spawn(body);
        while engine.waiting() == 0 {
            assert!(!body.is_finished(), "nothing was copied");
            thread::yield_now();
        }
        end(engine, 0);
        body.join().unwrap()
    })
}

/// Writers add one to every byte. All bytes of a read, near or not, are of one version, and versions only grow.
#[test]
fn nobody_sees_half_a_mutation() {
    let cache = cache(3);
    let data = CacheMut::new(&cache, vec![0; PAGE], Some(HOME), 0);
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..60 {
                    data.mutate(|bytes| bytes.iter_mut().for_each(|byte| *byte += 1));
                }
            });
        }
        scope.spawn(|| {
            let mut last = 0;
            while last < 120 {
                let snapshot = data.read();
                assert!(snapshot.version() >= last);
                last = snapshot.version();
                let view = snapshot.view(&cache, 0..PAGE, Access::default()).unwrap();
                if last % 2 == 0 {
                    view.wait();
                }
                assert!(view.as_slice().iter().all(|&byte| u64::from(byte) == last));
                reads.fetch_add(1, SeqCst);
            }
        });
    });
    assert!(reads.load(SeqCst) > 0);
    assert_eq!((data.version(), data.read()[PAGE - 1]), (120, 120));
    assert_adds_up(&cache.stats());
}
