//! Lookup and eviction compared with naive models.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proptest::prelude::*;

use super::{Found, Index};
use crate::cache::readers::{Readers, readers};
use crate::cache::region::Source;
use crate::cache::slot::{Outcome, Slot};
use crate::mover::CopyReport;

/// A hundred bytes; accesses are never whole chunks.
fn source<B>() -> Arc<Source<B>> {
    readers();
    Arc::new(Source::new(Arc::new(vec![0; 100]), None, 0, 1))
}

/// An index of ready slots whose blocks are sizes only.
struct Ready {
    source: Arc<Source<usize>>,
    index: Index<usize>,
}

impl Ready {
    fn new() -> Ready {
        Ready { source: source(), index: Index::new(0, readers()) }
    }

    /// One published slot of a whole chunk.
    fn published(readers: &'static Readers) -> Ready {
        let source = Arc::new(Source::new(Arc::new(vec![0]), None, 0, 1));
        let ready = Ready { source, index: Index::new(0, readers) };
        ready.access(0, 1);
        ready.access(0, 1);
        ready
    }

    fn access(&self, start: usize, block_bytes: usize) -> Arc<Slot<usize>> {
        let range = start..start + 1;
        let make = || Slot::in_flight(&self.source, range.clone());
        match self.index.find_or_insert(&self.source, &range, make) {
            Found::Known(slot) => slot,
            Found::New(slot) => {
                slot.complete(Outcome::Near(block_bytes, CopyReport::default())).set();
                slot
            }
        }
    }

    fn evict(&self, size_bytes: usize) -> Vec<usize> {
        self.index.evict(size_bytes, |&block_bytes| block_bytes).iter().map(|slot| slot.range.start).collect()
    }
}

#[test]
fn sieve_spares_slots_that_were_hit_since_the_hand_passed() {
    let ready = Ready::new();
    for key in [0, 1, 2, 3, 0, 1] {
        ready.access(key, 1);
    }
    assert_eq!(ready.evict(1), [2], "0 and 1 were hit, 2 is the oldest without a mark");
    assert_eq!(ready.evict(1), [3], "the hand continues");
    assert_eq!(ready.evict(1), [0], "and round again: the marks are gone");
}

#[test]
fn held_slots_stay_and_too_large_requests_evict_nothing() {
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

/// Regression: a failed fence was remembered for one snapshot only. The second eviction freed the slots that the first had
/// hidden, although a reader without visible hazard might have them.
#[test]
fn nothing_is_freed_before_a_fence_has_run() {
    let readers: &'static Readers = Box::leak(Box::new(Readers::new()));
    let fails_fences = |fails| readers.fails_fences.store(fails, SeqCst);

    let ready = Ready::published(readers);
    fails_fences(true);
    for _ in 0..3 {
        assert!(ready.evict(1).is_empty() && ready.index.remove_unused().slots.is_empty());
    }
    assert_eq!(ready.index.len(), 1, "it stays listed");
    fails_fences(false);
    assert_eq!(ready.evict(1), [0]);

    let ready = Ready::published(readers);
    fails_fences(true);
    let removed = ready.index.remove_all();
    assert_eq!((removed.ranges.len(), removed.slots.len(), ready.index.len()), (1, 0, 0));
    ready.index.reclaim();
    ready.access(0, 1);
    ready.access(0, 1);
    assert!(!ready.index.catch_up() && ready.evict(1).is_empty());
    let held = Arc::strong_count(&ready.source);
    fails_fences(false);
    assert!(ready.index.catch_up() && !ready.index.catch_up());
    assert_eq!(Arc::strong_count(&ready.source), held - 1, "the retired slot is freed, with its source");
    assert_eq!(ready.evict(1), [0]);
}

/// If the fence after `wanted` failed, the guard does not free its slot; the next eviction does.
#[test]
fn an_eviction_frees_what_no_guard_freed() {
    let readers: &'static Readers = Box::leak(Box::new(Readers::new()));
    let ready = Ready::published(readers);
    let guard =
        ready.index.guard(&ready.source, &(0..1), readers.claim().unwrap()).expect("it was published");
    readers.fails_fences.store(true, SeqCst);
    assert!(ready.index.remove_all().slots.is_empty());
    readers.fails_fences.store(false, SeqCst);
    assert!(!ready.index.catch_up(), "it is read");
    assert_eq!(*guard.published(), 1);
    drop(guard);
    assert!(!ready.index.catch_up(), "the guard freed it");
    assert_eq!(Arc::strong_count(&ready.source), 1);
}

proptest! {
    /// SIEVE of the paper, on a list: head is the newest.
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
    fn finds_exactly_the_overlapping_slots(
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
        let removed = index.remove_overlapping(&source, &(start..start + len)).slots;
        let expected = ranges.iter().filter(|(from, size)| *from < start + len && start < from + size).count();
        prop_assert_eq!(removed.len(), expected);
        prop_assert!(removed.iter().all(|slot| slot.source.id == source.id));
        prop_assert_eq!(index.len(), 2 * ranges.len() - expected);
    }
}
