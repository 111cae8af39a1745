//! Models of slot, flight, index and directory under every interleaving that loom knows.
//!
//! They run the code of this module; only the near memory is a [`Probe`], which loom watches, and the engine is either
//! the accessing thread itself or one more thread. The names of the deadlocks are those of sections 5.1.3 and 5.1.4 of
//! Fürst's thesis.
#![allow(unsafe_code)]

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};

use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};

use super::directory::Guard;
use super::entry::Why;
use super::flight::{Flight, Landing};
use super::index::{Found, Index};
use super::readers::{Readers, Record};
use super::region::{RegionOwner, Source};
use super::slot::{Outcome, Slot};
use super::stats::Counters;
use crate::mover::CopyReport;
use crate::sync::{Arc, Latch, Place};

const CONTENT: u8 = 0xA5;
const ARRIVED: Landing = Landing::Arrived(CopyReport { cpu_bytes: 1, dsa_bytes: 0 });

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

/// Bytes that tell when they are gone.
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

    /// The index is the first node's.
    fn with_nodes(nodes_count: usize) -> (World, StdArc<Source<Probe>>) {
        // As building a mover does: what is made before would count as another process'.
        memferry_dsa::fork::watch().unwrap();
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

    /// `Cache::access`, up to and including who has to submit.
    fn access(&self, source: &StdArc<Source<Probe>>) -> (Arc<Slot<Probe>>, Option<Flight<Probe>>) {
        match self.index.find_or_insert(source, &(0..1), || Slot::in_flight(source, 0..1)) {
            Found::Known(slot) => (slot, None),
            Found::New(slot) => {
                (slot.clone(), Some(Flight::new(slot, self.index.clone(), self.counters.clone())))
            }
        }
    }

    /// `Cache::access` with an engine that copies, or fails to, on the accessing thread.
    fn access_at_once(&self, source: &StdArc<Source<Probe>>, landing: Landing) -> Arc<Slot<Probe>> {
        let (slot, flight) = self.access(source);
        if let Some(flight) = flight {
            self.carry(flight, landing);
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

    /// What an engine does.
    fn carry(&self, mut flight: Flight<Probe>, landing: Landing) {
        let value = flight.slot().source_bytes()[0];
        let probe = flight.load(Probe::new(&self.used));
        probe.write(value);
        flight.land(landing);
    }

    /// An engine of its own, which takes the flight where it goes.
    fn engine(&self, flight: Flight<Probe>, landing: Landing) -> JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || world.carry(flight, landing))
    }

    /// Somebody else, who knows the same world and the same source.
    fn beside<T: 'static>(
        &self,
        source: &StdArc<Source<Probe>>,
        acts: impl FnOnce(&World, &StdArc<Source<Probe>>) -> T + 'static,
    ) -> JoinHandle<T> {
        let (world, source) = (self.clone(), source.clone());
        thread::spawn(move || acts(&world, &source))
    }

    /// Nothing is held any more: all memory is back, the source is gone.
    fn assert_empty(self) {
        drop(self.index.take_everything());
        assert_eq!(self.used.load(SeqCst), 0, "near memory was not freed");
        assert!(self.gone.load(SeqCst), "the source was not freed");
    }
}

/// What `Entry::as_slice` reads.
fn read(slot: &Slot<Probe>) -> u8 {
    slot.near().map_or_else(|| slot.source_bytes()[0], Probe::read)
}

/// Reads under a guard what it finds, if it does.
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

/// One thread accesses and never waits; another waits, whether it came first or second and whether or not the copy was
/// submitted when it came. Both read the right byte, and there is one submission.
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

/// Everybody lets go at once - entry, region, cache - while the copy flies: nobody blocks, and source and target end
/// after the copy, once.
#[test]
fn immediate_destruction() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        drop(slot);
        drop(world.index.take_overlapping(&source, &(0..usize::MAX)));
        drop(source);
        engine.join().unwrap();
        world.assert_empty();
    });
}

/// A copy fails: those who wait are let through to the source, and whoever was let through starts a new copy.
#[test]
fn failed_operation() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), Landing::Failed);
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

/// A sleeping thread and a future both wait for the same copy: neither misses its end.
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

/// A flight that nobody lands, as after a panic, lets waiters through and leaks what may still be written.
#[test]
fn lost_flight() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = thread::spawn({
            let used = world.used.clone();
            move || {
                let mut flight = flight.unwrap();
                flight.load(Probe::new(&used));
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

/// Room is needed while somebody finds the slot: either it leaves and is made anew, or it is held and stays.
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

/// The range is invalidated while its copy flies: holders keep that copy, the next access makes another.
#[test]
fn invalidation_against_landing() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), Landing::Failed);
        source.bump();
        drop(world.index.take_overlapping(&source, &(0..1)));
        let again = world.access_at_once(&source, ARRIVED);
        assert_eq!((slot.generation, again.generation), (0, 1));
        engine.join().unwrap();
        assert_eq!(world.index.len(), 1, "the failed slot must not take its successor along");
        drop((slot, again, source));
        world.assert_empty();
    });
}

/// After a drain nobody reads the source: it can end, or be written.
#[test]
fn drain_against_landing() {
    loom::model(|| {
        let (world, source) = World::new();
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        source.flights.drain().wait().unwrap();
        assert_eq!(world.used.load(SeqCst), 1, "the copy is not over");
        slot.wait();
        assert!(slot.near().is_some());
        engine.join().unwrap();
        drop((slot, source));
        world.assert_empty();
    });
}

