//! Which pages of this process are portals: a table of atomics, read by every submission.

use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa_emulator::shared::QueueAt;

const PAGE: u64 = 4096;
/// Places. Each device has 8 queues, and programs map a queue once for each thread at most.
const PLACES: usize = 512;
/// What was a portal, so that those behind it in the table are still found.
const GONE: u64 = 1;

/// The table: a page's place is the first free one from where its number points.
pub(crate) struct Portals([Place; PLACES]);

struct Place {
    page: AtomicU64,  // its address; 0 never used, GONE used before
    queue: AtomicU64, // 15:8 device, 7:0 queue
}

impl Portals {
    /// The queue whose portal is at `address`.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<QueueAt> {
        let page = address & !(PAGE - 1);
        for place in self.places_of(page) {
            // ORDERING: Acquire pairs with the Release in `add`.
            match place.page.load(Ordering::Acquire) {
                0 => return None,
                found if found == page => {
                    let queue = place.queue.load(Ordering::Relaxed);
                    return QueueAt::new((queue >> 8) as usize, (queue & 0xff) as usize);
                }
                _ => {}
            }
        }
        None
    }

    /// Remembers a portal; false if there is no room. The page was just mapped, so that nobody uses it yet.
    pub(crate) fn add(&self, address: u64, at: QueueAt) -> bool {
        let queue = (at.device as u64) << 8 | at.queue as u64;
        for place in self.places_of(address) {
            let page = place.page.load(Ordering::Relaxed);
            // A place that somebody is writing has another page's address; it is not in use for this one.
            if page <= GONE
                && place.page.compare_exchange(page, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                place.queue.store(queue, Ordering::Relaxed);
                // ORDERING: Release pairs with the Acquire in `find`: the queue is written.
                place.page.store(address, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Forgets the portals in a range of addresses that is about to be unmapped, or replaced.
    pub(crate) fn remove(&self, start: u64, bytes: u64) {
        let range = start & !(PAGE - 1)..start.saturating_add(bytes);
        for place in &self.0 {
            let page = place.page.load(Ordering::Relaxed);
            if page > CLAIMED && range.contains(&page) {
                let _ = place.page.compare_exchange(page, GONE, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn places_of(&self, page: u64) -> impl Iterator<Item = &Place> {
        let first = (page / PAGE) as usize;
        (0..PLACES).map(move |step| &self.0[(first + step) % PLACES])
    }
}

/// A place that is being written.
const CLAIMED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Portals {
        Portals(std::array::from_fn(|_| Place { page: AtomicU64::new(0), queue: AtomicU64::new(0) }))
    }

    fn at(device: usize, queue: usize) -> QueueAt {
        QueueAt::new(device, queue).unwrap()
    }

    #[test]
    fn pages_with_the_same_place() {
        let portals = table();
        let page = |number: u64| 0x7f00_0000_0000 + number * PLACES as u64 * PAGE;
        for number in 0..3 {
            assert!(portals.add(page(number), at(number as usize, 7)));
        }
        portals.remove(page(1), 1);
        assert_eq!(portals.find(page(1)), None);
        assert_eq!(portals.find(page(2) + 0xfc0), Some(at(2, 7)), "behind one that is gone");
        assert!(portals.add(page(1), at(15, 0)));
        assert_eq!(portals.find(page(1) + 64), Some(at(15, 0)));
        portals.remove(0, u64::MAX);
        assert!((0..3).all(|number| portals.find(page(number)).is_none()));
    }

    #[test]
    fn a_full_table_says_so() {
        let portals = table();
        assert!((1..=PLACES as u64).all(|number| portals.add(number * PAGE, at(0, 0))));
        assert!(!portals.add(1 << 40, at(0, 0)));
        assert_eq!(portals.find(1 << 40), None);
        portals.remove(5 * PAGE, PAGE);
        assert!(portals.add(1 << 40, at(0, 1)));
        assert_eq!((portals.find(1 << 40), portals.find(5 * PAGE)), (Some(at(0, 1)), None));
    }
}
