//! The entries of one client: its submitted descriptors, in memory that no other client can write.
//!
//! ```text
//! submitter: stores words, submitter, position, seal     device: loads words; if the seal matches them, executes once
//! ```
//!
//! The ring decides when an entry is processed, but every user of the queue can write the ring. So a device executes an
//! entry from here only if its *seal* matches the words and the ring's position, and clears the seal, so that no entry
//! is executed twice. The seal also detects torn entries: a forged ring may give one slot to two submitters at a time.

use super::{SLOTS, Stamp, slot_of};
use crate::sync::{AtomicU64, Ordering};

/// The entries of one client in one queue, by the ring's slots. Zeroed memory has no entries.
///
/// | field | written by | read by |
/// |---|---|---|
/// | words, `by`, `position` | the client's submitter that holds the slot | the client's device, the server |
/// | `seal` | that submitter; the submitter or the device clears it | submitters, the client's device, the server |
#[repr(C)]
pub(crate) struct Entries([Entry; SLOTS]);

/// An entry. The words fill one cache line; the rest is in the adjacent line, which is prefetched with it.
#[repr(C, align(128))]
struct Entry {
    words: [AtomicU64; 8],
    seal: AtomicU64, // 0: nothing
    position: AtomicU64,
    by: AtomicU64,
}

/// The content of a slot that was popped.
pub(crate) struct PoppedEntry {
    pub(crate) words: [u64; 8],
    /// The encoded submitter, for the trace.
    pub(crate) by: u64,
}

impl Entries {
    pub(crate) fn new() -> Entries {
        let word = || AtomicU64::new(0);
        let entry =
            || Entry { words: std::array::from_fn(|_| word()), seal: word(), position: word(), by: word() };
        Entries(std::array::from_fn(|_| entry()))
    }

    /// Stores an entry in the slot of its position. Returns false, and changes nothing, if the slot has an entry.
    ///
    /// The words are passed by reference: copying words that were just written may stall until the stores are done.
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
        // ORDERING: Release pairs with the Acquire of `seal` in `Entry::read` and `take`: the words and all earlier
        // writes of the submitter are visible.
        entry.seal.store(seal(words, position), Ordering::Release);
        true
    }

    /// Takes the entry of a position, if there is one. Of several concurrent callers, one gets it.
    #[inline]
    pub(crate) fn take(&self, position: u64) -> Option<PoppedEntry> {
        let entry = self.entry(position);
        let (sealed, words) = entry.read();
        if sealed == 0 || sealed != seal(&words, position) {
            return None;
        }
        let by = entry.by.load(Ordering::Relaxed);
        // ORDERING: Acquire pairs with the Release of `seal` in `put`. Release keeps the reads of the words before the
        // cleared seal; `put` loads that Relaxed, and the Acquire of `head` in `take_slot` orders its stores.
        let is_mine = entry.seal.compare_exchange(sealed, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_mine.then_some(PoppedEntry { words, by })
    }

    /// Whether there is an entry of this position.
    pub(crate) fn has(&self, position: u64) -> bool {
        let (sealed, words) = self.entry(position).read();
        sealed != 0 && sealed == seal(&words, position)
    }

    /// Takes an entry whose position is outside the ring's range: the head has passed it, so that no device would ever
    /// pop it. `range` returns head and tail. An entry with a wrong seal is cleared, since it would block its slot.
    pub(crate) fn take_stranded(&self, range: impl Fn() -> (u64, u64)) -> Option<PoppedEntry> {
        self.0.iter().find_map(|entry| {
            // ORDERING: Acquire pairs with the Release of `seal` in `put`: the tail had passed the position before, and
            // is loaded after this.
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
        // ORDERING: Acquire pairs with the Release of `seal` in `put`: the words are complete.
        let sealed = self.seal.load(Ordering::Acquire);
        (sealed, std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed)))
    }
}

/// A checksum of the words and their position; never 0. It is a sum of products as in UMAC: a word of another entry
/// changes the sum, except with a probability of about 2^-64. No other client can write this memory, so the keys need
/// not be secret. Two keys suffice for all pairs, since torn words keep their places.
///
/// Source: the function NH of RFC 4418; the keys are digits of pi, odd so that multiples of pages change all digits.
#[inline]
fn seal(words: &[u64; 8], position: u64) -> u64 {
    const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0xa409_3822_299f_31d1];
    let product = |first: usize| (words[first] ^ KEYS[0]).wrapping_mul(words[first + 1] ^ KEYS[1]);
    // A tree, for a short dependency chain: the submission waits for it.
    let [low, high] = [product(0).wrapping_add(product(2)), product(4).wrapping_add(product(6))];
    low.wrapping_add(position).wrapping_add(high).max(1)
}
