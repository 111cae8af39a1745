//! Which slot holds which range, on one node; and which unused one leaves when room is needed.
//!
//! One mutex over two ordered maps: slots by (region, range), and their keys by age. No foreign code runs under the
//! lock and no slot is dropped under it: what is taken out is returned, and the caller lets it go.
//!
//! Eviction is SIEVE: a hand walks from the oldest slot to the newest and round again; a slot that was hit since the
//! hand last passed is spared and loses its mark, the first one without a mark leaves. A hit sets a bit and moves
//! nothing, which is what a directory without locks needs, and one scan does not flush what is used repeatedly.
//! Slots that somebody holds, and those in flight, are passed over.
//!
//! Who holds a slot is its reference count: under the lock, a count of one means that only the index has it, since new
//! holders come from a lookup, which takes the lock, or from another holder.
//!
//! Source: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", Zhang, Yang, Yue,
//! Vigfusson, Rashmi, NSDI 2024.

use std::collections::BTreeMap;
use std::ops::Range;

use super::slot::Slot;
use crate::sync::{Arc, Mutex, lock};

/// The slots of one node. Every slot in it is in flight or near.
pub(super) struct Index<B> {
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
type Key = (u64, usize, usize);

struct Inner<B> {
    by_key: BTreeMap<Key, Place<B>>,
    /// The keys of `by_key`, by `Place::age`.
    by_age: BTreeMap<u64, Key>,
    next_age: u64,
    /// The age from which SIEVE looks for the next victim.
    hand: u64,
}

struct Place<B> {
    slot: Arc<Slot<B>>,
    age: u64,
    /// Hit since the hand last passed.
    visited: bool,
}

impl<B> Index<B> {
    pub(super) fn new() -> Index<B> {
        let inner = Inner { by_key: BTreeMap::new(), by_age: BTreeMap::new(), next_age: 0, hand: 0 };
        Index { inner: Mutex::new(inner) }
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.inner).by_key.len()
    }

    /// The slot of exactly this range; counts as a hit.
    pub(super) fn find(&self, region: u64, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        lock(&self.inner).hit(&(region, range.start, range.end))
    }

    /// The slot of exactly this range, or what `make` makes for it.
    pub(super) fn find_or_insert(
        &self,
        region: u64,
        range: &Range<usize>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        let key = (region, range.start, range.end);
        let mut inner = lock(&self.inner);
        if let Some(slot) = inner.hit(&key) {
            return Found::Known(slot);
        }
        let slot = Arc::new(make());
        let age = inner.next_age;
        inner.next_age += 1;
        inner.insert(key, Place { slot: slot.clone(), age, visited: false });
        Found::New(slot)
    }

    /// Removes this slot, if it is still the one under its key. The caller holds it, so it does not end here.
    pub(super) fn remove(&self, slot: &Arc<Slot<B>>) {
        let key = (slot.source.id, slot.range.start, slot.range.end);
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
        for _ in 0..2 * inner.by_age.len() {
            let Some(key) = inner.move_hand() else { break };
            let Some(place) = inner.by_key.get_mut(&key) else { continue };
            let Some(block_bytes) = place.unused_block().map(&freed_bytes) else { continue };
            if std::mem::take(&mut place.visited) {
                continue;
            }
            found_bytes += block_bytes;
            victims.extend(inner.take(&key).map(|place| (key, place)));
            if found_bytes >= size_bytes {
                return victims.into_iter().map(|(_, place)| place.slot).collect();
            }
        }
        for (key, place) in victims {
            inner.insert(key, place);
        }
        Vec::new()
    }

    /// Takes out every slot of `region` that shares a byte with `range`.
    ///
    /// Cost: a look at each slot of the region that begins before the end of `range`.
    pub(super) fn take_overlapping(&self, region: u64, range: &Range<usize>) -> Vec<Arc<Slot<B>>> {
        let mut inner = lock(&self.inner);
        let before_end = inner.by_key.range((region, 0, 0)..(region, range.end, 0));
        let keys: Vec<Key> = before_end.map(|(&key, _)| key).filter(|key| key.2 > range.start).collect();
        inner.take_all(keys)
    }

    /// Takes out every slot that nobody holds and no copy fills.
    pub(super) fn take_unused(&self) -> Vec<Arc<Slot<B>>> {
        let mut inner = lock(&self.inner);
        let unused = inner.by_key.iter().filter(|(_, place)| place.unused_block().is_some());
        let keys = unused.map(|(&key, _)| key).collect();
        inner.take_all(keys)
    }

    /// Takes out every slot.
    pub(super) fn take_everything(&self) -> Vec<Arc<Slot<B>>> {
        let mut inner = lock(&self.inner);
        inner.by_age.clear();
        std::mem::take(&mut inner.by_key).into_values().map(|place| place.slot).collect()
    }
}

impl<B> Inner<B> {
    fn hit(&mut self, key: &Key) -> Option<Arc<Slot<B>>> {
        let place = self.by_key.get_mut(key)?;
        place.visited = true;
        Some(place.slot.clone())
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

    fn take_all(&mut self, keys: Vec<Key>) -> Vec<Arc<Slot<B>>> {
        keys.iter().filter_map(|key| self.take(key)).map(|place| place.slot).collect()
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

    use super::super::region::Source;
    use super::super::slot::{Outcome, Slot};
    use super::{Found, Index};
    use crate::mover::CopyReport;

    /// An index of ready slots whose blocks are just sizes.
    struct Ready {
        source: Arc<Source>,
        index: Index<usize>,
    }

    impl Ready {
        fn new() -> Ready {
            Ready { source: Arc::new(Source::new(Arc::new(vec![0; 100]), None)), index: Index::new() }
        }

        fn access(&self, start: usize, block_bytes: usize) -> Arc<Slot<usize>> {
            let range = start..start + 1;
            let make = || Slot::in_flight(&self.source, range.clone());
            match self.index.find_or_insert(self.source.id, &range, make) {
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
        drop(ready.index.find_or_insert(ready.source.id, &(0..1), make));
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
            let source = Arc::new(Source::new(Arc::new(vec![0; 100]), None));
            let other = Arc::new(Source::new(Arc::new(vec![0; 100]), None));
            let index: Index<()> = Index::new();
            for source in [&source, &other] {
                for &(start, len) in &ranges {
                    let range = start..start + len;
                    index.find_or_insert(source.id, &range, || Slot::in_flight(source, range.clone()));
                }
            }
            let taken = index.take_overlapping(source.id, &(start..start + len));
            let expected = ranges.iter().filter(|(from, size)| *from < start + len && start < from + size).count();
            prop_assert_eq!(taken.len(), expected);
            prop_assert!(taken.iter().all(|slot| slot.source.id == source.id));
            prop_assert_eq!(index.len(), 2 * ranges.len() - expected);
        }
    }
}
