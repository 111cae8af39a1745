//! How often a key is still there: the cache's own eviction, and LRU, on the same keys.
//!
//! The index is the one that caches use. No bytes move.

use std::collections::BTreeMap;

use memferry::internals::index_hits;

use super::{Random, Zipf};

/// Keys in the order in which they are asked for.
#[derive(Clone, Debug)]
pub struct Trace {
    /// `zipf_0.99_50`: the exponent and the room; `scans_` where scans pass through.
    pub name: String,
    /// The keys.
    pub keys: Vec<usize>,
    /// How many of them there is room for.
    pub capacity: usize,
}

/// Keys that are asked for more than once.
const KEYS_COUNT: usize = 1000;
const ACCESSES_COUNT: usize = 50_000;
/// After so many accesses comes a scan, over so many keys that nobody asks for twice.
const SCAN_EVERY: usize = 1000;
const SCAN_KEYS_COUNT: usize = 500;

/// Skewed keys, with and without scans through them, for several skews and sizes.
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
    /// Of this crate's eviction.
    pub ours: f64,
    /// Of a cache that drops what was not used for longest.
    pub lru: f64,
}

/// Both on `keys`, with room for `capacity` of them.
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

    /// What the paper promises: better than LRU on skewed keys, with scans through them and without.
    #[test]
    fn sieve_keeps_what_is_used_again() {
        for Trace { name, keys, capacity } in traces(7) {
            let ratios = hit_ratios(&keys, capacity);
            println!("{name}: {ratios:.3?}");
            assert!(ratios.ours > ratios.lru, "{name}: {ratios:?}");
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
