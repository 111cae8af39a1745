//! Which slot holds which range, on one node; and which unused one leaves when room is needed.
//!
//! One mutex over two ordered maps: slots by (region, range), and their keys by age. What is ready and a whole chunk of
//! its region is also published in the region's [`Directory`], where readers find it without the lock; everything
//! else is looked up here. No foreign code runs under the lock and no slot is dropped under it: what is taken out is
//! returned, and the caller lets it go.
//!
//! Eviction is SIEVE: a hand walks from the oldest slot to the newest and round again; a slot that was hit since the
//! hand last passed is spared and loses its mark, the first one without a mark leaves. A hit sets a bit and moves
//! nothing, which is what a directory without locks needs, and one scan does not flush what is used repeatedly. CLOCK
//! has the first of these, but puts what the hand spared next to what is new; S3-FIFO has both, for two queues more and
//! a memory of what left. Slots that somebody reads or holds, and those in flight, are passed over.
//!
//! Who holds a slot is its reference count; who reads it under a guard is in the hazards of [`Readers`]. Under the
//! lock, with the slot hidden from the directory and the fence run, in no hazard and with a count of one, only the
//! index has it: new guards come from the directory, new counts from a lookup (which takes the lock), from a guard, or
//! from another holder. The hazards are looked at first: a guard becomes a count before it ends, so who misses it finds
//! the count.
//!
//! Source: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", Zhang, Yang, Yue,
//! Vigfusson, Rashmi, NSDI 2024.

use std::collections::BTreeMap;
use std::ops::Range;

use super::directory::Guard;
use super::readers::{Readers, Record};
use super::region::Source;
use super::slot::Slot;
use crate::sync::{Arc, Mutex, lock, try_lock};

/// How many slots are hidden for later evictions when one has to run the fence anyway. A hit on a hidden slot costs a
/// lock; the fence some 3 us.
const HIDDEN_AHEAD: usize = 15;

/// The slots of one node. Every slot in it is in flight or near.
pub(super) struct Index<B> {
    /// Of the node, among those of the cache.
    position: usize,
    readers: &'static Readers,
    inner: Mutex<Inner<B>>,
}

/// What [`Index::find_or_insert`] did.
pub(super) enum Found<B> {
    /// It was there.
    Known(Arc<Slot<B>>),
    /// It is new, and in flight: the caller makes its [`Flight`](super::flight::Flight).
    New(Arc<Slot<B>>),
}

/// Region, start, end.
pub(super) type Key = (u64, usize, usize);

struct Inner<B> {
    by_key: BTreeMap<Key, Place<B>>,
    /// The keys of `by_key`, by `Place::age`.
    by_age: BTreeMap<u64, Key>,
    next_age: u64,
    /// The age from which SIEVE looks for the next victim.
    hand: u64,
    /// Taken out, and still read under guards. The last guard to end lets go of them.
    retired: Vec<Arc<Slot<B>>>,
}

struct Place<B> {
    slot: Arc<Slot<B>>,
    age: u64,
}

