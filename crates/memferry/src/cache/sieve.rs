//! Eviction order: SIEVE, with values in use set aside.
//!
//! ```text
//! ring    oldest ─ ... ─ hand ─ ... ─ newest ◀── new          aside ◀── found in use
//! ```
//!
//! A hand walks from the oldest to the newest value, in rounds. It spares values that were hit since it last passed and
//! clears their marks; the first value without mark is the victim. CLOCK costs the same, but puts spared values next to
//! new ones. S3-FIFO needs two more queues and a record of evicted keys.
//!
//! A hit that saves more time per byte than others spares its value for several rounds. So what stays are the values of which
//! hits per round times rounds is at least 1: those that save most time per byte.
//!
//! Values in use cannot be evicted. The hand sets them aside, so that it steps over each one once, not on each round: with
//! all but one of 10 000 in use, every victim would otherwise be 10 000 steps away. Each search checks a few of the values
//! aside, and more if the ring has no victim; values that are no longer in use return under the hand. So a search takes
//! some steps for each victim, one for each value that came into use since, and at most [`ASIDE_IN_USE_MAX`] more. The
//! price: if very many values are in use, a later search finds a released one, not the first.
//!
//! Source: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", Zhang, Yang, Yue,
//! Vigfusson, Rashmi, NSDI 2024. Setting aside is our addition: their objects are never in use.

use slab::Slab;

/// Values in use that a search checks aside if the ring has no victim. Chosen: some 100 ns.
const ASIDE_IN_USE_MAX: usize = 64;
/// Values aside that each search checks, so that released values return under the hand within about one round.
const ASIDE_LOOKS: usize = 2;

/// Most rounds that a hit spares a value. Chosen: a decoded column saves at most about 10 times as much time per byte as stored
/// bytes (docs/decisions/lifetime-of-columns.md), and each round is a walk over all values.
pub(super) const ROUNDS_MAX: u8 = 8;

/// Values in eviction order, under stable keys.
pub(super) struct Sieve<T> {
    nodes: Slab<Node<T>>,
    lists: [List; 2],
    /// The next value in the ring to be checked; `None`: the oldest.
    hand: Option<usize>,
}

/// Indices of `Sieve::lists`.
const RING: usize = 0;
const ASIDE: usize = 1;

struct Node<T> {
    value: T,
    list: usize,
    older: Option<usize>,
    newer: Option<usize>,
}

#[derive(Default)]
struct List {
    oldest: Option<usize>,
    newest: Option<usize>,
    len: usize,
}

/// The usage of a value when the hand visits it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// In use: it cannot be evicted now.
    Held,
    /// Hit since the last visit, or spared for another round by an earlier hit.
    Hit,
    /// Neither.
    Idle,
}

/// The limits of one search for victims.
///
/// Each visit in the ring removes a value from it, clears a mark or uses up a round, so the ring is empty before
/// `ring_looks_left` reaches 0, unless readers set marks as fast as the hand clears them. Values that are set aside go behind those that were there
/// at the start of the search, where `aside_looks_left` ends.
pub(super) struct Search {
    ring_looks_left: usize,
    aside_looks_left: usize,
    aside_in_use_left: usize,
}

impl<T> Sieve<T> {
    pub(super) fn new() -> Sieve<T> {
        Sieve { nodes: Slab::new(), lists: Default::default(), hand: None }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a value as the newest.
    pub(super) fn insert(&mut self, value: T) -> usize {
        let key = self.nodes.insert(Node { value, list: RING, older: None, newer: None });
        self.link(RING, key, None);
        key
    }

    /// The value of a key. Panics on an unknown key, like every method with a key.
    pub(super) fn get(&self, key: usize) -> &T {
        &self.nodes[key].value
    }

    pub(super) fn remove(&mut self, key: usize) -> T {
        self.unlink(key);
        self.nodes.remove(key).value
    }

    /// Removes all values, in no order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::replace(self, Sieve::new()).nodes.into_iter().map(|(_, node)| node.value)
    }

