//! The entries of one client: what it has submitted, in memory that no other client can write.
//!
//! ```text
//! submitter: words, who and how, position, seal        device: words, seal of what it read? executes, once
//! ```
//!
//! The ring says when an entry is processed, and whoever uses the queue can write the ring. So a device executes what it
//! finds here, and only if the *seal* is that of these words at the ring's position; it takes the seal away, so that
//! nothing is executed twice. The seal also tells torn entries: a ring that somebody has tampered with may hand one slot
//! to two submitters at a time.

use super::{SLOTS, Stamp, slot_of};
use crate::sync::{AtomicU64, Ordering};

/// The entries of one client in one queue, by the ring's slots. All zero there are none.
///
/// | field | written by | read by |
/// |---|---|---|
/// | words, `by`, `position` | the client's submitter that has the slot | the client's device, the server |
/// | `seal` | that submitter; it, or the device, takes the seal away | submitters, the client's device, the server |
#[repr(C)]
pub(crate) struct Entries([Entry; SLOTS]);

/// The words have a cache line of their own, the rest is the line that is fetched with it.
#[repr(C, align(128))]
struct Entry {
    words: [AtomicU64; 8],
    seal: AtomicU64, // 0: nothing
    position: AtomicU64,
    by: AtomicU64,
}

/// What was in a slot.
pub(crate) struct PoppedEntry {
    pub(crate) words: [u64; 8],
    /// Who submitted it and how, for a trace.
    pub(crate) by: u64,
}

impl Entries {
    pub(crate) fn new() -> Entries {
        let word = || AtomicU64::new(0);
        let entry =
            || Entry { words: std::array::from_fn(|_| word()), seal: word(), position: word(), by: word() };
        Entries(std::array::from_fn(|_| entry()))
    }

    /// Puts an entry into the slot of its position. False, and nothing has changed, if the slot has an entry.
    ///
    /// The words come by reference, since a copy of what was written just now may keep a processor waiting until its
    /// stores are done.
    #[inline]
    pub(crate) fn put(&self, position: u64, words: &[u64; 8], stamp: &Stamp) -> bool {
        let entry = self.entry(position);
        if entry.seal.load(Ordering::Relaxed) != 0 {
            return false;
        }
        for (place, word) in entry.words.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        entry.by.store(stamp.by, Ordering::Relaxed);
        entry.position.store(position, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire in `take`: the words, and all memory that the submitter wrote before.
        entry.seal.store(seal(words, position), Ordering::Release);
        true
    }

    /// Takes the entry of a position, if there is one: of several who try, one gets it.
    #[inline]
    pub(crate) fn take(&self, position: u64) -> Option<PoppedEntry> {
        let entry = self.entry(position);
        let (sealed, words) = entry.read();
        if sealed == 0 || sealed != seal(&words, position) {
            return None;
        }
        let by = entry.by.load(Ordering::Relaxed);
        // ORDERING: AcqRel: who takes the seal has read the words before the slot is written again.
        let is_mine = entry.seal.compare_exchange(sealed, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_mine.then_some(PoppedEntry { words, by })
    }

    /// Whether there is an entry of this position.
    pub(crate) fn has(&self, position: u64) -> bool {
        let (sealed, words) = self.entry(position).read();
        sealed != 0 && sealed == seal(&words, position)
    }

    /// Takes an entry whose position is not in the ring's range: the head has passed it, and no device would ever come to
    /// it. `range` is the head and the tail. What makes no sense there is cleared, since no entry comes into such a slot.
    pub(crate) fn take_stranded(&self, range: impl Fn() -> (u64, u64)) -> Option<PoppedEntry> {
        self.0.iter().find_map(|entry| {
            // ORDERING: Acquire pairs with the Release in `put`: the tail was behind the position by then, and is read
            // after it.
            let sealed = entry.seal.load(Ordering::Acquire);
            if sealed == 0 {
                return None;
            }
            let position = entry.position.load(Ordering::Relaxed);
            let (head, tail) = range();
            let waits = super::distance(head, position) <= super::distance(head, tail);
            if waits {
                return None;
            }
            let taken = self.take(position);
            if taken.is_none() {
                let _ = entry.seal.compare_exchange(sealed, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            taken
        })
    }

    /// Changes a word without changing the seal.
    #[cfg(all(test, not(memferry_loom)))]
    pub(crate) fn tear(&self, position: u64) {
        self.entry(position).words[3].fetch_xor(1, Ordering::Relaxed);
    }

    fn entry(&self, position: u64) -> &Entry {
        &self.0[slot_of(position)]
    }
}

impl Entry {
    fn read(&self) -> (u64, [u64; 8]) {
        // ORDERING: Acquire pairs with the Release in `put`.
        let sealed = self.seal.load(Ordering::Acquire);
        (sealed, std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed)))
    }
}

/// A sum over the words and their position; never 0. Sums of products, as in UMAC: where one word is another entry's, the sum
/// is another, but by a chance of about 1 in 2^64. Nobody else can write the memory that it lies in, so it need not be
/// secret, and the same two keys do for all pairs: torn words are in their places.
///
/// Source: the function NH of RFC 4418; the keys are digits of pi, odd so that multiples of pages change all digits.
#[inline]
fn seal(words: &[u64; 8], position: u64) -> u64 {
    const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0xa409_3822_299f_31d1];
    let product = |first: usize| (words[first] ^ KEYS[0]).wrapping_mul(words[first + 1] ^ KEYS[1]);
    // As a tree, since the submission waits for it.
    let [low, high] = [product(0).wrapping_add(product(2)), product(4).wrapping_add(product(6))];
    low.wrapping_add(position).wrapping_add(high).max(1)
}