/// A drain waits for what was begun before it, and for nothing that is begun later.
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
            unreachable!("nobody asked for it before")
        };
        let later = Flight::new(later, world.index.clone(), world.counters.clone());
        let engine = world.engine(flight.unwrap(), ARRIVED);
        drain.wait().unwrap();
        assert_eq!(world.used.load(SeqCst), 1, "the copy is not over");
        engine.join().unwrap();
        assert!(slot.near().is_some());
        world.carry(later, ARRIVED);
        drop((slot, source));
        world.assert_empty();
    });
}

/// Who has waited and lets go has let go of the last hold: the flight keeps nothing back that room is needed for.
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

/// Who reads a slot under a guard reads it whole, whatever eviction does meanwhile; and what is evicted is free at
/// once.
#[test]
fn guard_against_eviction() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, |world, source| {
            match world.guard(source, world.claim()) {
                Some(guard) => assert_eq!(guard.published().read(), CONTENT),
                // Hidden, for good or for a moment: the lock tells.
                None => return world.index.find(source, &(0..1)).is_some(),
            }
            true
        });
        let victims = world.index.evict(1, |_| 1);
        let is_evicted = !victims.is_empty();
        for mut victim in victims {
            assert!(Arc::get_mut(&mut victim).is_some(), "a slot was evicted that somebody holds");
        }
        assert_eq!(world.used.load(SeqCst), usize::from(!is_evicted), "an evicted slot is free at once");
        assert!(reader.join().unwrap() || is_evicted, "a slot that stays is found");
        drop(source);
        world.assert_empty();
    });
}

/// A slot is taken from under its reader: it stays until the guard ends, and then it is freed without anybody's help.
#[test]
fn guard_against_invalidation() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, reads_under_guard);
        drop(world.index.take_overlapping(&source, &(0..1)));
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "nobody reads it any more, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// The system refuses the taker's half of the fence, for ever or for a time: what was hidden is kept until one has
/// happened, whoever looks before.
#[test]
fn guard_against_takers_without_a_fence() {
    loom::model(|| {
        let (world, source) = World::ready();
        world.readers.fails_fences.store(true, SeqCst);
        let reader = world.beside(&source, reads_under_guard);
        assert!(world.index.evict(1, |_| 1).is_empty());
        assert!(world.index.evict(1, |_| 1).is_empty(), "hidden before, and not fenced since");
        drop(world.index.take_overlapping(&source, &(0..1)));
        world.index.reclaim();
        assert_eq!(world.used.load(SeqCst), 1, "it was freed, and may be read");
        world.readers.fails_fences.store(false, SeqCst);
        world.index.catch_up();
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "nobody reads it any more, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// The count goes to zero while a reader makes a counted handle of its guard: it does not, the index keeps one count
/// until the guard has ended.
#[test]
fn upgrade_against_the_last_count() {
    loom::model(|| {
        let (world, source) = World::ready();
        let reader = world.beside(&source, upgrades);
        drop(world.index.take_everything());
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

/// The same against an eviction, which must see the guard or the count that it became.
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

/// Two guards of one thread after the other, on slots of which the first is replaced by the second meanwhile: an
/// address in a hazard says nothing about what was there before.
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
        drop(world.index.take_overlapping(&source, &(0..1)));
        drop(world.access_at_once(&source, ARRIVED));
        assert!(world.index.find(&source, &(0..1)).is_some());
        drop(world.index.take_overlapping(&source, &(0..1)));
        reader.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0);
        drop(source);
        world.assert_empty();
    });
}

/// Two readers and one who takes: whoever is the last lets go.
#[test]
fn two_guards_against_invalidation() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let (world, source) = World::ready();
        let readers: Vec<_> = (0..2).map(|_| world.beside(&source, reads_under_guard)).collect();
        drop(world.index.take_overlapping(&source, &(0..1)));
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(world.used.load(SeqCst), 0);
        drop(source);
        world.assert_empty();
    });
}

/// On one of several nodes an arrival is published behind the back of who waited for it. By then the slot may be gone.
#[test]
fn publication_against_invalidation() {
    loom::model(|| {
        let (world, source) = World::with_nodes(2);
        // Makes the directory's cells, in std's `OnceLock`, whose ordering loom does not know.
        drop(world.access_at_once(&source, ARRIVED));
        drop(world.index.take_overlapping(&source, &(0..1)));
        let (slot, flight) = world.access(&source);
        let engine = world.engine(flight.unwrap(), ARRIVED);
        slot.wait();
        drop(slot);
        let record = world.claim();
        if let Some(guard) = world.guard(&source, record) {
            assert_eq!(guard.published().read(), CONTENT);
        }
        drop(world.index.take_overlapping(&source, &(0..1)));
        assert_eq!(world.used.load(SeqCst), 0, "the slot is still held");
        assert!(world.guard(&source, record).is_none(), "published after its end");
        engine.join().unwrap();
        assert!(world.guard(&source, record).is_none(), "published after its end");
        drop(source);
        world.assert_empty();
    });
}

/// What has arrived on one of several nodes can be found without anybody having hit it.
#[test]
fn an_arrival_is_published() {
    loom::model(|| {
        let (world, source) = World::with_nodes(2);
        drop(world.access_at_once(&source, ARRIVED));
        assert!(world.guard(&source, world.claim()).is_some());
        drop(source);
        world.assert_empty();
    });
}

/// Threads come and go: one gives its record back, another claims it, and a taker sees whoever has a guard.
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
        drop(world.index.take_overlapping(&source, &(0..1)));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(world.used.load(SeqCst), 0, "nobody reads it any more, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}

/// A thread gives its record back while it has a guard, as with a view in a thread-local that is dropped later. The next
/// thread resets the word by which that guard is told, if it gets the same hazard.
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
        drop(world.index.take_overlapping(&source, &(0..1)));
        ending.join().unwrap();
        next.join().unwrap();
        assert_eq!(world.used.load(SeqCst), 0, "nobody reads it any more, and it was not freed");
        drop(source);
        world.assert_empty();
    });
}
