//! The order in which things leave: SIEVE, over those that can.
//!
//! ```text
//! ring    oldest ─ ... ─ hand ─ ... ─ newest ◀── new          aside ◀── found in use
//! ```
//!
//! A hand walks from the oldest to the newest and round again; what was hit since it last passed is spared and loses its
//! mark, the first one without a mark is the victim. CLOCK is as cheap, but puts what its hand spared next to what is new;
//! S3-FIFO needs two queues more and a memory of what left.
//!
//! What is in use when the hand comes by cannot leave. It goes aside, so that the hand steps over it once and not on each
//! round: with all but one of 10 000 in use, a victim would otherwise be 10 000 steps away, each time. What lies aside is
//! looked at in turn, a little in each search, and more if the ring has nothing to give; what is no longer in use goes
//! back under the hand. So a search takes some steps for each victim, one for each thing that came into use since, and
//! [`ASIDE_IN_USE_MAX`] more at worst. The price: after such a search found nothing, what was let go of among very many
//! that are in use is found by one of the next searches, not by the first.
//!
//! Source: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", Zhang, Yang, Yue,
//! Vigfusson, Rashmi, NSDI 2024. What lies aside is our addition: its objects cannot be in use.

use slab::Slab;

/// How many that are in use a search looks at aside, if the ring has nothing to give. Chosen: some 100 ns.
const ASIDE_IN_USE_MAX: usize = 64;
/// How many that lie aside each search looks at, so that what is no longer in use comes back under the hand in about one
/// round of it.
const ASIDE_LOOKS: usize = 2;

/// Values under keys that stay the same while they are in.
pub(super) struct Sieve<T> {
    nodes: Slab<Node<T>>,
    lists: [List; 2],
    /// In the ring, the next to be looked at; `None`: the oldest.
    hand: Option<usize>,
}

/// Places in `Sieve::lists`.
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

/// What the hand finds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It cannot leave now.
    Held,
    /// It was hit since this was last asked.
    Hit,
    /// Neither.
    Idle,
}

/// One search for victims: where it ends.
///
/// Each look into the ring takes something out of it or a mark off something, so that `ring_looks_left` comes to 0 when
/// the ring is empty, unless marks are set as fast as the hand takes them. Who goes aside goes behind those who were there
/// when the search began, at which `aside_looks_left` ends.
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

    /// Adds the newest.
    pub(super) fn insert(&mut self, value: T) -> usize {
        let key = self.nodes.insert(Node { value, list: RING, older: None, newer: None });
        self.link(RING, key, None);
        key
    }

    /// Panics without such a key, as all that takes keys.
    pub(super) fn get(&self, key: usize) -> &T {
        &self.nodes[key].value
    }

    pub(super) fn remove(&mut self, key: usize) -> T {
        self.unlink(key);
        self.nodes.remove(key).value
    }

    /// Takes all out, in no order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::replace(self, Sieve::new()).nodes.into_iter().map(|(_, node)| node.value)
    }

    /// What the hand will come to, in this order, until the newest.
    pub(super) fn ahead(&self) -> impl Iterator<Item = &T> {
        let first = self.hand.or(self.lists[RING].oldest);
        std::iter::successors(first, |&key| self.nodes[key].newer).map(|key| self.get(key))
    }

    /// Begins a search.
    pub(super) fn search(&self) -> Search {
        let aside_looks_left = self.lists[ASIDE].len;
        // Twice round, since the first round may do nothing but clear marks.
        let ring_looks_left = 2 * self.lists[RING].len;
        Search { ring_looks_left, aside_looks_left, aside_in_use_left: ASIDE_IN_USE_MAX }
    }

    /// The next victim, which goes aside until it is removed; no search finds the same one twice. `look` says how a value
    /// is used, and resets its mark.
    pub(super) fn next_victim(&mut self, search: &mut Search, look: impl Fn(&T) -> Use) -> Option<usize> {
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
                Use::Hit => {}
                Use::Held => self.put_aside(key),
                Use::Idle => {
                    self.put_aside(key);
                    return Some(key);
                }
            }
        }
    }

    /// Looks at the one that lies aside longest: whether it came back into the ring, or `None` if this search has looked
    /// at enough.
    fn look_aside(&mut self, search: &mut Search, look: impl Fn(&T) -> Use) -> Option<bool> {
        search.aside_looks_left = search.aside_looks_left.checked_sub(1)?;
        let key = self.lists[ASIDE].oldest?;
        let is_used = look(self.get(key));
        self.unlink(key);
        if is_used == Use::Held {
            self.link(ASIDE, key, None);
            search.aside_in_use_left = search.aside_in_use_left.checked_sub(1)?;
            return Some(false);
        }
        let next = self.hand.or(self.lists[RING].oldest);
        self.link(RING, key, next);
        // One that was hit is behind the hand, which has just spared it.
        self.hand = if is_used == Use::Hit { next } else { Some(key) };
        search.ring_looks_left += 1;
        Some(true)
    }

    fn put_aside(&mut self, key: usize) {
        self.unlink(key);
        self.link(ASIDE, key, None);
    }

    /// Puts a node into a list, next to a newer one or as the newest.
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

    fn look(item: &Item) -> Use {
        match (item.in_use.get(), item.in_use.get() || item.hit.take()) {
            (true, _) => Use::Held,
            (false, true) => Use::Hit,
            (false, false) => Use::Idle,
        }
    }

    /// Evicts one, and how many looks that took.
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

    /// Once each miss on a full node looked at all that were held, twice.
    #[test]
    fn the_hand_steps_over_what_is_in_use_once() {
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
        // Nothing can leave.
        for _ in 0..10 {
            let (victim, looks) = evict(&mut sieve);
            assert_eq!(victim, None);
            assert!(looks <= ASIDE_IN_USE_MAX + 1, "{looks} looks for nothing");
        }
        // One is let go of: it is found when its turn comes.
        sieve.get(held[MANY / 2]).in_use.set(false);
        let searches = (1..=MANY).find(|_| evict(&mut sieve).0 == Some(MANY / 2));
        assert!(searches.is_some_and(|searches| searches <= MANY / ASIDE_IN_USE_MAX + 1), "{searches:?}");
    }

    #[test]
    fn what_is_let_go_of_comes_back_under_the_hand() {
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
        assert!(left.into_iter().eq(0..MANY), "each leaves once");
        assert_eq!(sieve.len(), 0);
    }

    proptest! {
        /// A search finds a victim if there is one, each once, whatever is in use, hit, let go of and removed before.
        #[test]
        fn finds_all_that_can_leave(
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
                        // No more than the many in use that a search looks at.
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
