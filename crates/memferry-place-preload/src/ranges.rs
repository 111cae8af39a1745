//! The placed ranges of this process, by their start, so that they are sampled before they are freed.
//!
//! Programs free most memory before they exit, and then the kernel has no answer any more. A table of fixed size needs no
//! allocator: buckets of eight addresses, which are one cache line. A range that finds its bucket full is not recorded;
//! only the summary misses it.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

use crate::counts::COUNTS;
use crate::sys::{self, NODES_MAX, PAGE};

const BUCKETS: usize = 512;
const PLACES: usize = 8;
/// Pages of a freed range that are looked at: one of each of so many parts. The query takes a few microseconds.
const SAMPLES: usize = 64;

#[repr(C, align(64))]
struct Bucket([AtomicUsize; PLACES]);

/// Starts of ranges; 0: free.
static STARTS: [Bucket; BUCKETS] = [const { Bucket([const { AtomicUsize::new(0) }; PLACES]) }; BUCKETS];
/// Sizes of ranges; valid if the start is.
static SIZES: [Bucket; BUCKETS] = [const { Bucket([const { AtomicUsize::new(0) }; PLACES]) }; BUCKETS];

fn bucket(start: usize) -> usize {
    // Fibonacci hashing of the page number: Knuth, The Art of Computer Programming, 6.4.
    (start / PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.trailing_zeros())
}

/// Records a range, also over a former one with this start: MAP_FIXED replaces it.
pub(crate) fn add(start: usize, bytes: usize) {
    let index = bucket(start);
    let places = || STARTS[index].0.iter().zip(&SIZES[index].0);
    if let Some((_, size)) = places().find(|(known, _)| known.load(Ordering::Relaxed) == start) {
        // ORDERING: as below.
        return size.store(bytes, Ordering::Release);
    }
    for (known, size) in places() {
        // ORDERING: Release pairs with the Acquire in `take`. The size is stored afterwards: the owner of the range calls
        // both functions, or has handed the range to the thread that frees it.
        if known.compare_exchange(0, start, Ordering::Release, Ordering::Relaxed).is_ok() {
            size.store(bytes, Ordering::Release);
            return;
        }
    }
}

/// Whether a pointer may be the start of a recorded allocation: glibc returns 16 bytes after a page for large ones, other
/// allocators and aligned functions a page. One of 128 small allocations is so as well.
#[inline]
pub(crate) fn may_be_start(pointer: usize) -> bool {
    pointer & (PAGE - 1 - 16) & !15 == 0
}

/// Forgets the range at this start, and returns its size.
pub(crate) fn take(start: usize) -> Option<usize> {
    let index = bucket(start);
    STARTS[index].0.iter().zip(&SIZES[index].0).find_map(|(known, size)| {
        // ORDERING: Acquire pairs with the Release in `add`.
        if known.load(Ordering::Acquire) != start {
            return None;
        }
        let bytes = size.swap(0, Ordering::Acquire);
        known.store(0, Ordering::Release);
        Some(bytes)
    })
}

/// Samples a range that is about to be freed.
pub(crate) fn sample(start: usize, bytes: usize) {
    let first = start.next_multiple_of(PAGE);
    let count = ((start + bytes) / PAGE).saturating_sub(first / PAGE);
    let samples = count.min(SAMPLES);
    if samples == 0 {
        return;
    }
    let (mut pages, mut nodes) = ([0; SAMPLES], [-1 as c_int; SAMPLES]);
    for (index, page) in pages[..samples].iter_mut().enumerate() {
        // Somewhere in each of so many equal parts: even distances would meet the same nodes of a periodic pattern.
        let (from, to) = (index * count / samples, (index + 1) * count / samples);
        let somewhere = (first / PAGE + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        *page = first + (from + somewhere % (to - from)) * PAGE;
    }
    if !sys::nodes_of(&pages[..samples], &mut nodes[..samples]) {
        return;
    }
    COUNTS.freed.add(bytes);
    let share = (count * PAGE / samples) as u64;
    for node in nodes[..samples].iter().filter_map(|&node| usize::try_from(node).ok()) {
        if node < NODES_MAX {
            COUNTS.freed_bytes[node].fetch_add(share, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_once() {
        let starts: Vec<usize> = (1..200).map(|index| index * 77 * PAGE + index % 2 * 16).collect();
        starts.iter().for_each(|&start| add(start, start / 2));
        assert!(starts.iter().all(|&start| may_be_start(start)));
        assert!(!may_be_start(PAGE + 32) && !may_be_start(PAGE + 256));
        for &start in &starts {
            assert_eq!((take(start), take(start)), (Some(start / 2), None));
        }
        assert_eq!(take(12_345 * PAGE), None);
    }

    /// Each mapping over the same start once took another place, until the bucket was full.
    #[test]
    fn a_start_has_one_place() {
        let start = 54_321 * PAGE;
        (1..20).for_each(|bytes| add(start, bytes));
        assert_eq!((take(start), take(start)), (Some(19), None));
    }

    /// A program with more ranges than places goes on without a record of them.
    #[test]
    fn a_full_bucket_takes_no_more() {
        let same: Vec<usize> =
            (1 << 20..).map(|page| page * PAGE).filter(|&at| bucket(at) == 7).take(9).collect();
        same.iter().for_each(|&start| add(start, 1));
        assert_eq!(same.iter().filter(|&&start| take(start).is_some()).count(), PLACES);
    }
}
