//! Models of slot, flight, index and directory under every interleaving of loom.
//!
//! They run the code of this module. The near memory is a [`Probe`], which loom watches, and the engine is the accessing
//! thread or another one. The deadlocks have the names of sections 5.1.3 and 5.1.4 of Fürst's thesis.
#![allow(unsafe_code)]

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};

use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};

use super::directory::Guard;
use super::entry::Why;
use super::flight::{CopyCompletion, Flight};
use super::index::{Found, Index};
use super::readers::{Readers, Record};
use super::region::{RegionOwner, Source};
use super::slot::{Outcome, Slot};
use super::stats::Counters;
use crate::mover::{CopyError, CopyReport};
use crate::sync::{Arc, Latch, Place};

const CONTENT: u8 = 0xA5;
const ARRIVED: CopyCompletion =
    CopyCompletion::Copied(CopyReport { cpu_bytes: 1, dsa_bytes: 0, file_bytes: 0 });

/// A near block of one byte. Loom fails a model that reads it while it is written.
struct Probe {
    byte: UnsafeCell<u8>,
    used: StdArc<AtomicUsize>,
}

// SAFETY: the claim under test. Loom watches the cell and fails the model if two threads use it without order.
unsafe impl Sync for Probe {}

impl Probe {
    fn new(used: &StdArc<AtomicUsize>) -> Probe {
        used.fetch_add(1, SeqCst);
        Probe { byte: UnsafeCell::new(0), used: used.clone() }
    }

    fn read(&self) -> u8 {
        // SAFETY: loom checks that no write is concurrent.
        self.byte.with(|byte| unsafe { *byte })
    }

    fn write(&self, value: u8) {
        // SAFETY: loom checks that nothing else is concurrent.
        self.byte.with_mut(|byte| unsafe { *byte = value });
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.write(0xDD);
        self.used.fetch_sub(1, SeqCst);
    }
}

/// An owner that records its drop.
struct Owner {
    gone: StdArc<AtomicBool>,
}

// SAFETY: the bytes are static.
unsafe impl RegionOwner for Owner {
    fn bytes(&self) -> &[u8] {
        assert!(!self.gone.load(SeqCst), "the source was read after its end");
        &[CONTENT; 4]
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.gone.store(true, SeqCst);
    }
}

/// A cache of one node without pool and mover.
#[derive(Clone)]
struct World {
    readers: &'static Readers,
    index: Arc<Index<Probe>>,
    counters: StdArc<Counters>,
    used: StdArc<AtomicUsize>,
    gone: StdArc<AtomicBool>,
}

impl World {
    fn new() -> (World, StdArc<Source<Probe>>) {
        World::with_nodes(1)
    }

