//! How often a key is still there: the cache's own eviction, and LRU, on the same keys.
//!
//! The index is the one that caches use, with blocks of one byte. No bytes move.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::index::{Found, Index};
use super::super::readers::readers;
use super::super::region::Source;
use super::super::slot::{Outcome, Slot};
use crate::mover::CopyReport;

/// Hits per access.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct HitRatios {
    /// Of this crate's eviction.
    pub ours: f64,
    /// Of a cache that drops what was not used for longest.
    pub lru: f64,
}

/// Both on `keys`, with room for `capacity` of them.
pub fn hit_ratios(keys: &[usize], capacity: usize) -> HitRatios {
    let ratio = |hits_count: usize| hits_count as f64 / keys.len().max(1) as f64;
    HitRatios { ours: ratio(ours(keys, capacity)), lru: ratio(lru(keys, capacity)) }
}

fn ours(keys: &[usize], capacity: usize) -> usize {
    let keys_count = keys.iter().max().map_or(0, |max| max + 1);
    // As many bytes as keys, for their ranges.
    let source = Arc::new(Source::new(Arc::new(vec![0; keys_count]), None, 1, 1));
    let index: Index<()> = Index::new(0, readers());
    let mut hits_count = 0;
    for &key in keys {
        let range = key..key + 1;
        match index.find_or_insert(&source, &range, || Slot::in_flight(&source, range.clone())) {
            Found::Known(_) => hits_count += 1,
            Found::New(slot) => {
                slot.settle(Outcome::Near((), CopyReport::default())).set();
                if index.len() > capacity {
                    // The newcomer is held here, as it is while it is copied: it does not evict itself.
                    index.evict(1, |()| 1);
                }
            }
        }
    }
    hits_count
}

fn lru(keys: &[usize], capacity: usize) -> usize {
    let mut used_at: BTreeMap<usize, usize> = BTreeMap::new();
    let mut by_use: BTreeMap<usize, usize> = BTreeMap::new();
    let mut hits_count = 0;
    for (now, &key) in keys.iter().enumerate() {
        if let Some(before) = used_at.insert(key, now) {
            by_use.remove(&before);
            hits_count += 1;
        } else if used_at.len() > capacity
            && let Some((_, oldest)) = by_use.pop_first()
        {
            used_at.remove(&oldest);
        }
        by_use.insert(now, key);
    }
    hits_count
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::super::{Random, Zipf};
    use super::*;

    const KEYS: usize = 1000;
    const ACCESSES: usize = 50_000;

    fn zipf(exponent: f64, seed: u64) -> Vec<usize> {
        let (zipf, mut random) = (Zipf::new(KEYS, exponent), Random(seed));
        (0..ACCESSES).map(|_| zipf.draw(&mut random)).collect()
    }

    /// After every thousand accesses a scan over 500 keys that nobody asks for twice.
    fn with_scans(keys: &[usize]) -> Vec<usize> {
        let mixed = keys.chunks(1000).enumerate().flat_map(|(scan, keys)| {
            let scanned = KEYS + scan * 500..KEYS + (scan + 1) * 500;
            keys.iter().copied().chain(scanned)
        });
        mixed.collect()
    }

    /// What the paper promises: no worse than LRU on skewed keys, and better when scans pass through.
    #[test]
    fn sieve_keeps_what_is_used_again() {
        for (exponent, capacity) in [(0.8, 50), (0.99, 50), (0.99, 200), (1.2, 100)] {
            let keys = zipf(exponent, 7);
            let plain = hit_ratios(&keys, capacity);
            let mixed = hit_ratios(&with_scans(&keys), capacity);
            println!("Zipf {exponent}, room for {capacity} of {KEYS}: {plain:.3?}; with scans {mixed:.3?}");
            assert!(plain.ours > plain.lru, "Zipf {exponent}, {capacity}: {plain:?}");
            assert!(mixed.ours > mixed.lru, "Zipf {exponent}, {capacity}, scans: {mixed:?}");
        }
    }

    #[test]
    fn small_traces_by_hand() {
        assert_eq!(hit_ratios(&[0, 1, 0, 2, 0], 2), HitRatios { ours: 0.4, lru: 0.4 });
        // LRU loses every key just before it comes again; SIEVE's hand stays behind one that keeps being hit.
        assert_eq!(hit_ratios(&[0, 1, 2, 0, 1, 2], 2).lru, 0.0);
        assert_eq!(hit_ratios(&[], 2), HitRatios { ours: 0.0, lru: 0.0 });
    }
}
