//! Counters of a process. Relaxed everywhere: each is a number of its own, read at exit.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys::NODES_MAX;

/// A number of ranges and their bytes.
pub(crate) struct Ranges {
    pub(crate) count: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Ranges {
    const NEW: Ranges = Ranges { count: AtomicU64::new(0), bytes: AtomicU64::new(0) };

    pub(crate) fn add(&self, bytes: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// The ranges of a process, by their fate.
pub(crate) struct Counts {
    /// Results of malloc and its relatives with a policy.
    pub(crate) heap: Ranges,
    /// Anonymous mappings with a policy.
    pub(crate) anonymous: Ranges,
    /// Files with a policy.
    pub(crate) files: Ranges,
    /// Copies of files on the node of this process.
    pub(crate) replicas: Ranges,
    /// Files without a copy, because the threads may run on several nodes.
    pub(crate) unconfined: Ranges,
    /// Files without a copy, because the node has no room.
    pub(crate) without_room: Ranges,
    /// Files without a copy, because they can change: a writable mapping, or a process that has them open for writing.
    pub(crate) writable: Ranges,
    /// Ranges of threads with a policy of their own.
    pub(crate) own_policy: Ranges,
    /// Ranges after a device was mapped.
    pub(crate) after_device: Ranges,
    /// Ranges with equal instead of the requested weights: no stripes are left, or hugetlb pages.
    pub(crate) without_weights: Ranges,
    /// Ranges that the kernel refused.
    pub(crate) refused: Ranges,
    /// Ranges that were unmapped or freed, and were sampled before.
    pub(crate) freed: Ranges,
    /// The errno of the last refusal.
    pub(crate) refusal: AtomicI32,
    /// Bytes of freed ranges on each node, by samples.
    pub(crate) freed_bytes: [AtomicU64; NODES_MAX],
}

pub(crate) static COUNTS: Counts = Counts {
    heap: Ranges::NEW,
    anonymous: Ranges::NEW,
    files: Ranges::NEW,
    replicas: Ranges::NEW,
    unconfined: Ranges::NEW,
    without_room: Ranges::NEW,
    writable: Ranges::NEW,
    own_policy: Ranges::NEW,
    after_device: Ranges::NEW,
    without_weights: Ranges::NEW,
    refused: Ranges::NEW,
    freed: Ranges::NEW,
    refusal: AtomicI32::new(0),
    freed_bytes: [const { AtomicU64::new(0) }; NODES_MAX],
};

impl Counts {
    /// Counts a refusal, whose number the summary explains.
    pub(crate) fn refuse(&self, bytes: usize, errno: i32) {
        self.refused.add(bytes);
        self.refusal.store(errno, Ordering::Relaxed);
    }

    /// A child of fork begins anew.
    pub(crate) fn reset(&self) {
        let all = [
            &self.heap,
            &self.anonymous,
            &self.files,
            &self.replicas,
            &self.unconfined,
            &self.without_room,
            &self.writable,
            &self.own_policy,
            &self.after_device,
            &self.without_weights,
            &self.refused,
            &self.freed,
        ];
        for ranges in all {
            ranges.count.store(0, Ordering::Relaxed);
            ranges.bytes.store(0, Ordering::Relaxed);
        }
        self.freed_bytes.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
    }
}
