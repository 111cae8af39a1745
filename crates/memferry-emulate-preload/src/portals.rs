//! The table of the portals of this process. Every submission reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa_emulator::shared::QueueAt;

const PAGE: u64 = 4096;
/// Slots. A device has 8 queues, and a program maps a queue at most once for each thread.
const SLOTS: usize = 512;
/// Marks a slot that was never used.
const EMPTY: u64 = 0;
/// Marks the slot of a removed portal, so that a search goes on behind it.
const TOMBSTONE: u64 = 1;
/// Marks a slot that a thread is writing.
const CLAIMED: u64 = 2;

/// A hash table with open addressing: the search for a page starts at its page number, modulo the size.
///
/// Without locks. `add` and `remove` run in the hooks of any thread, `find` in any thread and in signal handlers.
pub(crate) struct Portals([Slot; SLOTS]);

struct Slot {
    page: AtomicU64,  // its address, or EMPTY, TOMBSTONE, CLAIMED
    queue: AtomicU64, // 15:8 device, 7:0 queue; written by the thread that claimed the slot
}

impl Portals {
    /// Returns the queue whose portal is at `address`.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<QueueAt> {
        let page = address & !(PAGE - 1);
        for slot in self.slots_of(page) {
            // ORDERING: Acquire pairs with the Release in `add`: `queue` is visible with the address.
            match slot.page.load(Ordering::Acquire) {
                EMPTY => return None,
                found if found == page => {
                    let queue = slot.queue.load(Ordering::Relaxed);
                    return QueueAt::new((queue >> 8) as usize, (queue & 0xff) as usize);
                }
                _ => {}
            }
        }
        None
    }

    /// Adds a portal; false if there is no room. The page was just mapped, so no thread uses it yet.
    pub(crate) fn add(&self, address: u64, at: QueueAt) -> bool {
        let queue = (at.device as u64) << 8 | at.queue as u64;
        for slot in self.slots_of(address) {
            let page = slot.page.load(Ordering::Relaxed);
            // A slot that another thread has claimed is going to have another page.
            // ORDERING: Acquire keeps the store of `queue` behind the claim, which excludes other writers.
            if page <= TOMBSTONE
                && slot.page.compare_exchange(page, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                slot.queue.store(queue, Ordering::Relaxed);
                // ORDERING: Release pairs with the Acquire in `find`: `queue` is visible with the address.
                slot.page.store(address, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Removes the portals in a range of addresses that is about to be unmapped or replaced.
    pub(crate) fn remove(&self, start: u64, bytes: u64) {
        let range = start & !(PAGE - 1)..start.saturating_add(bytes);
        for slot in &self.0 {
            let page = slot.page.load(Ordering::Relaxed);
            if page > CLAIMED && range.contains(&page) {
                let _ = slot.page.compare_exchange(page, TOMBSTONE, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn slots_of(&self, page: u64) -> impl Iterator<Item = &Slot> {
        let first = (page / PAGE) as usize;
        (0..SLOTS).map(move |step| &self.0[(first + step) % SLOTS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Portals {
        Portals(std::array::from_fn(|_| Slot { page: AtomicU64::new(EMPTY), queue: AtomicU64::new(0) }))
    }

    fn at(device: usize, queue: usize) -> QueueAt {
        QueueAt::new(device, queue).unwrap()
    }

    #[test]
    fn pages_with_the_same_slot() {
        let portals = table();
        let page = |number: u64| 0x7f00_0000_0000 + number * SLOTS as u64 * PAGE;
        for number in 0..3 {
            assert!(portals.add(page(number), at(number as usize, 7)));
        }
        portals.remove(page(1), 1);
        assert_eq!(portals.find(page(1)), None);
        assert_eq!(portals.find(page(2) + 0xfc0), Some(at(2, 7)), "behind a tombstone");
        assert!(portals.add(page(1), at(15, 0)));
        assert_eq!(portals.find(page(1) + 64), Some(at(15, 0)));
        portals.remove(0, u64::MAX);
        assert!((0..3).all(|number| portals.find(page(number)).is_none()));
    }

    #[test]
    fn a_full_table_says_so() {
        let portals = table();
        assert!((1..=SLOTS as u64).all(|number| portals.add(number * PAGE, at(0, 0))));
        assert!(!portals.add(1 << 40, at(0, 0)));
        assert_eq!(portals.find(1 << 40), None);
        portals.remove(5 * PAGE, PAGE);
        assert!(portals.add(1 << 40, at(0, 1)));
        assert_eq!((portals.find(1 << 40), portals.find(5 * PAGE)), (Some(at(0, 1)), None));
    }
}
