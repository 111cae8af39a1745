//! Bytes that the program makes: they share the budget with near copies, stay while their hits pay, and end with their group.

use memferry::cache::{Access, Cache, Keep, MadeRegion, Region};

use crate::cache_support::{HOME, Held, NEAR, PAGE, assert_adds_up, held, pattern};

const FREE_ROOM: Keep = Keep { node: NEAR, rounds: 1, evicts: false };

fn evicting(rounds: u8) -> Keep {
    Keep { rounds, evicts: true, ..FREE_ROOM }
}

/// Keeps a page of `fill`; returns its name.
fn keep(cache: &Cache, made: &MadeRegion, fill: u8, how: Keep) -> Option<std::ops::Range<usize>> {
    let entry = cache.keep(made, PAGE, how, |bytes| bytes.fill(fill)).unwrap()?;
    assert_eq!(entry.as_slice(), [fill; PAGE]);
    Some(entry.range())
}

fn is_kept(cache: &Cache, made: &MadeRegion, name: &std::ops::Range<usize>) -> bool {
    cache.kept(made, name.clone(), NEAR).unwrap().is_some()
}

/// A near copy of page `page` of `region`, and a hit on it: the hand of the eviction passes copies that were hit, and so comes
/// back to the made bytes. Copies without a hit are evicted one for the other.
fn copy(cache: &Cache, engine: &Held, region: &Region, page: usize) {
    for _ in 0..2 {
        cache.access(region, page * PAGE..(page + 1) * PAGE, Access::default()).unwrap();
        engine.finish_all();
    }
}

#[test]
fn one_budget_for_copies_and_made_bytes() {
    let (cache, engine) = held(3);
    let (made, region) = (cache.register_made(), cache.register(pattern(1, 64 * PAGE)));
    let first = keep(&cache, &made, 1, FREE_ROOM).unwrap();
    let second = keep(&cache, &made, 2, FREE_ROOM).unwrap();
    copy(&cache, &engine, &region, 0);
    assert_eq!(cache.stats().nodes[0].used_bytes, 3 * PAGE);

    // Without evictions there is no room, and nothing is written.
    let refused = cache.keep(&made, PAGE, FREE_ROOM, |_| panic!("there is no room")).unwrap();
    assert!(refused.is_none());
    assert!(is_kept(&cache, &made, &first) && is_kept(&cache, &made, &second), "nothing was evicted");

    // A copy takes the place of made bytes, and made bytes that of a copy.
    let held = cache.kept(&made, second.clone(), NEAR).unwrap().unwrap();
    (1..20).for_each(|page| copy(&cache, &engine, &region, page));
    assert!(!is_kept(&cache, &made, &first), "it was not hit for some rounds");
    assert_eq!(held.as_slice(), [2; PAGE], "held bytes stay");
    keep(&cache, &made, 3, evicting(1)).unwrap();
    let too_large = cache.keep(&made, 4 * PAGE, evicting(1), |_| panic!("there is no room")).unwrap();
    assert!(too_large.is_none());
    let stats = cache.stats();
    assert_eq!((stats.nodes[0].peak_bytes, stats.nodes[0].budget_bytes), (3 * PAGE, 3 * PAGE));
    assert_adds_up(&stats);
}

/// The number of copies that evict bytes after their last hit.
fn survived(rounds: u8) -> usize {
    let is_evicted_by = |copies: &usize| {
        let (cache, engine) = held(3);
        let (made, region) = (cache.register_made(), cache.register(pattern(1, 256 * PAGE)));
        let name = keep(&cache, &made, 1, evicting(rounds)).unwrap();
        assert!(is_kept(&cache, &made, &name), "the hit");
        (0..*copies).for_each(|page| copy(&cache, &engine, &region, page));
        !is_kept(&cache, &made, &name)
    };
    (0..256).find(is_evicted_by).expect("it is evicted at some time")
}

/// Bytes of which a hit saves more time stay for more rounds of the eviction.
#[test]
fn a_hit_survives_its_rounds() {
    let survived: Vec<usize> = (1..=Keep::ROUNDS_MAX).map(survived).collect();
    assert!(survived.is_sorted_by(|fewer, more| fewer < more), "{survived:?}");
    let one_round = survived[1] - survived[0];
    assert_eq!(survived[7] - survived[6], one_round, "{survived:?}");
    assert_eq!(self::survived(200), survived[7], "more rounds than the most");
    assert_eq!(self::survived(0), survived[0]);
}

#[test]
fn they_end_with_their_group() {
    let (cache, _engine) = held(4);
    let (made, other) = (cache.register_made(), cache.register_made());
    keep(&cache, &made, 1, FREE_ROOM).unwrap();
    let entry = cache.keep(&made, PAGE, FREE_ROOM, |bytes| bytes.fill(2)).unwrap().unwrap();
    let others = keep(&cache, &other, 3, FREE_ROOM).unwrap();
    drop(made);
    assert_eq!(cache.stats().nodes[0].used_bytes, 2 * PAGE, "of the other group, and held");
    assert_eq!(entry.as_slice(), [2; PAGE]);
    drop(entry);
    assert!(is_kept(&cache, &other, &others));
    cache.clear();
    assert!(!is_kept(&cache, &other, &others));
    assert_eq!(cache.stats().nodes[0].used_bytes, 0);
    assert_adds_up(&cache.stats());
}

/// Regression: bytes of length 0 at address 0 overlap no range, and stayed in the index for as long as the cache.
#[test]
fn those_of_no_length_end_with_their_group_too() {
    let (cache, _engine) = held(4);
    let made = cache.register_made();
    for _ in 0..2 {
        drop(cache.keep(&made, 0, FREE_ROOM, |_| {}).unwrap().expect("an empty cache has room"));
    }
    assert_eq!(cache.stats().nodes[0].entries_count, 2);
    drop(made);
    assert_eq!((cache.stats().nodes[0].entries_count, cache.stats().nodes[0].used_bytes), (0, 0));
    assert_adds_up(&cache.stats());
}

#[test]
fn the_node_needs_a_budget_and_the_group_its_cache() {
    let ((cache, _engine), (stranger, _other)) = (held(2), held(2));
    let made = cache.register_made();
    let elsewhere = Keep { node: HOME, ..FREE_ROOM };
    assert!(cache.keep(&made, PAGE, elsewhere, |_| panic!("no budget")).is_err());
    assert!(cache.kept(&made, 0..PAGE, HOME).is_err());
    assert!(stranger.keep(&made, PAGE, FREE_ROOM, |_| panic!("foreign")).is_err());
    // Names are given out once, also of nothing.
    let names: Vec<_> = (0..2).map(|_| cache.keep(&made, 0, FREE_ROOM, |_| {}).unwrap()).collect();
    if let [Some(first), Some(second)] = names.as_slice() {
        assert_ne!(first.range(), second.range());
    }
}