impl<B> Index<B> {
    /// For the cache's node at `position`.
    pub(super) fn new(position: usize, readers: &'static Readers) -> Index<B> {
        let (by_key, by_age, retired) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Index {
            position,
            readers,
            inner: Mutex::new(Inner { by_key, by_age, next_age: 0, hand: 0, retired }),
        }
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.inner).by_key.len()
    }

    /// The ready slot of the chunk around `range`, without a lock; counts as a hit. `None` says little: see
    /// [`Guard::new`].
    #[inline(always)]
    pub(super) fn guard<'a>(
        &'a self,
        source: &Source<B>,
        range: &Range<usize>,
        record: &'static Record,
    ) -> Option<Guard<'a, B>> {
        let guard = Guard::new(self, source.directory(self.position), range, record)?;
        guard.touch();
        Some(guard)
    }

    /// The slot of exactly this range, or of the chunk around it; counts as a hit.
    pub(super) fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        self.hit(&lock(&self.inner), source, range)
    }

    /// As [`find`](Index::find), but only what is ready, and nobody is waited for: `None` also while another thread has
    /// the lock. For those who would rather read here than on the node they ask for, and can do without.
    pub(super) fn try_find_ready(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let inner = try_lock(&self.inner)?;
        inner.find(source, range)?.slot.near()?;
        self.hit(&inner, source, range)
    }

    /// Lets the copy of exactly this range that has arrived be found in the directory, if it is still listed.
    pub(super) fn publish(&self, key: &Key) {
        let inner = lock(&self.inner);
        if let Some(Place { slot, .. }) = inner.by_key.get(key)
            && slot.near().is_some()
        {
            slot.source.directory(self.position).publish(slot);
        }
    }

    /// As [`find`](Index::find), or what `make` makes for exactly this range.
    pub(super) fn find_or_insert(
        &self,
        source: &Source<B>,
        range: &Range<usize>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        let mut inner = lock(&self.inner);
        if let Some(slot) = self.hit(&inner, source, range) {
            return Found::Known(slot);
        }
        let slot = Arc::new(make());
        let age = inner.next_age;
        inner.next_age += 1;
        inner.insert(key(source, range), Place { slot: slot.clone(), age });
        Found::New(slot)
    }

    /// Removes this slot, if it is still the one under its key. It is not near, and the caller holds it.
    pub(super) fn remove(&self, slot: &Arc<Slot<B>>) {
        let key = key(&slot.source, &slot.range);
        let mut inner = lock(&self.inner);
        if inner.by_key.get(&key).is_some_and(|place| Arc::ptr_eq(&place.slot, slot)) {
            inner.take(&key);
        }
    }

    /// Takes out unused slots that together free `size_bytes`, or none if there are not so many.
    ///
    /// `freed_bytes` says what the end of a block frees. Cost: a pinned or marked slot on the way costs a look; at most
    /// two rounds.
    pub(super) fn evict(&self, size_bytes: usize, freed_bytes: impl Fn(&B) -> usize) -> Vec<Arc<Slot<B>>> {
        let mut inner = lock(&self.inner);
        let mut victims = Vec::new();
        let mut found_bytes = 0;
        // Twice round, since the first round may do nothing but clear marks.
        let mut looks_left = 2 * inner.by_age.len();
        while found_bytes < size_bytes.max(1) && looks_left > 0 {
            let mut candidates = Vec::new();
            let mut hoped_bytes = found_bytes;
            while hoped_bytes < size_bytes.max(1) && looks_left > 0 {
                looks_left -= 1;
                let Some(key) = inner.move_hand() else { break };
                let Some(block_bytes) = inner.by_key[&key].unused_block().map(&freed_bytes) else { continue };
                if !inner.by_key[&key].slot.take_visited() && !candidates.contains(&key) {
                    hoped_bytes += block_bytes;
                    candidates.push(key);
                }
            }
            for (key, place) in self.vacate(&mut inner, candidates, HIDDEN_AHEAD) {
                found_bytes += place.slot.near().map_or(0, &freed_bytes);
                victims.push((key, place));
            }
        }
        if found_bytes >= size_bytes {
            return victims.into_iter().map(|(_, place)| place.slot).collect();
        }
        for (key, place) in victims {
            inner.insert(key, place);
        }
        Vec::new()
    }

    /// Takes out every slot of `source` that shares a byte with `range`.
    ///
    /// Cost: a look at each slot of the region that begins before the end of `range`.
    pub(super) fn take_overlapping(&self, source: &Source<B>, range: &Range<usize>) -> Taken<B> {
        let mut inner = lock(&self.inner);
        let before_end = inner.by_key.range((source.id, 0, 0)..(source.id, range.end, 0));
        let keys: Vec<Key> = before_end.map(|(&key, _)| key).filter(|key| key.2 > range.start).collect();
        let slots = keys.iter().filter_map(|key| inner.take(key)).map(|place| place.slot).collect();
        self.retire(&mut inner, slots)
    }

    /// Takes out every slot that nobody holds or reads, and no copy fills.
    pub(super) fn take_unused(&self) -> Taken<B> {
        let mut inner = lock(&self.inner);
        let unused = inner.by_key.iter().filter(|(_, place)| place.unused_block().is_some());
        let keys = unused.map(|(&key, _)| key).collect();
        let slots: Vec<_> =
            self.vacate(&mut inner, keys, 0).into_iter().map(|(_, place)| place.slot).collect();
        Taken { ranges: slots.iter().map(|slot| slot.range.clone()).collect(), slots }
    }

    /// Takes out every slot; as [`take_overlapping`](Index::take_overlapping).
    pub(super) fn take_everything(&self) -> Taken<B> {
        let mut inner = lock(&self.inner);
        inner.by_age.clear();
        let slots = std::mem::take(&mut inner.by_key).into_values().map(|place| place.slot).collect();
        self.retire(&mut inner, slots)
    }

    /// Lets go of what was taken out under guards that have ended.
    #[cold]
    pub(super) fn reclaim(&self) {
        let mut inner = lock(&self.inner);
        let free = self.split_retired(&mut inner);
        drop(inner);
        drop(free);
    }

    /// The slot for `range`. What is found ready is published, so that the next one finds it in the directory.
    fn hit(&self, inner: &Inner<B>, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let place = inner.find(source, range)?;
        place.slot.touch();
        if place.slot.near().is_some() {
            source.directory(self.position).publish(&place.slot);
        }
        Some(place.slot.clone())
    }

    /// Takes out those of the slots under `keys` that turn out to be unused once nobody new can find them. If that
    /// takes a fence, up to `ahead` more are hidden that the hand will come to.
    fn vacate(&self, inner: &mut Inner<B>, keys: Vec<Key>, ahead: usize) -> Vec<(Key, Place<B>)> {
        let mut fence = false;
        for key in &keys {
            fence |= self.hide(&inner.by_key[key].slot);
        }
        if fence {
            let next = inner.by_age.range(inner.hand..).map(|(_, key)| &inner.by_key[key]);
            for place in next.take(ahead).filter(|place| !place.slot.is_visited()) {
                self.hide(&place.slot);
            }
        }
        let look = self.readers.look(fence);
        let is_unused = |place: &Place<B>| !look.sees(address(&place.slot)) && place.unused_block().is_some();
        let unused = keys.into_iter().filter(|key| is_unused(&inner.by_key[key])).collect::<Vec<_>>();
        unused.into_iter().filter_map(|key| Some((key, inner.take(&key)?))).collect()
    }

    /// `slots` are in no map any more: those that somebody reads stay here until nobody does, the others are returned.
    fn retire(&self, inner: &mut Inner<B>, slots: Vec<Arc<Slot<B>>>) -> Taken<B> {
        let ranges = slots.iter().map(|slot| slot.range.clone()).collect();
        let mut fence = false;
        for slot in &slots {
            fence |= self.hide(slot);
        }
        let look = self.readers.look(fence);
        let (read, mut free): (Vec<_>, _) = slots.into_iter().partition(|slot| look.sees(address(slot)));
        inner.retired.extend(read);
        free.extend(self.split_retired(inner));
        Taken { ranges, slots: free }
    }

    /// Those of the retired that nobody reads any more.
    fn split_retired(&self, inner: &mut Inner<B>) -> Vec<Arc<Slot<B>>> {
        let retired = std::mem::take(&mut inner.retired);
        let (read, free) = retired.into_iter().partition(|slot| self.readers.ask_for(address(slot)));
        inner.retired = read;
        free
    }

    fn hide(&self, slot: &Slot<B>) -> bool {
        slot.source.directory(self.position).hide(slot)
    }
}