    fn claim(&self) -> &'static Record {
        self.readers.claim().expect("nothing forks here")
    }

    /// A world of several nodes; the index is that of the first.
    fn with_nodes(nodes_count: usize) -> (World, StdArc<Source<Probe>>) {
        // Like the builder of a mover: objects made before would count as those of another process.
        memferry_dsa::internals::fork::watch().unwrap();
        let gone = StdArc::new(AtomicBool::new(false));
        let source =
            StdArc::new(Source::new(StdArc::new(Owner { gone: gone.clone() }), None, 1, nodes_count));
        let readers = Readers::new();
        let world = World {
            readers,
            index: Arc::new(Index::new(0, readers)),
            counters: StdArc::default(),
            used: StdArc::default(),
            gone,
        };
        (world, source)
    }

    /// `Cache::access` without submission: the slot, and its flight on a miss.
    fn access(&self, source: &StdArc<Source<Probe>>) -> (Arc<Slot<Probe>>, Option<Flight<Probe>>) {
        match self.index.find_or_insert(source, &(0..1), || Slot::in_flight(source, 0..1)) {
            Found::Known(slot) => (slot, None),
            Found::New(slot) => {
                (slot.clone(), Some(Flight::new(slot, self.index.clone(), self.counters.clone())))
            }
        }
    }

    /// `Cache::access` with an engine that completes on the accessing thread.
    fn access_at_once(&self, source: &StdArc<Source<Probe>>, completion: CopyCompletion) -> Arc<Slot<Probe>> {
        let (slot, flight) = self.access(source);
        if let Some(flight) = flight {
            self.carry(flight, completion);
        }
        slot
    }

    /// A world in which the range is near and published.
    fn ready() -> (World, StdArc<Source<Probe>>) {
        let (world, source) = World::new();
        drop(world.access_at_once(&source, ARRIVED));
        assert!(world.index.find(&source, &(0..1)).is_some());
        (world, source)
    }

    /// The hit path.
    fn guard(&self, source: &Source<Probe>, record: &'static Record) -> Option<Guard<'_, Probe>> {
        self.index.guard(source, &(0..1), record)
    }

    /// Completes a flight like an engine.
    fn carry(&self, mut flight: Flight<Probe>, completion: CopyCompletion) {
        let value = flight.slot().source_bytes()[0];
        let probe = flight.set_block(Probe::new(&self.used));
        probe.write(value);
        flight.complete(completion);
    }

    /// A thread that completes the flight.
    fn engine(&self, flight: Flight<Probe>, completion: CopyCompletion) -> JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || world.carry(flight, completion))
    }

    /// Another thread with the same world and source.
    fn beside<T: 'static>(
        &self,
        source: &StdArc<Source<Probe>>,
        acts: impl FnOnce(&World, &StdArc<Source<Probe>>) -> T + 'static,
    ) -> JoinHandle<T> {
        let (world, source) = (self.clone(), source.clone());
        thread::spawn(move || acts(&world, &source))
    }

    /// Checks that all memory and the source are freed.
    fn assert_empty(self) {
        drop(self.index.remove_all());
        assert_eq!(self.used.load(SeqCst), 0, "near memory was not freed");
        assert!(self.gone.load(SeqCst), "the source was not freed");
    }
}

/// The byte that `Entry::as_slice` reads.
fn read(slot: &Slot<Probe>) -> u8 {
    slot.near().map_or_else(|| slot.source_bytes()[0], Probe::read)
}

/// Reads under a guard, if the slot is published.
fn reads_under_guard(world: &World, source: &StdArc<Source<Probe>>) {
    if let Some(guard) = world.guard(source, world.claim()) {
        assert_eq!(guard.published().read(), CONTENT);
    }
}

/// Makes a counted handle of a guard.
fn upgrades(world: &World, source: &StdArc<Source<Probe>>) -> Option<Arc<Slot<Probe>>> {
    let guard = world.guard(source, world.claim())?;
    let owned = guard.to_owned();
    drop(guard);
    Some(owned)
}

/// One thread accesses and never waits; another one waits, before or after the first and before or after the submission.
/// Both read the right byte, and there is one submission.
#[test]
fn blocked_first_waiter() {
    loom::model(|| {
        let (world, source) = World::new();
        let waiter = world.beside(&source, |world, source| {
            let slot = world.access_at_once(source, ARRIVED);
            slot.wait();
            assert_eq!(slot.near().map(Probe::read), Some(CONTENT));
        });
        assert_eq!(read(&world.access_at_once(&source, ARRIVED)), CONTENT);
        waiter.join().unwrap();
        assert_eq!(world.counters.submissions.get(), 1);
        drop(source);
        world.assert_empty();
    });
}

/// Entry, region and cache are dropped while the copy is in flight: nothing blocks, and source and target are dropped
/// once, after the copy.
#[test]
fn immediate_destruction() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        drop(slot);
        drop(world.index.remove_source(&source));
        drop(source);
        engine.join().unwrap();
        world.assert_empty();
    });
}