    /// The values from the hand to the newest, in order.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &T> {
        let first = self.hand.or(self.lists[RING].oldest);
        std::iter::successors(first, |&key| self.nodes[key].newer).map(|key| self.get(key))
    }

    /// Starts a search.
    pub(super) fn search(&self) -> Search {
        let aside_looks_left = self.lists[ASIDE].len;
        // One more than the first ones, which may only clear marks and use up rounds.
        let ring_looks_left = (usize::from(ROUNDS_MAX) + 1) * self.lists[RING].len;
        Search { ring_looks_left, aside_looks_left, aside_in_use_left: ASIDE_IN_USE_MAX }
    }

    /// The next victim. It is set aside until it is removed, so no search finds it twice. `look` returns the usage of a
    /// value and resets its mark.
    pub(super) fn next_victim(&mut self, search: &mut Search, look: impl Fn(&T) -> Usage) -> Option<usize> {
        for _ in 0..ASIDE_LOOKS {
            self.look_aside(search, &look);
        }
        loop {
            if search.ring_looks_left == 0 || self.lists[RING].len == 0 {
                while !self.look_aside(search, &look)? {}
            }
            let key = self.hand.or(self.lists[RING].oldest)?;
            self.hand = self.nodes[key].newer;
            search.ring_looks_left = search.ring_looks_left.saturating_sub(1);
            match look(self.get(key)) {
                Usage::Hit => {}
                Usage::Held => self.put_aside(key),
                Usage::Idle => {
                    self.put_aside(key);
                    return Some(key);
                }
            }
        }
    }

    /// Checks the oldest value aside. Returns whether it went back into the ring, or `None` at the limit of this search.
    fn look_aside(&mut self, search: &mut Search, look: impl Fn(&T) -> Usage) -> Option<bool> {
        search.aside_looks_left = search.aside_looks_left.checked_sub(1)?;
        let key = self.lists[ASIDE].oldest?;
        let is_used = look(self.get(key));
        self.unlink(key);
        if is_used == Usage::Held {
            self.link(ASIDE, key, None);
            search.aside_in_use_left = search.aside_in_use_left.checked_sub(1)?;
            return Some(false);
        }
        let next = self.hand.or(self.lists[RING].oldest);
        self.link(RING, key, next);
        // A value that was hit goes behind the hand, as if the hand had spared it.
        self.hand = if is_used == Usage::Hit { next } else { Some(key) };
        search.ring_looks_left += 1;
        Some(true)
    }

    fn put_aside(&mut self, key: usize) {
        self.unlink(key);
        self.link(ASIDE, key, None);
    }

    /// Inserts a node into a list, before a newer one or as the newest.
    fn link(&mut self, list: usize, key: usize, newer: Option<usize>) {
        let older = newer.map_or(self.lists[list].newest, |newer| self.nodes[newer].older);
        let node = &mut self.nodes[key];
        (node.list, node.older, node.newer) = (list, older, newer);
        match older {
            Some(older) => self.nodes[older].newer = Some(key),
            None => self.lists[list].oldest = Some(key),
        }
        match newer {
            Some(newer) => self.nodes[newer].older = Some(key),
            None => self.lists[list].newest = Some(key),
        }
        self.lists[list].len += 1;
    }

    fn unlink(&mut self, key: usize) {
        let Node { list, older, newer, .. } = self.nodes[key];
        if self.hand == Some(key) {
            self.hand = newer;
        }
        match older {
            Some(older) => self.nodes[older].newer = newer,
            None => self.lists[list].oldest = newer,
        }
        match newer {
            Some(newer) => self.nodes[newer].older = older,
            None => self.lists[list].newest = older,
        }
        self.lists[list].len -= 1;
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// A value, whether it is in use, and whether it was hit.
    struct Item {
        name: usize,
        in_use: Cell<bool>,
        hit: Cell<bool>,
    }

    fn item(name: usize, in_use: bool) -> Item {
        Item { name, in_use: Cell::new(in_use), hit: Cell::new(false) }
    }

    fn look(item: &Item) -> Usage {
        match (item.in_use.get(), item.in_use.get() || item.hit.take()) {
            (true, _) => Usage::Held,
            (false, true) => Usage::Hit,
            (false, false) => Usage::Idle,
        }
    }

    /// Evicts one value. Returns its name and the number of looks.
    fn evict(sieve: &mut Sieve<Item>) -> (Option<usize>, usize) {
        let looks = Cell::new(0);
        let counted = |item: &Item| {
            looks.set(looks.get() + 1);
            look(item)
        };
        let mut search = sieve.search();
        let victim = sieve.next_victim(&mut search, counted);
        (victim.map(|key| sieve.remove(key).name), looks.get())
    }

    const MANY: usize = 10_000;

    /// Regression: each miss on a full node visited all held values, twice.
    #[test]
    fn the_hand_steps_over_values_in_use_once() {
        let mut sieve = Sieve::new();
        let held: Vec<usize> = (0..MANY).map(|name| sieve.insert(item(name, true))).collect();
        sieve.insert(item(MANY, false));
        let (victim, looks) = evict(&mut sieve);
        assert_eq!((victim, looks), (Some(MANY), MANY + 1), "past each of them, this once");
        for name in MANY + 1..MANY + 1000 {
            sieve.insert(item(name, false));
            let (victim, looks) = evict(&mut sieve);
            assert_eq!(victim, Some(name));
            assert!(looks <= 1 + ASIDE_LOOKS, "{looks} looks for one victim");
        }
        // All are in use.
        for _ in 0..10 {
            let (victim, looks) = evict(&mut sieve);
            assert_eq!(victim, None);
            assert!(looks <= ASIDE_IN_USE_MAX + 1, "{looks} looks for nothing");
        }
        // One is released: a search finds it in its turn.
        sieve.get(held[MANY / 2]).in_use.set(false);
        let searches = (1..=MANY).find(|_| evict(&mut sieve).0 == Some(MANY / 2));
        assert!(searches.is_some_and(|searches| searches <= MANY / ASIDE_IN_USE_MAX + 1), "{searches:?}");
    }

    #[test]
    fn released_values_return_under_the_hand() {
        let mut sieve = Sieve::new();
        let held: Vec<usize> = (0..MANY).map(|name| sieve.insert(item(name, true))).collect();
        assert_eq!(evict(&mut sieve).0, None);
        held.iter().for_each(|&key| sieve.get(key).in_use.set(false));
        let mut left: Vec<usize> = Vec::new();
        while let (Some(victim), looks) = evict(&mut sieve) {
            assert!(looks <= 2 * ASIDE_LOOKS + 2, "{looks}");
            left.push(victim);
        }
        left.sort_unstable();
        assert!(left.into_iter().eq(0..MANY), "each is evicted once");
        assert_eq!(sieve.len(), 0);
    }

    proptest! {
        /// A search finds every victim once, after any sequence of uses, hits, releases and removals.
        #[test]
        fn finds_all_victims(
            steps in proptest::collection::vec((0..6_u8, 0..100_usize), 1..200),
        ) {
            let mut sieve = Sieve::new();
            let mut keys: Vec<usize> = Vec::new();
            for (name, (step, which)) in steps.into_iter().enumerate() {
                let key = keys.get(which % keys.len().max(1)).copied();
                match (step, key) {
                    (0 | 1, _) | (_, None) => keys.push(sieve.insert(item(name, step == 0))),
                    (2, Some(key)) => sieve.get(key).in_use.set(which % 2 == 0),
                    (3, Some(key)) => sieve.get(key).hit.set(true),
                    (4, Some(key)) => {
                        keys.retain(|&other| other != key);
                        sieve.remove(key);
                    }
                    (_, Some(_)) => {
                        let mut search = sieve.search();
                        let mut found = std::collections::BTreeSet::new();
                        while let Some(key) = sieve.next_victim(&mut search, look) {
                            prop_assert!(!sieve.get(key).in_use.get() && found.insert(key));
                        }
                        let in_use = keys.iter().filter(|&&key| sieve.get(key).in_use.get()).count();
                        if in_use <= ASIDE_IN_USE_MAX {
                            prop_assert_eq!(found.len(), keys.len() - in_use);
                        }
                    }
                }
                prop_assert_eq!(sieve.len(), keys.len());
                prop_assert_eq!(sieve.lists[RING].len + sieve.lists[ASIDE].len, keys.len());
            }
        }
    }
}