/// What is still retired was read under guards that were forgotten. They borrowed the index, so nobody reads through
/// them any more; but their hazards would keep whatever comes to lie at the same address.
impl<B> Drop for Index<B> {
    fn drop(&mut self) {
        for slot in &lock(&self.inner).retired {
            self.readers.abandon(address(slot));
        }
    }
}

/// What was taken out of an index.
pub(super) struct Taken<B> {
    /// Of the slots that can no longer be found.
    pub(super) ranges: Vec<Range<usize>>,
    /// To be dropped when the index is unlocked. What is missing here is read, and goes when its last reader does.
    pub(super) slots: Vec<Arc<Slot<B>>>,
}

/// What a range is listed under.
pub(super) fn key<B>(source: &Source<B>, range: &Range<usize>) -> Key {
    (source.id, range.start, range.end)
}

fn address<B>(slot: &Arc<Slot<B>>) -> *mut () {
    Arc::as_ptr(slot).cast_mut().cast()
}

impl<B> Inner<B> {
    /// What answers `range`: the slot of exactly it, or of the chunk around it.
    fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<&Place<B>> {
        self.by_key.get(&key(source, range)).or_else(|| {
            let chunk = source.chunks.around(range)?;
            self.by_key.get(&key(source, &chunk))
        })
    }

    fn insert(&mut self, key: Key, place: Place<B>) {
        self.by_age.insert(place.age, key);
        self.by_key.insert(key, place);
    }

    fn take(&mut self, key: &Key) -> Option<Place<B>> {
        let place = self.by_key.remove(key)?;
        self.by_age.remove(&place.age);
        Some(place)
    }

    /// The slot under the hand; the hand moves on to the next younger one, and behind the youngest to the oldest.
    fn move_hand(&mut self) -> Option<Key> {
        let (&age, &key) = self.by_age.range(self.hand..).next().or_else(|| self.by_age.first_key_value())?;
        self.hand = self.by_age.range(age + 1..).next().map_or(0, |(&younger, _)| younger);
        Some(key)
    }
}