/// A copy fails: waiters wake and read the source, and their next access starts a new copy.
#[test]
fn failed_operation() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), CopyCompletion::Failed(CopyError::Injected));
        slot.wait();
        assert!(matches!(slot.outcome(), Some(Outcome::Source(Why::Failed))));
        assert_eq!(read(&slot), CONTENT);
        let again = world.access_at_once(&source, ARRIVED);
        assert!(again.near().is_some(), "a failure must not poison the range");
        engine.join().unwrap();
        assert_eq!((world.counters.submissions.get(), world.counters.failed.get()), (2, 1));
        drop((slot, again, source));
        world.assert_empty();
    });
}

/// A sleeping thread and a future wait for the same copy: both wake on its completion.
#[test]
fn lost_wake_up() {
    struct Alarm(Latch);
    impl Wake for Alarm {
        fn wake(self: StdArc<Self>) {
            self.0.set();
        }
    }

    // Without the bound it passes as well, in minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let sleeper = thread::spawn({
            let slot = slot.clone();
            move || {
                slot.wait();
                assert_eq!(read(&slot), CONTENT);
            }
        });
        let engine = world.engine(flight.unwrap(), ARRIVED);
        let alarm = StdArc::new(Alarm(Latch::new()));
        let mut place = Place::default();
        if !slot.poll(&mut place, &Waker::from(alarm.clone())) {
            alarm.0.wait();
            assert!(slot.poll(&mut place, Waker::noop()), "woken too early");
        }
        assert_eq!(read(&slot), CONTENT);
        sleeper.join().unwrap();
        engine.join().unwrap();
        drop((slot, source));
        world.assert_empty();
    });
}

/// A dropped flight, as after a panic, wakes waiters and leaks memory that may still be written.
#[test]
fn lost_flight() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = thread::spawn({
            let used = world.used.clone();
            move || {
                let mut flight = flight.unwrap();
                flight.set_block(Probe::new(&used));
                drop(flight);
            }
        });
        slot.wait();
        assert_eq!(read(&slot), CONTENT);
        engine.join().unwrap();
        drop((slot, source));
        assert_eq!(world.used.load(SeqCst), 1, "the target may still be written");
        assert!(!world.gone.load(SeqCst), "the source may still be read");
    });
}

/// An eviction during a lookup: the slot is evicted and made again, or it is held and stays.
#[test]
fn eviction_against_hit() {
    loom::model(|| {
        let (world, source) = World::new();
        drop(world.access_at_once(&source, ARRIVED));
        let evictor = thread::spawn({
            let world = world.clone();
            move || {
                let victims = world.index.evict(1, |_| 1);
                for mut victim in victims {
                    assert!(Arc::get_mut(&mut victim).is_some(), "a held slot was evicted");
                }
            }
        });
        let slot = world.access_at_once(&source, ARRIVED);
        assert_eq!(read(&slot), CONTENT);
        evictor.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 1);
        drop((slot, source));
        world.assert_empty();
    });
}

/// The range is invalidated while its copy is in flight: holders keep that copy, the next access makes another.
#[test]
fn invalidation_against_completion() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), CopyCompletion::Failed(CopyError::Injected));
        source.bump();
        drop(world.index.remove_overlapping(&source, &(0..1)));
        let again = world.access_at_once(&source, ARRIVED);
        assert_eq!((slot.generation, again.generation), (0, 1));
        engine.join().unwrap();
        assert_eq!(world.index.len(), 1, "the failed slot must not remove its successor");
        drop((slot, again, source));
        world.assert_empty();
    });
}

/// After a drain no copy reads the source: it can be dropped or written.
#[test]
fn drain_against_completion() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        source.flights.drain().wait().unwrap();
        assert_eq!(world.used.load(SeqCst), 1, "the copy is still in flight");
        slot.wait();
        assert!(slot.near().is_some());
        engine.join().unwrap();
        drop((slot, source));
        world.assert_empty();
    });
}

