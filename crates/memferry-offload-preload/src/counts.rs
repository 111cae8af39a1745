//! Counters of this process: calls and bytes by class of sizes and by engine. All of them are only summed, so every access
//! is relaxed.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The smallest size that is counted, and that a device may get. A counter costs some nanoseconds, a copy of 16 KiB some
/// hundred: below, counting would be seen.
pub(crate) const COUNTED_BYTES_MIN: usize = 16 << 10;
/// Classes of sizes: from 16 KiB, each twice as large as the one before; the last is open.
pub(crate) const CLASSES: usize = 12;

/// The class of a size.
#[inline]
pub(crate) fn class(size: usize) -> usize {
    let doublings = (size / COUNTED_BYTES_MIN).checked_ilog2().unwrap_or(0) as usize;
    doublings.min(CLASSES - 1)
}

/// The calls of one class.
pub(crate) struct ClassCounts {
    pub(crate) calls: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) device_calls: AtomicU64,
    pub(crate) device_bytes: AtomicU64,
}

pub(crate) struct Counts {
    pub(crate) classes: [ClassCounts; CLASSES],
    /// Descriptors that stopped at a page fault and were resumed.
    pub(crate) resumed: AtomicU64,
    /// Descriptors that the CPU finished: after several page faults, or after an error of the device.
    pub(crate) finished: AtomicU64,
    /// Descriptors that no queue took.
    pub(crate) refused: AtomicU64,
    /// Calls that overlap.
    pub(crate) overlapping: AtomicU64,
    /// Calls while the thread was in one already.
    pub(crate) nested: AtomicU64,
    /// Estimated time saved by the calls that a device shared; negative: lost.
    pub(crate) saved_ns: AtomicI64,
    /// Calls in `saved_ns`.
    pub(crate) estimated: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    classes: [const {
        ClassCounts {
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            device_calls: AtomicU64::new(0),
            device_bytes: AtomicU64::new(0),
        }
    }; CLASSES],
    resumed: AtomicU64::new(0),
    finished: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    overlapping: AtomicU64::new(0),
    nested: AtomicU64::new(0),
    saved_ns: AtomicI64::new(0),
    estimated: AtomicU64::new(0),
};

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Sets all counters to zero: those of the parent, in a child of fork.
pub(crate) fn reset() {
    let counts = &COUNTS;
    let others = [
        &counts.resumed,
        &counts.finished,
        &counts.refused,
        &counts.overlapping,
        &counts.nested,
        &counts.estimated,
    ];
    let of_classes = (counts.classes.iter())
        .flat_map(|class| [&class.calls, &class.bytes, &class.device_calls, &class.device_bytes]);
    of_classes.chain(others).for_each(|counter| counter.store(0, Ordering::Relaxed));
    counts.saved_ns.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        let kib = |size: usize| class(size << 10);
        assert_eq!([0, 1, 15, 16, 31].map(kib), [0; 5]);
        assert_eq!([32, 63, 64, 1024].map(kib), [1, 1, 2, 6]);
        assert_eq!((class(usize::MAX), kib(32 << 10)), (CLASSES - 1, CLASSES - 1));
    }
}