impl<B> Place<B> {
    /// The block that would be freed if the slot left now; `None` if it is held or in flight.
    fn unused_block(&self) -> Option<&B> {
        if Arc::strong_count(&self.slot) == 1 { self.slot.near() } else { None }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::readers::readers;
    use super::super::region::Source;
    use super::super::slot::{Outcome, Slot};
    use super::{Found, Index};
    use crate::mover::CopyReport;

    /// A hundred bytes, which nobody asks for in whole chunks.
    fn source<B>() -> Arc<Source<B>> {
        Arc::new(Source::new(Arc::new(vec![0; 100]), None, 0, 1))
    }

    /// An index of ready slots whose blocks are just sizes.
    struct Ready {
        source: Arc<Source<usize>>,
        index: Index<usize>,
    }

    impl Ready {
        fn new() -> Ready {
            Ready { source: source(), index: Index::new(0, readers()) }
        }

        fn access(&self, start: usize, block_bytes: usize) -> Arc<Slot<usize>> {
            let range = start..start + 1;
            let make = || Slot::in_flight(&self.source, range.clone());
            match self.index.find_or_insert(&self.source, &range, make) {
                Found::Known(slot) => slot,
                Found::New(slot) => {
                    slot.settle(Outcome::Near(block_bytes, CopyReport::default())).set();
                    slot
                }
            }
        }

        fn evict(&self, size_bytes: usize) -> Vec<usize> {
            self.index
                .evict(size_bytes, |&block_bytes| block_bytes)
                .iter()
                .map(|slot| slot.range.start)
                .collect()
        }
    }

    #[test]
    fn sieve_spares_what_was_hit_since_the_hand_passed() {
        let ready = Ready::new();
        for key in [0, 1, 2, 3, 0, 1] {
            ready.access(key, 1);
        }
        assert_eq!(ready.evict(1), [2], "0 and 1 were hit, 2 is the oldest without a mark");
        assert_eq!(ready.evict(1), [3], "the hand goes on from where it was");
        assert_eq!(ready.evict(1), [0], "and round again: the marks are gone");
    }

    #[test]
    fn held_slots_stay_and_too_large_wishes_evict_nothing() {
        let ready = Ready::new();
        let held = ready.access(0, 10);
        ready.access(1, 10);
        assert!(ready.evict(11).is_empty(), "only 10 bytes are unused");
        assert_eq!(ready.index.len(), 2);
        assert_eq!(ready.evict(10), [1]);
        drop(held);
        assert_eq!(ready.evict(10), [0]);
    }

    #[test]
    fn slots_in_flight_are_not_evicted() {
        let ready = Ready::new();
        let make = || Slot::in_flight(&ready.source, 0..1);
        drop(ready.index.find_or_insert(&ready.source, &(0..1), make));
        assert!(ready.evict(0).is_empty());
    }

    proptest! {
        /// SIEVE as the paper writes it, on a list: head is the newest.
        #[test]
        fn evicts_what_sieve_evicts(keys in proptest::collection::vec(0..12_usize, 1..200)) {
            const CAPACITY: usize = 5;
            let ready = Ready::new();
            let mut list: Vec<(usize, bool)> = Vec::new(); // oldest first
            let mut hand = 0;
            for key in keys {
                if let Some(entry) = list.iter_mut().find(|entry| entry.0 == key) {
                    entry.1 = true;
                } else {
                    if list.len() == CAPACITY {
                        while std::mem::take(&mut list[hand].1) {
                            hand = (hand + 1) % CAPACITY;
                        }
                        let expected = list.remove(hand).0;
                        // Removing the newest leaves the hand past the end, where the new one goes: SIEVE starts
                        // over at the oldest instead.
                        if hand == list.len() {
                            hand = 0;
                        }
                        prop_assert_eq!(ready.evict(1), [expected]);
                    }
                    list.push((key, false));
                }
                ready.access(key, 1);
                prop_assert_eq!(ready.index.len(), list.len());
            }
        }

        #[test]
        fn finds_exactly_what_overlaps(
            ranges in proptest::collection::btree_set((0..40_usize, 1..10_usize), 0..30),
            start in 0..50_usize,
            len in 1..10_usize,
        ) {
            let (source, other) = (source(), source());
            let index: Index<()> = Index::new(0, readers());
            for source in [&source, &other] {
                for &(start, len) in &ranges {
                    let range = start..start + len;
                    index.find_or_insert(source, &range, || Slot::in_flight(source, range.clone()));
                }
            }
            let taken = index.take_overlapping(&source, &(start..start + len)).slots;
            let expected = ranges.iter().filter(|(from, size)| *from < start + len && start < from + size).count();
            prop_assert_eq!(taken.len(), expected);
            prop_assert!(taken.iter().all(|slot| slot.source.id == source.id));
            prop_assert_eq!(index.len(), 2 * ranges.len() - expected);
        }
    }
}