/// A drain waits for earlier flights, and for no later ones.
#[test]
fn drain_against_a_later_flight() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let drain = source.flights.drain();
        let other = 1..2;
        let Found::New(later) =
            world.index.find_or_insert(&source, &other, || Slot::in_flight(&source, other.clone()))
        else {
            unreachable!("the first access misses")
        };
        let later = Flight::new(later, world.index.clone(), world.counters.clone());
        let engine = world.engine(flight.unwrap(), ARRIVED);
        drain.wait().unwrap();
        assert_eq!(world.used.load(SeqCst), 1, "the copy is still in flight");
        engine.join().unwrap();
        assert!(slot.near().is_some());
        world.carry(later, ARRIVED);
        drop((slot, source));
        world.assert_empty();
    });
}

/// A waiter that drops its entry drops the last reference: the flight keeps no memory back.
#[test]
fn release_after_wait() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        slot.wait();
        drop(slot);
        assert_eq!(world.index.evict(1, |_| 1).len(), 1, "the slot is still held");
        assert_eq!(world.used.load(SeqCst), 0);
        drop(source);
        assert!(world.gone.load(SeqCst), "the source is still held");
        engine.join().unwrap();
        world.assert_empty();
    });
}

/// A read under a guard is intact during an eviction, and an evicted slot is freed at once.
#[test]
fn guard_against_eviction() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, |world, source| {
            match world.guard(source, world.claim()) {
                Some(guard) => assert_eq!(guard.published().read(), CONTENT),
                // Hidden, for good or for a moment: the lookup under the lock decides.
                None => return world.index.find(source, &(0..1)).is_some(),
            }
            true
        });
        let victims = world.index.evict(1, |_| 1);
        let is_evicted = !victims.is_empty();
        for mut victim in victims {
            assert!(Arc::get_mut(&mut victim).is_some(), "a held slot was evicted");
        }
        assert_eq!(world.used.load(SeqCst), usize::from(!is_evicted), "an evicted slot is free at once");
        assert!(reader.join().unwrap() || is_evicted, "a slot that stays is found");
        drop(source);
        world.assert_empty();
    });
}

/// A slot is removed during a read: it stays until the guard ends, and the guard frees it.
#[test]
fn guard_against_invalidation() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, reads_under_guard);
        drop(world.index.remove_overlapping(&source, &(0..1)));
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "no guard reads it, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// The system refuses the remover's half of the fence for a time: hidden slots are kept until a fence has run, whichever
/// thread checks before.
#[test]
fn guard_against_removers_without_a_fence() {
    loom::model(|| {
        let (world, source) = World::ready();
        world.readers.fails_fences.store(true, SeqCst);
        let reader = world.beside(&source, reads_under_guard);
        assert!(world.index.evict(1, |_| 1).is_empty());
        assert!(world.index.evict(1, |_| 1).is_empty(), "hidden, and not fenced since");
        drop(world.index.remove_overlapping(&source, &(0..1)));
        world.index.reclaim();
        assert_eq!(world.used.load(SeqCst), 1, "it was freed, and may be read");
        world.readers.fails_fences.store(false, SeqCst);
        world.index.catch_up();
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "no guard reads it, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// All other holders drop theirs while a reader makes a counted handle of its guard: the index keeps one count until the
/// guard has ended.
#[test]
fn upgrade_against_the_last_count() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, upgrades);
        drop(world.index.remove_all());
        let owned = reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), usize::from(owned.is_some()));
        if let Some(mut owned) = owned {
            assert_eq!(read(&owned), CONTENT);
            assert!(Arc::get_mut(&mut owned).is_some(), "the index still holds it");
        }
        drop(source);
        world.assert_empty();
    });
}

/// The same during an eviction, which must see the guard or the count that it became.
#[test]
fn upgrade_against_eviction() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, upgrades);
        let victims = world.index.evict(1, |_| 1);
        let is_evicted = !victims.is_empty();
        drop(victims);
        let owned = reader.join().unwrap();
        assert!(owned.is_none() || !is_evicted, "a held slot was evicted");
        assert!(owned.is_none_or(|owned| read(&owned) == CONTENT));
        assert_eq!(world.used.load(SeqCst), usize::from(!is_evicted));
        drop(source);
        world.assert_empty();
    });
}

