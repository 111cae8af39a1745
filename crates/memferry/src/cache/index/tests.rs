//! Lookup and eviction against naive ones.

use std::sync::Arc;

use proptest::prelude::*;

use super::{Found, Index};
use crate::cache::readers::readers;
use crate::cache::region::Source;
use crate::cache::slot::{Outcome, Slot};
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
        self.index.evict(size_bytes, |&block_bytes| block_bytes).iter().map(|slot| slot.range.start).collect()
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
