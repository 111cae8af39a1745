//! Hit ratios of the cache's eviction and of LRU, on the same keys.
//!
//! The index is the one of the cache. No bytes are copied.

use std::collections::BTreeMap;

use memferry::internals::index_hits;

use super::zipf::Zipf;
use crate::harness::Random;

/// Keys in the order of their accesses.
#[derive(Clone, Debug)]
pub struct Trace {
    /// `zipf_0.99_50`: exponent and capacity; `scans_` for traces with scans.
    pub name: String,
    /// The keys.
    pub keys: Vec<usize>,
    /// Number of keys that fit.
    pub capacity: usize,
}

/// Keys that are accessed more than once.
const KEYS_COUNT: usize = 1000;
const ACCESSES_COUNT: usize = 50_000;
/// Accesses between two scans.
const SCAN_EVERY: usize = 1000;
/// Keys of a scan; each is accessed once.
const SCAN_KEYS_COUNT: usize = 500;

/// Skewed keys with and without scans, for several exponents and capacities.
pub fn traces(seed: u64) -> Vec<Trace> {
    let cases = [(0.8, 50), (0.99, 50), (0.99, 200), (1.2, 100)];
    let traces = cases.map(|(exponent, capacity)| {
        let (zipf, mut random) = (Zipf::new(KEYS_COUNT, exponent), Random(seed));
        let keys: Vec<usize> = (0..ACCESSES_COUNT).map(|_| zipf.draw(&mut random)).collect();
        let mixed = with_scans(&keys);
        [("zipf", keys), ("scans", mixed)].map(|(kind, keys)| Trace {
            name: format!("{kind}_{exponent}_{capacity}"),
            keys,
            capacity,
        })
    });
    traces.into_iter().flatten().collect()
}

fn with_scans(keys: &[usize]) -> Vec<usize> {
    let mixed = keys.chunks(SCAN_EVERY).enumerate().flat_map(|(scan, keys)| {
        let first = KEYS_COUNT + scan * SCAN_KEYS_COUNT;
        keys.iter().copied().chain(first..first + SCAN_KEYS_COUNT)
    });
    mixed.collect()
}

/// Hits per access.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct HitRatios {
    /// Of memferry's eviction.
    pub ours: f64,
    /// Of a cache that evicts the least recently used key.
    pub lru: f64,
}

/// Both ratios on `keys`, with room for `capacity` keys.
pub fn hit_ratios(keys: &[usize], capacity: usize) -> HitRatios {
    let ratio = |hits_count: usize| hits_count as f64 / keys.len().max(1) as f64;
    HitRatios { ours: ratio(index_hits(keys, capacity)), lru: ratio(lru(keys, capacity)) }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The promise of the paper: better than LRU on skewed keys, with scans and without.
    #[test]
    fn sieve_keeps_keys_that_are_used_again() {
        for Trace { name, keys, capacity } in traces(7) {
            let ratios = hit_ratios(&keys, capacity);
            println!("{name}: {ratios:.3?}");
            assert!(ratios.ours > ratios.lru, "{name}: {ratios:?}");
        }
    }

    #[test]
    fn small_traces_by_hand() {
        assert_eq!(hit_ratios(&[0, 1, 0, 2, 0], 2), HitRatios { ours: 0.4, lru: 0.4 });
        // LRU evicts every key just before its next access; SIEVE's hand stays behind one that keeps being hit.
        assert_eq!(hit_ratios(&[0, 1, 2, 0, 1, 2], 2).lru, 0.0);
        assert_eq!(hit_ratios(&[], 2), HitRatios { ours: 0.0, lru: 0.0 });
    }
}