/// Two guards of one thread in turn; the second slot replaces the first one between them. An address in a hazard does not
/// protect the former slot.
#[test]
fn a_hazard_is_used_again() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, |world, source| {
            let record = world.claim();
            for _ in 0..2 {
                if let Some(guard) = world.guard(source, record) {
                    assert_eq!(guard.published().read(), CONTENT);
                }
            }
        });
        drop(world.index.remove_overlapping(&source, &(0..1)));
        drop(world.access_at_once(&source, ARRIVED));
        assert!(world.index.find(&source, &(0..1)).is_some());
        drop(world.index.remove_overlapping(&source, &(0..1)));
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0);
        drop(source);
        world.assert_empty();
    });
}

/// Two readers and one remover: the last of them frees the slot.
#[test]
fn two_guards_against_invalidation() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (world, source) = World::ready();
        let readers: Vec<_> = (0..2).map(|_| world.beside(&source, reads_under_guard)).collect();
        drop(world.index.remove_overlapping(&source, &(0..1)));
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(world.used.load(SeqCst), 0);
        drop(source);
        world.assert_empty();
    });
}

/// With several nodes a completion publishes the slot after it has woken waiters. By then the slot may be removed.
#[test]
fn publication_against_invalidation() {
    loom::model(|| {
        let (world, source) = World::with_nodes(2);
        // Makes the directory's cells, in the `OnceLock` of std, whose ordering loom does not model.
        drop(world.access_at_once(&source, ARRIVED));
        drop(world.index.remove_overlapping(&source, &(0..1)));
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        slot.wait();
        drop(slot);
        let record = world.claim();
        if let Some(guard) = world.guard(&source, record) {
            assert_eq!(guard.published().read(), CONTENT);
        }
        drop(world.index.remove_overlapping(&source, &(0..1)));
        assert_eq!(world.used.load(SeqCst), 0, "the slot is still held");
        assert!(world.guard(&source, record).is_none(), "published after its removal");
        engine.join().unwrap();
        assert!(world.guard(&source, record).is_none(), "published after its removal");
        drop(source);
        world.assert_empty();
    });
}

/// With several nodes a completed copy is published before the first hit.
#[test]
fn a_completion_is_published() {
    loom::model(|| {
        let (world, source) = World::with_nodes(2);
        drop(world.access_at_once(&source, ARRIVED));
        assert!(world.guard(&source, world.claim()).is_some());
        drop(source);
        world.assert_empty();
    });
}

/// One thread gives its record back, another claims it, and a remover sees every thread with a guard.
#[test]
fn a_record_changes_hands() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, source) = World::ready();
        let passing = |world: &World, source: &StdArc<Source<Probe>>| {
            let record = world.claim();
            if let Some(guard) = world.guard(source, record) {
                assert_eq!(guard.published().read(), CONTENT);
            }
            assert!(world.readers.give_back(record));
        };
        let others: Vec<_> = (0..2).map(|_| world.beside(&source, passing)).collect();
        drop(world.index.remove_overlapping(&source, &(0..1)));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.used.load(SeqCst), 0, "no guard reads it, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// A thread gives its record back while it has a guard, as with a view in a thread-local that is dropped later. The next
/// thread resets the `wanted` of that guard if it gets the same hazard.
#[test]
fn a_guard_outlives_its_thread() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (world, source) = World::ready();
        let ending = world.beside(&source, |world, source| {
            let record = world.claim();
            let guard = world.guard(source, record);
            let has_guard = guard.is_some();
            assert_ne!(world.readers.give_back(record), has_guard);
            if let Some(guard) = guard {
                assert_eq!(guard.published().read(), CONTENT);
                drop(guard);
                assert!(world.readers.give_back(record));
            }
        });
        let next = world.beside(&source, reads_under_guard);
        drop(world.index.remove_overlapping(&source, &(0..1)));
        ending.join().unwrap();
        next.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "no guard reads it, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}
